"""The `attn` command. A command imports what it needs when it runs, so that help and small commands answer at once."""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from attn.commands import convert, demo, generate, list, parity, show, tables, train


class Refusing(TyperGroup):
    """A group that prints what a command refuses as one sentence, in red, and exits with 2."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except (ValueError, OSError, ModuleNotFoundError) as error:
            # A reader that has seen enough (`attn list | head`) is no error of anyone.
            if ctx.params.get("traceback") or isinstance(error, BrokenPipeError):
                raise
            from attn.terminal import sentence

            typer.secho(sentence(error), fg="red", err=True)
            raise typer.Exit(2) from None


# Plain help: rich would take longer to import than everything else together.
app = typer.Typer(
    cls=Refusing, no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
)


@app.callback()
def attn(
    traceback: Annotated[bool, typer.Option("--traceback", help="Show where an error was raised.")] = False,
) -> None:
    """Every attention variant said once, and done twice: in JAX and in PyTorch."""


for command in (list, show, parity, convert, train, generate, demo):
    app.command(command.__name__.rpartition(".")[2])(command.run)
app.command("tables", hidden=True)(tables.run)
