"""``sluice run``: a pipeline in one process, with a Spark of its own or a remote one."""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from sluice.analysis.stage_results import analyse
from sluice.analysis.state_changes import check_state
from sluice.cli.options import (
    AsJson,
    EndpointUrl,
    Params,
    PipelineName,
    Root,
    declared_job,
    parameters,
)
from sluice.cli.printing import print_json
from sluice.cli.restore import AcceptTables, RollBackTables
from sluice.cli.result import (
    check_result_columns,
    check_result_file,
    chosen_sink,
    final_table,
    write_result,
)
from sluice.cli.run_log import run_log
from sluice.cli.show import checkpoint_table
from sluice.coordinator.recovery import restore, stop
from sluice.coordinator.savepoints import require_free_name
from sluice.coordinator.submission import TableConsent, check_sources, configure, submit
from sluice.core.configuration import JobConfiguration
from sluice.core.properties import JobStatus
from sluice.core.restoring import Latest, RestoreOptions
from sluice.declaration.side_outputs import side_outputs
from sluice.errors import ConfigurationError
from sluice.job.job import Job, verify_store
from sluice.job.places import has_result_table, open_result_table, open_side_table
from sluice.local.epochs import Epoch
from sluice.local.run_loop import run_epochs
from sluice.spark.checking import check_pipeline
from sluice.spark.java import find_java
from sluice.spark.remote_session import check_listening, remote_session
from sluice.spark.session import local_session, require_pyspark
from sluice.views.history import CheckpointRecord, history
from sluice.views.units import duration, size

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The output of ``--json``.  ``seconds`` is the whole run's; ``side_outputs`` counts rows."""

    pipeline: str
    status: str
    root: str
    seconds: float
    checkpoints: list[CheckpointRecord]
    result_rows: int | None
    output: str | None
    side_outputs: dict[str, int]


def run(
    context: typer.Context,
    pipeline: PipelineName,
    output: Annotated[
        Path | None,
        typer.Option(help="Write the final result table here: .parquet, .json or .csv."),
    ] = None,
    sink: Annotated[
        str | None,
        typer.Option(metavar="UID", help="Whose table --output is, where there are several."),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Stop after so many completed checkpoints.")
    ] = None,
    drain: Annotated[
        bool, typer.Option("--drain", help="End the job once everything was read; windows fire.")
    ] = False,
    savepoint: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Stop with a savepoint: the job is SUSPENDED behind it."),
    ] = None,
    max_records_per_epoch: Annotated[
        int | None, typer.Option(help="How many records an epoch takes from each source at most.")
    ] = None,
    parallelism: Annotated[int | None, typer.Option(help="Subtasks per stage.")] = None,
    param: Params = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start from empty state, even if a run was interrupted.")
    ] = False,
    remote: Annotated[
        str | None,
        typer.Option(
            metavar="sc://HOST:PORT",
            help="Run the stages on this Spark Connect server; its workers need sluice installed, "
            "and to see --root.",
        ),
    ] = None,
    roll_back_tables: RollBackTables = False,
    accept_tables: AcceptTables = False,
    root: Root = None,
    endpoint_url: EndpointUrl = None,
    as_json: AsJson = False,
) -> None:
    """Run PIPELINE in this process: checkpoints, commits and restores as Airflow would.

    Parameters of the pipeline are options, too: --input FILE.  A run that was interrupted goes on
    from its latest completed checkpoint; one that ended starts anew.  One that fails twice for the
    same reason stops, and says the cause last; mend it and run it again.
    """
    started = time.monotonic()
    check_result_file(output)
    console = Console(stderr=True)
    job = declared_job(pipeline, root, endpoint_url)
    _check_savepoint(job, savepoint, drain=drain)
    result = chosen_sink(job.pipeline, sink, output)
    configuration = configure(
        job.pipeline,
        parameters(param or [], context.args),
        parallelism=parallelism,
        max_records_per_epoch=max_records_per_epoch,
    )
    if output is not None and result is not None:
        open_result_table(job, configuration.params, result)  # Refused now, not after the work.
    analyse(job.pipeline, configuration.params, endpoint_url)
    require_pyspark("sluice run")
    if remote is None:
        find_java(os.environ)
    else:
        check_listening(remote)
    verify_store(job)
    check_sources(job.pipeline, configuration, endpoint_url)
    with run_log(pipeline) as log_file, _session(remote, log_file) as spark:
        yields = check_pipeline(job.pipeline, spark, configuration.params, endpoint_url)
        if not fresh:
            check_state(job, yields)
        if result is not None:
            columns = yields[job.pipeline.sinks[result].input].columns
            check_result_columns(output, result, columns)
        consent = TableConsent(roll_back=roll_back_tables, accept=accept_tables)
        first_id = _begin(job, configuration, console, consent, fresh=fresh)
        status = run_epochs(
            job,
            spark,
            epochs=epochs,
            drain=drain,
            savepoint=savepoint,
            report=lambda epoch: _report(console, epoch),
        )
    _summarize(job, console, status, first_id, started, (result, output), as_json=as_json)
    if savepoint is not None and status is not JobStatus.SUSPENDED:
        raise ConfigurationError(
            f"there is no savepoint {savepoint!r}: job {pipeline!r} is {status.value}, for it read "
            "all of its input first; --epochs N stops before that"
        )


