"""``python -m sluice.devstack up | demo | down | status``: the stack from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sluice.cli.options import parameters
from sluice.core.configuration import JobStatus
from sluice.devstack import stack
from sluice.errors import SluiceError

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)

_INTERRUPTED = 130  # A shell's exit code after Ctrl-C.

_HERE = Path()

StackFolder = Annotated[
    Path, typer.Option("--root", help="The repository; .sluice/ lies in it.", file_okay=False)
]


@app.command()
def up(root: StackFolder = _HERE) -> None:
    """Start what is missing, wait until everything answers, print the addresses."""
    started = stack.start_stack(root)
    typer.echo(f"airflow   {started.airflow_url}   (no login; everybody here is admin)")
    typer.echo(f"spark ui  {started.spark_ui_url}")
    typer.echo(f"spark     {started.spark_remote}")
    typer.echo(f"s3        {started.s3_url}")
    typer.echo(f"logs      {started.root_dir / '.sluice' / 'logs'}")
    for name, value in started.client_env.items():
        typer.echo(f"export {name}={value}")


@app.command()
def demo(
    pipeline: Annotated[str, typer.Argument(help="auctions or ssh_threats, or one of yours.")],
    param: Annotated[
        list[str] | None, typer.Option(help="A parameter of the pipeline, name=value.")
    ] = None,
    parallelism: Annotated[int | None, typer.Option(help="Subtasks per stage.")] = None,
    max_records_per_epoch: Annotated[
        int | None, typer.Option(help="How many records an epoch takes from each source at most.")
    ] = None,
    root: StackFolder = _HERE,
) -> None:
    """Run a pipeline to its end on the stack, live; Ctrl-C stops everything."""
    from sluice.devstack.demo import run_demo

    try:
        status = run_demo(
            root,
            pipeline,
            parameters(param or [], []),
            parallelism=parallelism,
            max_records_per_epoch=max_records_per_epoch,
        )
    except KeyboardInterrupt:
        stack.stop_stack(root)
        raise
    if status is not JobStatus.FINISHED:
        raise typer.Exit(1)


@app.command()
def down(root: StackFolder = _HERE) -> None:
    """Stop everything the stack started."""
    killed = stack.stop_stack(root)
    typer.echo("stopped" if killed == 0 else f"stopped ({killed} processes had to be killed)")


@app.command()
def status(root: StackFolder = _HERE) -> None:
    """Show what runs; exit code 1 unless everything answers."""
    services = stack.stack_status(root)
    for each in services:
        state = "answers" if each.is_answering else "silent" if each.pid else "stopped"
        typer.echo(f"{each.name:8} {state:8} {each.address}  pid {each.pid or '-'}")
    if not services or not all(each.is_answering for each in services):
        raise typer.Exit(1)


@app.command()
def archive(root: StackFolder = _HERE) -> None:
    """Create the archive of Spark's classes, with which it starts in half the time."""
    stack.write_spark_archive(root)
    typer.echo("archive written")


def main() -> None:
    """Run a command; an error is one sentence on standard error and exit code 1."""
    try:
        app()
    except SluiceError as error:
        typer.echo(f"error: {error}", err=True)
        raise SystemExit(1) from error
    except KeyboardInterrupt:
        typer.echo("interrupted; what was started is stopped again", err=True)
        raise SystemExit(_INTERRUPTED) from None


if __name__ == "__main__":
    main()
