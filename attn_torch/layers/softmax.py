"""The softmax family: every variant is `SoftmaxAttention` with its own config."""

from attn_torch.mechanisms.softmax import SoftmaxAttention


class SelfAttention(SoftmaxAttention):
    """One head over one sequence, without an output projection; config `SelfAttentionConfig`."""


class CrossAttention(SoftmaxAttention):
    """One head that reads a context, without an output projection; config `CrossAttentionConfig`."""


class CausalAttention(SoftmaxAttention):
    """One head that sees itself and what came before, without an output projection; config `CausalAttentionConfig`."""


class MultiHeadAttention(SoftmaxAttention):
    """Heads side by side, each with keys and values of its own; config `MultiHeadAttentionConfig`."""


class MultiQueryAttention(SoftmaxAttention):
    """Heads that share one key/value head; config `MultiQueryAttentionConfig`."""


class GroupedQueryAttention(SoftmaxAttention):
    """Groups of heads that share a key/value head; config `GroupedQueryAttentionConfig`."""
