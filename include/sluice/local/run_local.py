"""One declared pipeline over given rows, in this process: ``run_local``, and its result.

A script says which attempts are killed and to which checkpoints the job goes back.  A run has a
temporary folder; its tables, side outputs and keyed state are read before that is deleted.
"""

from __future__ import annotations

import atexit
import os
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

import polars as pl
import pyarrow as pa

from sluice.coordinator.failure import start_attempt
from sluice.coordinator.restore import restore
from sluice.coordinator.submission import configure, reconfigure, submit
from sluice.coordinator.trigger import Triggered
from sluice.core.completed import CheckpointMetadata
from sluice.core.configuration import CheckpointType
from sluice.core.event_time import MAX_WATERMARK, MIN_WATERMARK
from sluice.core.ids import CheckpointId
from sluice.core.restoring import Choice, RestoreOptions
from sluice.declaration.arguments import NumberLimits, checked_arguments, checked_initializer
from sluice.declaration.changelog import ROW_KIND
from sluice.declaration.durations import PositiveDuration
from sluice.declaration.keyed_functions import BEGINNING_OF_TIME, END_OF_TIME
from sluice.declaration.pipeline import (
    MALFORMED,
    NO_EVENT_TIME,
    Parallelism,
    Pipeline,
    side_outputs,
)
from sluice.declaration.places import DELETED, MALFORMED_COLUMN, RAW, VersionedSink
from sluice.errors import CheckpointFailure, ConfigurationError, StageFailed
from sluice.exchange.faults import Fault
from sluice.exchange.output import LATE_OF_SIDE, readable_rows
from sluice.exchange.reading import SOURCE
from sluice.job.analysis import Result
from sluice.job.job import Job, open_job
from sluice.job.places import open_result_table, open_side_table
from sluice.local.driver import Epoch, EpochDriver
from sluice.local.given import (
    Rows,
    RowsByEpoch,
    StandIns,
    check_cut,
    check_params,
    check_sinks_apart,
    cut,
    declared_rows,
    local_params,
    source_rows,
    stand_ins,
)
from sluice.operators.changes import behind
from sluice.spark.checking import check_pipeline
from sluice.spark.jvm import find_java, owned_folder
from sluice.spark.session import SETTINGS, local_session, with_our_settings
from sluice.spark.stage import AcknowledgedStage, run_stage
from sluice.state.segments import StateSchema, to_frame
from sluice.store.open import StoreLocation
from sluice.surface.state import only_name, open_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = datetime(2026, 1, 1, tzinfo=UTC)
INTERVAL = timedelta(minutes=1)  # The interval between checkpoints, if the pipeline has none.
PARALLELISM = 2  # The least number of subtasks that spreads keys.
DRIVER_MEMORY = "1g"  # A test has few rows.
_T = TypeVar("_T")


