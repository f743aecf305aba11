import signal
import threading
from dataclasses import dataclass, replace

import numpy as np
import pytest

from attn.characters import CharTokenizer
from attn.history import History
from attn.training import TrainConfig
from attn.training_loop import Interrupted, Progress, held_interrupts, run
from tests.cases import decoder, refused

MODEL = decoder(vocab_size=17, learned_positions=7)
TOKENS = np.arange(103) % 17
CONFIG = TrainConfig(steps=11, batch=5, context=7, eval_every=3, save_every=4)


@dataclass
class State:
    history: History
    updates: int = 0


class Twin:
    """A twin that only counts: its loss is one over the number of updates."""

    def __init__(self, cfg=CONFIG, history=None):
        self.state = State(history or History(train=cfg))
        self.batches, self.saved, self.heard = [], [], []

    def step(self, state, batch):
        self.batches.append(batch)
        state.history.check_room()
        state.history.add(1 / (state.history.step + 1))
        return replace(state, updates=state.updates + 1), state.history.losses[-1]

    def run(self, tokens=TOKENS, model=MODEL, **options):
        self.state = run(
            self.state,
            tokens,
            model,
            step=self.step,
            evaluate=lambda state, batches: float(state.updates),
            save=lambda state: self.saved.append(state.history.step),
            **({"report": self.heard.append} | options),
        )
        return self.state


def test_each_step_is_made_and_heard_once():
    twin = Twin()
    state = twin.run()
    assert state.updates == state.history.step == 11
    assert [progress.step for progress in twin.heard] == list(range(1, 12))
    assert {progress.steps for progress in twin.heard} == {11}
    assert [progress.loss for progress in twin.heard] == state.history.losses == [1 / n for n in range(1, 12)]
    assert all(progress.tokens_per_second > 0 for progress in twin.heard)


def test_evaluations_and_checkpoints_come_when_they_are_due():
    twin = Twin()
    state = twin.run()
    assert state.history.validation == [(3, 3.0), (6, 6.0), (9, 9.0), (11, 11.0)]
    assert [progress.validation for progress in twin.heard] == [None, None, 3, None, None, 6, None, None, 9, None, 11]
    assert twin.saved == [0, 4, 8, 11]


def test_nothing_is_evaluated_without_held_out_tokens():
    assert Twin(CONFIG.replace(eval_every=None, validation_fraction=0.0)).run().history.validation == []


def test_a_training_in_parts_sees_the_same_batches():
    whole, parts = Twin(), Twin()
    whole.run()
    for until in (2, 2, 7, None):
        parts.run(until=until)
    np.testing.assert_array_equal(parts.batches, whole.batches)
    assert parts.state.history == whole.state.history
    assert parts.saved == [0, 2, 2, 2, 4, 7, 7, 8, 11]


def test_what_does_not_fit_is_refused_before_the_first_step():
    twin = Twin()
    with refused("tokens must lie between 0 and 15; got 16."):
        twin.run(model=decoder(vocab_size=16))
    with refused("context must be at most the model's learned_positions=6; got 7."):
        twin.run(model=decoder(vocab_size=17, learned_positions=6))
    for until in (-1, 12):
        with refused(f"until must lie between the steps made, 0, and steps=11; got {until}."):
            twin.run(until=until)
    assert twin.batches == twin.saved == []
    assert twin.state.history.data is None


def test_a_training_goes_on_with_the_tokens_it_began_with():
    twin = Twin()
    twin.run(until=2)
    twin.run(TOKENS.astype(np.uint8), until=3)
    with pytest.raises(
        ValueError, match=r"^tokens must be those the training began with, 103 tokens, crc32 \w{8}; got"
    ):
        twin.run(TOKENS[:-1])
    assert twin.state.history.step == 3


def test_a_folder_that_cannot_be_written_costs_no_step():
    def fail(state):
        raise OSError("no room")

    twin = Twin()
    with pytest.raises(OSError, match="no room"):
        run(twin.state, TOKENS, MODEL, step=twin.step, evaluate=lambda state, batches: 0.0, save=fail)
    assert twin.batches == []


def test_a_loss_that_is_not_finite_ends_the_training():
    history = History(train=CONFIG, losses=[1.0, 0.5])
    for loss in (float("nan"), float("inf")):
        with refused(f"loss must stay finite; got {loss} in step 3."):
            history.add(loss)
    assert history.step == 2


