"""What the one-head variants share: heads and kv_heads are 1, and there is no output projection."""


class OneHead:
    """One query head and one key/value head; y is the attended value itself."""

    @property
    def heads(self) -> int:
        return 1

    @property
    def kv_heads(self) -> int:
        return 1

    @property
    def projections(self) -> tuple[str, ...]:
        return ("q", "k", "v")