@checked_initializer
@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A kill of the first attempt of *stage* in *epoch*, which counts from 1.

    A worker process is killed when it has written its files, and before it acknowledges.  Then the
    stage is run again.
    """

    stage: str
    epoch: Annotated[int, NumberLimits(1)]


@checked_initializer
@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """A restore of the checkpoint of *to_epoch*, once *after_epoch* is published.

    The epochs between them are read again; none, if *to_epoch* is *after_epoch*.  *parallelism*, if
    it is given, is that of every stage from then on.
    """

    to_epoch: int
    after_epoch: int
    parallelism: Parallelism | None = None


Happening: TypeAlias = Kill | Restore


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalEpoch:
    """One checkpoint.

    ``number`` counts the chunks of rows from 1; after a restore an epoch is repeated, under the
    same number and another ``checkpoint_id``.  ``watermarks`` are by stage, in UTC, from
    ``BEGINNING_OF_TIME`` before the first row to ``END_OF_TIME`` behind the last.  ``attempts`` are
    by stage: how often it was run.
    """

    number: int
    checkpoint_id: int
    records: int
    watermarks: Mapping[str, datetime]
    attempts: Mapping[str, int]
    _published: Mapping[str, pl.DataFrame] = field(repr=False)

    def published(self, sink: str) -> pl.DataFrame:
        """The rows that the epoch published to *sink*.

        With an upsert key or deletes there is the column ``_deleted``, true in a deleted row.
        """
        return _named(self._published, sink, "sink")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRun:
    """The result of a local run.

    ``status`` is FINISHED if every source was bounded, else RUNNING; ``seconds`` is its duration.
    """

    pipeline: str
    status: str
    seconds: float
    epochs: tuple[LocalEpoch, ...]
    _tables: Mapping[str, pl.DataFrame] = field(repr=False)
    _side_outputs: Mapping[str, pl.DataFrame] = field(repr=False)
    _state: Mapping[str, Mapping[str, pl.DataFrame]] = field(repr=False)

    @property
    def sinks(self) -> tuple[str, ...]:
        return tuple(self._tables)

    @property
    def side_outputs(self) -> tuple[str, ...]:
        """The names of all side outputs, as ``stage.name``."""
        return tuple(self._side_outputs)

    def table(self, sink: str) -> pl.DataFrame:
        """The rows that readers of *sink* see at the end, as a Polars frame, in no order.

        There is one row per upsert key; without a key, every published row.

        Raises:
            ConfigurationError: there is no such sink.
        """
        return _named(self._tables, sink, "sink")

    def side_output(self, stage: str, name: str = "") -> pl.DataFrame:
        """The rows of a side output, such as ``side_output("window_rule", "late")``.

        *name* is ``malformed``, ``no_event_time``, ``late`` or ``late_right``.

        Raises:
            ConfigurationError: there is no such side output.
        """
        return _named(self._side_outputs, f"{stage}.{name}" if name else stage, "side output")

    def state(self, stage: str, table: str | None = None) -> pl.DataFrame:
        """The keyed state of *stage* after the last epoch: a row per key, or per row of a bag.

        *table* may be left out if the stage has only one.

        Raises:
            ConfigurationError: the stage keeps none, or no table of that name.
        """
        tables = _named(self._state, stage, "stage with keyed state")
        name = only_name([*tables], stage, None) if table is None else table
        return _named(tables, name, f"table in the state of {stage!r}")


def _named(known: Mapping[str, _T], name: str, what: str) -> _T:
    if name not in known:
        raise ConfigurationError(
            f"the run has no {what} {name!r}; it has {', '.join(known) or 'none'}"
        )
    return known[name]


@checked_arguments
def run_local(
    pipeline: Pipeline,
    rows: Mapping[str, Rows],
    *,
    epochs: Annotated[int, NumberLimits(1)] | None = None,
    rows_per_epoch: Annotated[int, NumberLimits(1)] | None = None,
    script: Sequence[Happening] = (),
    params: Mapping[str, object] | None = None,
    parallelism: Parallelism = PARALLELISM,
    bounded: bool | Collection[str] = True,
    start: datetime = START,
    interval: PositiveDuration | None = None,
    spark: SparkSession | None = None,
) -> LocalRun:
    """Run *pipeline* over *rows*, by source, and return when the last epoch is published.

    Rows of a source are a list of dicts, a frame (Polars, pandas, PyArrow, Spark), or a list of
    those: one for each epoch, ``[]`` for an epoch without rows.  If the declaration decodes texts,
    rows may be texts, such as lines of JSON.  Rows that are given in one piece arrive in the first
    epoch, or are cut into *epochs* equal parts, or into parts of *rows_per_epoch*.  They are one
    partition, in their order.

    *script* has the failures to inject: a ``Kill`` of an attempt, a ``Restore``.  *params* are
    needed only if a transform takes them.  *parallelism* is that of every stage, in subtasks.

    A *bounded* source ends with its last chunk; when all sources end, the job does, and its last
    epoch fires every window.  *bounded* may name the sources that end; with False windows wait for
    the watermark.

    Processing time is *start* in the first epoch, and *interval* more in every other; by default
    the pipeline's own, or a minute.  An epoch that a restore repeats has the time that it had.  The
    Spark session is *spark*, else the active one, else one that is started once in a process.

    Raises:
        ConfigurationError: the rows, a parameter or the script does not fit the declaration, or the
            declaration cannot be run; the message names it.
        StageFailed: a stage failed; the message ends with the cause.
        CheckpointFailure: a trigger was refused, or a checkpoint could not be completed; likewise.
    """
    started = time.monotonic()
    check_cut(epochs=epochs, rows_per_epoch=rows_per_epoch)
    given = local_params(pipeline, params or {})
    with prepared_pipeline(
        pipeline, rows, given, bounded_sources(pipeline, bounded), spark
    ) as ready:
        chunks = {
            uid: whole
            if pipeline.sources[uid].is_table
            else cut(whole, epochs=epochs, rows_per_epoch=rows_per_epoch)
            for uid, whole in ready.rows.items()
        }
        every = interval or pipeline.checkpointing.interval or INTERVAL
        return ready.run(chunks, script, parallelism, Clock(start, every), started)


def bounded_sources(pipeline: Pipeline, bounded: bool | Collection[str]) -> frozenset[str]:  # noqa: FBT001 - of the API
    """The sources that end.  Raises ConfigurationError when *bounded* names one that is none."""
    if isinstance(bounded, bool):
        return frozenset(pipeline.sources if bounded else ())
    for uid in bounded:
        if uid not in pipeline.sources:
            raise ConfigurationError(_no_source(pipeline, f"bounded= names {uid!r}"))
    return frozenset(bounded)


@contextmanager
def prepared_pipeline(
    pipeline: Pipeline,
    rows: Mapping[str, Rows],
    params: Mapping[str, str],
    bounded: frozenset[str],
    spark: SparkSession | None,
) -> Iterator[Prepared]:
    """*pipeline*, ready to be run; ConfigurationError when the rows do not fit its sources."""
    _check_sources(pipeline, rows)
    check_sinks_apart(pipeline, params, os.environ)
    with (
        session_of(spark) as session,
        owned_folder("sluice-rows-") as folder,
    ):
        fitting = {
            uid: source_rows(uid, rows[uid], declared_rows(node, params, session), node.event_time)
            for uid, node in pipeline.sources.items()
        }
        yield Prepared(
            pipeline=pipeline,
            rows=fitting,
            params=params,
            bounded=bounded,
            spark=session,
            folder=folder,
        )


def _check_sources(pipeline: Pipeline, rows: Mapping[str, Rows]) -> None:
    for uid in rows:
        if uid not in pipeline.sources:
            raise ConfigurationError(_no_source(pipeline, f"rows are given for {uid!r}"))
    if missing := [uid for uid in pipeline.sources if uid not in rows]:
        raise ConfigurationError(
            f"no rows are given for source {missing[0]!r} of pipeline {pipeline.uid!r}; if it has "
            f'none, say so: {{"{missing[0]}": []}}'
        )


def _no_source(pipeline: Pipeline, what: str) -> str:
    return (
        f"{what}, which is no source of pipeline {pipeline.uid!r}; those are "
        f"{', '.join(pipeline.sources)}"
    )


@contextmanager
def session_of(given: SparkSession | None) -> Iterator[SparkSession]:
    """*given*, else the active session, else that of this process.

    That of the process is started by the first call, and ends with the process.  Within the block a
    session has the settings that results depend on, and after it the previous ones.
    """
    from pyspark.sql import SparkSession

    spark = given or SparkSession.getActiveSession() or _own()
    before = {name: spark.conf.get(name, None) for name in SETTINGS}
    try:
        yield with_our_settings(spark)
    finally:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)


def _own() -> SparkSession:
    find_java(os.environ)
    stack = ExitStack()
    spark = stack.enter_context(local_session(driver_memory=DRIVER_MEMORY, compiles_for_rows=False))
    # Errors are raised to the caller, and a ``Kill`` is intended.
    spark.sparkContext.setLogLevel("OFF")
    atexit.register(stack.close)
    return spark


@dataclass(slots=True)
class Clock:
    """Processing time: ``interval`` passes with each epoch, and a restore puts it back.

    An epoch that is repeated has the time that it had, so a TTL drops what it dropped.
    """

    start: datetime
    interval: timedelta
    epoch: int = 1

    def __call__(self) -> int:
        return round((self.start + (self.epoch - 1) * self.interval).timestamp() * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A pipeline with checked rows and a session, ready to be run any number of times."""

    pipeline: Pipeline
    rows: Mapping[str, RowsByEpoch]
    params: Mapping[str, str]
    bounded: frozenset[str]
    spark: SparkSession
    folder: Path

    def run(
        self,
        rows: Mapping[str, RowsByEpoch],
        script: Sequence[Happening],
        parallelism: int,
        clock: Clock,
        started: float,
    ) -> LocalRun:
        """One run over *rows*, in a folder of its own."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        local = stand_ins(self.pipeline, rows, self.bounded, folder)
        check_script(self.pipeline, script, local.epochs, ends=local.ends)
        needed = local.pipeline.params
        check_params(needed, self.params, os.environ)
        params = {one.name: self.params[one.name] for one in needed if one.name in self.params}
        everywhere = dict.fromkeys(local.pipeline.stages, parallelism)
        configuration = configure(
            local.pipeline, params, parallelism=parallelism, stage_parallelism=everywhere
        )
        yields = check_pipeline(local.pipeline, self.spark, configuration.params, None)
        job = open_job(local.pipeline, StoreLocation(root=f"file://{folder / 'root'}"), clock=clock)
        submit(job, configuration)
        epochs = _Play(job, local, self.spark, clock, yields).play(script)
        return read_local_run(job, yields, epochs, seconds=time.monotonic() - started)


def check_script(pipeline: Pipeline, script: Iterable[Happening], last: int, *, ends: bool) -> None:
    """Check that all of *script* can happen; with *ends* the *last* epoch ends the job.

    Raises:
        ConfigurationError: a kill or a restore could never happen.
    """
    for one in script:
        match one:
            case Kill(stage=stage, epoch=epoch):
                if stage not in pipeline.stages:
                    raise ConfigurationError(
                        f"{one} names stage {stage!r}; those of pipeline {pipeline.uid!r} are "
                        f"{', '.join(pipeline.stages)}"
                    )
                if not 1 <= epoch <= last:
                    raise ConfigurationError(
                        f"{one} never comes: the run has {last} epochs; give their rows as a list "
                        "of chunks, or epochs="
                    )
            case Restore(to_epoch=to, after_epoch=after):
                if not 1 <= to <= after:
                    raise ConfigurationError(
                        f"{one} cannot be: give a to_epoch from 1 to after_epoch"
                    )
                if after > last or (ends and after == last):
                    end = (
                        f"the job ends with epoch {last}" if ends else f"the run has {last} epochs"
                    )
                    raise ConfigurationError(
                        f"{one} never comes: {end}; give more chunks, or epochs="
                        + (", or bounded=False" if ends else "")
                    )


@dataclass(slots=True)
class Attempts:
    """A ``StageRunner`` that retries, as Airflow does, and injects deaths of attempts.

    ``dying`` are the stages whose first attempt dies in the next epoch; ``counts`` is the number
    of attempts of each stage in it.
    """

    dying: Collection[str] = ()
    counts: Counter[str] = field(default_factory=Counter[str])

    def __call__(
        self,
        job: Job,
        spark: SparkSession,
        checkpoint_id: CheckpointId,
        stage: str,
        *,
        attempt: int,
    ) -> AcknowledgedStage:
        self.counts[stage] += 1
        pending = job.state().pending_checkpoint(checkpoint_id)
        if pending is not None:  # An earlier stage that runs again fences those behind it.
            attempt = pending.attempt_of(stage)
        if stage not in self.dying:
            return run_stage(job, spark, checkpoint_id, stage, attempt=attempt)
        fault = Fault(kind="kill-worker", stage=stage, checkpoint_id=checkpoint_id)
        try:
            return run_stage(job, spark, checkpoint_id, stage, attempt=attempt, fault=fault)
        except StageFailed:
            attempt = start_attempt(job, checkpoint_id, stage)
            self.counts[stage] += 1
            return run_stage(job, spark, checkpoint_id, stage, attempt=attempt)


@dataclass(slots=True)
class _Play:
    """One run: its epochs, and the restores between them."""

    job: Job
    local: StandIns
    spark: SparkSession
    clock: Clock
    yields: Mapping[str, Result]
    attempts: Attempts = field(default_factory=Attempts)
    epochs: list[LocalEpoch] = field(default_factory=list[LocalEpoch])
    checkpoints: dict[int, CheckpointId] = field(default_factory=dict[int, CheckpointId])

    def play(self, script: Sequence[Happening]) -> list[LocalEpoch]:
        with EpochDriver(self.job, self.spark, self.attempts) as driver:
            for number in range(1, self.local.epochs + 1):
                kills = [one for one in script if isinstance(one, Kill) and one.epoch == number]
                self._take(driver, number, [kill.stage for kill in kills])
                for one in script:
                    if isinstance(one, Restore) and one.after_epoch == number:
                        self._restore(one)
                        for again in range(one.to_epoch + 1, number + 1):
                            self._take(driver, again, ())
        return self.epochs

    def _take(self, driver: EpochDriver, number: int, dying: Collection[str]) -> None:
        self.clock.epoch = number
        self.local.arrive(number)
        self.attempts.dying, self.attempts.counts = dying, Counter()
        is_last = self.local.ends and number == self.local.epochs
        kind = CheckpointType.SAVEPOINT_TERMINATE if is_last else CheckpointType.CHECKPOINT
        begun = driver.force(kind, cause="run_local")
        if isinstance(begun, CheckpointFailure):
            raise begun
        if not isinstance(begun, Triggered):
            raise ConfigurationError(
                f"no checkpoint can be taken in epoch {number}: {begun.message}"
            )
        epoch = driver.end_oldest()
        self.checkpoints[number] = _completed(epoch, number)
        self.epochs.append(
            epoch_of(self.job, self.yields, number, epoch, dict(self.attempts.counts))
        )

    def _restore(self, event: Restore) -> None:
        pipeline, before = self.job.pipeline, self.job.state().configuration
        count = event.parallelism
        changed = reconfigure(
            pipeline,
            before,
            {},
            parallelism=count,
            stage_parallelism=dict.fromkeys(pipeline.stages, count) if count else {},
        )
        self.local.arrive(event.to_epoch)
        restore(
            self.job,
            Choice(self.checkpoints[event.to_epoch]),
            RestoreOptions(roll_back_tables=True),
            configuration=changed,
        )


def _completed(epoch: Epoch, number: int) -> CheckpointId:
    """The id of a completed epoch; its failure, without Spark's traces, when it failed."""
    error = epoch.error
    if error is not None:
        raise error.retold(f"epoch {number}: {error}") from None
    assert epoch.completed is not None
    return epoch.completed.checkpoint_id


