"""A page run both ways over configs: every field of the source must be known, every fact of the target said."""

from collections.abc import Mapping
from typing import Any

from attn.hub.facts import config_of, defaults_of, facts_of
from attn.hub.page import Page
from attn.models import DecoderConfig


def read_config(page: Page, fields: Mapping[str, Any], what: str = "config") -> DecoderConfig:
    """Our config from the fields of a foreign one.

    Raises:
        ValueError: one report of every field that is missing, contradictory, unknown or not implemented.
    """
    problems, facts = [], {}
    for aspect in page.fields:
        try:
            facts |= aspect.read(fields)
        except ValueError as error:
            problems.append(str(error))
    known = page.silent.union(*(aspect.names for aspect in page.fields))
    for name, value in fields.items():
        # Null says that nothing was chosen.
        if name in known or value is None or (name in page.harmless and value == page.harmless[name]):
            continue
        expected = (
            f"must be {page.harmless[name]!r}, not" if name in page.harmless else "is unknown and may matter, it is"
        )
        problems.append(f"{name} {expected} {value!r}")
    if problems:
        raise ValueError(f"{what} cannot be read as {page.model_type}: {'; '.join(dict.fromkeys(problems))}.")
    return config_of(facts)


def write_config(page: Page, cfg: DecoderConfig) -> tuple[dict[str, Any], list[str]]:
    """The fields of a foreign config from ours, and everything of ours that the format cannot say."""
    problems, fields, facts = [], dict(page.written), facts_of(cfg)
    for aspect in page.fields:
        try:
            fields |= aspect.write(facts)
        except ValueError as error:
            problems.append(str(error))
    said = {path for aspect in page.fields for path in aspect.paths}
    defaults = defaults_of(cfg)
    for path, value in facts.items():
        if path in said or (path in defaults and value == defaults[path]):
            continue
        expected = f"must be {defaults[path]!r}, not" if path in defaults else "cannot be said, it is"
        problems.append(f"{path} {expected} {value!r}")
    return fields | {"model_type": page.model_type, "architectures": [page.architecture]}, problems
