"""Planted faults: subtasks that acknowledge too early, stages chained where they must not be."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sluice.core.answers import Ack
from sluice.job import stage_input
from sluice.job.stage_input import StageInput
from sluice.store.checkpoints import AnswerStore
from tests.simulation.planting import mutation
from tests.simulation.spark_jobs import SparkJob, chained_acks
from tests.simulation.subtasks import Execution
from tests.simulation.world import World


@mutation(3)
def acknowledge_from_within_the_task(patch: pytest.MonkeyPatch) -> None:
    """A subtask writes its ack when its input has ended, also if Spark has cut that short."""
    run = Execution.run

    def runs(self: Execution, world: World, *, share: float, is_last: bool) -> None:
        run(self, world, share=share, is_last=is_last)
        if is_last:
            self.job.answers.write_ack(self.ack())

    patch.setattr(Execution, "run", runs)


@mutation(12)
def acknowledge_a_chain_from_the_front(patch: pytest.MonkeyPatch) -> None:
    """The driver of a chain writes the acks of its first stage first."""
    write_chain = AnswerStore.write_chain

    def write(self: AnswerStore, stages: Sequence[Sequence[Ack]]) -> str | None:
        return write_chain(self, stages[::-1])

    patch.setattr(AnswerStore, "write_chain", write)


@mutation(12)
def acknowledge_before_the_chain_has_ended(patch: pytest.MonkeyPatch) -> None:
    """The subtasks of a chained stage acknowledge as soon as they are done, as without a chain."""
    advance = SparkJob.advance

    def acknowledges(self: SparkJob, world: World) -> None:
        advance(self, world)
        done = 0
        for stage in self.stages[:-1]:
            done += len(stage)
            if self.step == done:
                for ack in chained_acks(stage):
                    stage[0].job.answers.write_ack(ack)

    patch.setattr(SparkJob, "advance", acknowledges)


@mutation(3)
def chain_what_has_something_in_flight(patch: pytest.MonkeyPatch) -> None:
    """A stage is chained though rows of an earlier epoch wait for it, or it may be overtaken."""
    patch.setattr(stage_input, "_waits", lambda *_: True)


@mutation(3)
def read_the_stream_of_a_chained_stage(patch: pytest.MonkeyPatch) -> None:
    """A stage that runs again reads its input from the bucket, where a chain has left none."""
    patch.setattr(StageInput, "is_chained", property(lambda _: False))
