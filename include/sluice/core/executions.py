"""Executions of chained subtasks: have those behind them all read the one whose ack counts?

Spark runs a subtask again when it has lost what that sent, or thinks it slow.  A function of the
user's may answer differently then, and rows of one epoch must not hold both answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sluice.core.acks import Ack


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One execution of a subtask by Spark, with the ack that it came to.

    ``token`` is its own; ``read`` are those of the executions whose rows it got, one for each
    subtask of the stage before it in its chain, in their order.
    """

    ack: Ack
    token: str
    read: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Mixture:
    """Subtasks of *reader* have read other executions of *producer* than the one that is known."""

    producer: str
    reader: str


def mixture_in(stages: Sequence[str], executions: Iterable[Execution]) -> Mixture | None:
    """The first mixture in a chain of *stages*; None if all its rows are of the *executions*.

    Each stage's tokens are compared with those of the acks before it, so nothing that is behind
    another execution passes, however long the chain.
    """
    by_stage: dict[str, list[Execution]] = {stage: [] for stage in stages}
    for one in sorted(executions, key=lambda one: one.ack.subtask):
        by_stage[one.ack.subtask.stage].append(one)
    for producer, reader in pairwise(stages):
        told = tuple(one.token for one in by_stage[producer])
        if any(one.read != told for one in by_stage[reader]):
            return Mixture(producer, reader)
    return None
