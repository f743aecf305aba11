"""The legend: one letter per axis, everywhere; and `bind`, which checks shapes against it."""

from collections.abc import Mapping

LEGEND = {
    "B": "batch",
    "T": "query positions",
    "S": "key positions",
    "M": "model width",
    "X": "context width",
    "H": "query heads",
    "K": "key/value heads",
    "G": "query heads per key/value head, H // K",
    "D": "width of a query/key head",
    "E": "width of a value head",
    "C": "latent width",
    "Q": "latent width of queries",
    "R": "rotary width",
    "F": "feature width",
    "W": "window",
    "N": "block size",
    "V": "vocabulary",
    "U": "MLP width",
    "Z": "experts",
    "L": "layers",
    "J": "taps of a convolution",
    "A": "channels",
    "P": "position buckets",
}


def size_of(axis: str, sizes: Mapping[str, int]) -> int:
    """The size of one axis; axes may add, so `"D+R"` is `sizes["D"] + sizes["R"]`."""
    return sum(sizes[letter] for letter in axis.split("+"))


def shape_of(axes: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape that `axes` spells: `shape_of("M H D", {"M": 13, "H": 6, "D": 5})` is `(13, 6, 5)`."""
    return tuple(size_of(axis, sizes) for axis in axes.split())


def bind(sizes: Mapping[str, int], **arrays: tuple | None) -> dict[str, int]:
    """Check shapes against letters and return every letter's size.

    Each keyword names one array: `x=(x.shape, "B T M")`. Several spellings are alternatives, told apart by
    rank: `allowed=(allowed.shape, "T S", "B T S", "B|1 H|1 T S")`, where `B|1` also admits a size of one.
    A letter met for the first time takes its size from the array; afterwards it must agree.
    `None` stands for an array that was not given.

    Raises:
        ValueError: "x has shape (2, 7, 12); expected [B T M] with M=13."
    """
    known = dict(sizes)
    for name, entry in arrays.items():
        if entry is not None:
            shape, *spellings = entry
            _bind_one(known, name, shape, spellings)
    return known


def _bind_one(known: dict[str, int], name: str, shape, spellings: list[str]) -> None:
    before = dict(known)
    for spelling in spellings:
        axes = spelling.split()
        if len(axes) == len(shape):
            break
    else:
        raise ValueError(_message(known, name, shape, spellings))
    for axis, size in zip(axes, shape, strict=True):
        letter = axis[0]
        if axis.endswith("|1") and size == 1:
            continue
        if letter not in known:
            known[letter] = size
        elif known[letter] != size:
            raise ValueError(_message(before, name, shape, [spelling]))


def _message(known: dict[str, int], name: str, shape, spellings: list[str]) -> str:
    expected = " or ".join(f"[{spelling}]" for spelling in spellings)
    letters = dict.fromkeys(axis[0] for spelling in spellings for axis in spelling.split())
    sizes = ", ".join(f"{letter}={known[letter]}" for letter in letters if letter in known)
    return f"{name} has shape {tuple(shape)}; expected {expected}" + (f" with {sizes}." if sizes else ".")