def epoch_of(
    job: Job,
    yields: Mapping[str, Result],
    number: int,
    epoch: Epoch,
    attempts: Mapping[str, int],
) -> LocalEpoch:
    metadata = job.metadata(epoch.plan.checkpoint_id)
    return LocalEpoch(
        number=number,
        checkpoint_id=metadata.checkpoint_id,
        records=epoch.plan.records,
        watermarks={one.uid: watermark_of(one.watermark_ms) for one in metadata.stages},
        attempts=attempts,
        _published={uid: _published(job, yields, uid, metadata) for uid in job.pipeline.sinks},
    )


def watermark_of(watermark_ms: int) -> datetime:
    if watermark_ms == MIN_WATERMARK:
        return BEGINNING_OF_TIME
    if watermark_ms == MAX_WATERMARK:
        return END_OF_TIME
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=watermark_ms)


def read_local_run(
    job: Job, yields: Mapping[str, Result], epochs: Sequence[LocalEpoch], *, seconds: float
) -> LocalRun:
    metadata = job.metadata(CheckpointId(epochs[-1].checkpoint_id))
    return LocalRun(
        pipeline=job.pipeline.uid,
        status=job.state().status.value,
        seconds=seconds,
        epochs=tuple(epochs),
        _tables={
            uid: _frame(open_result_table(job, {}, uid).read(), _columns(job, yields, uid))
            for uid in job.pipeline.sinks
        },
        _side_outputs={
            uid: _frame(open_side_table(job, uid).read(), _side_columns(yields, uid))
            for uid in side_outputs(job.pipeline)
        },
        _state={
            uid: {name: _state(job, metadata, uid, name, schema) for name, schema in tables.items()}
            for uid, result in yields.items()
            if (tables := result.tables)
        },
    )


