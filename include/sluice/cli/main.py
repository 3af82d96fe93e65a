"""``sluice``: run a pipeline in one process; look at its checkpoints, restore it, clean up.

Every error is one sentence on stderr that names the thing and the fix, and exit code 1.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from sluice.cli import acts, check, doctor, maintenance, run, show, state
from sluice.cli.options import of_job, with_flags
from sluice.errors import SluiceError
from sluice.extras import DISTRIBUTION
from sluice.store.redaction import redact_logs, redacted

app = typer.Typer(
    name="sluice",
    help=__doc__.partition("\n")[0],
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
checkpoint_commands = typer.Typer(
    help="Look at a job's checkpoints; abort one; change when they are taken.", no_args_is_help=True
)
app.add_typer(checkpoint_commands, name="checkpoints")
keyed_state = typer.Typer(
    help="Look at what stages remember; make other savepoints of it.", no_args_is_help=True
)
app.add_typer(keyed_state, name="state")
files_tables = typer.Typer(
    help="Look at tables of files; merge and vacuum them; take a sink's table over.",
    no_args_is_help=True,
)
app.add_typer(files_tables, name="tables")
journal_commands = typer.Typer(
    help="Print the newest entries of a job's journal; repair it.", no_args_is_help=True
)
app.add_typer(journal_commands, name="journal")


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

app.command("init")(check.init)
app.command("doctor")(doctor.doctor)
app.command("run", context_settings=TAKES_PARAMETERS)(of_job(run.run))
app.command("pipelines")(show.pipelines)
app.command("side-output")(of_job(show.side_output_rows))
app.command("check", context_settings=TAKES_PARAMETERS)(of_job(check.check))
app.command("snapshots")(of_job(show.show_snapshots))
for name, command in acts.COMMANDS.items():
    group = checkpoint_commands if name in {"abort", "config"} else app
    settings = TAKES_PARAMETERS if name == "restore" else None
    group.command(name, context_settings=settings)(command)
app.command("compare")(maintenance.compare_tables)
app.command("adopt")(of_job(acts.adopt_command))
app.command("lag")(of_job(show.lag))
app.command("metrics")(show.metrics_command)
app.command("orphans")(of_job(maintenance.orphans))
app.command("gc")(of_job(maintenance.gc))
journal_commands.command("show")(of_job(show.journal))
journal_commands.command("changes")(of_job(show.changes))
journal_commands.command("repair")(of_job(acts.repair_command))
checkpoint_commands.command("list")(of_job(show.checkpoints))
checkpoint_commands.command("show")(of_job(show.show))
checkpoint_commands.command("stats")(of_job(show.stats))
checkpoint_commands.command("exceptions")(of_job(show.exceptions))
keyed_state.command("read")(of_job(state.read))
keyed_state.command("find")(of_job(state.find))
keyed_state.command("diff")(of_job(state.diff))
keyed_state.command("schema", context_settings=TAKES_PARAMETERS)(of_job(state.schema))
keyed_state.command("rewrite", context_settings=TAKES_PARAMETERS)(of_job(state.rewrite))
keyed_state.command("drop", context_settings=TAKES_PARAMETERS)(of_job(state.drop))
keyed_state.command("bootstrap", context_settings=TAKES_PARAMETERS)(of_job(state.bootstrap))
files_tables.command("show")(of_job(maintenance.show_versions))
files_tables.command("compact")(of_job(maintenance.compact))
files_tables.command("vacuum")(of_job(maintenance.vacuum))
files_tables.command("take-over")(of_job(acts.take_over_command))


def main(arguments: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """The console script."""
    redact_logs()
    try:
        app(args=_in_full(sys.argv[1:] if arguments is None else arguments))
    except SluiceError as error:
        typer.secho(f"error: {redacted(with_flags(str(error)))}", err=True, fg="red")
        sys.exit(1)


def _in_full(arguments: list[str]) -> list[str]:
    """``journal PIPELINE`` is ``journal show PIPELINE``."""
    match arguments:
        case ["journal", word, *_] if word not in ("show", "changes", "repair", "--help"):
            return ["journal", "show", *arguments[1:]]
        case _:
            return arguments
