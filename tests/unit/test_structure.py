"""The arrows of the house, and the rules that every file of it keeps."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FRAMEWORKS = {"torch", "jax", "jaxlib", "flax", "optax"}
FORBIDDEN = {
    "attn": {*FRAMEWORKS, "attn_jax", "attn_torch"},
    "attn_jax": {"torch", "attn_torch"},
    "attn_torch": {"jax", "jaxlib", "flax", "optax", "attn_jax"},
}
"""What each package never imports, not even inside a function."""

LONGEST_MODULE = 250


def files_of(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imports_of(text: str) -> set[str]:
    """The first word of everything that a module imports, wherever the import stands."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


def in_fresh_process(program: str) -> str:
    """What a program prints in a process of its own."""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


@pytest.mark.parametrize("package", FORBIDDEN)
def test_the_arrows_point_one_way(package):
    wrong = {
        str(path.relative_to(ROOT)): found
        for path in files_of(package)
        if (found := imports_of(path.read_text(encoding="utf-8")) & FORBIDDEN[package])
    }
    assert wrong == {}


def test_an_import_inside_a_function_is_seen():
    assert imports_of("def f():\n    from torch.nn import functional\n    import jax.numpy as jnp") == {"torch", "jax"}


IMPORTS = """
import importlib, json, pkgutil, sys
import {package}
first = sorted(set(sys.modules) & {absent!r})
names = [page.name for page in pkgutil.walk_packages({package}.__path__, "{package}.") if "__main__" not in page.name]
pages = [{package}, *map(importlib.import_module, names)]
lacking = [
    f"{{page.__name__}}.{{name}}" for page in pages for name in getattr(page, "__all__", []) if not hasattr(page, name)
]
print(json.dumps([first, sorted(set(sys.modules) & {absent!r}), lacking]))
"""


@lru_cache
def imported(package: str) -> list[list[str]]:
    """What importing a package brings along, what all of its pages do, and which public names it lacks."""
    return json.loads(in_fresh_process(IMPORTS.format(package=package, absent=FORBIDDEN[package])))


@pytest.mark.parametrize("package", FORBIDDEN)
def test_importing_one_leaves_the_others_out(package):
    assert imported(package)[0] == []


@pytest.mark.parametrize("package", FORBIDDEN)
def test_every_page_can_be_imported_and_leaves_the_others_out(package):
    assert imported(package)[1] == []


@pytest.mark.parametrize("package", FORBIDDEN)
def test_every_public_name_exists(package):
    assert imported(package)[2] == []


ALONE = """
import sys
for name in {absent!r}:
    sys.modules[name] = None  # as if it were not installed
import numpy as np, attn, {package} as twin
cfg = attn.GroupedQueryAttentionConfig(input_dim=13, heads=6, kv_heads=3, dim_k=42, dim_v=30, rope=attn.Rope(width=4))
weights, x = attn.init_weights(cfg, seed=0), np.ones((2, 5, 13), np.float32)
module = twin.build(cfg)
{call}
print(abs(np.asarray(y) - attn.reference(cfg, weights, x)).max() < 1e-5)
"""
CALLS = {
    "attn_jax": "y = module.apply(twin.from_neutral(cfg, weights), x)",
    "attn_torch": """import torch
module.load_state_dict(twin.from_neutral(cfg, weights))
y = module(torch.from_numpy(x)).detach().numpy()""",
}


@pytest.mark.parametrize("package", CALLS)
def test_a_twin_computes_where_the_other_framework_is_not_installed(package):
    # The libraries that tests compare with are not there either.
    absent = {*FORBIDDEN[package], "transformers", "safetensors", "matplotlib"}
    assert in_fresh_process(ALONE.format(absent=absent, package=package, call=CALLS[package])) == "True"


NEITHER = """
import sys
for name in {absent!r}:
    sys.modules[name] = None
import numpy as np, attn
cfg = attn.load_config({{"variant": "multi_query", "input_dim": 13, "heads": 7, "dim_k": 35, "dim_v": 21}})
print(attn.reference(cfg, attn.init_weights(cfg, seed=0), np.ones((2, 5, 13))).shape)
try:
    attn.backend("jax")
except ModuleNotFoundError as error:
    print(error)
"""


def test_attn_works_where_no_framework_is_installed():
    absent = {*FORBIDDEN["attn"], "transformers", "safetensors", "matplotlib"}
    assert in_fresh_process(NEITHER.format(absent=absent)).splitlines() == [
        "(2, 5, 13)",
        "backend 'jax' needs its framework: pip install 'attn[jax]'; "
        "got: import of attn_jax halted; None in sys.modules.",
    ]


@pytest.mark.parametrize("package", FORBIDDEN)
def test_no_module_is_too_long_to_be_read(package):
    lengths = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8").count("\n") for path in files_of(package)}
    assert {path: length for path, length in lengths.items() if length > LONGEST_MODULE} == {}


def test_no_assert_outside_tests():
    # python -O removes it, and what it held with it.
    folders = [*FORBIDDEN, "examples", "benchmarks"]
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in folders
        for path in files_of(folder)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Assert)
    ]
    assert wrong == []


# Written in pieces, so that this file does not find itself.
FOLDERS = "|".join(("wo" + "rk", "t" + "mp", "ho" + "me", "ro" + "ot", "Us" + "ers", "mn" + "t", "va" + "r"))
HOSTS = "|".join(("local" + "host", "index-" + "url", "artif" + "actory", r"\.inter" + "nal", r"\.lo" + "cal"))
MACHINE = re.compile(
    rf"(?<![\w.~:/)}}-])/(?:{FOLDERS})/\w"  # an absolute path of some machine
    rf"|(?:{HOSTS})\b"  # a host or a registry that only one network knows
    r"|https?://[^\s/]*:\d"  # a port
    r"|(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])"  # an address
)


def tracked() -> Iterator[Path]:
    """The text files that git keeps."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this copy is not a git checkout")
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.is_file() and b"\0" not in path.read_bytes():
            yield path


def test_no_file_knows_the_machine_it_was_written_on():
    found = {
        str(path.relative_to(ROOT)): match.group()
        for path in tracked()
        if (match := MACHINE.search(path.read_text(encoding="utf-8", errors="replace")))
    }
    assert found == {}


@pytest.mark.parametrize(
    "text",
    [
        "open('/wo" + "rk/x')",
        "cd /t" + "mp/v",
        '"/ho' + 'me/someone"',
        "http://local" + "host",
        "--index-" + "url https",
        "https://mirror" + ":8080/simple",
        "10.0" + ".0.1",
    ],
)
def test_what_a_machine_would_leave_is_found(text):
    assert MACHINE.search(text)


@pytest.mark.parametrize("text", ["https://arxiv.org/abs/1706.03762", "a / b", "path/home/x", "torch==2.13.0"])
def test_what_is_said_everywhere_is_not(text):
    assert not MACHINE.search(text)