def _state(
    job: Job, metadata: CheckpointMetadata, stage: str, table: str, schema: StateSchema
) -> pl.DataFrame:
    found = metadata.stage(stage)
    subtasks = found.subtasks if found is not None else ()
    if not any(handle.table == table for subtask in subtasks for handle in subtask.state):
        return schema.columns.to_frame()
    return open_state(job, str(metadata.checkpoint_id), stage, table).frame()


def _published(
    job: Job, yields: Mapping[str, Result], uid: str, metadata: CheckpointMetadata
) -> pl.DataFrame:
    table, columns = open_result_table(job, {}, uid), _columns(job, yields, uid)
    assert isinstance(table, VersionedSink), "sinks are captured"
    is_upserted = bool(job.pipeline.sinks[uid].spec.upsert_key)
    if is_upserted:
        columns = {**columns, DELETED: pl.Boolean()}
    if metadata.tables.get(uid) != metadata.checkpoint_id:
        return pl.DataFrame(schema=columns)
    frame = _frame(table.added_by(metadata.checkpoint_id), columns)
    if not is_upserted:
        return frame
    if DELETED not in frame.columns:
        return frame.with_columns(pl.lit(False).alias(DELETED))  # noqa: FBT003 - a value
    return frame.with_columns(pl.col(DELETED).fill_null(False))  # noqa: FBT003 - a value


