"""A job whose input others change: what it has absorbed, checkpoint by checkpoint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from harness.jobs import ManualClock
from sluice.coordinator.failure import abort_checkpoint
from sluice.coordinator.restore import restore, savepoint_target
from sluice.coordinator.submission import configure, submit
from sluice.coordinator.trigger import Triggered, trigger
from sluice.core.configuration import CheckpointType
from sluice.core.plan import CheckpointPlan
from sluice.core.restoring import Choice
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.places import SourceSpec
from sluice.job.job import open_job
from sluice.sinks import FilesTable
from sluice.store.open import StoreLocation
from tests.subtasks import acknowledge, finish


class AbsorbingJob(ABC):
    """A job over ``sales``; ``rows`` are by checkpoint those that it has absorbed.

    Amid an epoch the input is *changing*, with that probability, once more and again.
    """

    def __init__(
        self,
        random: Random,
        spec: SourceSpec,
        place: StoreLocation,
        *,
        key: str,
        limit: int | None,
        changing: float,
    ) -> None:
        self.random, self.changing = random, changing
        pipeline = Pipeline(
            "absorbing",
            checkpointing=Checkpointing(
                num_retained=random.randint(1, 3), tolerable_failed_checkpoints=99
            ),
        )
        totals = pipeline.source("sales", spec).key_by(key).aggregate("totals", rows=agg.count())
        totals.sink("out", FilesTable(changelog=True))
        self.job = open_job(pipeline, place, clock=ManualClock())
        submit(self.job, configure(pipeline, {}, max_records_per_epoch=limit))
        self.rows: dict[int | None, Counter[Any]] = {None: Counter()}
        self.named: dict[str, int] = {}

    @abstractmethod
    def change(self) -> None:
        """One change by whoever writes the input."""

    @abstractmethod
    def read(self, plan: CheckpointPlan) -> Counter[Any]:
        """The rows of the plan's slices by their weights."""

    def trigger(self, name: str | None) -> CheckpointPlan | None:
        """The plan of a checkpoint, of a savepoint if it has a *name*; None without anything to
        read.
        """
        given: dict[str, Any] = {}
        if name is not None:
            given = {"type": CheckpointType.SAVEPOINT, "savepoint_name": name}
        outcome = trigger(self.job, is_periodic=name is None, **given)
        return outcome.plan if isinstance(outcome, Triggered) else None

    def absorb(
        self, plan: CheckpointPlan, name: str | None, check: Callable[[Counter[Any]], None]
    ) -> None:
        """Read what *plan* says, twice, and end it; *check* sees what is absorbed then."""
        read = self.read(plan)
        while self.random.random() < self.changing:
            self.change()
        assert self.read(plan) == read, "a slice has other rows the second time"
        if self.random.random() < 0.3:
            abort_checkpoint(self.job, plan.checkpoint_id, by="a test")
            return
        acknowledge(self.job, plan)
        finish(self.job, plan.checkpoint_id)
        rows = Counter(self.rows[plan.parent])
        rows.update(read)
        assert min(rows.values(), default=0) >= 0, "a row was taken back that was not there"
        self.rows[plan.checkpoint_id] = rows = +rows
        check(rows)
        if name is not None:
            self.named[name] = plan.checkpoint_id

    def restore(self) -> None:
        """Restore a savepoint or a checkpoint, with another parallelism."""
        wider = replace(self.job.state().configuration, parallelism=self.random.randint(1, 4))
        completed = [one.checkpoint_id for one in self.job.state().completed]
        if self.named and self.random.random() < 0.5:
            name = self.random.choice(sorted(self.named))
            restore(self.job, savepoint_target(self.job, name), configuration=wider)
        elif completed:
            target = Choice(self.random.choice(completed))
            restore(self.job, target, configuration=wider)
