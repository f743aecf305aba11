"""The demo from beginning to end."""

from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from attn import parity
from attn.demo.attention import HEAD, LAYER, SEEN, attention_map
from attn.demo.checks import Check
from attn.demo.crossing import LEGS, cross
from attn.demo.data import SHAKESPEARE, STORIES
from attn.demo.pictures import draw_attention, draw_losses
from attn.demo.story import tell
from attn.driving import both
from attn.terminal import counted, table

if TYPE_CHECKING:
    from rich.console import Console

CURVE = "loss.png"
MAP = "attention.png"
MODEL = "shakespeare"


def check_ready(out: Path) -> None:
    """Refuse to begin what could not be finished.

    Raises:
        ModuleNotFoundError: a framework or matplotlib is not installed.
        ValueError: `out` is a file.
    """
    both()
    if find_spec("matplotlib") is None:
        raise ModuleNotFoundError("the demo draws with matplotlib: pip install 'attn[plot]'.")
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out must be a folder; got {str(out)!r}.")


def demonstrate(data: Path, out: Path, terminal: "Console") -> bool:
    """Run all parts, print what was checked, and say whether all of it holds."""
    began = perf_counter()
    terminal.rule("1. A real Llama in both twins")
    checks = tell(data / STORIES, terminal)
    terminal.rule("2. Parity: both twins and the reference")
    checks.append(_compared(terminal))
    terminal.rule("3. One training, JAX to PyTorch to JAX")
    out.mkdir(parents=True, exist_ok=True)
    crossed = cross((data / SHAKESPEARE).read_text(encoding="utf-8"), out / MODEL, terminal)
    checks += crossed.checks
    terminal.rule("4. Pictures")
    draw_losses(crossed.history, LEGS, crossed.trigram, out / CURVE)
    title = f"stories260K: head {HEAD} of layer {LAYER} {SEEN}"
    draw_attention(attention_map(data / STORIES), title, out / MAP)
    terminal.print(f"{out / CURVE}\n{out / MAP}", markup=False)
    terminal.rule("What was checked")
    rows = [(check.claim, check.found, "yes" if check.holds else "NO") for check in checks]
    terminal.print(table(("claim", "found", "holds"), rows))
    terminal.print(f"{perf_counter() - began:.0f} s in all")
    return all(check.holds for check in checks)


def _compared(terminal: "Console") -> Check:
    reports = list(counted(parity.check_all(), len(parity.cases()), "comparing"))
    terminal.print(parity.summary(reports))
    worst = max(reports, key=lambda report: report.worst.ratio)
    found = f"{len(reports)} cases, the worst at {worst.worst.ratio:.2f} of its bound ({worst.variant})"
    return Check("outputs and all gradients are within their bounds", found, all(report.ok for report in reports))
