import os
import shutil

import numpy as np
import pytest

import attn
from attn import tensorfile, training_checkpoint
from attn.characters import CharTokenizer
from attn.filesets import DRAFT, PENDING, current, replacing_together
from attn.history import History
from attn.training import TrainConfig
from attn.training_checkpoint import Training
from tests.cases import decoder, draw, refused, weights_of

NAMES = ["config.json", "model.safetensors", "optimizer.safetensors", "train.json"]
CFG = decoder()


def training_of(losses=(3.5, 2.25), dtype="float64") -> Training:
    weights = weights_of(CFG, dtype)
    mu, nu = ({name: draw(*array.shape, seed=seed, dtype=dtype) for name, array in weights.items()} for seed in (5, 7))
    history = History(train=TrainConfig(steps=7), tokenizer=CharTokenizer.of("attention"), losses=list(losses))
    return Training(CFG, weights, mu, nu, history)


def contents(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def folder(tmp_path):
    training_checkpoint.save(tmp_path / "run", training_of())
    return tmp_path / "run"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_training_reads_back_to_the_last_bit(tmp_path, dtype):
    training = training_of(dtype=dtype)
    training_checkpoint.save(tmp_path, training)
    loaded = training_checkpoint.load(tmp_path)
    assert loaded.cfg == training.cfg
    assert loaded.history == training.history
    for ours, theirs in zip(training[1:4], loaded[1:4], strict=True):
        assert ours.keys() == theirs.keys()
        for name, array in ours.items():
            assert theirs[name].dtype == array.dtype
            np.testing.assert_array_equal(theirs[name], array)


def test_moments_lie_under_the_names_and_shapes_of_pytorch(folder):
    assert sorted(contents(folder)) == NAMES
    model, optimizer = (tensorfile.read(folder / f"{name}.safetensors") for name in ("model", "optimizer"))
    assert optimizer.shapes.keys() == {f"{kind}.{name}" for kind in ("mu", "nu") for name in model.shapes}
    kernel = training_of().nu["layers.0.attention.q.kernel"]
    np.testing.assert_array_equal(optimizer["nu.layers.0.attention.q.weight"], kernel.reshape(17, 42).T)


def test_it_is_a_checkpoint_folder_too(folder):
    cfg, weights = attn.load(folder)
    assert cfg == CFG
    np.testing.assert_array_equal(weights["embed.embedding"], training_of().weights["embed.embedding"])


def test_the_history_is_read_alone(folder):
    (folder / "model.safetensors").unlink()
    assert training_checkpoint.load_history(folder) == training_of().history


def test_bytes_depend_on_the_training_alone(folder, tmp_path):
    cfg, *arrays, history = training_of()
    shuffled = [dict(reversed(array.items())) for array in arrays]
    training_checkpoint.save(tmp_path / "other", Training(cfg, *shuffled, history))
    assert contents(tmp_path / "other") == contents(folder)
    training_checkpoint.save(tmp_path / "again", training_checkpoint.load(folder))
    assert contents(tmp_path / "again") == contents(folder)


@pytest.mark.parametrize("name", NAMES)
def test_files_of_two_saves_are_not_mixed(folder, tmp_path, name):
    other = training_of(losses=(3.5, 2.0))._replace(cfg=decoder(norm=attn.NormConfig(eps=0.1)))
    training_checkpoint.save(tmp_path / "other", other)
    shutil.copyfile(tmp_path / "other" / name, folder / name)
    with pytest.raises(
        ValueError, match=r"must be saved together with config\.json and train\.json, \w{64}; got \w{64}"
    ):
        training_checkpoint.load(folder)


def test_weights_that_were_saved_alone_do_not_resume(folder):
    attn.save(folder, CFG, training_of().weights)
    with pytest.raises(ValueError, match=r"model\.safetensors must be saved together with .*; got None\.\Z"):
        training_checkpoint.load(folder)


def rewrite_optimizer(folder, change) -> None:
    file = tensorfile.read(folder / "optimizer.safetensors")
    tensors = dict(file)
    change(tensors)
    tensorfile.write(folder / "optimizer.safetensors", tensors, file.metadata)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t: t.pop("nu.norm.weight"),
            "{} under nu.<name>: weights do not fit the decoder config: norm.weight is missing.",
        ),
        (
            lambda t: t.update({"mu.more": np.zeros(3)}),
            "{} under mu.<name>: weights do not fit the decoder config: more is unexpected.",
        ),
        (
            lambda t: t.update({"mu.norm.weight": np.zeros(3)}),
            "{} under mu.<name>: weights do not fit the decoder config: norm.weight has shape (3,) instead of (17,).",
        ),
        (lambda t: t.update(step=np.zeros(1)), "{} must hold mu.<name> and nu.<name> alone; got step."),
        (
            lambda t: t.update({"nu.norm.weight": t["nu.norm.weight"].astype("float32")}),
            "nu.norm.weight must be float64 as its weight is; got float32.",
        ),
    ],
)
def test_moments_that_do_not_fit_are_refused(folder, change, message):
    rewrite_optimizer(folder, change)
    with refused(message.format(folder / "optimizer.safetensors")):
        training_checkpoint.load(folder)


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_file_is_refused(folder, name):
    (folder / name).unlink()
    with pytest.raises(OSError, match=name):
        training_checkpoint.load(folder)


