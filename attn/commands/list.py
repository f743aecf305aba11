"""`attn list`: the variants and the models."""


def run() -> None:
    """List the variants and the models."""
    from attn.tables import formula, pages
    from attn.terminal import console, table

    rows = ((name, page.__name__, formula(page)) for name, page in pages().items())
    console().print(table(("name", "class", "formula"), rows))
