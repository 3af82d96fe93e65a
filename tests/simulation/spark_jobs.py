"""Spark jobs: the run of a stage, or of several that are chained, whose driver writes all acks.

What feeds a task may fail in mid-epoch.  To the task that looks like the end of its input: it does
with some rows what it would do with all, and Spark runs it again (ADR 4).

Which stages may be chained, and in which order acks are written, is the product's (ADR 4).  An
attempt decides how long its chain is, so that those of one checkpoint differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain

from sluice.core.answers import StageAnswer
from sluice.core.plan import CheckpointPlan
from sluice.core.state import CoordinatorState
from sluice.errors import FencedError, StageFailed
from sluice.job.answers import acks_of, still_pending
from sluice.job.lineage import Lineage, lineage_of
from sluice.job.stage_input import chained_behind, stage_input
from tests.simulation.broken import Broken
from tests.simulation.dataflow import Row, said_by
from tests.simulation.subtasks import Execution, inherited, prepared
from tests.simulation.world import World

LINKED = 0.8  # Of the stages that may be chained.
CUT_SHORT = 0.1  # Of the runs of a task.


@dataclass(slots=True)
class SparkJob:
    """The subtasks of its stages, one after the other, and the driver, which goes last."""

    stages: tuple[tuple[Execution, ...], ...]
    driver: str
    read: Mapping[str, str]  # By the first stage.
    step: int = 0

    @property
    def plan(self) -> CheckpointPlan:
        return self.stages[0][0].plan

    @property
    def label(self) -> str:
        behind = len(self.stages) - 1
        return self.stages[0][0].label + (f" and {behind} behind it" if behind else "")

    @property
    def tasks(self) -> tuple[Execution, ...]:
        return tuple(chain.from_iterable(self.stages))

    @property
    def is_done(self) -> bool:
        return self.step > len(self.tasks)

    def again(self, driver: str) -> SparkJob:
        """The same attempt as another driver runs it, which the cluster has started."""
        stages = tuple(tuple(one.again(driver) for one in stage) for stage in self.stages)
        return SparkJob(stages, driver=driver, read=self.read)

    def advance(self, world: World) -> None:
        """A task or, at the end, all acks."""
        step, tasks = self.step, self.tasks
        self.step += 1
        if step < len(tasks):
            self.run(world, tasks[step])
        else:
            self._acknowledge()

    def run(self, world: World, one: Execution) -> None:
        """Run the task until it has read all of its input."""
        depth = next(at for at, stage in enumerate(self.stages) if one in stage)
        if depth > 0:
            one.handed = self._stream(world, depth - 1)
        is_last = depth == len(self.stages) - 1
        while world.chance(CUT_SHORT):
            one.run(world, share=world.random.random(), is_last=is_last)
            one.token += "r"
        one.run(world, share=1.0, is_last=is_last)

    def _acknowledge(self) -> None:
        store, answers = self.stages[0][0].job.answers, self.answers()
        if len(answers) == 1:
            store.write(answers[0])
        elif answered := store.write_chain(answers):
            raise StageFailed(f"another driver has acknowledged for {answered}")

    def answers(self) -> list[StageAnswer]:
        """What travels to the driver, a stage's acks together: so far it is in no bucket."""
        read, found = dict(self.read), list[StageAnswer]()
        for stage in self.stages:
            first, is_last = stage[0], stage is self.stages[-1]
            found.append(
                StageAnswer(
                    checkpoint_id=first.plan.checkpoint_id,
                    stage=first.subtask.stage,
                    attempt=first.attempt,
                    plan=first.plan.token,
                    driver=self.driver,
                    acks=tuple(replace(one.ack(), is_chained=not is_last) for one in stage),
                    read=read,
                )
            )
            read = {first.subtask.stage: self.driver}
        return found

    def _stream(self, world: World, depth: int) -> tuple[Row, ...]:
        """The rows that a stage hands to the next one; noted, as no object says them."""
        stage = self.stages[depth]
        first, said = stage[0], chain.from_iterable(one.said for one in stage)
        rows = tuple(sorted(said_by(self.driver, said)))
        whose = (first.plan.token, first.subtask.stage, self.driver)
        if world.witness.handed.setdefault(whose, rows) != rows:
            raise Broken(7, "a driver said two things", f"{whose}")
        return rows


def run_stages(world: World, plan: CheckpointPlan) -> bool:
    """Run all stages of a checkpoint, one after the other; False if it ended before they had."""
    for task in plan.tasks:
        pending = world.job.state().pending_checkpoint(plan.checkpoint_id)
        if pending is None:
            return False
        job = spark_job(world, plan, task.uid, pending.attempt_of(task.uid))
        while job is not None and not job.is_done:
            job.advance(world)
    return True


def spark_job(world: World, plan: CheckpointPlan, stage: str, attempt: int) -> SparkJob | None:
    """The job of an attempt of a stage, as of ``sluice.spark.stage.run_stage``; None if the stage
    ran chained to the one before it.

    Raises:
        NotYetAcknowledged: the stage that it reads has not acknowledged.
        FencedError: the checkpoint is not pending any more.
    """
    state = world.job.state()
    lineage = lineage_of(world.job, state, plan)
    states = inherited(world, plan, stage, lineage)
    given = stage_input(world.job, state, plan, stage, lineage)
    if given.is_chained:
        acks_of(world.job, state, plan.checkpoint_id)(stage)
        return None
    inputs = tuple(segment for one in given.streams.values() for segment in one.segments)
    driver = f"d{world.random.randrange(10**6)}"
    stages = [prepared(world, plan, stage, attempt, states, inputs, driver=driver)]
    if world.settings.is_chained:
        stages += _chained(world, plan, stage, attempt, state, lineage, driver)
    return SparkJob(tuple(map(tuple, stages)), driver=driver, read=given.drivers)


def _chained(
    world: World,
    plan: CheckpointPlan,
    stage: str,
    attempt: int,
    state: CoordinatorState,
    lineage: Lineage,
    driver: str,
) -> list[list[Execution]]:
    """The subtasks of the stages that this attempt chains to *stage*."""
    pending = still_pending(state, plan.checkpoint_id)
    if attempt != pending.attempt_of(stage):
        raise FencedError(f"attempt {attempt} of {stage} was overtaken")
    stages: list[list[Execution]] = []
    while world.chance(LINKED):
        node = chained_behind(world.job.pipeline, state.configuration, plan, stage, lineage)
        if node is None:
            break
        stage = node.uid
        states = inherited(world, plan, stage, lineage)
        attempt = pending.attempt_of(stage)
        stages.append(prepared(world, plan, stage, attempt, states, driver=driver))
    return stages
