"""Repeating a step: what it calls of PyTorch is written down once, then called again without the modules around it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from torch.overrides import TorchFunctionMode

LOOKS = {"__get__", "__len__", "dim", "size", "stride", "numel", "is_contiguous", "is_floating_point"}
"""What makes no tensor tells, by these, of a tensor's form, the same at each step, and by others of its numbers."""

DRAWS = ("rand", "normal", "dropout", "bernoulli", "multinomial", "poisson", "exponential")
"""A function with one of these in its name draws random numbers, others at each step."""


def repeated(function: Callable[..., Any], module: nn.Module) -> Callable[..., Any]:
    """function(module, ...), from the second call on without Python between what it calls of PyTorch.

    Calls may differ in the numbers of their tensors, and in nothing else; the module's weights stay as they are. A
    function whose way depends on numbers is called as it is, and so is a module with hooks, which see every call.
    Results are tensors of `torch.inference_mode`.
    """
    if _has_any_global_hook() or any(part._forward_hooks or part._forward_pre_hooks for part in module.modules()):
        return partial(function, module)
    return _Repeated(partial(function, module), [*module.parameters(), *module.buffers()])


class _Repeated:
    def __init__(self, function, constants):
        self.function, self.constants, self.step = function, constants, None

    def __call__(self, *args: Any) -> Any:
        # Besides gradients this leaves out what PyTorch keeps of each tensor for them: a fifth of a small step.
        with torch.inference_mode():
            if self.step is not None:
                return self.step(*args)
            with Recording(args, self.constants) as recording:
                results = self.function(*args)
            self.step = recording.step(results) or self.function
            return results


class Line(NamedTuple):
    """One call: what it makes, from what, and whether it writes into what it is given."""

    made: tuple[str, ...]
    call: str
    given: tuple[str, ...]
    writes: bool


class Recording(TorchFunctionMode):
    """Writes down every call of PyTorch as a line of Python.

    Of y = (x @ w).relu(), where w is a constant, it makes

        def step(*args):
            t0 = args[0]
            t2 = c3(t0, c1)
            del t0
            t4 = c5(t2)
            del t2
            return t4

    A call that is given constants alone is not repeated, and neither is one that returns what it was given; what draws
    random numbers is.
    """

    def __init__(self, args: tuple[Any, ...], constants: Iterable[Tensor]):
        super().__init__()
        self._lines: list[Line] = []
        self._names: dict[int, str] = {}
        self._values: dict[str, Any] = {}
        # An id is a name as long as its object lives.
        self._alive: list[Any] = []
        self._inputs = {path: self._name(tensor) for path, tensor in _places(args, "args")}
        self._refused = len(self._names) < len(self._inputs)
        for tensor in constants:
            self._constant(tensor)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The call, written down."""
        del types
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        if function.__name__ not in LOOKS or isinstance(result, Tensor):
            self._alive.append(result)
            self._note(function, args, kwargs, result)
        return result

    def step(self, results: Any) -> Callable[..., Any] | None:
        """The function that makes results like these from args like those; None where the lines do not say it all."""
        returned = self._written(results)
        if self._refused:
            return None
        needed, body = {self._names[id(tensor)] for tensor in _tensors(results)}, []
        for line in reversed(self._lines):
            if line.writes or needed.intersection(line.made):
                # What is not needed further down is let go here, as it would be between modules.
                last = {*line.given, *line.made} - needed - self._values.keys()
                body += [f"del {', '.join(last)}"] if last else []
                body.append(f"{', '.join(line.made)} = {line.call}" if line.made else line.call)
                needed.update(line.given)
        inputs = [f"{name} = {path}" for path, name in self._inputs.items()]
        exec("\n    ".join(["def step(*args):", *inputs, *reversed(body), f"return {returned}"]), self._values)
        return self._values["step"]

    def _note(self, function, args, kwargs, result):
        given, made, writes = _tensors((args, kwargs)), _tensors(result), _writes(function.__name__)
        if kwargs.get("out") is not None or kwargs.get("inplace"):
            self._refused = True
        elif not (made or writes):
            self._refused |= bool(given)
        elif writes:
            self._refused |= self._names.get(id(given[0])) in self._values
            self._line((), function, args, kwargs, given, writes=True)
        elif self._fixed(function, given):
            for tensor in made:
                self._constant(tensor)
        elif not any(result is tensor for tensor in given):
            self._line(tuple(self._name(tensor) for tensor in made), function, args, kwargs, given)

    def _fixed(self, function, given):
        constant = all(self._names.get(id(tensor)) in self._values for tensor in given)
        return constant and not any(word in function.__name__ for word in DRAWS)

    def _line(self, made, function, args, kwargs, given, writes=False):
        written = [self._written(arg) for arg in args]
        written += [f"{name}={self._written(arg)}" for name, arg in kwargs.items()]
        call = f"{self._constant(function)}({', '.join(written)})"
        self._lines.append(Line(made, call, tuple(self._names.get(id(tensor), "") for tensor in given), writes))

    def _written(self, value):
        if isinstance(value, Tensor):
            self._refused |= id(value) not in self._names
            return self._names.get(id(value), "")
        if not _tensors(value):
            return self._constant(value)
        items = [self._written(item) for item in _items(value)]
        if isinstance(value, dict):
            return f"{{{', '.join(f'{name!r}: {item}' for name, item in zip(value, items, strict=True))}}}"
        if type(value) in (list, tuple):
            return f"[{', '.join(items)}]" if isinstance(value, list) else f"({', '.join(items)},)"
        return f"{self._constant(type(value))}({', '.join(items)})"

    def _constant(self, value):
        name = self._name(value, "c")
        self._values[name] = value
        return name

    def _name(self, value, kind="t"):
        self._alive.append(value)
        return self._names.setdefault(id(value), f"{kind}{len(self._names)}")


def _writes(name: str) -> bool:
    """Whether a function changes its first argument: add_, x[i] = y, x += y."""
    if name.startswith("__"):
        return name == "__setitem__" or (name.startswith("__i") and name not in {"__invert__", "__index__", "__int__"})
    return name.endswith("_")


def _places(value: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    """Every tensor in a value, in order, and the path that leads there."""
    if isinstance(value, Tensor):
        yield path, value
    elif items := _items(value):
        names = [f"[{key!r}]" for key in (value if isinstance(value, dict) else range(len(items)))]
        if is_dataclass(value):
            names = [f".{field.name}" for field in fields(value)]
        for name, item in zip(names, items, strict=True):
            yield from _places(item, path + name)


def _tensors(value: Any) -> list[Tensor]:
    """Every tensor in a value, in order."""
    if isinstance(value, Tensor):
        return [value]
    return [tensor for item in _items(value) for tensor in _tensors(item)]


def _items(value: Any) -> Sequence[Any]:
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, dict):
        return list(value.values())
    return [getattr(value, field.name) for field in fields(value)] if is_dataclass(value) else ()
