"""Chains: stages that run as one Spark job, whose driver writes all acks.

Which may, and in which order their acks are written, is the product's (ADR 52).  An attempt decides
how long its chain is, so that those of one checkpoint differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeAlias

from sluice.core.acks import Ack
from sluice.core.plan import CheckpointPlan
from sluice.epoch.chaining import chained_behind
from sluice.epoch.lineage import lineage_of
from sluice.errors import FencedError, StageFailed
from sluice.job.owed_work import still_pending
from tests.simulation.broken import Broken
from tests.simulation.dataflow import Row, said_by
from tests.simulation.subtasks import Execution, executions, inherited, prepared
from tests.simulation.world import World

LINKED = 0.8  # Of the stages that may be chained.


@dataclass(slots=True)
class Chain:
    """A Spark job of several stages: their subtasks, and the driver, which goes last."""

    stages: tuple[tuple[Execution, ...], ...]
    step: int = 0

    @property
    def plan(self) -> CheckpointPlan:
        return self.stages[0][0].plan

    @property
    def label(self) -> str:
        return f"{self.stages[0][0].label} and {len(self.stages) - 1} behind it"

    @property
    def is_done(self) -> bool:
        return self.step > sum(map(len, self.stages))

    def again(self, token: str) -> Chain:
        stages = tuple(tuple(one.again(token) for one in stage) for stage in self.stages)
        return Chain(stages)

    def advance(self, world: World) -> None:
        """A subtask's pass or, at the end, all acks."""
        step, passes = self.step, [*chain.from_iterable(self.stages)]
        self.step += 1
        if step < len(passes):
            self._passes(world, passes[step])
            return
        behind = [chained_acks(stage) for stage in self.stages[:-1]]
        last = [one.ack() for one in self.stages[-1]]
        if answered := self.stages[0][0].job.answers.write_chain([*behind, last]):
            raise StageFailed(f"another driver has acknowledged for {answered}")

    def _passes(self, world: World, one: Execution) -> None:
        depth = next(at for at, stage in enumerate(self.stages) if one in stage)
        if depth > 0:
            one.handed = self._stream(world, depth - 1)
        one.absorb(world)
        if depth == len(self.stages) - 1:
            one.emit(world)

    def _stream(self, world: World, depth: int) -> tuple[Row, ...]:
        """The rows that a stage hands to the next one; noted, as no object says them."""
        stage = self.stages[depth]
        first, said = stage[0], chain.from_iterable(one.said for one in stage)
        rows = tuple(sorted(said_by(first.attempt, said)))
        whose = (first.plan.checkpoint_id, first.subtask.stage, first.attempt)
        if world.witness.handed.setdefault(whose, rows) != rows:
            raise Broken(7, "an attempt said two things", f"{whose}")
        return rows


Run: TypeAlias = Execution | Chain


def chained_acks(stage: Sequence[Execution]) -> list[Ack]:
    """What travels to the driver: nothing of it is in the bucket but the state."""
    return [replace(one.ack(), is_chained=True) for one in stage]


def runs(world: World, plan: CheckpointPlan, stage: str, attempt: int) -> Sequence[Run]:
    """The executions of a stage, or the chain that begins with it; none if it ran chained.

    Raises:
        NotYetAcknowledged: the stage that it reads has not acknowledged.
        FencedError: the checkpoint is not pending any more.
    """
    state = world.job.state()
    lineage = lineage_of(world.job, state, plan)
    if not world.settings.is_chained:
        return executions(world, plan, stage, attempt, state, lineage)
    pending = still_pending(state, plan.checkpoint_id)
    if attempt != pending.attempt_of(stage):
        raise FencedError(f"attempt {attempt} of {stage} was overtaken")
    stages = [executions(world, plan, stage, attempt, state, lineage)]
    uid = stage
    while stages[0] and world.chance(LINKED):
        node = chained_behind(world.job.pipeline, state.configuration, plan, uid, lineage)
        if node is None:
            break
        uid = node.uid
        states = inherited(world, plan, uid, lineage)
        stages.append(prepared(world, plan, uid, pending.attempt_of(uid), states))
    return [Chain(tuple(map(tuple, stages)))] if len(stages) > 1 else stages[0]