def test_a_step_beyond_the_last_is_refused():
    history = History(train=TrainConfig(steps=2), losses=[1.0, 0.5])
    with refused("training must stay within steps=2; got step 3."):
        history.check_room()


def interrupt_at(step):
    def report(progress: Progress):
        if progress.step == step:
            raise KeyboardInterrupt

    return report


def test_an_interrupt_in_the_callback_saves_the_whole_step():
    twin = Twin()
    with pytest.raises(Interrupted, match=r"^training stopped after step 5 of 11\Z") as stopped:
        twin.run(report=interrupt_at(5))
    assert twin.saved == [0, 4, 5]
    assert stopped.value.state.updates == stopped.value.state.history.step == 5
    assert isinstance(stopped.value, KeyboardInterrupt)


def test_an_interrupt_after_the_last_step_is_not_swallowed():
    twin = Twin()
    with pytest.raises(Interrupted):
        twin.run(report=interrupt_at(11))
    assert twin.saved[-1] == 11


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_in_a_step_waits_for_its_end():
    class Pressed(Twin):
        def step(self, state, batch):
            if state.history.step == 4:
                signal.raise_signal(signal.SIGINT)
            return super().step(state, batch)

    twin, before = Pressed(), signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted) as stopped:
        twin.run()
    assert stopped.value.state.updates == 5
    assert twin.saved == [0, 4, 5]
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.usefixtures("ctrl_c")
def test_a_second_ctrl_c_does_not_wait():
    done = []

    def press_twice():
        with held_interrupts() as interrupted:
            signal.raise_signal(signal.SIGINT)
            done.append(interrupted.is_set())
            signal.raise_signal(signal.SIGINT)
            done.append("more")

    with pytest.raises(KeyboardInterrupt):
        press_twice()
    assert done == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_process_that_ignores_ctrl_c_goes_on_ignoring_it():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with held_interrupts() as interrupted:
            signal.raise_signal(signal.SIGINT)
            assert not interrupted.is_set()
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_training_may_run_in_a_thread():
    twin = Twin()
    thread = threading.Thread(target=twin.run)
    thread.start()
    thread.join()
    assert twin.state.history.step == 11


HISTORY = History(
    train=TrainConfig(steps=3),
    tokenizer=CharTokenizer(characters="\n é"),
    data="5 tokens, crc32 01234567",
    validation=[(1, 0.1), (2, 1e-300)],
    losses=[1 / 3, 2.0],
)


def test_a_history_has_a_line_for_each_field():
    lines = HISTORY.to_json().splitlines()
    assert lines[:2] == ["{", '  "step": 2,']
    assert lines[2].startswith('  "train": {"steps": 3, "batch": 32, ')
    assert lines[3:] == [
        '  "tokenizer": {"characters": "\\n \\u00e9"},',
        '  "data": "5 tokens, crc32 01234567",',
        '  "validation": [[1, 0.1], [2, 1e-300]],',
        '  "losses": [0.3333333333333333, 2.0]',
        "}",
    ]


def test_a_history_reads_back_to_the_last_bit():
    assert History.from_json(HISTORY.to_json().encode()) == HISTORY


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"step": 2', '"step": 3', "step must be the number of losses, 2; got 3."),
        ('"step": 2', '"step": true', "step must be the number of losses, 2; got True."),
        ('  "step": 2,\n', "", "step must be the number of losses, 2; got None."),
        ('"data"', '"step": 2, "data"', "its JSON has the same key twice; received 'step'."),
    ],
)
def test_a_history_that_contradicts_itself_is_refused(old, new, message):
    text = HISTORY.to_json()
    assert old in text
    with refused(message):
        History.from_json(text.replace(old, new).encode())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"losses"', '"more": 1, "losses"', "Extra inputs are not permitted"),
        ("2.0]", "NaN]", "finite number"),
        ("2.0]", '"2.0"]', "valid number"),
        ('"steps": 3', '"steps": 0', "greater than 0"),
    ],
)
def test_a_history_of_another_kind_is_refused(old, new, message):
    text = HISTORY.to_json()
    assert old in text
    with pytest.raises(ValueError, match=message):
        History.from_json(text.replace(old, new).encode())


def test_a_history_is_an_object():
    with refused("a history must be a JSON object; got [3]."):
        History.from_json(b"[3]")
