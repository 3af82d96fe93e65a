"""A pipeline without Spark: real job, journal and acks; a stage acknowledges without any data."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest

from harness.jobs import answer_with
from sluice.coordinator.completion import finalize
from sluice.coordinator.publication import commit
from sluice.coordinator.submission import configure, submit
from sluice.coordinator.trigger import Triggered, trigger
from sluice.core.answers import Ack, Decline
from sluice.core.event_time import MAX_WATERMARK
from sluice.core.failures import CheckpointFailureReason
from sluice.core.ids import CheckpointId, SubtaskId
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.params import param
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.places import SinkSpec
from sluice.errors import ConfigurationError
from sluice.job.job import Job, open_job
from sluice.sinks import FilesTable
from sluice.sources import Nexmark
from sluice.store.open import StoreLocation

CAUSE = "airflow:demo/run-1"


def a_pipeline(
    uid: str = "demo", *, sink: SinkSpec | None = None, **checkpointing: Any
) -> Pipeline:
    """events -> bids -> by_auction -> counts, two subtasks each."""
    usual: dict[str, Any] = {"interval": timedelta(seconds=15), "max_records_per_epoch": 1_000}
    pipeline = Pipeline(
        uid,
        checkpointing=Checkpointing(**usual | checkpointing),
        description="Bids per auction.",
    )
    events = pipeline.source("events", Nexmark(param("events", default=0, help="how many")))
    bids = events.transform("bids", lambda rows: rows)
    bids.key_by("auction").aggregate("by_auction", n=agg.count()).sink(
        "counts", sink or FilesTable(upsert_key=("auction",))
    )
    return pipeline


def a_job(root: str, pipeline: Pipeline | None = None) -> Job:
    return open_job(pipeline or a_pipeline(), StoreLocation(root=root))


def a_pending_checkpoint(root: str, **checkpointing: Any) -> Job:
    job = a_job(root, a_pipeline(**checkpointing))
    submit(job, configure(job.pipeline, {}))
    assert isinstance(trigger(job, cause=CAUSE), Triggered)
    return job


def a_pipeline_of_two_ends() -> Pipeline:
    """Two bounded sources, of which the one ends with the first checkpoint, each with a stage."""
    pipeline = Pipeline("demo", Checkpointing(max_records_per_epoch=100))
    for name, events in (("short", 10), ("long", 5_000)):
        source = pipeline.source(name, Nexmark(events=events))
        counts = source.key_by("auction").aggregate(f"of_{name}", n=agg.count())
        counts.sink(f"{name}_counts", FilesTable(upsert_key=("auction",)))
    return pipeline


def a_job_with_a_finished_stage(root: str) -> Job:
    """Its checkpoint 2, of the run ``CAUSE``, is pending, and goes on without ``of_short``."""
    job = a_job(root, a_pipeline_of_two_ends())
    submit(job, configure(job.pipeline, {}))
    assert isinstance(trigger(job), Triggered)
    acknowledge(job, 1, "of_short", watermark_ms=MAX_WATERMARK)
    acknowledge(job, 1, "of_long")
    finalize(job, CheckpointId(1))
    commit(job, CheckpointId(1))
    assert isinstance(trigger(job, cause=CAUSE), Triggered)
    return job


def acknowledge(
    job: Job, checkpoint_id: int, stage: str, *, attempt: int = 1, watermark_ms: int = 0
) -> None:
    """Answer as the driver of a stage whose two subtasks found nothing."""
    plan = job.plan(CheckpointId(checkpoint_id))
    assert plan is not None
    acks = [
        Ack(
            checkpoint_id=plan.checkpoint_id,
            subtask=subtask,
            attempt=attempt,
            watermark_ms=watermark_ms,
        )
        for subtask in plan.task(stage).subtasks
    ]
    answer_with(job, plan, acks)


def decline(job: Job, checkpoint_id: int, stage: str, index: int) -> None:
    job.answers.write_decline(
        Decline(
            checkpoint_id=CheckpointId(checkpoint_id),
            subtask=SubtaskId(stage, index),
            attempt=1,
            message="no disk",
            reason=CheckpointFailureReason.CHECKPOINT_DECLINED,
            plan=job.state().pending[0].token,
        )
    )


class AcknowledgedStage:
    def compact(self) -> None:
        """Its state is too small to be merged."""


@dataclass
class StandInSpark:
    """A stand-in for ``sluice.spark``: every subtask acknowledges, unless a stage is to fail."""

    failing: dict[str, Exception] = field(default_factory=dict)
    ran: list[tuple[int, str, int]] = field(default_factory=list)
    misspelt: str = ""  # What the analysis of the pipeline says.
    checked: list[str] = field(default_factory=list)
    interrupted: list[str] = field(default_factory=list)
    attached: list[str | None] = field(default_factory=list)  # The names of sessions.
    before: Callable[[Job, int, str], None] = lambda job, checkpoint_id, stage: None

    def install(self, patch: pytest.MonkeyPatch) -> None:
        session, stage = ModuleType("sluice.spark.session"), ModuleType("sluice.spark.stage")
        checking = ModuleType("sluice.spark.checking")
        vars(checking)["check_pipeline"] = self.check_pipeline
        patch.setitem(sys.modules, "sluice.spark.checking", checking)
        vars(session).update(
            ask_spark=lambda remote: None,
            named_session=self.named_session,
            interrupted_with=lambda spark, tag: contextlib.nullcontext(),
            stage_tag=lambda pipeline, checkpoint_id, stage: f"{checkpoint_id}-{stage}",
        )
        vars(stage)["run_stage"] = self.run_stage
        patch.setitem(sys.modules, "sluice.spark.session", session)
        patch.setitem(sys.modules, "sluice.spark.stage", stage)

    @contextlib.contextmanager
    def named_session(self, remote: str, name: str | None) -> Iterator[StandInSpark]:
        self.attached.append(name)
        yield self

    def interruptTag(self, tag: str) -> list[str]:  # noqa: N802 - Spark's name
        self.interrupted.append(tag)
        return [tag]

    def check_pipeline(
        self, pipeline: Pipeline, spark: object, params: Mapping[str, str], endpoint_url: str | None
    ) -> None:
        self.checked.append(pipeline.uid)
        if self.misspelt:
            raise ConfigurationError(self.misspelt)

    def run_stage(
        self, job: Job, spark: object, checkpoint_id: int, stage: str, *, attempt: int
    ) -> AcknowledgedStage:
        self.ran.append((checkpoint_id, stage, attempt))
        self.before(job, checkpoint_id, stage)
        if stage in self.failing:
            raise self.failing.pop(stage)
        acknowledge(job, checkpoint_id, stage, attempt=attempt)
        return AcknowledgedStage()
