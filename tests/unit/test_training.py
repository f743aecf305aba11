import json
import math
import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attn
from attn import batches, training
from attn.batches import Batches, examples
from attn.characters import CharTokenizer
from attn.training import TrainConfig, check_trainable, decayed, learning_rates


def refused(message: str):
    """Expect a ValueError that says this; pydantic adds where and what."""
    return pytest.raises(ValueError, match=re.escape(message))


def test_a_config_travels_through_json():
    cfg = TrainConfig(steps=31, warmup=7, schedule="linear", min_learning_rate=1e-4, max_norm=None, eval_every=5)
    assert TrainConfig.model_validate_json(cfg.to_json()) == cfg
    assert list(json.loads(cfg.to_json())) == list(TrainConfig.model_fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"steps": 7, "warmup": 7}, "warmup must be below steps; got warmup=7 and steps=7."),
        ({"min_learning_rate": 0.5}, "min_learning_rate must be at most learning_rate=0.003; got 0.5."),
        (
            {"schedule": "constant", "min_learning_rate": 1e-4},
            "min_learning_rate is not read by the constant schedule; got 0.0001.",
        ),
        (
            {"validation_fraction": 0.0, "eval_every": 3},
            "eval_every needs a validation_fraction above 0; got eval_every=3.",
        ),
        (
            {"validation_fraction": 0.0, "validation_windows": 3},
            "validation_windows needs a validation_fraction above 0; got validation_windows=3.",
        ),
        ({"steps": 0}, "Input should be greater than 0"),
        ({"steps": 8.0}, "Input should be a valid integer"),
        ({"batch": True}, "Input should be a valid integer"),
        ({"learning_rate": 0.0}, "Input should be greater than 0"),
        ({"learning_rate": math.inf}, "Input should be a finite number"),
        ({"beta2": 1.0}, "Input should be less than 1"),
        ({"max_norm": 0.0}, "Input should be greater than 0"),
        ({"validation_fraction": 1.0}, "Input should be less than 1"),
        ({"schedule": "step"}, "Input should be 'constant', 'linear' or 'cosine'"),
        ({"momentum": 0.9}, "Extra inputs are not permitted"),
    ],
)
def test_what_cannot_be_is_refused(fields, message):
    with refused(message):
        TrainConfig(**fields)


HALF = math.sqrt(0.5)


@pytest.mark.parametrize(
    ("fields", "rates"),
    [
        ({"schedule": "constant"}, [4, 4, 4, 4, 4]),
        ({"schedule": "linear"}, [4, 3, 2, 1, 0]),
        ({"schedule": "linear", "min_learning_rate": 2.0}, [4, 3.5, 3, 2.5, 2]),
        ({"schedule": "cosine"}, [4, 2 + 2 * HALF, 2, 2 - 2 * HALF, 0]),
        ({"schedule": "cosine", "min_learning_rate": 2.0}, [4, 3 + HALF, 3, 3 - HALF, 2]),
        # The first step already moves, and the rate that the warm-up leads to comes once.
        ({"schedule": "constant", "warmup": 3}, [1, 2, 3, 4, 4]),
        ({"schedule": "linear", "warmup": 1}, [2, 4, 8 / 3, 4 / 3, 0]),
        ({"schedule": "linear", "min_learning_rate": 3.0, "warmup": 3}, [1, 2, 3, 4, 3]),
        ({"schedule": "cosine", "warmup": 4}, [0.8, 1.6, 2.4, 3.2, 4]),
    ],
)
def test_the_schedule_is_what_it_says(fields, rates):
    measured = learning_rates(TrainConfig(steps=5, learning_rate=4.0, **fields))
    assert measured.dtype == np.float64
    np.testing.assert_allclose(measured, rates, rtol=1e-15, atol=1e-15)


def test_a_single_step_has_the_full_rate():
    assert learning_rates(TrainConfig(steps=1)).tolist() == [3e-3]


