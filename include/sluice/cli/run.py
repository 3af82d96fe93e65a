"""``sluice run``: a pipeline in one process, with a Spark of its own or a remote one."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer
from rich.console import Console
from rich.markup import escape

from sluice.cli.options import (
    AsJson,
    EndpointUrl,
    Params,
    PipelineName,
    Root,
    declared_job,
    parameters,
)
from sluice.cli.restore import AcceptTables, RollBackTables
from sluice.cli.result import (
    check_result_columns,
    check_result_file,
    chosen_sink,
)
from sluice.cli.run_log import run_log
from sluice.cli.run_summary import Wanted, summarize
from sluice.coordinator.recovery import restore, stop
from sluice.coordinator.savepoints import require_free_name
from sluice.coordinator.submission import TableConsent, check_sources, configure, submit
from sluice.core.configuration import JobConfiguration
from sluice.core.properties import JobStatus
from sluice.core.restoring import Latest, RestoreOptions
from sluice.errors import ConfigurationError
from sluice.job.job import Job, verify_store
from sluice.job.places import open_result_table
from sluice.spark.java import find_java
from sluice.spark.remote_session import check_listening, remote_session
from sluice.spark.session import local_session, require_pyspark
from sluice.views.units import duration, size

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sluice.analysis.stage_results import Result
    from sluice.local.epochs import Epoch


Output: TypeAlias = Annotated[
    Path | None,
    typer.Option(help="Write the final result table here: .parquet, .json or .csv."),
]
SinkUid: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="UID", help="Whose table --output is, where there are several."),
]
Epochs: TypeAlias = Annotated[
    int | None, typer.Option(min=1, help="Stop after so many completed checkpoints.")
]
Drain: TypeAlias = Annotated[
    bool, typer.Option("--drain", help="End the job once everything was read; windows fire.")
]
StopWithSavepoint: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Stop with a savepoint: the job is SUSPENDED behind it."),
]
MaxRecordsPerEpoch: TypeAlias = Annotated[
    int | None, typer.Option(help="How many records an epoch takes from each source at most.")
]
Parallelism: TypeAlias = Annotated[int | None, typer.Option(help="Subtasks per stage.")]
Fresh: TypeAlias = Annotated[
    bool, typer.Option("--fresh", help="Start from empty state, even if a run was interrupted.")
]
Remote: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="sc://HOST:PORT",
        help="Run the stages on this Spark Connect server; its workers need sluice installed, "
        "and to see --root.",
    ),
]


def run(
    context: typer.Context,
    pipeline: PipelineName,
    output: Output = None,
    sink: SinkUid = None,
    epochs: Epochs = None,
    drain: Drain = False,
    savepoint: StopWithSavepoint = None,
    max_records_per_epoch: MaxRecordsPerEpoch = None,
    parallelism: Parallelism = None,
    param: Params = None,
    fresh: Fresh = False,
    remote: Remote = None,
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
    from sluice.local.run_loop import run_epochs

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
    found = _check_without_spark(job, configuration, (result, output), remote, endpoint_url)
    consent = TableConsent(roll_back=roll_back_tables, accept=accept_tables)
    with run_log(pipeline) as log, _session(job, configuration, remote, log) as spark:
        _check_yields(job, _yields(job, spark, configuration, found), (result, output), fresh=fresh)
        first_id = _begin(job, configuration, console, consent, fresh=fresh)
        tell = partial(_report, console)
        status = run_epochs(
            job, spark, epochs=epochs, drain=drain, savepoint=savepoint, report=tell
        )
    summarize(job, console, status, first_id, started, (result, output), as_json=as_json)
    _check_taken(pipeline, savepoint, status)


def _check_without_spark(
    job: Job,
    configuration: JobConfiguration,
    wanted: Wanted,
    remote: str | None,
    endpoint_url: str | None,
) -> Mapping[str, Result | None]:
    """Find what can be found before a Spark is started or asked, and so before any work.

    Returns the result of each stage by uid, as ``analyse`` does.
    """
    from sluice.analysis.stage_results import analyse

    sink, output = wanted
    if output is not None and sink is not None:
        open_result_table(job, configuration.params, sink)
    found = analyse(job.pipeline, configuration.params, endpoint_url)
    require_pyspark("sluice run")
    if remote is None:
        find_java(os.environ)
    else:
        check_listening(remote)
    verify_store(job)
    check_sources(job.pipeline, configuration, endpoint_url)
    return found


def _yields(
    job: Job,
    spark: SparkSession,
    configuration: JobConfiguration,
    found: Mapping[str, Result | None],
) -> Mapping[str, Result]:
    """The result of each stage; Spark is asked unless all were *found* without it."""
    from sluice.spark.checking import check_pipeline

    known = {uid: result for uid, result in found.items() if result is not None}
    if len(known) == len(found):
        return known
    return check_pipeline(job.pipeline, spark, configuration.params, job.location.endpoint_url)


def _check_yields(job: Job, yields: Mapping[str, Result], wanted: Wanted, *, fresh: bool) -> None:
    """Refuse stages whose state, or whose result's file, cannot take what they give."""
    from sluice.analysis.state_changes import check_state

    if not fresh:
        check_state(job, yields)
    sink, output = wanted
    if sink is not None:
        check_result_columns(output, sink, yields[job.pipeline.sinks[sink].input].columns)


def _check_taken(pipeline: str, savepoint: str | None, status: JobStatus) -> None:
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


def _session(
    job: Job, configuration: JobConfiguration, remote: str | None, log_file: Path
) -> AbstractContextManager[SparkSession]:
    from sluice.spark.passing_by import rows_pass_jvm

    if remote is not None:
        return remote_session(remote)
    rows = rows_pass_jvm(job.pipeline, configuration.params, job.location.endpoint_url)
    return local_session(log_file=log_file, archives=True, compiles_for_rows=rows)


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
