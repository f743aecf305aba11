"""The twins by name, imported only when asked for."""

from importlib import import_module
from types import ModuleType

BACKENDS = {"jax": "attn_jax", "torch": "attn_torch"}


def backend(name: str) -> ModuleType:
    """The twin of that name.

    Raises:
        ValueError: the name is unknown.
        ModuleNotFoundError: the twin's framework is not installed; the text says how to install it.
    """
    if name not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}; got {name!r}.")
    try:
        return import_module(BACKENDS[name])
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"backend {name!r} needs its framework: pip install 'attn[{name}]'; got: {error}."
        ) from error
