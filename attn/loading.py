"""Reading a config back, whatever it is a config of."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from attn.config import Config, read_json
from attn.models import DecoderConfig
from attn.variants import Attention

AnyConfig = Annotated[Attention | DecoderConfig, Field(discriminator="variant")]
_ADAPTER: TypeAdapter = TypeAdapter(AnyConfig)


def load_config(source: str | Path | Mapping[str, Any]) -> Config:
    """A config from a dict, a JSON file or a checkpoint folder; its `variant` says which.

    Raises:
        ValueError: (pydantic's) naming the field, the rule and what was received.
    """
    return _ADAPTER.validate_json(read_json(source))


def json_schema() -> dict[str, Any]:
    """The JSON Schema of every config."""
    return _ADAPTER.json_schema()
