"""A tiny declared pipeline and its job, on a store in memory.

Nexmark -> two keyed stages -> FilesTable; ``tests.subtasks`` answers for the stages.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sluice.connectors.files_table.table import ManifestTable as FilesTableSink
from sluice.coordinator.submission import configure, submit
from sluice.coordinator.trigger import Triggered, trigger
from sluice.core.answers import Ack, StageAnswer
from sluice.core.ids import CheckpointId
from sluice.core.plan import CheckpointPlan
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.places import SinkSpec
from sluice.job.job import Job, new_token, open_job
from sluice.job.places import open_result_table
from sluice.sinks import FilesTable
from sluice.sources import Nexmark
from sluice.store.open import StoreLocation

STAGES = COUNT, RANK = ("count_bids", "rank_bids")
SINK = "results"
ONE, TWO, THREE = CheckpointId(1), CheckpointId(2), CheckpointId(3)


@dataclass
class ManualClock:
    now_ms: int = 1_000_000

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, milliseconds: int) -> None:
        self.now_ms += milliseconds


def a_pipeline(
    *,
    stages: tuple[str, ...] = STAGES,
    location: str = "",
    sink: SinkSpec | None = None,
    beside: Mapping[str, SinkSpec] | None = None,
    events: int = 0,
    appends: bool = False,
    **checkpointing: Any,
) -> Pipeline:
    """Ten records an epoch and every state in a file, unless told otherwise.

    With *appends* no stage takes a row back.
    """
    usual = {"max_records_per_epoch": 10, "data_inline_threshold": 0}
    pipeline = Pipeline("auctions", checkpointing=Checkpointing(**usual | checkpointing))
    stream = pipeline.source("events", Nexmark(events))
    for number, uid in enumerate(stages):
        if appends:
            stream = stream.key_by("bid_auction").deduplicate(uid, by="bid_auction")
        elif number == 0:
            stream = stream.key_by("bid_auction").aggregate(uid, bids=agg.count())
        else:
            stream = stream.key_by("bids").aggregate(uid, auctions=agg.count())
    stream.sink(SINK, sink or FilesTable(location, changelog=True))
    for uid, spec in (beside or {}).items():
        stream.sink(uid, spec)
    return pipeline


def a_job(
    pipeline: Pipeline | None = None,
    *,
    root: str | None = None,
    clock: ManualClock | None = None,
) -> Job:
    """A handle on a job that nobody submitted; the root is a new one unless it is named."""
    location = StoreLocation(root=root or f"memory://{secrets.token_hex(6)}")
    return open_job(pipeline or a_pipeline(), location, clock=clock or ManualClock())


def a_running_job(pipeline: Pipeline | None = None, *, clock: ManualClock | None = None) -> Job:
    job = a_job(pipeline, clock=clock)
    submit(job, configure(job.pipeline, {}))
    return job


def trigger_one(job: Job, **given: Any) -> CheckpointPlan:
    outcome = trigger(job, **given)
    assert isinstance(outcome, Triggered), outcome
    return outcome.plan


def answer_with(job: Job, plan: CheckpointPlan, acks: Sequence[Ack]) -> None:
    """Answer for the stage of *acks*, which are of all its subtasks."""
    first = acks[0]
    job.answers.write(
        StageAnswer(
            checkpoint_id=plan.checkpoint_id,
            stage=first.subtask.stage,
            attempt=first.attempt,
            plan=plan.token,
            driver=new_token(),
            acks=tuple(acks),
        )
    )


def records_of(plan: CheckpointPlan) -> list[int]:
    return [n for piece in plan.sources[0].slices for n in range(piece.start, piece.end)]


def published_records(job: Job, version: int | None = None) -> list[int]:
    rows = results(job).read(version).to_pylist()
    return sorted(row["record"] for row in rows)


def results(job: Job) -> FilesTableSink:
    table = open_result_table(job, job.state().configuration.params)
    assert isinstance(table, FilesTableSink)
    return table


def keys_of(job: Job, prefix: str = "") -> list[str]:
    return [listed.key for listed in job.store.list(prefix)]
