"""One declared pipeline over given rows, in this process: ``run_local``."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.analysis.stage_results import Result
from sluice.coordinator.recovery import restore
from sluice.coordinator.submission import configure, reconfigure, submit
from sluice.core.ids import CheckpointId
from sluice.core.properties import CheckpointType
from sluice.core.restoring import FromCheckpoint, RestoreOptions
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError, StageFailed
from sluice.job.job import Job, open_job
from sluice.local.epochs import Epoch, EpochDriver
from sluice.spark.checking import check_pipeline
from sluice.storage.open import StoreLocation
from sluice.testing.attempts import Attempts
from sluice.testing.declared import declared_rows
from sluice.testing.reading import epoch_of, run_of
from sluice.testing.result import LocalEpoch, LocalRun
from sluice.testing.rows import Rows, SourceRows, check_cut, cut, source_rows
from sluice.testing.script import Happening, Kill, Restore, check_script, restores_after
from sluice.testing.session import session_of
from sluice.testing.stand_ins import StandIns, check_params, local_params, stand_ins

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = datetime(2026, 1, 1, tzinfo=UTC)
INTERVAL = timedelta(minutes=1)  # The interval between checkpoints, if the pipeline has none.
PARALLELISM = 2  # The least number of subtasks that spreads keys.


def run_local(
    pipeline: Pipeline,
    rows: Mapping[str, Rows],
    *,
    epochs: int | None = None,
    rows_per_epoch: int | None = None,
    script: Sequence[Happening] = (),
    params: Mapping[str, object] | None = None,
    parallelism: int = PARALLELISM,
    bounded: bool | Collection[str] = True,
    start: datetime = START,
    interval: timedelta | None = None,
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

    Processing time is *start* at the first checkpoint, and *interval* more at every other; by
    default the pipeline's own, or a minute.  The Spark session is *spark*, else the active one,
    else one that is started once in a process.

    Raises:
        ConfigurationError: the rows, a parameter or the script does not fit the declaration, or the
            declaration cannot be run; the message names it.
        StageFailed: a stage failed; the message ends with the cause.
    """
    started = time.monotonic()
    check_cut(epochs=epochs, rows_per_epoch=rows_per_epoch)
    given = local_params(pipeline, params or {})
    with prepared(pipeline, rows, given, names_of(pipeline, bounded), spark) as ready:
        chunks = {
            uid: one
            if pipeline.sources[uid].is_table
            else cut(one, epochs=epochs, rows_per_epoch=rows_per_epoch)
            for uid, one in ready.rows.items()
        }
        every = interval or pipeline.checkpointing.interval or INTERVAL
        return ready.run(chunks, script, parallelism, Clock(start, every), started)


@dataclass(slots=True)
class Clock:
    """Processing time, which advances only between epochs."""

    now: datetime
    interval: timedelta

    def __call__(self) -> int:
        return round(self.now.timestamp() * 1000)

    def pass_on(self) -> None:
        self.now += self.interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A pipeline with checked rows and a session, ready to be run any number of times."""

    pipeline: Pipeline
    rows: Mapping[str, SourceRows]
    params: Mapping[str, str]
    bounded: frozenset[str]
    spark: SparkSession
    folder: Path

    def run(
        self,
        rows: Mapping[str, SourceRows],
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
        return run_of(job, yields, epochs, seconds=time.monotonic() - started)


@contextmanager
def prepared(
    pipeline: Pipeline,
    rows: Mapping[str, Rows],
    params: Mapping[str, str],
    bounded: frozenset[str],
    spark: SparkSession | None,
) -> Iterator[Prepared]:
    """The pipeline, prepared to run; ConfigurationError when the rows do not fit the sources."""
    _check_sources(pipeline, rows)
    with (
        session_of(spark) as session,
        tempfile.TemporaryDirectory(prefix="sluice-local-", ignore_cleanup_errors=True) as folder,
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
            folder=Path(folder),
        )


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
                self._take(driver, number, _dying(script, number))
                for one in restores_after(script, number):
                    self._restore(one)
                    for again in range(one.to_epoch + 1, number + 1):
                        self._take(driver, again, ())
        return self.epochs

    def _take(self, driver: EpochDriver, number: int, dying: Collection[str]) -> None:
        self.local.arrive(number)
        self.attempts.next_epoch(dying)
        is_last = self.local.ends and number == self.local.epochs
        kind = CheckpointType.SAVEPOINT_TERMINATE if is_last else CheckpointType.CHECKPOINT
        if not driver.force(kind, cause="run_local"):
            raise ConfigurationError(f"no checkpoint can be taken in epoch {number}")
        epoch = driver.end_oldest()
        self.clock.pass_on()
        self.checkpoints[number] = _completed(epoch, number)
        self.epochs.append(
            epoch_of(self.job, self.yields, number, epoch, dict(self.attempts.counts))
        )

    def _restore(self, one: Restore) -> None:
        pipeline, before = self.job.pipeline, self.job.state().configuration
        everywhere = dict.fromkeys(pipeline.stages, one.parallelism) if one.parallelism else {}
        changed = reconfigure(
            pipeline, before, {}, parallelism=one.parallelism, stage_parallelism=everywhere
        )
        self.local.arrive(one.to_epoch)
        restore(
            self.job,
            FromCheckpoint(self.checkpoints[one.to_epoch]),
            RestoreOptions(roll_back_tables=True),
            configuration=changed,
        )


def _dying(script: Sequence[Happening], number: int) -> list[str]:
    return [one.stage for one in script if isinstance(one, Kill) and one.epoch == number]


def _completed(epoch: Epoch, number: int) -> CheckpointId:
    """The id of a completed epoch; StageFailed, without Spark's traces, when it failed."""
    error = epoch.error
    if error is not None:
        raise StageFailed(
            f"epoch {number}: {error}", stage=error.stage, cause=error.cause
        ) from None
    assert epoch.completed is not None
    return epoch.completed.checkpoint_id


def names_of(pipeline: Pipeline, bounded: bool | Collection[str]) -> frozenset[str]:  # noqa: FBT001 - of the API
    if isinstance(bounded, bool):
        return frozenset(pipeline.sources if bounded else ())
    for uid in bounded:
        if uid not in pipeline.sources:
            raise ConfigurationError(_no_source(pipeline, f"bounded= names {uid!r}"))
    return frozenset(bounded)


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
