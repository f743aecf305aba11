"""What a config says about itself, against numbers counted by hand."""

import pytest

import attn
from attn import tables
from attn.caching import numbers_per_token
from attn.config import Config
from attn.presets import NAMES, decoder, small

HEADS = {"input_dim": 12, "heads": 6, "dim_k": 18, "dim_v": 30}


@pytest.mark.parametrize(
    ("cfg", "numbers"),
    [
        (attn.SelfAttentionConfig(input_dim=12, dim_k=5, dim_v=7), 12),
        (attn.MultiHeadAttentionConfig(**HEADS), 48),
        (attn.GroupedQueryAttentionConfig(**HEADS, kv_heads=3), 24),
        (attn.MultiQueryAttentionConfig(**HEADS), 8),
        (attn.MultiHeadLatentAttentionConfig(**HEADS, kv_lora_rank=11), 11),
    ],
    ids=lambda value: getattr(value, "variant", None),
)
def test_the_numbers_that_a_cache_keeps_of_a_token(cfg, numbers):
    assert numbers_per_token(cfg) == numbers


def test_parameters_have_letters_and_shapes():
    cfg = attn.GroupedQueryAttentionConfig(**HEADS, kv_heads=3, bias=(False, False, False, True))
    assert tables.parameters(cfg) == [
        ("q.kernel", "M H D", (12, 6, 3), 1),
        ("k.kernel", "M K D", (12, 3, 3), 1),
        ("v.kernel", "M K E", (12, 3, 5), 1),
        ("out.kernel", "H E M", (6, 5, 12), 1),
        ("out.bias", "M", (12,), 1),
    ]


def test_equal_layers_share_a_line_and_different_ones_do_not():
    wide, narrow = (decoder(layers=2).attention.replace(kv_heads=n) for n in (3, 2))
    cfg = decoder(layers=3).replace(attention=(wide, narrow, wide))
    rows = [row for row in tables.parameters(cfg) if row.name == "layers.*.attention.k.kernel"]
    assert rows == [
        ("layers.*.attention.k.kernel", "M K D", (96, 3, 16), 2),
        ("layers.*.attention.k.kernel", "M K D", (96, 2, 16), 1),
    ]
    assert rows[0].numbers == 2 * 96 * 3 * 16
    assert sum(row.numbers for row in tables.parameters(cfg)) == attn.count(cfg)


@pytest.mark.parametrize("name", NAMES)
def test_every_page_has_a_formula_and_an_explanation(name):
    page = tables.pages()[name]
    formula = tables.formula(page)
    assert ("y = " in formula) or ("y_t = " in formula) or formula.startswith("logits = ")
    assert "Attributes:" not in tables.explanation(page)
    assert formula.split(", ")[-1].split(" = ")[1] in tables.explanation(page)


class Page(Config):
    """A page: z = 3 is said in passing.

    It begins with w = 5, which is not part of it.

    h = x Wh        [B T M]        g = h Wg        [B S M]
    y_t = h g        h = 7

    Attributes:
        y = 9: not this one.
    """


def test_the_formula_has_the_definitions_that_come_before_it():
    assert tables.formula(Page) == "h = x Wh, g = h Wg, y_t = h g"
    assert tables.formula(attn.SelfAttentionConfig) == "y = softmax(q k^T / sqrt(D)) v"


@pytest.mark.parametrize("name", NAMES)
def test_every_name_has_a_small_config(name):
    assert small(name).variant == name


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match=r"^name must be one of self, cross, .*, decoder; got 'multihead'\.$"):
        small("multihead")


def test_a_table_is_made_anew_between_its_markers():
    text = "before\n<!-- table: variants -->\nold\n<!-- end -->\nafter\n"
    made = tables.refreshed(text)
    assert made == f"before\n<!-- table: variants -->\n{tables.variants()}\n<!-- end -->\nafter\n"
    assert tables.refreshed(made) == made
    assert "| `multi_query` | `MultiQueryAttentionConfig(input_dim=64, heads=8)` | 9,216 | 16 |" in made


@pytest.mark.parametrize("text", ["<!-- table: variant -->\n<!-- end -->", "<!-- table: variants -->\nold"])
def test_a_marker_without_a_table_or_an_end_is_refused(text):
    with pytest.raises(
        ValueError, match=r"^a table must be one of variants, costs and closed by <!-- end -->; got 'variants?'\.$"
    ):
        tables.refreshed(text)
