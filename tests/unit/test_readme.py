"""The README: its tables are those that the code makes, and its examples run and print what it says they print."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from attn.cli import app
from attn.tables import refreshed

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.DOTALL)


def test_the_tables_are_what_the_code_makes():
    # `attn tables --write` makes them anew.
    assert "<!-- table: variants -->" in README
    assert refreshed(README) == README


def test_the_examples_print_what_they_say(tmp_path):
    blocks = BLOCK.findall(README)
    assert len(blocks) >= 4
    # The examples go on from one another, as they do for the reader.
    program = "\n".join(code for code, _ in blocks)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == "".join(output for _, output in blocks)


def test_it_shows_what_the_command_shows():
    shown = CliRunner().invoke(app, ["show", "multi_query"]).stdout
    lines = [line.rstrip() for line in shown.strip().splitlines()]
    assert "\n".join(["```text", "$ attn show multi_query", *lines, "```"]) in README


def test_every_file_it_names_is_there():
    for path in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("command", ["list", "show", "parity", "convert", "train", "generate", "demo"])
def test_every_command_is_explained(command):
    assert f"`attn {command}" in README