@pytest.mark.parametrize("kind", ["weights", "mu", "nu"])
def test_arrays_that_do_not_fit_are_refused_and_nothing_is_written(folder, kind):
    before = contents(folder)
    training = training_of(losses=(1.0,))
    getattr(training, kind).pop("norm.scale")
    with refused("weights do not fit the decoder config: norm.scale is missing."):
        training_checkpoint.save(folder, training)
    assert contents(folder) == before


class Crash(BaseException):
    """The process ends here."""


def crash_at(monkeypatch, count: int) -> None:
    """Let the process end before the count-th time that a file or a folder takes its place."""
    left = [count]

    def crashing(function):
        def moved(*args):
            left[0] -= 1
            if left[0] < 0:
                raise Crash
            function(*args)

        return moved

    for name in ("replace", "rename"):
        monkeypatch.setattr(os, name, crashing(getattr(os, name)))
    # Whoever is gone cleans nothing up.
    monkeypatch.setattr(shutil, "rmtree", lambda *args, **options: None)


MOVES = 4 + 1 + 4
"""Each draft takes its name, the drafts are decided upon together, each takes its place."""


@pytest.mark.parametrize("count", range(MOVES + 1))
def test_a_crash_leaves_the_old_training_or_the_new_one(folder, monkeypatch, count):
    old, new = training_of(), training_of(losses=(3.5, 2.25, 1.0))._replace(mu=training_of().nu)
    with monkeypatch.context() as patch:
        crash_at(patch, count)
        if count < MOVES:
            with pytest.raises(Crash):
                training_checkpoint.save(folder, new)
        else:
            training_checkpoint.save(folder, new)
    found = training_checkpoint.load(folder)
    expected = old if count <= 4 else new
    assert found.history == expected.history
    for ours, theirs in zip(expected[1:4], found[1:4], strict=True):
        np.testing.assert_equal(dict(theirs), ours)
    # The next save tidies up.
    training_checkpoint.save(folder, old)
    assert sorted(contents(folder)) == NAMES
    assert training_checkpoint.load(folder).history == old.history


def test_files_that_fail_together_leave_no_trace(tmp_path):
    (tmp_path / "a").write_text("old")

    def write_and_fail():
        with replacing_together(tmp_path) as draft:
            (draft / "a").write_text("new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_and_fail()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_other_files_of_the_folder_stay(tmp_path):
    (tmp_path / "notes").write_text("mine")
    with replacing_together(tmp_path) as draft:
        (draft / "a").write_text("new")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"notes": "mine", "a": "new"}
    assert current(tmp_path, "a") == tmp_path / "a"


def test_what_was_decided_counts_before_it_is_moved(tmp_path):
    (tmp_path / "a").write_text("old")
    (tmp_path / PENDING).mkdir()
    (tmp_path / PENDING / "a").write_text("new")
    (tmp_path / DRAFT).mkdir()
    (tmp_path / DRAFT / "a").write_text("newer, never decided upon")
    assert current(tmp_path, "a").read_text() == "new"
