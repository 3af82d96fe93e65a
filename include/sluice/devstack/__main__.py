"""``python -m sluice.devstack up | demo | down | status``: the stack from the command line."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from sluice.cli.options import parameters
from sluice.cli.run import final_table
from sluice.cli.show import checkpoint_table
from sluice.coordinator.restore import stop
from sluice.coordinator.submission import check_sources, configure, submit
from sluice.core.configuration import JobStatus
from sluice.core.pending import PendingCheckpoint
from sluice.core.state import CoordinatorState
from sluice.core.units import duration, size
from sluice.declaration.pipeline import side_outputs
from sluice.declaration.project import DAGS_VARIABLE, find_pipelines, is_selected, load_pipeline
from sluice.devstack import stack
from sluice.devstack.airflow import AirflowApi
from sluice.errors import ConfigurationError, SluiceError
from sluice.job.job import Job, open_job, verify_root
from sluice.job.places import open_side_table
from sluice.store.open import StoreLocation
from sluice.surface.acts import dag_ids
from sluice.surface.checkpoints import history

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


POLL_S = 0.5
MAX_RESULT_ROWS = 20
MAX_SIDE_ROWS = 5
HEAL_AFTER_S = 40.0  # Longer than a checkpoint of the demo takes on a slow machine.
STALLED_S = 900.0  # After so long without an end of a checkpoint a person has to look.


def run_demo(
    root_dir: Path,
    pipeline_uid: str,
    params: Mapping[str, str],
    *,
    parallelism: int | None,
    max_records_per_epoch: int | None,
) -> JobStatus:
    """Run the pipeline to its end on real Airflow, Spark and S3; leave the stack running.

    Raises:
        ConfigurationError: the stack does not start, or a parameter is wrong; says what to do.
    """
    console = Console()
    pipeline = load_pipeline(pipeline_uid)
    configuration = configure(
        pipeline, params, parallelism=parallelism, max_records_per_epoch=max_records_per_epoch
    )
    if not any(value.startswith("s3://") for value in configuration.params.values()):
        # Fail before the minute that the stack takes to start.
        check_sources(pipeline, configuration, None)
    started, extra_env = time.monotonic(), dag_selection(pipeline_uid)
    with console.status("starting S3, Spark and Airflow (the first time takes a minute)"):
        running = stack.start_stack(root_dir, extra_env=extra_env)
    console.print(f"stack is up after {duration(time.monotonic() - started)}")
    os.environ.update(running.client_env)
    job = open_job(pipeline, StoreLocation(root=running.client_env["SLUICE_ROOT"]))
    verify_root(job)
    with AirflowApi(running.airflow_url) as airflow:
        uid = pipeline.uid
        dags = (*dag_ids(uid), "sluice__watchdog")
        for dag in dags:
            airflow.wait_until_known(dag)
        airflow.pause(pipeline.uid)
        if not job.state().status.is_globally_terminal:
            stop(job, JobStatus.CANCELED)
        first_id = submit(job, configuration).next_checkpoint_id
        for dag in dags:
            airflow.unpause(dag)
        heal = partial(_heal, root_dir, extra_env, airflow, pipeline.uid)
        status = _watch(console, job, first_id, heal=heal)
        airflow.pause(pipeline.uid)
    _show(console, job, first_id, status)
    console.print(
        f"\nAirflow   {running.airflow_url}   (DAG {pipeline.uid}; no login)\n"
        f"Spark UI  {running.spark_ui_url}\n"
        "Everything keeps running: 'make down' stops it.",
        highlight=False,
    )
    return status


def dag_selection(uid: str) -> dict[str, str]:
    """The variable that makes DAGs of the pipeline on the stack, if the project does not."""
    patterns = find_pipelines().dags
    return {} if is_selected(uid, patterns) else {DAGS_VARIABLE: " ".join((*patterns, uid))}


def _heal(root_dir: Path, extra_env: Mapping[str, str], airflow: AirflowApi, uid: str) -> None:
    stack.start_stack(root_dir, extra_env=extra_env)
    airflow.unpause(uid)  # The end of an earlier job's run may have paused it.


def _watch(console: Console, job: Job, first_id: int, *, heal: Callable[[], object]) -> JobStatus:
    """Show progress until the job ends; every line is derived from the bucket.

    Without progress for a while, *heal* restarts what no supervisor notices: a service that lives
    and does not answer, or a dead supervisor.
    """
    last_change, last_progress = time.monotonic(), (-1, -1)
    last_healed = last_change
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        while True:
            state = job.state()
            if state.status.is_globally_terminal and state.owed is None:
                return state.status
            live.update(_progress(job, state, first_id))
            progress = (state.next_checkpoint_id, len(state.completed) + len(state.failed))
            if progress != last_progress:
                last_change, last_progress = time.monotonic(), progress
            if time.monotonic() - max(last_change, last_healed) > HEAL_AFTER_S:
                heal()
                last_healed = time.monotonic()
            if time.monotonic() - last_change > STALLED_S:
                raise ConfigurationError(
                    f"no checkpoint began or ended for {STALLED_S:.0f} s; look at the runs of DAG "
                    f"{job.pipeline.uid!r} in Airflow and at .sluice/logs"
                )
            time.sleep(POLL_S)


def _progress(job: Job, state: CoordinatorState, first_id: int) -> Group:
    done = [c for c in state.completed if c.checkpoint_id >= first_id]
    pending = state.pending[0] if state.pending else None
    table = Table.grid(padding=(0, 2))
    for stage, acknowledged, total in _acks(job, pending):
        bar = "█" * acknowledged + "░" * (total - acknowledged)
        table.add_row(stage, bar, f"{acknowledged} of {total} acks" if total else "waiting")
    latest = "no checkpoint yet"
    if done:
        last = done[-1]
        latest = (
            f"checkpoint {last.checkpoint_id} completed in "
            f"{duration((last.completed_at_ms - last.triggered_at_ms) / 1000)}, "
            f"{size(last.checkpointed_bytes)} written, state {size(last.full_bytes)}"
        )
    under_way = "between checkpoints"
    if pending is not None:
        under_way = f"checkpoint {pending.checkpoint_id}: {pending.records:,} records"
    heading = f"[bold]{job.pipeline.uid}[/bold] {state.status.value}: {latest}"
    return Group(heading, under_way, table)


def _acks(job: Job, pending: PendingCheckpoint | None) -> list[tuple[str, int, int]]:
    if pending is None:
        return [(stage, 0, 0) for stage in job.pipeline.stages]
    answered = job.answers.observe(pending.checkpoint_id, pending.token).answered
    return [
        (
            task.uid,
            task.parallelism if (task.uid, pending.attempt_of(task.uid)) in answered else 0,
            task.parallelism,
        )
        for task in pending.tasks
    ]


def _show(console: Console, job: Job, first_id: int, status: JobStatus) -> None:
    records = [record for record in history(job) if record.id >= first_id]
    console.print(checkpoint_table(records, console.width))
    result = final_table(job, job.state().configuration.params)
    table = Table(*result.column_names, title=f"{next(iter(job.pipeline.sinks))}")
    for row in result.slice(0, MAX_RESULT_ROWS).to_pylist():
        table.add_row(*("" if value is None else str(value) for value in row.values()))
    console.print(table)
    more = result.num_rows - MAX_RESULT_ROWS
    if more > 0:
        console.print(f"... and {more:,} rows more")
    for uid in side_outputs(job.pipeline):
        side = open_side_table(job, uid)
        rows = side.row_count()
        if rows:
            console.print(f"[yellow]{rows:,} rows[/yellow] in the side output {uid}, such as:")
            for row in side.read().slice(0, MAX_SIDE_ROWS).to_pylist():
                console.print(f"  {row}", markup=False, highlight=False)
    console.print(f"{job.pipeline.uid} is {status.value}", highlight=False)


if __name__ == "__main__":
    main()
