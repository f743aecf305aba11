"""Parity: do the implementations of a config compute the same, and where do they part?

`check` compares one config in one call, `check_all` every variant; `report.ok`, `report.worst` and `print(report)`
through rich say what was found.
"""

from attn.parity.checking import check
from attn.parity.founding import Case, cases, cases_of, check_all
from attn.parity.inputs import ARGUMENTS, Inputs, draw
from attn.parity.report import Report, Row, summary

__all__ = [
    "ARGUMENTS",
    "Case",
    "Inputs",
    "Report",
    "Row",
    "cases",
    "cases_of",
    "check",
    "check_all",
    "draw",
    "summary",
]
