"""Plans of groups that lose their last row and get one again, over runs of state of several ages.

Of many entities the newest rows are kept, and grouped by a column that changes: what groups had is
deleted in small runs, which are merged without the large one before them, and read again.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.fuzz.plans import (
    Act,
    Checkpoint,
    Feed,
    InputPlan,
    Plan,
    Restore,
    SinkPlan,
    StagePlan,
    only_used,
)
from tests.fuzz.tuning import COMPACTS

DWINDLING_PLANS = 0.03
ENTITIES = 12
DWINDLES = "dwindles"  # The uid of the stage whose groups do.


def dwindling(random: Random, plan: Plan) -> Plan:
    """The plan, of some seeds another one, of the first of its sources alone."""
    if random.random() >= DWINDLING_PLANS:
        return plan
    source = next(source for source in plan.sources if not source.is_table)
    of_entity = (("xk", f"id % {ENTITIES}"),)
    given = InputPlan(producer=source.uid, keys=("xk",), key_expressions=of_entity)
    newest = StagePlan(uid="newest", op="latest", inputs=(given,), args={"by": ["id"]})
    aggregates = {
        "n": ["count", None, None, None],
        "k_sum": ["sum", "k", None, None],
        "edge": [random.choice(("min", "max")), "k", None, None],
        "outer": [random.choice(("first", "last")), "k", None, "id"],
    }
    grouped = StagePlan(
        uid=DWINDLES,
        op="aggregate",
        inputs=(InputPlan(producer="newest", keys=("g",)),),
        args={"aggregates": aggregates},
    )
    tuning = tuple(name for name in plan.tuning if name != COMPACTS)
    plan = replace(
        plan,
        stages=(newest, grouped),
        sinks=(SinkPlan(uid=f"{DWINDLES}_out", producer=DWINDLES, upsert_key=("g",)),),
        acts=tuple(_acts(random, source.uid)),
        max_records=None,
        parallelism=1,
        max_runs=random.choice((2, 16, 16)),
        unaligned="",
        tuning=(*tuning, COMPACTS),
    )
    return only_used(plan)


def _acts(random: Random, source: str) -> list[Act]:
    acts: list[Act] = [Feed(source=source, batch=1, rows=tuple(range(2 * ENTITIES))), Checkpoint()]
    for batch in range(2, random.choice((6, 7, 8))):
        rows = random.sample(range(ENTITIES), random.choice((1, 1, 2)))
        acts += [Feed(source=source, batch=batch, rows=tuple(sorted(rows))), Checkpoint()]
        if random.random() < 0.05:
            acts.append(Restore(parallelism=random.choice((None, 2))))
    return acts
