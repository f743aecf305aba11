"""The parts of the demo, each against numbers counted by hand; and, in the second tier, the demo itself."""

import subprocess
import sys
from math import exp, log
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from attn.demo import crossing, running
from attn.demo.attention import attention_map
from attn.demo.data import CLONE, STORIES, data_folder, shakespeare
from attn.demo.pictures import draw_attention, draw_losses
from attn.demo.story import tell
from attn.demo.trigram import trigram_loss
from attn.history import History
from attn.training import TrainConfig

ROOT = Path(__file__).parents[2]
PNG = b"\x89PNG\r\n\x1a\n"


def test_the_trigram_model_by_hand():
    # Tokens 0 1 0 1 0. Uniform 1/2; unigrams: n = 5, t = 2; after 1: n = 2, t = 1, always 0; after 0 1: n = 2, t = 1.
    unigram = (3 + 2 / 2) / (5 + 2)
    bigram = (2 + 1 * unigram) / (2 + 1)
    trigram = (2 + 1 * bigram) / (2 + 1)
    loss = trigram_loss(np.array([0, 1, 0, 1, 0]), np.array([0, 1, 0]), 2)
    assert loss == pytest.approx(-log(trigram), abs=1e-12)


def test_a_history_that_was_never_seen_falls_back_to_the_shorter_one():
    # 1 1 never occurs, and of 1 alone is known what follows.
    unigram = (3 + 2 / 2) / (5 + 2)
    bigram = (2 + 1 * unigram) / (2 + 1)
    loss = trigram_loss(np.array([0, 1, 0, 1, 0]), np.array([1, 1, 0]), 2)
    assert loss == pytest.approx(-log(bigram), abs=1e-12)


def test_the_trigram_model_is_a_distribution():
    train = np.random.default_rng(0).integers(0, 5, 200)
    for first, second in ((0, 1), (4, 4), (2, 3)):
        total = sum(exp(-trigram_loss(train, np.array([first, second, third]), 5)) for third in range(5))
        assert total == pytest.approx(1, abs=1e-12)


def test_the_data_lies_in_the_clone():
    assert data_folder() == CLONE == ROOT / "examples" / "data"
    assert shakespeare() == CLONE / "tinyshakespeare.txt"


def test_outside_a_clone_the_text_has_to_be_named(monkeypatch, tmp_path):
    monkeypatch.setattr("attn.demo.data.CLONE", tmp_path)
    path = tmp_path / "tinyshakespeare.txt"
    with pytest.raises(ValueError, match=rf"^--data must name a text file .* its own; got no '{path}'\.$"):
        shakespeare()


def test_both_twins_tell_the_published_story():
    terminal = Console(record=True, width=200)
    checks = tell(CLONE / STORIES, terminal)
    assert [check.holds for check in checks] == [True, True]
    assert all(check.found.startswith("257 of 257 tokens equal, ") for check in checks)
    assert "Once upon a time, there was a little girl named Lily." in terminal.export_text()


@pytest.mark.parametrize(
    ("after", "holds"), [(2.0, True), (2.0 + 9e-6, True), (2.0 + 2e-5, False), (2.0 - 2e-5, False)]
)
def test_a_seam_is_seen(after, holds):
    assert crossing._seam("jax", "torch", 2.0, after).holds is holds


def test_an_attention_map_is_causal_and_sums_to_one():
    found = attention_map(CLONE / STORIES)
    assert found.weights.shape == (len(found.pieces),) * 2
    assert found.pieces[:4] == ["start", "Once", "upon", "a"]
    np.testing.assert_allclose(found.weights.sum(-1), 1, atol=1e-6)
    assert (np.triu(found.weights, 1) == 0).all()


def test_pictures_are_drawn(tmp_path):
    losses = list(np.linspace(4, 2, 9))
    history = History(train=TrainConfig(steps=9), losses=losses, validation=[(4, 3.0), (9, 2.1)])
    draw_losses(history, (("jax", 3), ("torch", 6), ("jax", 9)), 2.05, tmp_path / "loss.png")
    draw_attention(attention_map(CLONE / STORIES), "a head", tmp_path / "map.png")
    assert all((tmp_path / name).read_bytes().startswith(PNG) for name in ("loss.png", "map.png"))


def test_the_demo_says_what_is_missing_before_it_begins(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=rf"^--out must be a folder; got '{tmp_path / 'file'}'\.$"):
        running.check_ready(tmp_path / "file")
    monkeypatch.setattr(running, "find_spec", lambda _: None)
    with pytest.raises(ModuleNotFoundError, match=r"^the demo draws with matplotlib: pip install 'attn\[plot\]'\.$"):
        running.check_ready(tmp_path)


SHORT = """
import sys
from attn.demo import crossing, running
crossing.LEGS = running.LEGS = (("jax", 6), ("torch", 11), ("jax", 15))
from attn.cli import app
app(["demo", "--out", sys.argv[1]])
"""


@pytest.mark.full
def test_the_whole_demo_with_a_short_training(tmp_path):
    # All holds but the goal, which fifteen steps do not reach.
    run = subprocess.run([sys.executable, "-c", SHORT, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 1, run.stderr
    claims = {line.rsplit(maxsplit=1)[0]: line.split()[-1] for line in run.stdout.splitlines() if line.split()}
    held = [answer for claim, answer in claims.items() if answer in ("yes", "NO") and "under 1.90" not in claim]
    assert held == ["yes"] * 5
    assert any("under 1.90" in claim and answer == "NO" for claim, answer in claims.items())
    assert {path.name for path in tmp_path.iterdir()} == {"loss.png", "attention.png", "shakespeare"}
