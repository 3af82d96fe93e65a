"""``sluice``: run a pipeline in one process, look at its checkpoints and side outputs.

Every error is one sentence on stderr that names the thing and the fix, and exit code 1.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from sluice.cli import run as run_command
from sluice.cli import show
from sluice.errors import SluiceError

app = typer.Typer(
    name="sluice",
    help=__doc__.partition("\n")[0],
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
checkpoints = typer.Typer(help="Look at a job's checkpoints.", no_args_is_help=True)
app.add_typer(checkpoints, name="checkpoints")

app.command("run", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(
    run_command.run
)
app.command("pipelines")(show.pipelines)
app.command("side-output")(show.side_output_rows)
checkpoints.command("list")(show.checkpoints)


def main(arguments: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """The console script."""
    try:
        app(args=arguments)
    except SluiceError as error:
        typer.secho(f"error: {error}", err=True, fg="red")
        sys.exit(1)