def test_projections_and_tables_decay_and_nothing_else():
    attention = attn.GroupedQueryAttentionConfig(
        input_dim=13, heads=6, kv_heads=3, dim_k=30, dim_v=42, bias=True, mask={"kind": "causal"}
    )
    mlp = attn.MLPConfig(input_dim=13, hidden_dim=23, bias=True)
    norm = attn.NormConfig(kind="layer")
    cfg = attn.DecoderConfig(
        vocab_size=17, layers=1, attention=attention, mlp=mlp, norm=norm, tied=False, learned_positions=11
    )
    projections = [f"attention.{name}" for name in ("q", "k", "v", "out")] + ["mlp.gate", "mlp.up", "mlp.down"]
    kernels = {f"layers.0.{name}.kernel" for name in projections} | {"head.kernel"}
    assert {leaf.name for leaf in decayed(cfg)} == kernels | {"embed.embedding", "positions.embedding"}


def test_half_types_are_refused_by_name():
    check_trainable({"q.kernel": np.zeros(1, np.float32), "k.kernel": np.zeros(1, np.float64)})
    with refused("k.kernel has dtype float16; expected float32 or float64."):
        check_trainable({"q.kernel": np.zeros(1, np.float32), "k.kernel": np.zeros(1, np.float16)})


COUNTING = np.arange(103)
SMALL = TrainConfig(batch=5, context=7, validation_fraction=0.3)


def test_a_batch_is_windows_of_the_training_part():
    for step in range(50):
        windows = Batches(SMALL, COUNTING).at(step)
        assert windows.shape == (5, 8)
        assert windows.dtype == np.int32
        assert (np.diff(windows, axis=1) == 1).all()
        assert windows.min() >= 0
        assert windows.max() < 73


def test_a_batch_depends_on_seed_and_step_alone():
    forwards = [Batches(SMALL, COUNTING).at(step) for step in range(7)]
    sampler = Batches(SMALL.replace(steps=11, learning_rate=1.0), COUNTING)
    backwards = [sampler.at(step) for step in reversed(range(7))][::-1]
    np.testing.assert_array_equal(forwards, backwards)
    others = [*forwards, *(Batches(SMALL.replace(seed=1), COUNTING).at(step) for step in range(7))]
    assert len({windows.tobytes() for windows in others}) == 14


def test_batches_never_change_with_a_version():
    # Written down once: another stream would break the resume of every older checkpoint.
    assert Batches(SMALL, COUNTING).at(3)[:, 0].tolist() == [33, 59, 63, 56, 46]


def test_every_start_has_its_chance():
    cfg = TrainConfig(batch=5, context=7, validation_fraction=0.0)
    starts = Counter(start for step in range(300) for start in Batches(cfg, COUNTING[:10]).at(step)[:, 0].tolist())
    assert sorted(starts) == [0, 1, 2]
    # 1500 draws over three starts: 500 each, give or take five deviations of 18.
    assert all(abs(count - 500) < 5 * 18.3 for count in starts.values())


def test_validation_predicts_each_held_out_token_once():
    windows = list(Batches(SMALL, COUNTING).validation())
    assert [batch.shape for batch in windows] == [(5, 8)]
    pairs = [(batch.inputs, batch.targets) for batch in map(examples, windows)]
    predicted = np.concatenate([targets[targets >= 0] for _, targets in pairs])
    np.testing.assert_array_equal(predicted, np.arange(74, 103))
    for inputs, targets in pairs:
        assert (targets - inputs)[targets >= 0].tolist() == [1] * (targets >= 0).sum()


@pytest.mark.parametrize("count", range(17, 40))
def test_validation_covers_any_length(count):
    cfg = TrainConfig(batch=2, context=7, validation_fraction=0.5)
    held_out = np.arange(2 * count)[-count:]
    windows = list(Batches(cfg, np.arange(2 * count)).validation())
    assert {batch.shape for batch in windows} == {(2, 8)}
    targets = np.concatenate([examples(batch).targets.ravel() for batch in windows])
    np.testing.assert_array_equal(targets[targets >= 0], held_out[1:])


def test_fewer_windows_are_spread_evenly():
    cfg = TrainConfig(batch=2, context=7, validation_fraction=0.5, validation_windows=3)
    windows = list(Batches(cfg, np.arange(160)).validation())
    assert np.concatenate(windows)[:, 0].tolist() == [80, 80 + 4 * 7, 80 + 8 * 7, -1]


def test_without_a_held_out_part_nothing_is_validated():
    assert list(Batches(TrainConfig(context=7, validation_fraction=0.0), COUNTING).validation()) == []


