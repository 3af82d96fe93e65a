"""``sluice``: run a pipeline in one process; look at its checkpoints, restore it, clean up.

Every error is one sentence on stderr that names the thing and the fix, and exit code 1.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from sluice.cli import (
    abort,
    cancel,
    check,
    checkpoint,
    dispose,
    doctor,
    garbage,
    journal,
    lag,
    metrics,
    request,
    restore,
    show,
    snapshots,
    state,
    state_diff,
    state_write,
    statistics,
    tables,
    timing,
)
from sluice.cli import init as init_command
from sluice.cli import run as run_command
from sluice.cli.options import with_flags
from sluice.errors import SluiceError
from sluice.extras import DISTRIBUTION

app = typer.Typer(
    name="sluice",
    help=__doc__.partition("\n")[0],
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
checkpoints = typer.Typer(
    help="Look at a job's checkpoints; abort one; change when they are taken.", no_args_is_help=True
)
app.add_typer(checkpoints, name="checkpoints")
keyed_state = typer.Typer(
    help="Look at what stages remember; make other savepoints of it.", no_args_is_help=True
)
app.add_typer(keyed_state, name="state")
files_tables = typer.Typer(
    help="Look at tables of files; merge and vacuum them.", no_args_is_help=True
)
app.add_typer(files_tables, name="tables")


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(version(DISTRIBUTION))
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """The options of every command."""


# The parameters of a pipeline are options, too.
TAKES_PARAMETERS = {"allow_extra_args": True, "ignore_unknown_options": True}

app.command("init")(init_command.init)
app.command("doctor")(doctor.doctor)
app.command("run", context_settings=TAKES_PARAMETERS)(run_command.run)
app.command("pipelines")(show.pipelines)
app.command("side-output")(show.side_output_rows)
app.command("check", context_settings=TAKES_PARAMETERS)(check.check)
app.command("restore", context_settings=TAKES_PARAMETERS)(restore.restore)
app.command("snapshots")(snapshots.list_snapshots)
app.command("checkpoint")(request.checkpoint)
app.command("savepoint")(request.savepoint)
app.command("dispose")(dispose.dispose)
app.command("stop")(request.stop)
app.command("pause")(timing.pause)
app.command("resume")(timing.resume)
app.command("cancel")(cancel.cancel)
app.command("journal")(journal.journal)
app.command("lag")(lag.lag)
app.command("metrics")(metrics.metrics)
app.command("orphans")(garbage.orphans)
app.command("gc")(garbage.gc)
checkpoints.command("list")(show.checkpoints)
checkpoints.command("show")(checkpoint.show)
checkpoints.command("config")(timing.config)
checkpoints.command("abort")(abort.abort)
checkpoints.command("stats")(statistics.stats)
keyed_state.command("read")(state.read)
keyed_state.command("diff")(state_diff.diff)
keyed_state.command("schema")(state_write.schema)
keyed_state.command("rewrite")(state_write.rewrite)
keyed_state.command("drop")(state_write.drop)
keyed_state.command("bootstrap")(state_write.bootstrap)
files_tables.command("show")(tables.show)
files_tables.command("compact")(tables.compact)
files_tables.command("vacuum")(tables.vacuum)


def main(arguments: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """The console script."""
    try:
        app(args=arguments)
    except SluiceError as error:
        typer.secho(f"error: {with_flags(str(error))}", err=True, fg="red")
        sys.exit(1)
