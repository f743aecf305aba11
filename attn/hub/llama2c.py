"""The one file of llama2.c, version 0: seven integers and the matrices of a Llama, in float32 and in a fixed order.

The header holds dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size and max_seq_len, each an int32; a negative
vocab_size says that the head is a matrix of its own, at the end of the file. Then come the tensors, those of the layers
kind by kind. Rotary pairs are interleaved, theta is 10000 and the norms' eps 1e-5; the file repeats the first fact in
two tables of cosines and sines. Source: llama2.c (Karpathy 2023), export.py and run.c.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from attn.files import FilePath
from attn.hub.fields import Always, Field
from attn.hub.heads import Heads, Width
from attn.hub.page import Page, Rule
from attn.masks import Causal
from attn.rope import Rope

HEADER = ("dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "max_seq_len")

# In the files of later versions this number comes first.
MAGIC = 0x616B3432

LLAMA2C = Page(
    model_type="llama2.c",
    architecture="Transformer",
    fields=(
        Field("vocab_size", "vocab_size"),
        Field("n_layers", "layers"),
        Width("dim"),
        Heads("n_heads", "dim", "n_kv_heads"),
        Field("hidden_dim", "mlp.hidden_dim"),
        Field("tied", "tied"),
        Always((("attention.mask", Causal()), ("attention.rope", Rope(theta=10000.0, layout="interleaved")))),
        Always((("mlp.activation", "silu"), ("mlp.gated", True), ("norm.kind", "rms"), ("norm.eps", 1e-5))),
    ),
    tensors=(
        Rule("tok_embeddings", "embed"),
        Rule("layers.{i}.attention_norm", "layers.{i}.attention_norm"),
        Rule("layers.{i}.attention.wq", "layers.{i}.attention.q"),
        Rule("layers.{i}.attention.wk", "layers.{i}.attention.k"),
        Rule("layers.{i}.attention.wv", "layers.{i}.attention.v"),
        Rule("layers.{i}.attention.wo", "layers.{i}.attention.out"),
        Rule("layers.{i}.ffn_norm", "layers.{i}.mlp_norm"),
        Rule("layers.{i}.feed_forward.w1", "layers.{i}.mlp.gate"),
        Rule("layers.{i}.feed_forward.w2", "layers.{i}.mlp.down"),
        Rule("layers.{i}.feed_forward.w3", "layers.{i}.mlp.up"),
        Rule("norm", "norm"),
        Rule("output", "head"),
    ),
    buffers=("freqs_cos", "freqs_sin"),
    silent=frozenset({"max_seq_len"}),
)


class Llama2cFile(Mapping[str, np.ndarray]):
    """The tensors of one file under the names that llama2.c's own model gives them, each read when it is asked for.

    Attributes:
        path: the file.
        fields: the header by name; vocab_size is positive, and `tied` says what its sign said.
        shapes: the shape of each tensor, in the order of the file.
        dtypes: float32, for each tensor.
    """

    def __init__(self, path: FilePath) -> None:
        """Open the file at `path`, reading its header and two rows of its tables.

        Raises:
            ValueError: if it is no such file, is damaged, or was trained with another theta.
            OSError: if it cannot be opened.
        """
        self.path = Path(path)
        try:
            self.fields = _header(self.path)
            self.shapes = dict(_tensors(self.fields))
            self._check_size()
        except ValueError as error:
            raise ValueError(f"{self.path} is not a llama2.c file of version 0: {error}") from error
        ends = np.cumsum([math.prod(shape) for shape in self.shapes.values()])
        self._ends = dict(zip(self.shapes, ends.tolist(), strict=True))
        self.dtypes = dict.fromkeys(self.shapes, np.dtype(np.float32))
        self._numbers = np.memmap(self.path, "<f4", "r", offset=4 * len(HEADER))
        self._check_theta()

    def __getitem__(self, name: str) -> np.ndarray:
        end, shape = self._ends[name], self.shapes[name]
        return np.array(self._numbers[end - math.prod(shape) : end], np.float32).reshape(shape)

    def __contains__(self, name: object) -> bool:
        # Mapping's own answer would read the tensor.
        return name in self.shapes

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def _check_size(self) -> None:
        expected = 4 * (len(HEADER) + sum(math.prod(shape) for shape in self.shapes.values()))
        received = self.path.stat().st_size
        if received != expected:
            raise ValueError(f"it should have {expected} bytes, as its header says; received {received}.")

    def _check_theta(self) -> None:
        """Refuse tables of another theta: at position 1 they show the frequencies themselves."""
        cos, sin = self["freqs_cos"][1:2], self["freqs_sin"][1:2]
        angles = Rope().frequencies(2 * cos.shape[1])
        # An angle of at most 1 is rounded to float32, as are the power before it and the cosine after it.
        error = 8 * np.finfo(np.float32).eps
        if not (np.allclose(cos, np.cos(angles), 0, error) and np.allclose(sin, np.sin(angles), 0, error)):
            raise ValueError(f"{self.path} has rotary tables that are not those of theta 10000.")


def _header(path: Path) -> dict[str, int]:
    with open(path, "rb") as file:
        head = file.read(4 * len(HEADER))
    if len(head) < 4 * len(HEADER):
        raise ValueError(f"it should have at least {4 * len(HEADER)} bytes; received {len(head)}.")
    numbers = np.frombuffer(head, "<i4").tolist()
    if numbers[0] == MAGIC:
        raise ValueError(f"it should start with its sizes; received the mark of version {numbers[1]}.")
    fields = dict(zip(HEADER, numbers, strict=True))
    fields |= {"vocab_size": abs(fields["vocab_size"]), "tied": fields["vocab_size"] > 0}
    for name in HEADER:
        if fields[name] <= 0:
            raise ValueError(f"its {name} should be positive; received {fields[name]}.")
    for divisor, name in (("n_heads", "dim"), ("n_kv_heads", "n_heads")):
        if fields[name] % fields[divisor]:
            raise ValueError(f"its {divisor} should divide {name}={fields[name]}; received {fields[divisor]}.")
    return fields


def _tensors(fields: Mapping[str, int]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of each tensor in the order of the file."""
    width, hidden, vocabulary, length = (fields[name] for name in ("dim", "hidden_dim", "vocab_size", "max_seq_len"))
    head = width // fields["n_heads"]
    keys = head * fields["n_kv_heads"]
    yield "tok_embeddings.weight", (vocabulary, width)
    of_layers = {
        "attention_norm": (width,),
        "attention.wq": (width, width),
        "attention.wk": (keys, width),
        "attention.wv": (keys, width),
        "attention.wo": (width, width),
        "ffn_norm": (width,),
        "feed_forward.w1": (hidden, width),
        "feed_forward.w2": (width, hidden),
        "feed_forward.w3": (hidden, width),
    }
    for part, shape in of_layers.items():
        for layer in range(fields["n_layers"]):
            yield f"layers.{layer}.{part}.weight", shape
    yield "norm.weight", (width,)
    yield "freqs_cos", (length, head // 2)
    yield "freqs_sin", (length, head // 2)
    if not fields["tied"]:
        yield "output.weight", (vocabulary, width)