def test_the_text_is_not_copied():
    tokens = np.arange(103, dtype=np.uint16)
    assert np.shares_memory(Batches(SMALL, tokens).train, tokens)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (np.zeros((3, 50), int), "tokens must be one row of numbers; got shape (3, 50)."),
        (np.zeros(99), "tokens has dtype float64; expected an integer type."),
        (np.zeros(9, int), "tokens must leave more than context=7 to train on; got 7 of 9."),
        (np.zeros(20, int), "tokens must leave more than context=7 to validate on; got 6 of 20."),
    ],
)
def test_tokens_that_do_not_fit_are_refused(tokens, message):
    with refused(message):
        Batches(SMALL, tokens)


def test_tokens_without_a_row_are_refused():
    sampler = Batches(SMALL, COUNTING)
    sampler.check(103)
    with refused("tokens must lie between 0 and 101; got 102."):
        sampler.check(102)
    with refused("tokens must lie between 0 and 102; got -1."):
        Batches(SMALL, COUNTING - 1).check(103)


def test_a_fingerprint_tells_texts_apart(monkeypatch):
    fingerprint = Batches(SMALL, COUNTING).fingerprint()
    assert fingerprint == "103 tokens, crc32 a250aa7b"
    for dtype in (np.uint8, np.int16, np.uint32):
        assert Batches(SMALL, COUNTING.astype(dtype)).fingerprint() == fingerprint
    monkeypatch.setattr(batches, "CHUNK", 10)
    assert Batches(SMALL, COUNTING).fingerprint() == fingerprint
    assert Batches(SMALL, np.flip(COUNTING)).fingerprint() != fingerprint


def test_a_negative_number_is_no_token():
    inputs, targets, valid = examples(np.array([[3, 5, 2, 7], [-1, 4, 6, -1], [1, -1, 8, 9]]))
    assert inputs.tolist() == [[3, 5, 2], [0, 4, 6], [1, 0, 8]]
    assert targets.tolist() == [[5, 2, 7], [-1, 6, -1], [-1, -1, 9]]
    assert valid.tolist() == [[True] * 3, [False, True, True], [True, False, True]]


def test_whole_batches_say_nothing_about_validity():
    batch = examples(np.array([[3, 5, 2, 7], [1, 4, 6, -1]]))
    assert batch.valid is None
    assert batch.targets.tolist() == [[5, 2, 7], [4, 6, -1]]
    assert batch.count == 5


@pytest.mark.parametrize("shape", [(5,), (5, 1), (2, 3, 5)])
def test_a_batch_of_another_shape_is_refused(shape):
    with refused(f"tokens must be integers [B T+1] with T of at least 1; got int64 of shape {shape}."):
        examples(np.zeros(shape, int))


def test_an_alphabet_is_sorted_and_reads_back():
    tokenizer = CharTokenizer.of("hello, wörld 🙂\n")
    assert tokenizer.characters == "\n ,dehlorwö🙂"
    assert tokenizer.vocab_size == 12
    assert tokenizer.encode("low 🙂").tolist() == [6, 7, 9, 1, 11]
    assert tokenizer.encode("low").dtype == np.int32
    assert CharTokenizer.model_validate_json(tokenizer.to_json()) == tokenizer


@given(st.text(min_size=1))
def test_any_text_survives_its_own_alphabet(text):
    tokenizer = CharTokenizer.of(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert CharTokenizer.model_validate_json(tokenizer.to_json()) == tokenizer


def test_the_empty_text_is_no_tokens():
    assert CharTokenizer.of("ab").encode("").shape == (0,)
    assert CharTokenizer.of("ab").decode(np.zeros(0, np.int32)) == ""


def test_what_the_alphabet_lacks_is_refused():
    tokenizer = CharTokenizer.of("abd")
    with refused("text must keep to the alphabet of 3 characters; got 'ce'."):
        tokenizer.encode("ecbc")
    for token in (-1, 3):
        with refused(f"tokens must lie between 0 and 2; got {token}."):
            tokenizer.decode([0, token])
    for characters in ("ba", "aab"):
        with refused(f"characters must be sorted, each once; got {characters!r}."):
            CharTokenizer(characters=characters)
    with refused("String should have at least 1 character"):
        CharTokenizer(characters="")


def test_the_kinds_that_decay_are_kinds_of_the_layout():
    assert (attn.layout.Projection, attn.layout.Table) == training.DECAYING
