"""The peak of memory that a causal layer needs beside its inputs, forward and backward.

JAX: what the compiler allots to temporaries. PyTorch: how far a forward and a backward pass raise the peak of a fresh
process, which `python -m benchmarks.memory CANDIDATE T` is.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

from attn.terminal import counted
from benchmarks.cases import HEADS, Case, inputs
from benchmarks.comparing import FLOOR, OURS
from benchmarks.results import Record, record

GROUP = "causal, forward and backward"

LENGTHS = {True: (512, 2048), False: (1024, 2048, 4096, 8192)}

IN_TORCH = (OURS, FLOOR, "PyTorch nn.MultiheadAttention", "transformers Llama, rotary, eager")
"""Of these a quick run takes the first two."""


def in_jax(quick: bool) -> list[Record]:
    """One column for each length; nothing is run."""
    from benchmarks import peers_jax, side_jax

    def needed(candidate: Any, x: Any) -> int:
        return side_jax.compile(candidate, x, True).memory_analysis().temp_size_in_bytes

    records = []
    for T in counted(LENGTHS[quick], len(LENGTHS[quick]), "memory, jax"):
        layers = peers_jax.layers(Case("causal", "causal", HEADS, T, True))
        x = side_jax.given(inputs(T))
        sizes = {name: needed(layer, x) for name, layer in layers.items() if not isinstance(layer, str)}
        records.append(_column("jax", T, sizes))
    return [*records, growth("jax", records)]


def in_torch(quick: bool) -> list[Record]:
    """One column for each length, each number from a process of its own."""
    names, records = IN_TORCH[: 2 if quick else None], []
    for T in counted(LENGTHS[quick], len(LENGTHS[quick]), "memory, torch"):
        records.append(_column("torch", T, {name: _of_child(name, T) for name in names}))
    return [*records, growth("torch", records)]


def growth(framework: str, records: list[Record]) -> Record:
    """The last column over the one at a quarter of its length: 4 is linear, 16 is quadratic."""
    at = {record["column"]: record["rows"] for record in records}
    last = list(at)[-1]
    before = at.get(f"T={int(last.removeprefix('T=')) // 4}", records[0]["rows"])
    rows = {name: {"growth": round(row["bytes"] / before[name]["bytes"], 3)} for name, row in at[last].items()}
    return record("memory", framework, GROUP, "growth", rows)


def _column(framework: str, T: int, sizes: dict[str, int]) -> Record:
    rows = {name: {"bytes": size, "ratio": round(size / sizes[OURS], 3)} for name, size in sizes.items()}
    return record("memory", framework, GROUP, f"T={T}", rows)


def _of_child(name: str, T: int) -> int:
    command = [sys.executable, "-m", "benchmarks.memory", name, str(T)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def raised(name: str, T: int) -> int:
    """How many bytes a forward and a backward pass raise this process's peak, after a small one that loads all code."""
    from benchmarks import side_torch

    def call(length: int) -> Any:
        return side_torch.call(candidate(name, length), side_torch.given(inputs(length)), True)

    call(64)()
    last = call(T)
    before = _status("VmRSS")
    last()
    return max(0, _status("VmHWM") - before)


def candidate(name: str, T: int) -> Any:
    """The candidate of this name, of `IN_TORCH`, at this length."""
    from benchmarks import peers_torch

    makers = {
        OURS: peers_torch.ours,
        FLOOR: peers_torch.floor,
        "PyTorch nn.MultiheadAttention": peers_torch.multihead,
        "transformers Llama, rotary, eager": peers_torch.llama,
    }
    case = Case("causal", "causal", HEADS, T, True)
    return makers[name](case, peers_torch.weights_of(case))


def _status(key: str) -> int:
    """A number of the process's status in bytes. `ru_maxrss` would count the parent's peak too."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(f"{key}:")).split()[1])


if __name__ == "__main__":
    print(raised(sys.argv[1], int(sys.argv[2])))
