import json
import os
import re
import tracemalloc
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from attn.shards import read_sharded
from attn.tensorfile import TensorFile, read, write
from attn.tensorheader import DTYPES

STORIES = Path(__file__).parents[2] / "examples" / "data" / "stories260K" / "model.safetensors"

TORCH_DTYPES = {
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
    "F32": "float32",
    "U32": "uint32",
    "I32": "int32",
    "BF16": "bfloat16",
    "F16": "float16",
    "U16": "uint16",
    "I16": "int16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}


def random_bits(dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """An array of every kind of value: NaNs with any payload, infinities and subnormals too."""
    raw = np.random.default_rng(0).integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    return (raw % 2 if dtype.kind == "b" else raw).view(dtype).reshape(shape)


def bits(array: np.ndarray) -> tuple:
    return array.dtype, array.shape, array.tobytes()


def every_dtype() -> dict[str, np.ndarray]:
    return {f"a {code}": random_bits(dtype, (3, 5)) for code, dtype in DTYPES.items()}


def refused(message: str):
    """Expect a ValueError with exactly this text."""
    return pytest.raises(ValueError, match=rf"^{re.escape(message)}\Z")


def craft(path: Path, header: object, data: bytes = b"") -> Path:
    """Write a file that may be wrong in any way."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(dtype="F32", shape=(2,), begin=0, end=8) -> dict:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


class Lazy(Mapping):
    """Tensors made when asked for, counting how often."""

    def __init__(self, count=3, shape=(2, 3), *, broken=None):
        self.names = [f"t{i}" for i in range(count)]
        self.shape, self.broken = shape, broken
        self.fetched: list[str] = []

    def __getitem__(self, name):
        self.fetched.append(name)
        if name == self.broken:
            raise RuntimeError("out of memory")
        return np.full(self.shape, self.names.index(name), np.float32)

    def __iter__(self):
        return iter(self.names)

    def __len__(self):
        return len(self.names)


class LazyDescribed(Lazy):
    """The same, with shapes and dtypes known beforehand."""

    @property
    def shapes(self):
        return dict.fromkeys(self.names, self.shape)

    @property
    def dtypes(self):
        return dict.fromkeys(self.names, np.dtype(np.float32))


# Both ways with the safetensors library


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def as_torch(torch, array: np.ndarray, code: str):
    tensor = torch.empty(array.shape, dtype=getattr(torch, TORCH_DTYPES[code]))
    if array.size:
        tensor.view(-1).view(torch.uint8)[:] = torch.from_numpy(array.reshape(-1).view(np.uint8))
    return tensor


def test_a_round_trip_keeps_every_bit_of_every_dtype(tmp_path):
    tensors = every_dtype()
    write(tmp_path / "x", tensors)
    back = read(tmp_path / "x")
    assert back.keys() == tensors.keys()
    for name in tensors:
        assert bits(back[name]) == bits(tensors[name])


@pytest.mark.parametrize("code", DTYPES)
def test_torch_reads_what_we_write(tmp_path, torch, code):
    from safetensors.torch import load_file

    array = random_bits(DTYPES[code], (3, 5))
    write(tmp_path / "x", {"a": array})
    tensor = load_file(tmp_path / "x")["a"]
    assert str(tensor.dtype) == f"torch.{TORCH_DTYPES[code]}"
    assert bits(tensor.view(torch.uint8).numpy().view(array.dtype)) == bits(array)


@pytest.mark.parametrize("code", DTYPES)
def test_we_read_what_torch_writes(tmp_path, torch, code):
    from safetensors.torch import save_file

    array = random_bits(DTYPES[code], (3, 5))
    save_file({"a": as_torch(torch, array, code)}, tmp_path / "x", {"format": "pt"})
    file = read(tmp_path / "x")
    assert file.metadata == {"format": "pt"}
    assert bits(file["a"]) == bits(array)


def test_our_bytes_are_those_of_the_library(tmp_path, torch):
    from safetensors.torch import save

    tensors = every_dtype() | {"b é\n": np.zeros((0, 3), np.float32), "": np.float64([1.5]).reshape(())}
    codes = {dtype: code for code, dtype in DTYPES.items()}
    theirs = save({name: as_torch(torch, a, codes[a.dtype]) for name, a in tensors.items()}, {"format": "pt"})
    write(tmp_path / "x", tensors, {"format": "pt"})
    assert (tmp_path / "x").read_bytes() == theirs


def test_numpy_reads_what_we_write(tmp_path):
    tensors = {name: a for name, a in every_dtype().items() if "F8" not in name}
    write(tmp_path / "x", tensors)
    theirs = safetensors.numpy.load_file(tmp_path / "x")
    assert {name: bits(a) for name, a in theirs.items()} == {name: bits(a) for name, a in tensors.items()}


def test_we_read_what_numpy_writes(tmp_path):
    tensors = {name: a for name, a in every_dtype().items() if a.dtype.kind in "fiub"}
    safetensors.numpy.save_file(tensors, tmp_path / "x")
    ours = read(tmp_path / "x")
    assert {name: bits(a) for name, a in ours.items()} == {name: bits(a) for name, a in tensors.items()}


def test_a_real_checkpoint_comes_back_byte_for_byte(tmp_path):
    file = read(STORIES)
    assert {n: bits(a) for n, a in file.items()} == {
        n: bits(a) for n, a in safetensors.numpy.load_file(STORIES).items()
    }
    write(tmp_path / "x", file, file.metadata)
    assert (tmp_path / "x").read_bytes() == STORIES.read_bytes()


# Writing

GRID = np.arange(30, dtype=np.float32).reshape(5, 6)


@pytest.mark.parametrize(
    "array",
    [
        pytest.param(GRID.T, id="transposed"),
        pytest.param(GRID[:, ::2], id="strided"),
        pytest.param(GRID[::-1], id="reversed"),
        pytest.param(np.asfortranarray(GRID), id="fortran"),
        pytest.param(np.broadcast_to(GRID[:, :1], (5, 6)), id="broadcast"),
        pytest.param(GRID.astype(ml_dtypes.bfloat16).T, id="bfloat16 transposed"),
        pytest.param(GRID.astype(ml_dtypes.float8_e4m3fn)[:, 1::2], id="float8 strided"),
        pytest.param(np.array(7.0), id="0-d"),
        pytest.param(np.array(7.0, ml_dtypes.bfloat16), id="bfloat16 0-d"),
        pytest.param(np.zeros((0, 4), np.int8), id="zero rows"),
        pytest.param(np.zeros((3, 0, 4), ml_dtypes.bfloat16).T, id="zero in the middle"),
    ],
)
def test_an_array_of_any_layout_is_stored_by_value(tmp_path, array):
    write(tmp_path / "x", {"a": array, "after": GRID})
    file = read(tmp_path / "x")
    assert bits(file["a"]) == bits(array)
    assert bits(file["after"]) == bits(GRID)


def test_a_big_endian_array_is_stored_little_endian(tmp_path):
    write(tmp_path / "x", {"a": GRID.astype(">f4")})
    assert bits(read(tmp_path / "x")["a"]) == bits(GRID)


def test_no_tensors_make_a_file_too(tmp_path):
    write(tmp_path / "x", {})
    assert dict(read(tmp_path / "x")) == {}


def test_the_bytes_do_not_depend_on_insertion_order(tmp_path):
    tensors = every_dtype()
    write(tmp_path / "x", tensors, {"one": "1", "two": "2"})
    write(tmp_path / "y", dict(reversed(tensors.items())), {"two": "2", "one": "1"})
    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()


def test_every_tensor_is_aligned(tmp_path):
    odd = {f"{name} {n}": np.zeros(n, a.dtype) for name, a in every_dtype().items() for n in (1, 3, 7)}
    write(tmp_path / "x", odd)
    contents = (tmp_path / "x").read_bytes()
    length = int.from_bytes(contents[:8], "little")
    header = json.loads(contents[8 : 8 + length])
    assert length % 8 == 0
    for said in header.values():
        assert said["data_offsets"][0] % DTYPES[said["dtype"]].itemsize == 0


def test_described_tensors_are_fetched_once(tmp_path):
    tensors = LazyDescribed()
    write(tmp_path / "x", tensors)
    assert tensors.fetched == ["t0", "t1", "t2"]
    assert read(tmp_path / "x")["t2"][0, 0] == 2


@pytest.mark.parametrize("kind", [Lazy, LazyDescribed])
def test_writing_and_reading_hold_one_tensor_at_a_time(tmp_path, kind):
    one_mebibyte = (256, 1024)
    tracemalloc.start()
    write(tmp_path / "x", kind(count=16, shape=one_mebibyte))
    write(tmp_path / "y", read(tmp_path / "x"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * 2**20


@pytest.mark.parametrize(
    ("tensors", "metadata", "message"),
    [
        ({"a": [1.0]}, None, "tensor 'a' should be a numpy array; received list."),
        ({"a": np.float32(1)}, None, "tensor 'a' should be a numpy array; received float32."),
        (
            {"a": np.zeros(2, complex)},
            None,
            "tensor 'a' has a dtype that safetensors lacks; received complex128.",
        ),
        ({"a": np.array(["x"])}, None, "tensor 'a' has a dtype that safetensors lacks; received <U1."),
        ({"__metadata__": GRID}, None, "a tensor has an impossible name; received '__metadata__'."),
        ({3: GRID}, None, "a tensor has an impossible name; received 3."),
        ({}, {"step": 3}, "metadata should map strings to strings; received {'step': 3}."),
    ],
)
def test_what_cannot_be_stored_is_refused(tmp_path, tensors, metadata, message):
    with refused(message):
        write(tmp_path / "x", tensors, metadata)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    write(tmp_path / "x", {"old": GRID})
    with pytest.raises(RuntimeError, match="out of memory"):
        write(tmp_path / "x", LazyDescribed(broken="t1"))
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert bits(read(tmp_path / "x")["old"]) == bits(GRID)


def test_a_tensor_unlike_its_description_is_refused(tmp_path):
    class Liar(LazyDescribed):
        dtypes = dict.fromkeys(["t0", "t1", "t2"], np.dtype(np.float16))

    with refused("tensor 't0' should be float16 of shape (2, 3); received float32 of shape (2, 3)."):
        write(tmp_path / "x", Liar())
    assert list(tmp_path.iterdir()) == []


def test_a_new_file_can_be_read_by_others_as_the_umask_says(tmp_path):
    write(tmp_path / "x", {})
    (tmp_path / "plain").touch()
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "plain").stat().st_mode


# Reading


def test_a_tensor_is_fresh_and_writable(tmp_path):
    write(tmp_path / "x", {"a": GRID})
    file = read(tmp_path / "x")
    array = file["a"]
    assert array.flags.owndata
    assert array.flags.writeable
    array[:] = 0
    assert bits(file["a"]) == bits(GRID)


def test_the_header_answers_without_the_data(tmp_path, monkeypatch):
    write(tmp_path / "x", every_dtype() | {"scalar": np.array(1.0)})
    file = read(tmp_path / "x")
    monkeypatch.setattr(TensorFile, "__getitem__", lambda self, name: pytest.fail(f"{name} was read"))
    assert file.shapes["scalar"] == ()
    assert file.dtypes["a F8_E4M3"] == ml_dtypes.float8_e4m3fn
    assert "a F32" in file
    assert "b" not in file
    assert len(file) == len(list(file)) == 16
    assert repr(file) == f"TensorFile({str(tmp_path / 'x')!r}, 16 tensors)"


def test_an_unknown_name_is_a_key_error(tmp_path):
    write(tmp_path / "x", {"a": GRID})
    with pytest.raises(KeyError, match="'b'"):
        read(tmp_path / "x")["b"]


def test_an_open_file_survives_its_replacement(tmp_path):
    write(tmp_path / "x", {"a": GRID})
    file = read(tmp_path / "x")
    write(tmp_path / "x", {"a": -file["a"]})
    assert bits(file["a"]) == bits(GRID)


def test_a_file_cut_short_while_open_is_refused(tmp_path):
    write(tmp_path / "x", {"a": GRID})
    file = read(tmp_path / "x")
    size = len((tmp_path / "x").read_bytes())
    os.truncate(tmp_path / "x", 100)
    with refused(f"{tmp_path / 'x'} should still have {size} bytes; received 100."):
        file["a"]


def test_a_tensor_at_an_odd_place_is_read(tmp_path):
    data = b"z" + np.float32([1, 2]).tobytes()
    path = craft(tmp_path / "x", {"b": entry(begin=1, end=9), "a": entry("U8", [1], 0, 1)}, data)
    assert list(read(path)) == ["a", "b"]
    assert read(path)["b"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"{'a': 1}", "its JSON cannot be parsed; received b\"{'a': 1}\"."),
        (b'{"\xff": 1}', "its JSON cannot be parsed; received b'{\"\\xff\": 1}'."),
        (b"[" * 99999, "its JSON cannot be parsed; received b'[[[[[[[[[[[[[[[['."),
        (b'{"a": 1, "a": 1}', "its JSON has the same key twice; received 'a'."),
        ([1], "its header should be an object; received [1]."),
        ({"__metadata__": {"a": 3}}, "metadata should map strings to strings; received {'a': 3}."),
        ({"__metadata__": ["a"]}, "metadata should map strings to strings; received ['a']."),
    ],
)
def test_a_malformed_header_is_refused(tmp_path, header, message):
    path = craft(tmp_path / "x", header)
    with refused(f"{path} is damaged: {message}"):
        read(path)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (3, "should have dtype, shape and data_offsets; received 3."),
        ({"dtype": "F32"}, "should have dtype, shape and data_offsets; received {'dtype': 'F32'}."),
        (entry(dtype="F4"), "has an unknown dtype; received 'F4'."),
        (entry(dtype=[]), "has an unknown dtype; received []."),
        (entry(shape=[-2]), "has an impossible shape; received [-2]."),
        (entry(shape=[2.0]), "has an impossible shape; received [2.0]."),
        (entry(shape=[True]), "has an impossible shape; received [True]."),
        (entry() | {"shape": None}, "has an impossible shape; received None."),
        (entry() | {"data_offsets": [0]}, "should have two data_offsets; received [0]."),
        (entry(begin=-8, end=0), "should have two data_offsets; received [-8, 0]."),
        (entry(begin=8, end=0), "of F32 [2] should have 8 bytes; received -8."),
        (entry(shape=[3]), "of F32 [3] should have 12 bytes; received 8."),
        (
            entry(shape=[2**64]),
            "of F32 [18446744073709551616] should have 73786976294838206464 bytes; received 8.",
        ),
    ],
)
def test_a_malformed_entry_is_refused(tmp_path, said, message):
    path = craft(tmp_path / "x", {"a": said}, bytes(8))
    with refused(f"{path} is damaged: tensor 'a' {message}"):
        read(path)


@pytest.mark.parametrize(
    ("spans", "size", "message"),
    [
        pytest.param([(0, 8), (4, 12)], 12, "tensor 'b' should start at data byte 8; received 4.", id="overlap"),
        pytest.param([(0, 8), (0, 8)], 8, "tensor 'b' should start at data byte 8; received 0.", id="same"),
        pytest.param([(0, 8), (9, 17)], 17, "tensor 'b' should start at data byte 8; received 9.", id="hole"),
        pytest.param([(1, 9)], 9, "tensor 'a' should start at data byte 0; received 1.", id="hole before"),
        pytest.param([(0, 8)], 7, "its data should have 8 bytes; received 7.", id="outside"),
        pytest.param([(0, 8)], 9, "its data should have 8 bytes; received 9.", id="trailing"),
        pytest.param([], 1, "its data should have 0 bytes; received 1.", id="only trailing"),
    ],
)
def test_spans_that_do_not_fill_the_file_are_refused(tmp_path, spans, size, message):
    header = {name: entry(begin=begin, end=end) for name, (begin, end) in zip("ab", spans, strict=False)}
    path = craft(tmp_path / "x", header, bytes(size))
    with refused(f"{path} is damaged: {message}"):
        read(path)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", "it should have at least 8 bytes; received 0."),
        (b"1234567", "it should have at least 8 bytes; received 7."),
        (b"\x09" + bytes(7) + b"{}      ", "its header should have 9 bytes; received 8."),
        (b"\xff" * 8, "its header should have 18446744073709551615 bytes; received 0."),
        (bytes(8), "its JSON cannot be parsed; received b''."),
    ],
)
def test_a_file_without_a_whole_header_is_refused(tmp_path, contents, message):
    (tmp_path / "x").write_bytes(contents)
    with refused(f"{tmp_path / 'x'} is damaged: {message}"):
        read(tmp_path / "x")


@pytest.fixture(scope="module")
def small_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("small") / "x"
    write(path, {"a": GRID, "b": GRID.astype(ml_dtypes.bfloat16)}, {"format": "pt"})
    return path


def test_a_file_cut_short_anywhere_is_refused(small_file, tmp_path):
    contents = small_file.read_bytes()
    for length in range(len(contents)):
        (tmp_path / "x").write_bytes(contents[:length])
        with pytest.raises(ValueError, match="is damaged"):
            read(tmp_path / "x")


@given(st.data())
def test_a_file_with_one_wrong_byte_raises_nothing_but_value_errors(small_file, data):
    contents = bytearray(small_file.read_bytes())
    contents[data.draw(st.integers(0, 200))] = data.draw(st.integers(0, 255))
    path = small_file.with_name("damaged")
    path.write_bytes(contents)
    with suppress(ValueError):
        dict(read(path))


# Sharded folders


def shard(folder: Path, **placed: dict[str, np.ndarray]) -> Path:
    """Write shards and an index that tells of them."""
    weight_map = {name: f"{file}.safetensors" for file, tensors in placed.items() for name in tensors}
    for file, tensors in placed.items():
        write(folder / f"{file}.safetensors", tensors)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return index


def test_shards_read_as_one_mapping(tmp_path):
    shard(tmp_path, second={"b": GRID, "d": GRID + 1}, first={"c": GRID.T, "a": GRID.astype(np.float16)})
    weights = read_sharded(tmp_path)
    assert list(weights) == ["a", "b", "c", "d"]
    assert len(weights) == 4
    assert "d" in weights
    assert weights.shapes == {"a": (5, 6), "b": (5, 6), "c": (6, 5), "d": (5, 6)}
    assert weights.dtypes["a"] == np.float16
    assert bits(weights["c"]) == bits(GRID.T)
    assert repr(weights) == "Shards(2 files, 4 tensors)"
    with pytest.raises(KeyError, match="'e'"):
        weights["e"]


def test_shards_can_be_joined_into_one_file(tmp_path):
    tensors = {"a": GRID, "b": GRID + 1}
    shard(tmp_path, first={"a": GRID}, second={"b": GRID + 1})
    write(tmp_path / "joined", read_sharded(tmp_path))
    write(tmp_path / "whole", tensors)
    assert (tmp_path / "joined").read_bytes() == (tmp_path / "whole").read_bytes()


def test_a_single_file_wins_over_an_index(tmp_path):
    shard(tmp_path, first={"a": GRID})
    write(tmp_path / "model.safetensors", {"single": GRID})
    assert list(read_sharded(tmp_path)) == ["single"]


def test_a_folder_without_weights_is_refused(tmp_path):
    with refused(f"{tmp_path} has neither model.safetensors nor model.safetensors.index.json."):
        read_sharded(tmp_path)


def test_a_missing_shard_is_refused(tmp_path):
    index = shard(tmp_path, first={"a": GRID}, second={"b": GRID})
    (tmp_path / "second.safetensors").unlink()
    with refused(f"{index} names files that are missing; received ['second.safetensors']."):
        read_sharded(tmp_path)


def test_a_tensor_missing_in_its_shard_is_refused(tmp_path):
    shard(tmp_path, first={"a": GRID, "b": GRID})
    write(tmp_path / "first.safetensors", {"a": GRID})
    path = tmp_path / "first.safetensors"
    with refused(f"{path} lacks tensors that the index puts there; received ['b']."):
        read_sharded(tmp_path)


def test_a_tensor_unknown_to_the_index_is_refused(tmp_path):
    shard(tmp_path, first={"a": GRID})
    write(tmp_path / "first.safetensors", {"a": GRID, "b": GRID})
    path = tmp_path / "first.safetensors"
    with refused(f"{path} has tensors that the index does not put there; received ['b']."):
        read_sharded(tmp_path)


def test_a_damaged_shard_is_refused(tmp_path):
    shard(tmp_path, first={"a": GRID})
    path = craft(tmp_path / "first.safetensors", {}, b"x")
    with refused(f"{path} is damaged: its data should have 0 bytes; received 1."):
        read_sharded(tmp_path)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ("{", "its JSON cannot be parsed; received b'{'."),
        ("[]", "its weight_map should be an object; received None."),
        ('{"weight_map": 3}', "its weight_map should be an object; received 3."),
        ('{"weight_map": {"a": "x", "a": "y"}}', "its JSON has the same key twice; received 'a'."),
        ('{"weight_map": {"a": 3}}', "its weight_map should name files of its own folder; received 3."),
        (
            '{"weight_map": {"a": "../x"}}',
            "its weight_map should name files of its own folder; received '../x'.",
        ),
    ],
)
def test_a_damaged_index_is_refused(tmp_path, contents, message):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(contents)
    with refused(f"{index} is damaged: {message}"):
        read_sharded(tmp_path)
