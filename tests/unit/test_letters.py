import pytest

import attn
from attn.letters import bind, shape_of, size_of
from tests.cases import CASES, decoder, refused

SIZES = {"M": 13, "H": 6, "D": 5, "R": 2}


def test_an_axis_may_add_letters():
    assert size_of("D+R", SIZES) == 7
    assert shape_of("M H D+R", SIZES) == (13, 6, 7)


@pytest.mark.parametrize("cfg", [*CASES.values(), decoder()], ids=[*CASES, "decoder"])
def test_every_letter_of_a_layout_is_in_the_legend_and_has_a_size(cfg):
    letters = {letter for part in cfg.layout().values() for letter in part.axes if letter.isalpha()}
    assert letters <= cfg.sizes().keys() <= attn.LEGEND.keys()


def test_binding_returns_the_size_of_every_letter():
    known = bind(SIZES, x=((2, 7, 13), "B T M"), valid=((7,), "T", "B T"), allowed=None)
    assert known == {**SIZES, "B": 2, "T": 7}


def test_binding_does_not_change_what_it_is_given():
    sizes = dict(SIZES)
    bind(sizes, x=((2, 7, 13), "B T M"))
    assert sizes == SIZES


def test_the_spelling_is_chosen_by_rank():
    for shape in [(7, 11), (2, 7, 11), (2, 6, 7, 11), (1, 1, 7, 11), (2, 1, 7, 11), (1, 6, 7, 11)]:
        known = bind({"B": 2, "H": 6, "T": 7}, allowed=(shape, "T S", "B T S", "B|1 H|1 T S"))
        assert known == {"B": 2, "H": 6, "T": 7, "S": 11}


@pytest.mark.parametrize(
    ("sizes", "shape", "spellings", "text"),
    [
        ({"M": 13}, (2, 7, 12), ["B T M"], "x has shape (2, 7, 12); expected [B T M] with M=13."),
        ({"M": 13, "H": 6}, (7, 13), ["B T M"], "x has shape (7, 13); expected [B T M] with M=13."),
        ({}, (), ["B T"], "x has shape (); expected [B T]."),
        ({"B": 2, "T": 4}, (2, 1, 7), ["B T S"], "x has shape (2, 1, 7); expected [B T S] with B=2, T=4."),
        ({"B": 2}, (5,), ["T S", "B T S"], "x has shape (5,); expected [T S] or [B T S] with B=2."),
        (
            {"B": 2, "H": 6},
            (3, 6, 2, 2),
            ["T S", "B|1 H|1 T S"],
            "x has shape (3, 6, 2, 2); expected [B|1 H|1 T S] with B=2, H=6.",
        ),
        # A letter that is met twice in one array must agree with itself.
        ({}, (7, 8), ["S S"], "x has shape (7, 8); expected [S S]."),
    ],
)
def test_a_shape_that_does_not_fit_is_refused(sizes, shape, spellings, text):
    with refused(text):
        bind(sizes, x=(shape, *spellings))


def test_arrays_are_bound_in_their_order():
    with refused("context has shape (3, 11, 17); expected [B S X] with B=2, X=17."):
        bind({"M": 13, "X": 17}, x=((2, 7, 13), "B T M"), context=((3, 11, 17), "B S X"))
