"""Weights cross between the twins and the disk to the last bit."""

import filecmp
import json

import jax
import ml_dtypes
import numpy as np
import pytest
import torch

import attn
import attn_jax
import attn_torch
from attn import tensorfile
from tests.cases import CASES, decoder, draw, refused, weights_of

ALL = CASES | {"decoder": decoder(learned_positions=37, norm=attn.NormConfig(kind="layer"))}
every = pytest.mark.parametrize("cfg", ALL.values(), ids=ALL)
FILES = ["config.json", "model.safetensors"]
DTYPES = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}
SQUARE = attn.MultiHeadAttentionConfig(input_dim=6, heads=2, bias=True)


def random_bits(cfg, dtype: str) -> dict[str, np.ndarray]:
    """Weights of every kind of value: infinities, NaNs with any payload and subnormals too."""
    rng, kind = np.random.default_rng(0), np.dtype(DTYPES[dtype])
    raw = {name: rng.integers(0, 256, (*shape, kind.itemsize), np.uint8) for name, shape in cfg.shapes().items()}
    return {name: array.view(kind)[..., 0] for name, array in raw.items()}


def assert_same_bits(actual, expected) -> None:
    assert list(actual) == list(expected)
    for name, array in expected.items():
        assert (actual[name].dtype, actual[name].shape) == (array.dtype, array.shape)
        assert np.asarray(actual[name]).tobytes() == array.tobytes(), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cfg", [SQUARE, ALL["grouped_query"], ALL["latent_reading"], ALL["decoder"]])
def test_there_and_back_changes_no_bit(cfg, dtype):
    weights = random_bits(cfg, dtype)
    assert_same_bits(attn_torch.to_neutral(cfg, attn_torch.from_neutral(cfg, weights)), weights)
    with jax.enable_x64(dtype == "float64"):
        assert_same_bits(attn_jax.to_neutral(cfg, attn_jax.from_neutral(cfg, weights)), weights)


@every
def test_a_module_holds_what_it_is_given_and_gives_it_back(cfg):
    for dtype in ("float64", "float32", "bfloat16"):
        weights = random_bits(cfg, dtype)
        module = attn_torch.build(cfg)
        module.load_state_dict(attn_torch.from_neutral(cfg, weights), strict=True)
        assert {parameter.dtype for parameter in module.parameters()} == {getattr(torch, dtype)}
        assert_same_bits(attn_torch.to_neutral(cfg, module), weights)


@every
def test_flax_has_the_neutral_shapes_under_nested_names(cfg):
    module = attn_jax.build(cfg)
    x = np.zeros((1, 3), np.int32) if cfg.variant == "decoder" else np.zeros((1, 3, cfg.input_dim), np.float32)
    sides = [x] if getattr(cfg, "reads", None) is None else [x, np.zeros((1, 5, cfg.reads), np.float32)]
    made = jax.eval_shape(module.init, jax.random.key(0), *sides)
    given = attn_jax.from_neutral(cfg, attn.init_weights(cfg, seed=0))
    assert jax.tree.map(lambda a: (a.shape, a.dtype), made) == jax.tree.map(lambda a: (a.shape, a.dtype), given)


@every
def test_torch_has_the_names_of_its_layout(cfg):
    state = attn_torch.build(cfg).state_dict()
    given = attn_torch.from_neutral(cfg, attn.init_weights(cfg, seed=0))
    assert {name: tensor.shape for name, tensor in state.items()} == {name: t.shape for name, t in given.items()}


