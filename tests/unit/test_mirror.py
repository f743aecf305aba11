"""The twins mirror each other: same files, same public names in the same order, same arguments."""

import ast
from collections.abc import Container
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

OWN_WORDS = {"self", "variables", "rng", "deterministic", "device", "compile"}
"""The arguments in which the frameworks themselves differ; what is optional in PyTorch, JAX always does: compile."""

EXCEPTIONS = {
    "arrays.py:as_jax": "carries one array across; `as_torch` is its counterpart",
    "arrays.py:check_x64": "PyTorch has float64 always",
    "arrays.py:as_torch": "carries one array across; `as_jax` is its counterpart",
    "arrays.py:BITS": "numpy does not know these dtypes of PyTorch; JAX shares them with it",
    "caches/cache.py:Cache.__init__": "PyTorch writes in place, so its cache remembers that a call has consumed it",
    "caches/context.py:ContextLedger.below": "short tables answer alone; XLA makes them constants of the program",
    "caches/ledger.py:Ledger.below": "for the same reason",
    "caches/ledger.py:Ledger.__init__": "what no call has brought PyTorch does not compare; XLA does it in passing",
    "compiling.py": "PyTorch compiles a step when it is asked to; JAX compiles every generation",
    "kernels/choice.py:attend": "PyTorch chooses at every call and remembers what it chose; JAX chooses when it traces",
    "parts.py:initializer": "linen wants a function that draws; `initialize` is its counterpart",
    "parts.py:initialize": "PyTorch draws into a parameter that exists; `initializer` is its counterpart",
    "parts.py:keep_given_dtype": "load_state_dict would round; linen's variables are what they are given as",
    "parts.py:Part.__init__": "linen gives every module its name",
    "parts.py:Part.call": "PyTorch asks for hooks; linen has none",
    "parts.py:Projection.call": "PyTorch makes rows of a batch once for all projections; XLA sees that itself",
    "parts.py:product": "XLA copies a kernel of three axes; PyTorch's weights have two",
    "parts.py:flattened": "PyTorch makes rows of a batch once for all projections",
    "rotary.py:Tables": "PyTorch keeps tables where the module lives; JAX makes them constants of the program",
    "recording.py": "PyTorch has Python between its operators unless a step is compiled or repeated; JAX never has",
    "rotary.py:turns": "PyTorch has tables of cosines and sines that stand as they are multiplied",
    "scope.py:Whole": "PyTorch makes positions when somebody asks for them; XLA leaves out what nobody reads",
    "scope.py:Scope.__init__": "for `below`, as the ledgers say",
    "scope.py:Scope.once": "XLA sees when two layers compute the same thing; PyTorch has to be told",
    "weights.py:Variables": "linen's parameters are a value of their own; PyTorch's live in the module",
    "weights.py:to_neutral": "it reads variables in JAX, a module in PyTorch",
    "weights.py:flax_path": "PyTorch's paths are the neutral ones",
    "weights.py:neutral_name": "PyTorch's paths are the neutral ones",
}
"""What only one twin has, or has differently, and why: a file, a name in a file, or a member of a class in it."""

OWN_FOLDER, SHARED = "kernels/", {"kernels/__init__.py", "kernels/choice.py", "kernels/plain.py"}
"""What is fast is each framework's own; what chooses among the kernels is not, nor is their plain form."""


def signature(function: ast.FunctionDef) -> list[str]:
    """The arguments without the frameworks' own, as a call may write them."""
    arguments = function.args
    words = [a.arg for a in arguments.posonlyargs + arguments.args]
    words += [f"*{arguments.vararg.arg}"] if arguments.vararg else []
    words += [f"{a.arg}=" for a in arguments.kwonlyargs]
    words += [f"**{arguments.kwarg.arg}"] if arguments.kwarg else []
    return [word for word in words if word.strip("*=") not in OWN_WORDS]


class Members(list):
    """The members of a class."""


def members(node: ast.ClassDef) -> Members:
    """The public methods and properties of a class in order; what makes it comes first, be it fields or `__init__`."""
    fields = [n.target.id for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]
    fields = [name for name in fields if not name.startswith("_") and name not in OWN_WORDS]
    made = [("__init__", fields)] if fields else []
    found: list[tuple[str, list[str]]] = []
    for method in node.body:
        if isinstance(method, ast.FunctionDef):
            if method.name == "__init__":
                made = [("__init__", signature(method))]
            elif method.name in ("__call__", "forward"):
                found.append(("call", signature(method)))
            elif method.name != "setup" and not method.name.startswith("_"):
                found.append((method.name, signature(method)))
    return Members(made + found)


def public(text: str) -> list[tuple[str, object]]:
    """The public names that a module defines, in order, each with its arguments or members."""
    found: list[tuple[str, object]] = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            found.append((node.name, signature(node)))
        elif isinstance(node, ast.ClassDef):
            found.append((node.name, members(node)))
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            found += [(name, ast.unparse(node.value) if name == "__all__" else "a value") for name in names]
    return [(name, what) for name, what in found if name == "__all__" or not name.startswith("_")]


