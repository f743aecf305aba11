"""Configs as JSON: the same text wherever it is written, read back as the same value, and described by a schema."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import attn
from tests.cases import CASES, decoder

ROOT = Path(__file__).parents[2]
ALL = CASES | {"decoder": decoder(), "decoder_of_one": decoder(attention=CASES["grouped_query"], tied=True)}
every = pytest.mark.parametrize("cfg", ALL.values(), ids=ALL)
GROUPED = {"variant": "grouped_query", "input_dim": 64, "heads": 8, "kv_heads": 2, "dim_k": 64, "dim_v": 64}


@every
def test_json_reads_back_as_the_same_config(cfg, tmp_path):
    text = cfg.to_json()
    (tmp_path / "config.json").write_text(text)
    for source in (json.loads(text), tmp_path / "config.json", str(tmp_path / "config.json"), tmp_path):
        read = attn.load_config(source)
        assert type(read) is type(cfg)
        assert read == cfg
        assert hash(read) == hash(cfg)
        assert read.to_json() == text


@every
def test_json_holds_every_field_in_a_fixed_order_its_own_first(cfg):
    values = json.loads(cfg.to_json())
    own = [name for name in type(cfg).__annotations__ if name in type(cfg).model_fields]
    assert list(values)[: len(own)] == own
    assert next(iter(values)) == "variant"
    assert values.keys() == type(cfg).model_fields.keys()


def test_json_does_not_depend_on_the_order_of_the_arguments():
    forward, backward = attn.load_config(GROUPED), attn.load_config(dict(reversed(GROUPED.items())))
    assert forward.to_json() == backward.to_json()
    window = attn.SlidingWindow(symmetric=True, width=3)
    assert window.to_json() == '{\n  "kind": "sliding_window",\n  "width": 3,\n  "symmetric": true\n}\n'


WRITE = """
import json, attn
from tests.cases import CASES, decoder
for cfg in (*CASES.values(), decoder()):
    print(cfg.to_json())
print(json.dumps(attn.json_schema()))
"""


def test_json_does_not_depend_on_the_hash_seed():
    written = {
        subprocess.run(
            [sys.executable, "-c", WRITE],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "4711")
    }
    assert len(written) == 1
    assert len(written.pop()) > 10_000


def schema_of(name: str) -> dict:
    return attn.json_schema()["$defs"][name]


def test_the_schema_tells_every_config_apart_by_its_variant():
    schema = attn.json_schema()
    mapping = schema["discriminator"]["mapping"]
    configs = attn.VARIANTS | attn.MODELS
    assert schema["discriminator"]["propertyName"] == "variant"
    assert {name: ref.rpartition("/")[2] for name, ref in mapping.items()} == {
        name: cfg.__name__ for name, cfg in configs.items()
    }
    assert {entry["$ref"] for entry in schema["oneOf"]} == set(mapping.values())


@pytest.mark.parametrize("config", [*attn.VARIANTS.values(), *attn.MODELS.values()], ids=lambda c: c.__name__)
def test_the_schema_says_all_that_a_config_takes(config):
    schema = schema_of(config.__name__)
    fields = config.model_fields
    assert schema["properties"].keys() == fields.keys()
    assert schema["additionalProperties"] is False
    assert schema.get("required", []) == [name for name, field in fields.items() if field.is_required()]
    assert schema["properties"]["variant"]["const"] == fields["variant"].default


def test_every_reference_of_the_schema_leads_somewhere():
    schema = attn.json_schema()
    referred: set[str] = set()

    def walk(node):
        if isinstance(node, dict):
            referred.update(value for key, value in node.items() if key == "$ref")
            referred.update(node.get("discriminator", {}).get("mapping", {}).values())
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(schema)
    assert {ref.removeprefix("#/$defs/") for ref in referred} == schema["$defs"].keys()
