"""The same plays on a real Spark: through its JVM, and past it, with tasks that all run at once,
and with its shuffle.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.drawing import draw
from tests.fuzz.plans import Act, Checkpoint, Plan
from tests.fuzz.play import Failure, failure_of
from tests.fuzz.tuning import tuned
from tests.fuzz.world import World

# A subtask of a real Spark is not ours to kill between two lines; tests/exactly_once does that.
IN_PROCESS = ("dies_retried", "acked_retried", "dies_fails", "acked_fails", "dies_vanishes")
MOST_CHECKPOINTS = 2
WAYS = ("plain", "jvm", "shuffled")
PATCHES: dict[str, tuple[str, Any]] = {
    "jvm": ("sluice.spark.deployment.exchange_of", lambda run: None),
    "shuffled": ("sluice.spark.tasks.task_slots", lambda spark: 0),
}


def spark_plan(seed: int) -> Plan:
    """The part of a seed's plan for a real Spark: files, and two or three checkpoints."""
    plan = draw(seed)
    acts: list[Act] = []
    checkpoints = 0
    for act in plan.acts:
        if isinstance(act, Checkpoint):
            checkpoints += 1
            if checkpoints <= MOST_CHECKPOINTS or act.drains:
                acts.append(replace(act, fate="" if act.fate in IN_PROCESS else act.fate))
        else:
            acts.append(act)
    return replace(
        plan,
        sources=tuple(replace(source, grows=False) for source in plan.sources),
        acts=tuple(acts),
        way=WAYS[seed % len(WAYS)],
        spills=False,
        tuning=tuple(name for name in plan.tuning if name == "pre_aggregates"),
    )


def play_on_spark(plan: Plan, spark: Any) -> Failure | None:
    """None if every sink held what it must, at every commit."""
    with (
        tempfile.TemporaryDirectory(prefix="sluice-fuzz-") as folder,
        tuned(plan.tuning),
        pytest.MonkeyPatch.context() as patch,
    ):
        if plan.way in PATCHES:
            patch.setattr(*PATCHES[plan.way])
        root = f"file://{folder}/root"
        return failure_of(lambda: World(plan, Path(folder) / "in", root, spark).play())
