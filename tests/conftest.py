"""What all tests share: the order of imports, one thread each, and examples that never change."""

import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

# NPROC is what XLA's thread pool on the CPU listens to. Child processes inherit these too.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NPROC"):
    os.environ.setdefault(variable, "1")

# PyTorch first: after JAX, its import can crash the process.
if find_spec("torch"):
    import torch

    torch.set_num_threads(1)

# The same examples in every run, so that a red test stays red until it is mended.
settings.register_profile("attn", derandomize=True, deadline=None, database=None, max_examples=50)
settings.load_profile("attn")

MAPPINGS = 30_000
"""A Linux process may map 65530 pieces of memory, each program that JAX compiled takes some, and one more crashes."""

TESTS = pytest.StashKey[int]()
"""How many tests a process has run."""


def pytest_runtest_teardown(item):
    """JAX forgets its programs before there are too many: thousands of tests compile thousands of them."""
    item.config.stash[TESTS] = tests = item.config.stash.get(TESTS, 0) + 1
    # Counting takes as long as a small test.
    if tests % 20 == 0 and "jax" in sys.modules and mappings() > MAPPINGS:
        sys.modules["jax"].clear_caches()


def mappings() -> int:
    """How many pieces of memory this process maps; 0 where no file says it."""
    table = Path("/proc/self/maps")
    return table.read_bytes().count(b"\n") if table.exists() else 0


def pytest_terminal_summary(terminalreporter):
    """One line for each number that a test wants to be seen: what it recorded as the property `summary`."""
    for report in terminalreporter.stats.get("passed", []):
        for name, line in report.user_properties:
            if name == "summary" and report.when == "call":
                terminalreporter.write_line(line)


@pytest.fixture
def ctrl_c():
    """Ctrl-C interrupts a test and its processes, which ignore it where a shell started all in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