def test_a_square_kernel_cannot_hide_a_missing_transpose():
    weights = weights_of(SQUARE, "float32")
    state = attn_torch.from_neutral(SQUARE, weights)
    for name in ("q", "k", "v", "out"):
        np.testing.assert_array_equal(state[f"{name}.weight"], weights[f"{name}.kernel"].reshape(6, 6).T)
    # And what is computed with it is x @ kernel.
    x = draw(2, 5, 6, dtype="float32")
    kernel = weights["q.kernel"].reshape(6, 6)
    module = attn_torch.build(SQUARE)
    module.load_state_dict(state)
    expected = x @ kernel + weights["q.bias"].reshape(6)
    np.testing.assert_allclose(module.q(torch.from_numpy(x)).detach().flatten(2), expected, rtol=0, atol=1e-6)
    bound = attn_jax.build(SQUARE).bind(attn_jax.from_neutral(SQUARE, weights))
    np.testing.assert_allclose(bound.q(x).reshape(2, 5, 6), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_copy_does_not_follow_its_source(dtype):
    cfg = CASES["grouped_query"]
    source = random_bits(cfg, dtype)
    kept = {name: array.copy() for name, array in source.items()}
    state, variables = attn_torch.from_neutral(cfg, source), attn_jax.from_neutral(cfg, source)
    module = attn_torch.build(cfg)
    module.load_state_dict(state)
    for array in source.values():
        array.fill(7)
    assert_same_bits(attn_torch.to_neutral(cfg, state), kept)
    assert_same_bits(attn_jax.to_neutral(cfg, variables), kept)
    for tensor in state.values():
        tensor.fill_(7)
    assert_same_bits(attn_torch.to_neutral(cfg, module), kept)
    # And the other way round.
    for back in (attn_torch.to_neutral(cfg, module), attn_jax.to_neutral(cfg, variables)):
        for array in back.values():
            array.fill(9)
    assert_same_bits(attn_torch.to_neutral(cfg, module), kept)
    assert_same_bits(attn_jax.to_neutral(cfg, variables), kept)


def test_float64_is_not_rounded_behind_ones_back():
    cfg = CASES["self"]
    with refused("q.kernel needs jax_enable_x64, without which JAX rounds it; got dtype float64."):
        attn_jax.from_neutral(cfg, weights_of(cfg, "float64"))


def test_float64_is_not_read_behind_ones_back(tmp_path):
    attn.save(tmp_path, CASES["self"], weights_of(CASES["self"], "float64"))
    with refused("q.kernel needs jax_enable_x64, without which JAX rounds it; got dtype float64."):
        attn_jax.load(tmp_path)


def assert_same_files(one, other) -> None:
    assert sorted(path.name for path in one.iterdir()) == FILES
    assert filecmp.cmpfiles(one, other, FILES, shallow=False) == (FILES, [], [])


@every
def test_every_way_to_the_disk_writes_the_same_bytes(cfg, tmp_path):
    for dtype in ("float32", "bfloat16"):
        start, second, third, fourth = (tmp_path / f"{dtype}{step}" for step in range(4))
        weights = weights_of(cfg, DTYPES[dtype])
        attn.save(start, cfg, weights)
        attn_torch.save(second, attn_torch.load(start))
        attn_jax.save(third, *attn_jax.load(second))
        attn_torch.save(fourth, attn_torch.load(third))
        for folder in (second, third, fourth):
            assert_same_files(start, folder)
        read_cfg, read = attn.load(fourth)
        assert read_cfg == cfg
        assert_same_bits(read, weights)


def test_every_dtype_survives_the_disk(tmp_path):
    cfg = ALL["grouped_query"]
    for dtype in DTYPES:
        weights = random_bits(cfg, dtype)
        attn.save(tmp_path / dtype, cfg, weights)
        module = attn_torch.load(tmp_path / dtype)
        assert_same_bits(attn_torch.to_neutral(cfg, module), weights)
        with jax.enable_x64(dtype == "float64"):
            assert_same_bits(attn_jax.to_neutral(cfg, attn_jax.load(tmp_path / dtype)[1]), weights)


def test_the_file_holds_what_other_tools_expect(tmp_path):
    from safetensors.torch import load_file

    cfg = ALL["decoder"]
    module = attn_torch.build(cfg)
    attn_torch.save(tmp_path, module)
    state = load_file(tmp_path / "model.safetensors")
    assert state.keys() == module.state_dict().keys()
    assert all(torch.equal(tensor, module.state_dict()[name]) for name, tensor in state.items())
    assert json.loads((tmp_path / "config.json").read_text())["variant"] == "decoder"


def folder_of(tmp_path, name="self"):
    attn.save(tmp_path, CASES[name], weights_of(CASES[name], "float32"))
    return tmp_path


LOADS = [attn.load, attn_torch.load, attn_jax.load]


@pytest.mark.parametrize("load", LOADS)
def test_a_folder_that_contradicts_itself_is_refused(load, tmp_path):
    folder = folder_of(tmp_path)
    tensors = dict(tensorfile.read(folder / "model.safetensors"))
    other = {name: array for name, array in tensors.items() if name != "q.bias"}
    other |= {"v.weight": tensors["v.weight"].T.copy(), "out.weight": tensors["q.weight"]}
    tensorfile.write(folder / "model.safetensors", other)
    with refused(
        "weights do not fit the self config: q.bias is missing; out.weight is unexpected; "
        "v.weight has shape (17, 4) instead of (4, 17)."
    ):
        load(folder)


@pytest.mark.parametrize("load", LOADS)
def test_a_folder_with_another_config_is_refused(load, tmp_path):
    folder = folder_of(tmp_path)
    (folder / "config.json").write_text(CASES["self"].replace(dim_v=5).to_json())
    with pytest.raises(ValueError, match=r"^weights do not fit the self config: v.weight has shape \(4, 17\)"):
        load(folder)


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("keep", [0, 7, 100, -1])
def test_a_file_that_was_cut_off_is_refused(load, keep, tmp_path):
    path = folder_of(tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged: "):
        load(tmp_path)


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("text", ["", "{}", "[]", '{"variant": "nothing"}', '{"variant": "self"}'])
def test_a_folder_whose_config_is_none_is_refused(load, text, tmp_path):
    (folder_of(tmp_path) / "config.json").write_text(text)
    with pytest.raises(ValueError):  # noqa: PT011 (pydantic's text, which names the field)
        load(tmp_path)


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("name", FILES)
def test_a_folder_that_lacks_a_file_is_refused(load, name, tmp_path):
    (folder_of(tmp_path) / name).unlink()
    with pytest.raises(FileNotFoundError, match=name.replace(".", r"\.")):
        load(tmp_path)


def test_the_twins_draw_from_the_distribution_that_is_declared():
    cfg = attn.SelfAttentionConfig(input_dim=191, dim_k=211, dim_v=211, bias=True)
    x = np.zeros((1, 1, 191), np.float32)
    in_jax = attn_jax.to_neutral(cfg, jax.jit(attn_jax.build(cfg).init)(jax.random.key(0), x))
    torch.manual_seed(0)
    in_torch = attn_torch.to_neutral(cfg, attn_torch.build(cfg))
    for weights in (in_jax, in_torch):
        for name in ("q.kernel", "k.kernel", "v.kernel"):
            unit = weights[name].astype(float) * np.sqrt(191)
            # 0.8796 is the deviation of a standard normal that is cut at 2.
            assert abs(unit.mean()) < 4 * 0.8796 / np.sqrt(unit.size)
            assert abs(unit.std() - 0.8796) < 4 * 0.8796 / np.sqrt(2 * unit.size)
            assert 1.99 < abs(unit).max() <= 2
        assert not weights["q.bias"].any()
        assert abs(np.corrcoef(weights["q.kernel"].ravel(), weights["k.kernel"].ravel())[0, 1]) < 5 / np.sqrt(unit.size)
