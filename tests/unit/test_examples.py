"""Each example runs in a process of its own and prints what it promises."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

SMALL = r"\de-0[789]"
"""A difference that float32's rounding explains."""

NONE_OR_SMALL = rf"(?:0e\+00|{SMALL})"
"""The same between two calls in float32: a product's order of summing hangs on its size and on the processor."""

LOSSES = r"(?:0e\+00|\de-0[6789])"
"""The same between two losses, means over many numbers of the size of 4: one last digit of those is 2e-7."""

EXPECTED = {
    "both_twins": rf"PyTorch and reference differ by {SMALL}\nJAX and reference differ by     {SMALL}\n",
    "story": r"Once upon a time, there was a big dog [^\n]{100,}\n(?:.*\n)*the same in JAX: True\n",
    "crossing": (
        rf"the loss on a batch: \d\.\d\d in JAX, {LOSSES} apart in PyTorch\n"
        r"step 20 of 20: from 4\.\d\d to [23]\.\d\d\n"
    ),
    "padding_and_packing": (
        rf"padded: {NONE_OR_SMALL} and {NONE_OR_SMALL} apart\n"
        rf"packed: {NONE_OR_SMALL} and {NONE_OR_SMALL} apart\n"
        r"the padding's output is exactly 0: True\n"
    ),
}


SLOW = ("crossing", "story")
"""They compile whole loops in JAX."""


def test_every_example_is_tested():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize(
    "name", ["both_twins", "padding_and_packing", *(pytest.param(name, marks=pytest.mark.full) for name in SLOW)]
)
def test_an_example_prints_what_it_promises(name, tmp_path):
    run = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(EXAMPLES.parent)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert re.fullmatch(EXPECTED[name], run.stdout), run.stdout
    assert list(tmp_path.iterdir()) == []