def _check_savepoint(job: Job, name: str | None, *, drain: bool) -> None:
    """Refuse a name that is taken before the work, not after it."""
    if name is None:
        return
    if drain:
        raise ConfigurationError(
            "--drain ends the job and --savepoint suspends it; give one of the two"
        )
    require_free_name(job, name, job.state(), request_id="")


def _session(remote: str | None, log_file: Path) -> AbstractContextManager[SparkSession]:
    return local_session(log_file=log_file) if remote is None else remote_session(remote)


def _begin(
    job: Job,
    configuration: JobConfiguration,
    console: Console,
    consent: TableConsent,
    *,
    fresh: bool,
) -> int:
    """Submit the job, or take an interrupted one up again; return the next checkpoint's id."""
    state = job.state()
    interrupted = state.status in (JobStatus.RUNNING, JobStatus.RESTARTING, JobStatus.SUSPENDED)
    if interrupted and fresh:
        stop(job, JobStatus.CANCELED)
    elif interrupted:
        before = dict(state.configuration.params)
        if before != dict(configuration.params):
            known = ", ".join(f"{name}={value}" for name, value in sorted(before.items()))
            raise ConfigurationError(
                f"job {job.pipeline.uid!r} in {job.store.root} was interrupted with {known}; "
                "run it with the same parameters to go on, or with --fresh to start over"
            )
        options = RestoreOptions(roll_back_tables=consent.roll_back, accept_tables=consent.accept)
        restored = restore(job, Latest(), options, configuration=configuration)
        console.print(f"going on from checkpoint {restored.checkpoint_id or 'none'}")
        return restored.state.next_checkpoint_id
    return submit(job, configuration, tables=consent).next_checkpoint_id


def _report(console: Console, epoch: Epoch) -> None:
    stages = ", ".join(f"{uid} {duration(s)}" for uid, s in epoch.stage_seconds.items())
    if epoch.completed is None:
        why = escape(str(epoch.failure))
        console.print(
            f"checkpoint {epoch.plan.checkpoint_id} [red]failed[/red]: {why}",
            highlight=False,
            soft_wrap=True,
        )
        return
    console.print(
        f"checkpoint {epoch.plan.checkpoint_id} completed: {epoch.plan.records:,} records, "
        f"{size(epoch.completed.checkpointed_bytes)}, {duration(epoch.seconds)} ({stages})",
        highlight=False,
    )


def _summarize(
    job: Job,
    console: Console,
    status: JobStatus,
    first_id: int,
    started: float,
    wanted: tuple[str | None, Path | None],
    *,
    as_json: bool,
) -> None:
    params = job.state().configuration.params
    sink, output = wanted
    is_read = sink is not None and has_result_table(job, params, sink)
    result = final_table(job, params, sink) if is_read and sink is not None else None
    if output is not None and result is not None:
        write_result(result, output)
    sides = {uid: open_side_table(job, uid).row_count() for uid in side_outputs(job.pipeline)}
    records = [record for record in history(job) if record.id >= first_id]
    summary = RunSummary(
        pipeline=job.pipeline.uid,
        status=status.value,
        root=job.store.root,
        seconds=round(time.monotonic() - started, 3),
        checkpoints=records,
        result_rows=None if result is None else result.num_rows,
        output=None if output is None else str(output),
        side_outputs={uid: rows for uid, rows in sides.items() if rows},
    )
    if as_json:
        print_json(summary)
        return
    console.print(checkpoint_table(records, console.width))
    written = (
        f"published to {', '.join(job.pipeline.sinks)}"
        if result is None
        else f"{result.num_rows:,} rows in {sink}"
    )
    where = f", written to {output}" if output else ""
    console.print(f"{job.pipeline.uid} is {status.value}: {written}{where}", highlight=False)
    for uid, rows in summary.side_outputs.items():
        stage, _, name = uid.rpartition(".")
        console.print(
            f"[yellow]{rows:,} {name} rows[/yellow] in {stage}: see them with "
            f"'sluice side-output {job.pipeline.uid} {uid}'",
            highlight=False,
        )