def _columns(job: Job, yields: Mapping[str, Result], uid: str) -> dict[str, pl.DataType]:
    """The columns that readers of the sink see, also without rows."""
    node = job.pipeline.sinks[uid]
    kind = {ROW_KIND: pl.String()} if node.spec.changelog else {}
    columns = behind(node.steps, yields[node.input].columns.to_frame(), node.input).schema
    return {**dict(columns), **kind}


def _side_columns(yields: Mapping[str, Result], uid: str) -> pl.Schema:
    """The columns that rows of the side output *uid* would have."""
    stage, _, name = uid.rpartition(".")
    read = [of.to_frame() for of in yields[stage].read]
    if name == MALFORMED:
        read = [of for of in read if MALFORMED_COLUMN in of.columns]
    else:
        read = [of.drop(MALFORMED_COLUMN, RAW, strict=False) for of in read]
    if name == NO_EVENT_TIME:
        read = [of.with_columns(pl.lit("").alias(MALFORMED_COLUMN)) for of in read]
    if name in LATE_OF_SIDE:  # An operator does not know where its rows came from.
        read = [of.drop(SOURCE, strict=False) for of in read][LATE_OF_SIDE.index(name) :][:1]
    schemas = [readable_rows(of).schema for of in read]
    return pl.Schema({column: of for schema in schemas for column, of in schema.items()})


def _frame(table: pa.Table, columns: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """*table* as a frame, with *columns* also where the table has no file, and so no columns."""
    return to_frame(table) if table.column_names else pl.DataFrame(schema=columns)
