"""``sluice run``: a pipeline in one process, with a Spark of its own or a remote one.

What can be refused is refused before a Spark is started.  A run has a log file, for output that is
of use only if it fails, mainly traces of the JVM.  Its end is a summary: the checkpoints, the rows
of the result and of side outputs, and the file that the result table was written to.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from sluice.cli.options import (
    AsJson,
    Params,
    option,
    parameters,
    print_json,
)
from sluice.cli.show import checkpoint_table
from sluice.connectors.json_rows import check_json_types, encoded, json_objects
from sluice.coordinator.restore import restore, stop
from sluice.coordinator.savepoints import require_free_name
from sluice.coordinator.submission import TableConsent, check_sources, configure, submit
from sluice.core.configuration import JobConfiguration, JobStatus
from sluice.core.failures import UNKNOWN_CHECKPOINT_ID
from sluice.core.restoring import Latest, RestoreOptions
from sluice.core.units import duration, size
from sluice.declaration.pipeline import Pipeline, side_outputs
from sluice.errors import (
    BEGIN_ANEW,
    CheckpointFailure,
    ConfigurationError,
    SluiceError,
    of_pipeline,
)
from sluice.job.job import Job, verify_root
from sluice.job.places import (
    check_tables,
    has_result_table,
    open_result_table,
    open_side_table,
)
from sluice.spark.jvm import find_java
from sluice.spark.session import check_listening, local_session, remote_session, require_pyspark
from sluice.store.redaction import redacted
from sluice.surface.acts import RESTORE
from sluice.surface.checkpoints import CheckpointRecord, history

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from sluice.job.analysis import Result
    from sluice.local.driver import Epoch

SUFFIXES = (".parquet", ".json", ".csv")
FOLDER = ".sluice/logs"  # Beside the jobs' default folder; .gitignore names it.
_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

ResultFile: TypeAlias = Annotated[
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
RunParallelism: TypeAlias = Annotated[int | None, typer.Option(help="Subtasks per stage.")]
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
Wanted: TypeAlias = tuple[str | None, Path | None]  # A sink's uid, and the file for its table.


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


class Unexpected(SluiceError):
    """An error that no part of sluice expects: a mistake of a library, or of sluice."""


def run(
    job: Job,
    context: typer.Context,
    output: ResultFile = None,
    sink: SinkUid = None,
    epochs: Epochs = None,
    drain: Drain = False,
    savepoint: StopWithSavepoint = None,
    max_records_per_epoch: MaxRecordsPerEpoch = None,
    parallelism: RunParallelism = None,
    param: Params = None,
    fresh: Fresh = False,
    remote: Remote = None,
    roll_back_tables: Annotated[bool, option(RESTORE["roll_back_tables"])] = False,
    accept_tables: Annotated[bool, option(RESTORE["accept_tables"])] = False,
    take_over: Annotated[list[str] | None, option(RESTORE["take_over"])] = None,
    as_json: AsJson = False,
) -> None:
    """Run PIPELINE in this process: checkpoints, commits and restores as Airflow would.

    Parameters of the pipeline are options, too: --input FILE.  A run that was interrupted goes on
    from its latest completed checkpoint; one that ended starts anew.  One that fails twice for the
    same reason, or whose checkpoint is refused twice for one, stops with exit code 1, and says the
    cause last; mend it and run it again.  --output is written only when all went well.
    """
    from sluice.local.driver import run_epochs

    started = time.monotonic()
    check_result_file(output)
    console = Console(stderr=True)
    _check_savepoint(job, savepoint, drain=drain)
    result = chosen_sink(job.pipeline, sink, output)
    configuration = configure(
        job.pipeline,
        parameters(param or [], context.args),
        parallelism=parallelism,
        max_records_per_epoch=max_records_per_epoch,
    )
    found = _check_without_spark(job, configuration, (result, output), remote)
    consent = TableConsent(
        roll_back=roll_back_tables, accept=accept_tables, take_over=tuple(take_over or ())
    )
    with run_log(job.pipeline.uid) as log, _session(job, configuration, remote, log) as spark:
        _check_yields(job, _yields(job, spark, configuration, found), (result, output), fresh=fresh)
        first_id = _begin(job, configuration, console, consent, fresh=fresh)
        report = partial(_report, console)
        status = run_epochs(
            job, spark, epochs=epochs, drain=drain, savepoint=savepoint, report=report
        )
    summarize(job, console, status, first_id, started, (result, output), as_json=as_json)
    _check_taken(job.pipeline.uid, savepoint, status)


def check_result_file(path: Path | None) -> None:
    """Raises ConfigurationError unless the table can be written there; called before the work."""
    if path is None:
        return
    if path.suffix not in SUFFIXES:
        raise ConfigurationError(
            f"--output {path} has no known ending; name it {' or '.join(SUFFIXES)}"
        )
    if not path.resolve().parent.is_dir():
        raise ConfigurationError(f"--output {path}: there is no folder {path.resolve().parent}")


def _check_savepoint(job: Job, name: str | None, *, drain: bool) -> None:
    """Refuse a name that is taken before the work, not after it."""
    if name is None:
        return
    if drain:
        raise ConfigurationError(
            "--drain ends the job and --savepoint suspends it; give one of the two"
        )
    require_free_name(job, name, job.state(), request_id="")


def chosen_sink(pipeline: Pipeline, named: str | None, output: Path | None) -> str | None:
    """The sink whose table is the result; None if there are several and none is named.

    Raises:
        ConfigurationError: there is none of that name, or --output is given and not of which.
    """
    sinks = ", ".join(pipeline.sinks)
    if named is not None:
        if named not in pipeline.sinks:
            raise ConfigurationError(
                f"--sink {named}: pipeline {pipeline.uid!r} has no such sink; it has {sinks}"
            )
        return named
    if len(pipeline.sinks) == 1:
        return next(iter(pipeline.sinks))
    if output is not None:
        raise ConfigurationError(
            f"--output {output}: pipeline {pipeline.uid!r} has the sinks {sinks}; say which one "
            "with --sink NAME"
        )
    return None


def _check_without_spark(
    job: Job,
    configuration: JobConfiguration,
    wanted: Wanted,
    remote: str | None,
) -> Mapping[str, Result | None]:
    """Refuse what can be refused before a Spark is started or called, and so before any work.

    Returns the result of each stage by uid, as ``analyse`` does.
    """
    from sluice.job.analysis import analyse

    sink, output = wanted
    if output is not None and sink is not None:
        open_result_table(job, configuration.params, sink)
    check_tables(job.pipeline, configuration.params, job.location)
    found = analyse(job.pipeline, configuration.params, job.location.endpoint_url)
    require_pyspark("sluice run")
    if remote is None:
        find_java(os.environ)
    else:
        check_listening(remote)
    verify_root(job)
    check_sources(job.pipeline, configuration, job.location.endpoint_url)
    return found


def _session(
    job: Job, configuration: JobConfiguration, remote: str | None, log_file: Path
) -> AbstractContextManager[SparkSession]:
    from sluice.spark.deployment import rows_pass_jvm

    if remote is not None:
        return remote_session(remote)
    rows = rows_pass_jvm(job.pipeline, configuration.params, job.location.endpoint_url)
    return local_session(log_file=log_file, archives=True, compiles_for_rows=rows)


def _yields(
    job: Job,
    spark: SparkSession,
    configuration: JobConfiguration,
    found: Mapping[str, Result | None],
) -> Mapping[str, Result]:
    """The result of each stage; Spark analyses them unless all were *found* without it."""
    from sluice.spark.checking import check_pipeline

    known = {uid: result for uid, result in found.items() if result is not None}
    if len(known) == len(found):
        return known
    return check_pipeline(job.pipeline, spark, configuration.params, job.location.endpoint_url)


def _check_yields(job: Job, yields: Mapping[str, Result], wanted: Wanted, *, fresh: bool) -> None:
    """Refuse stages whose rows do not fit their state, or the file for the result."""
    from sluice.job.analysis import check_state

    if not fresh:
        check_state(job, yields)
    sink, output = wanted
    if sink is not None:
        check_result_columns(output, sink, yields[job.pipeline.sinks[sink].input].columns)


def check_result_columns(path: Path | None, sink: str, columns: pl.Schema) -> None:
    """Raises ConfigurationError when the file cannot hold the columns; called before the work."""
    if path is None or path.suffix != ".csv":
        return
    for name, dtype in columns.items():
        if dtype.is_nested() or str(dtype) == "Binary":
            raise ConfigurationError(
                f"--output {path}: column {name!r} of sink {sink!r} is {dtype}, which a CSV file "
                "cannot hold; write .parquet or .json"
            )


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
            uid = job.pipeline.uid
            raise ConfigurationError(
                f"job {uid!r} in {job.store.root} was interrupted with {known}; "
                f"run it with the same parameters to go on, or {of_pipeline(BEGIN_ANEW, uid)}"
            )
        options = RestoreOptions(
            roll_back_tables=consent.roll_back,
            accept_tables=consent.accept,
            take_over=consent.take_over,
        )
        restored = restore(job, Latest(), options, configuration=configuration)
        console.print(f"going on from checkpoint {restored.checkpoint_id or 'none'}")
        for warning in restored.warnings:
            console.print(f"[yellow]warning[/yellow]: {escape(warning)}", soft_wrap=True)
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


def summarize(
    job: Job,
    console: Console,
    status: JobStatus,
    first_id: int,
    started: float,
    wanted: Wanted,
    *,
    as_json: bool,
) -> None:
    """Write the *wanted* table to its file, and print what the run did since *first_id*.

    *started* is of ``time.monotonic``; the checkpoints and side outputs are read from the bucket.
    """
    params = job.state().configuration.params
    sink, output = wanted
    result = None
    if sink is not None and has_result_table(job, params, sink):
        result = final_table(job, params, sink)
    if output is not None and result is not None:
        write_result(result, output)
    sides = {uid: open_side_table(job, uid).row_count() for uid in side_outputs(job.pipeline)}
    began_ms = job.now_ms() - round((time.monotonic() - started) * 1000)
    records = [
        record
        for record in history(job)
        if record.id >= first_id
        or (record.id == UNKNOWN_CHECKPOINT_ID and record.triggered_at_ms >= began_ms)
    ]
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


def final_table(job: Job, params: Mapping[str, str], sink: str | None = None) -> pa.Table:
    """The table of *sink*, by default of the first, sorted by its columns that have an order."""
    import pyarrow as pa

    table = open_result_table(job, params, sink).read()
    ordered = [column.name for column in table.schema if not pa.types.is_nested(column.type)]
    return table.sort_by([(name, "ascending") for name in ordered]) if ordered else table


def write_result(table: pa.Table, path: Path) -> None:
    """Write Parquet, JSON (an array of rows, see ``json_rows``) or CSV, by the ending.

    Raises:
        ConfigurationError: JSON has no form for a column, or for one of its values.
    """
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        pq.write_table(table, path)
    elif path.suffix == ".csv":
        import pyarrow.csv

        pyarrow.csv.write_csv(table, path)
    else:
        check_json_types(table.schema, f"--output {path}")
        raw = encoded(json_objects(table))
        path.write_bytes(msgspec.json.format(raw, indent=1) + b"\n")


def _check_taken(pipeline: str, savepoint: str | None, status: JobStatus) -> None:
    if savepoint is not None and status is not JobStatus.SUSPENDED:
        raise ConfigurationError(
            f"there is no savepoint {savepoint!r}: job {pipeline!r} is {status.value}, for it read "
            "all of its input first; --epochs N stops before that"
        )


@contextmanager
def run_log(what: str) -> Iterator[Path]:
    """A log file for the block, which is deleted again when the block ends well.

    All log records go to it, and errors are printed, too.  An exception becomes one sentence that
    names the file, where the whole trace is.

    Raises:
        SluiceError: what the block raised, with its cause last.
    """
    now = datetime.now(UTC)
    path = _folder() / f"{what}-{now:%Y%m%dT%H%M%S}-{os.getpid()}.log"
    root = logging.getLogger()
    handlers = _handlers(path)
    level = root.level
    root.setLevel(logging.INFO)
    for handler in handlers:
        root.addHandler(handler)
    try:
        yield path
    except Exception as error:
        with path.open("a") as log:
            log.write(redacted("".join(traceback.format_exception(error))))
        raise _naming(path, error) from error
    else:
        path.unlink(missing_ok=True)
    finally:
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()
        root.setLevel(level)


def _folder() -> Path:
    """A folder of the machine's, where the current one cannot be written to."""
    folder = Path(FOLDER)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="sluice-logs-"))
    return folder


def _handlers(path: Path) -> list[logging.Handler]:
    """The handlers: all records go to the file, and our errors to the terminal, too."""
    printed = logging.StreamHandler()
    printed.setLevel(logging.ERROR)
    printed.addFilter(logging.Filter("sluice"))
    printed.setFormatter(logging.Formatter("%(message)s"))
    written = logging.FileHandler(path)
    written.setFormatter(logging.Formatter(_LOG_FORMAT))
    return [written, printed]


def _naming(path: Path, error: Exception) -> SluiceError:
    match error:
        case CheckpointFailure(cause=cause):
            place = str(error).removesuffix(cause).rstrip(": ")
            return error.retold(f"{place} (trace: {path}): {cause}")
        case SluiceError():
            path.unlink(missing_ok=True)  # It says everything that there is to say.
            return error
        case _:
            from sluice.spark.stage import failure_cause

            return Unexpected(f"the run was broken off (trace: {path}): {failure_cause(error)}")