def without_inherited(ours: object, theirs: object) -> object:
    """The members of a class without how it is made, where the other twin inherits that."""
    if not isinstance(ours, Members) or not isinstance(theirs, Members) or "__init__" in dict(theirs):
        return ours
    return Members(member for member in ours if member[0] != "__init__")


def pages(package: Path, exceptions: Container[str]) -> dict[str, list[tuple[str, object]]]:
    """The public names of each file of a package, those aside that are excepted."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        page = path.relative_to(package).as_posix()
        if page not in exceptions and (page in SHARED or not page.startswith(OWN_FOLDER)):
            names = public(path.read_text(encoding="utf-8"))
            found[page] = [
                (name, without(what, f"{page}:{name}", exceptions))
                for name, what in names
                if f"{page}:{name}" not in exceptions
            ]
    return found


def without(what: object, name: str, exceptions: Container[str]) -> object:
    """The members of a class that are not excepted; anything else as it is."""
    if not isinstance(what, Members):
        return what
    return Members(member for member in what if f"{name}.{member[0]}" not in exceptions)


def differences(jax: Path, torch: Path, exceptions: Container[str]) -> list[str]:
    """What is not the same in two packages, one sentence each."""
    ours, theirs = pages(jax, exceptions), pages(torch, exceptions)
    found = [f"{page} is only in {(jax if page in ours else torch).name}" for page in sorted(set(ours) ^ set(theirs))]
    for page in sorted(set(ours) & set(theirs)):
        left, right = [name for name, _ in ours[page]], [name for name, _ in theirs[page]]
        if left != right:
            found.append(f"{page} defines {left} and {right}")
            continue
        for (name, one), (_, other) in zip(ours[page], theirs[page], strict=True):
            one, other = without_inherited(one, other), without_inherited(other, one)
            if one != other:
                found.append(f"{page}:{name} has {one} and {other}")
    return found


def test_the_twins_mirror_each_other():
    assert differences(ROOT / "attn_jax", ROOT / "attn_torch", EXCEPTIONS) == []


@pytest.mark.parametrize("exception", EXCEPTIONS)
def test_every_exception_is_still_one(exception):
    rest = {name: reason for name, reason in EXCEPTIONS.items() if name != exception}
    assert differences(ROOT / "attn_jax", ROOT / "attn_torch", rest) != []


JAX = '''
"""A page."""
LIMIT = 3
def attend(q, k, *, scale, bias=None): ...
class Module(nn.Module):
    cfg: Config
    dtype: Any = None
    def setup(self): ...
    def __call__(self, x, *, valid=None, deterministic=True): ...
    def apply_to(self, variables, x): ...
    def _private(self, y): ...
def _helper(a): ...
'''
TORCH = '''
"""The same page."""
LIMIT = 5
def attend(q, k, *, scale, bias=None): ...
class Module(nn.Module):
    def __init__(self, cfg, dtype=None, device=None): ...
    def forward(self, x, *, valid=None): ...
    def apply_to(self, x): ...
    def _other(self): ...
'''


def planted(folder: Path, torch: str, *, extra: str | None = None) -> list[str]:
    """The differences of two trees of one page each."""
    for name, text in (("jax", JAX), ("torch", torch)):
        (folder / name / "layers").mkdir(parents=True)
        (folder / name / "layers" / "page.py").write_text(text)
    if extra:
        (folder / "torch" / extra).write_text("")
    return differences(folder / "jax", folder / "torch", {})


def test_what_the_frameworks_ask_for_is_no_difference(tmp_path):
    assert planted(tmp_path, TORCH) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("def attend(q, k, *, scale, bias=None)", "def attend(q, k, *, scale, mask=None)"),
        ("def attend(q, k, *, scale, bias=None)", "def attend(q, k, scale, *, bias=None)"),
        ("def attend(q, k, *, scale, bias=None)", "def attend(k, q, *, scale, bias=None)"),
        ("def attend(q, k, *, scale, bias=None)", "def attend(q, k, *, scale, bias=None, **rest)"),
        ("LIMIT", "LIMITS"),
        ("class Module", "class Attention"),
        ("x, *, valid=None", "x, valid=None"),
        ("cfg, dtype=None", "cfg, dtype=None, kernel=None"),
        ("cfg, dtype=None", "dtype, cfg=None"),
        ("def apply_to(self, x): ...", ""),
        ("def _other(self)", "def other(self)"),
        ("LIMIT = 5", "LIMIT = 5\ndef more(): ..."),
        (
            "LIMIT = 5\ndef attend(q, k, *, scale, bias=None): ...",
            "def attend(q, k, *, scale, bias=None): ...\nLIMIT = 5",
        ),
    ],
)
def test_a_planted_difference_is_found(tmp_path, old, new):
    assert old in TORCH
    assert planted(tmp_path, TORCH.replace(old, new)) != []


def test_a_planted_file_is_found(tmp_path):
    assert planted(tmp_path, TORCH, extra="more.py") == ["more.py is only in torch"]
