"""The public names of attn, which are imported when they are asked for."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import attn

PAGE = Path(attn.__file__)


def imported_for_types() -> dict[str, str]:
    """Name to module, as the block that only type checkers read says it."""
    block = next(node for node in ast.parse(PAGE.read_text(encoding="utf-8")).body if isinstance(node, ast.If))
    return {alias.name: node.module for node in block.body for alias in node.names}


def test_type_checkers_and_programs_see_the_same_names():
    seen = {name: module for name, module in imported_for_types().items() if module != "attn"}
    assert seen == attn._HOME
    assert set(imported_for_types()) == set(attn.__all__)


@pytest.mark.parametrize("name", attn.__all__)
def test_every_public_name_is_there(name):
    assert getattr(attn, name) is not None
    assert name in dir(attn)


def test_reference_is_a_function_whatever_was_imported_before():
    program = "import attn.mathematics, attn.parity, attn.hub, attn; print(type(attn.reference).__name__)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "function"


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"^module 'attn' has no attribute 'attention'$"):
        _ = attn.attention
