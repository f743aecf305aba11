"""What a model must beat: the two characters before the next one, counted."""

import numpy as np


def trigram_loss(train: np.ndarray, held_out: np.ndarray, vocab_size: int) -> float:
    """The mean loss, in nats per token, of a trigram model with Witten and Bell's interpolation (1991).

    p(c | h) = (n(h c) + t(h) p(c | h')) / (n(h) + t(h)), with n the counts in `train`, t(h) how many different tokens
    follow the history h, and h' the history without its first token; the shortest one is uniform over V tokens.
    """
    probabilities = np.full((1, vocab_size), 1 / vocab_size)
    for order in range(3):
        counts = _counts(train, order, vocab_size)
        seen = counts.sum(1, keepdims=True)
        kinds = (counts > 0).sum(1, keepdims=True)
        # A history's number in base V ends with its shorter history, so the shorter table repeats.
        shorter = np.tile(probabilities, (len(counts) // len(probabilities), 1))
        probabilities = np.where(seen > 0, (counts + kinds * shorter) / np.maximum(seen + kinds, 1), shorter)
    history = held_out[:-2].astype(int) * vocab_size + held_out[1:-1]
    return float(-np.log(probabilities[history, held_out[2:]]).mean())


def _counts(tokens: np.ndarray, order: int, vocab_size: int) -> np.ndarray:
    """How often each token follows each history of `order` tokens, [V**order, V]."""
    number = np.zeros(len(tokens) - order, int)
    for place in range(order + 1):
        number = number * vocab_size + tokens[place : len(tokens) - order + place]
    return np.bincount(number, minlength=vocab_size ** (order + 1)).reshape(-1, vocab_size)
