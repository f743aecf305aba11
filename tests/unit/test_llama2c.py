"""The file of llama2.c: where its numbers land, and every way in which it can be damaged."""

import struct
from pathlib import Path

import numpy as np
import pytest

import attn
from attn import hub
from attn.masks import Causal
from tests.cases import refused
from tests.checkpoints import H, K, L, M, P, U, V, llama, numbered

HEADER = {"dim": M, "hidden_dim": U, "n_layers": L, "n_heads": H, "n_kv_heads": K, "vocab_size": V, "max_seq_len": P}
HEAD = M // H


def bin_tensors(*, tied: bool = True) -> list[np.ndarray]:
    """Every tensor of a file in its order."""
    keys = K * HEAD
    shapes = [(V, M), (L, M), (L, M, M), (L, keys, M), (L, keys, M), (L, M, M), (L, M), (L, U, M), (L, M, U), (L, U, M)]
    tensors = list(numbered({str(i): shape for i, shape in enumerate([*shapes, (M,)])}).values())
    angles = np.arange(P)[:, None] * 10000.0 ** (-np.arange(0, HEAD, 2) / HEAD)
    tensors += [np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)]
    return tensors if tied else [*tensors, -np.arange(V * M, dtype=np.float32).reshape(V, M)]


def bin_file(path: Path, tensors: list[np.ndarray], **changes: int) -> Path:
    header = struct.pack("<7i", *(HEADER | changes).values())
    path.write_bytes(header + b"".join(array.astype("<f4").tobytes() for array in tensors))
    return path


@pytest.mark.parametrize("tied", [True, False])
def test_every_number_of_a_llama2c_file_lands_in_its_place(tmp_path, tied):
    tensors = bin_tensors(tied=tied)
    path = bin_file(tmp_path / "model.bin", tensors, vocab_size=V if tied else -V)
    cfg, weights = hub.read(path)
    rope = {"kind": "default", "theta": 10000.0, "layout": "interleaved"}
    attention = attn.GroupedQueryAttentionConfig(input_dim=M, heads=H, kv_heads=K, rope=rope, mask=Causal())
    assert cfg == llama(attention, norm=attn.NormConfig(eps=1e-5), tied=tied)
    embed, norms, q, k, v, out, mlp_norms, gate, down, up, norm, _, _, *head = tensors
    for i in range(L):
        own = f"layers.{i}."
        for name, stored, heads in (("q", q, H), ("k", k, K), ("v", v, K)):
            kernel = weights[f"{own}attention.{name}.kernel"]
            np.testing.assert_array_equal(kernel, stored[i].T.reshape(M, heads, HEAD))
        np.testing.assert_array_equal(weights[f"{own}attention.out.kernel"], out[i].T.reshape(H, HEAD, M))
        np.testing.assert_array_equal(weights[f"{own}attention_norm.scale"], norms[i])
        np.testing.assert_array_equal(weights[f"{own}mlp_norm.scale"], mlp_norms[i])
        for name, stored in (("gate", gate), ("up", up), ("down", down)):
            np.testing.assert_array_equal(weights[f"{own}mlp.{name}.kernel"], stored[i].T)
    np.testing.assert_array_equal(weights["embed.embedding"], embed)
    np.testing.assert_array_equal(weights["norm.scale"], norm)
    if not tied:
        np.testing.assert_array_equal(weights["head.kernel"], head[0].T)
    assert {weights[name].dtype for name in weights} == {np.dtype(np.float32)}


def test_a_llama2c_file_of_another_size_is_refused(tmp_path):
    path = bin_file(tmp_path / "model.bin", bin_tensors())
    whole = path.read_bytes()
    said = f"{path} is not a llama2.c file of version 0: it should have {len(whole)} bytes, as its header says"
    for contents in (whole[:-1], whole + b"\0", whole[:-4], whole[:28]):
        path.write_bytes(contents)
        with refused(f"{said}; received {len(contents)}."):
            hub.read(path)
    # A head of its own that is not there.
    tied = bin_file(path, bin_tensors(), vocab_size=-V)
    more = len(whole) + 4 * V * M
    with refused(f"{said.replace(str(len(whole)), str(more))}; received {len(whole)}."):
        hub.read(tied)


LLAMA2C_DAMAGE = {
    "its dim should be positive; received 0.": {"dim": 0},
    "its n_layers should be positive; received -2.": {"n_layers": -2},
    "its vocab_size should be positive; received 0.": {"vocab_size": 0},
    "its max_seq_len should be positive; received -1.": {"max_seq_len": -1},
    "its n_heads should divide dim=12; received 5.": {"n_heads": 5},
    "its n_kv_heads should divide n_heads=6; received 4.": {"n_kv_heads": 4},
    "it should start with its sizes; received the mark of version 1.": {"dim": 0x616B3432, "hidden_dim": 1},
}


@pytest.mark.parametrize("text", LLAMA2C_DAMAGE)
def test_a_llama2c_file_with_an_impossible_header_is_refused(tmp_path, text):
    path = bin_file(tmp_path / "model.bin", bin_tensors(), **LLAMA2C_DAMAGE[text])
    with refused(f"{path} is not a llama2.c file of version 0: {text}"):
        hub.read(path)


def test_a_llama2c_file_without_a_whole_header_is_refused(tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(b"\1" * 27)
    with refused(f"{path} is not a llama2.c file of version 0: it should have at least 28 bytes; received 27."):
        hub.read(path)


def test_a_llama2c_file_of_another_theta_is_refused(tmp_path):
    """Heads of four numbers; a head of two turns by 1 whatever theta is."""
    wide = {"n_heads": 3, "n_kv_heads": 3}
    for theta in (10000.0, 10100.0):
        tensors = bin_tensors()
        tensors[3:5] = [np.zeros((L, M, M), np.float32)] * 2
        angles = np.arange(P)[:, None] * theta ** (-np.arange(0, 4, 2) / 4)
        tensors[11:13] = [np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)]
        path = bin_file(tmp_path / "model.bin", tensors, **wide)
        if theta == 10000.0:
            assert hub.read(path)[0].attention.heads == 3
        else:
            with refused(f"{path} has rotary tables that are not those of theta 10000."):
                hub.read(path)
