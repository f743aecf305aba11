"""The softmax family, one page per variant."""
