"""Plans of one or two stages with a change that fits few other plans, so that each row of the table
of transitions is drawn: where rows only come, and where they are taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any

from tests.fuzz.changing import FOREVER
from tests.fuzz.plans import InputPlan, Plan, SinkPlan, StagePlan, only_used

SELDOM_PLANS = 0.05
ENTITIES = 12
NEWEST = "newest"  # The uid of a stage whose rows are taken back.
UID = "seldom"


def seldom(random: Random, plan: Plan) -> tuple[Plan, str]:
    """The plan, of some seeds another one, of the first of its sources alone; and the part of it
    that is to change, empty if any.
    """
    if random.random() >= SELDOM_PLANS:
        return plan, ""
    source = next(source for source in plan.sources if not source.is_table)
    if not source.grows:  # In the order in which its rows came, which "unique" needs.
        source = replace(source, format="parquet", packed="", has_header=False, malformed=0)
    part, is_behind = random.choice([*STAGES]), source.grows or random.random() < 0.6
    of_entity = (("xk", f"id % {ENTITIES}"),)
    given = InputPlan(producer=source.uid, keys=("xk",), key_expressions=of_entity)
    newest = StagePlan(uid=NEWEST, op="latest", inputs=(given,), args={"by": ["id"]})
    stage, sink = STAGES[part](random, NEWEST if is_behind else source.uid, source.uid)
    reads_newest = any(given.producer == NEWEST for given in stage.inputs)
    plan = replace(
        plan,
        sources=tuple(source if one.uid == source.uid else one for one in plan.sources),
        stages=(newest, stage) if reads_newest else (stage,),
        sinks=(replace(sink, uid=f"{UID}_out", producer=UID),),
        unaligned="",
    )
    return only_used(plan), part


Draw = Callable[[Random, str, str], tuple[StagePlan, SinkPlan]]
_OF_G = SinkPlan(uid="", producer="", upsert_key=("g",))
_OF_RANKS = SinkPlan(uid="", producer="", upsert_key=("g", "rank"))
_OF_CHANGES = SinkPlan(uid="", producer="", changelog=True)


def _by_g(
    op: str, producer: str, args: Mapping[str, Any], select: tuple[str, ...] = ()
) -> StagePlan:
    given = InputPlan(producer=producer, keys=("g",))
    return StagePlan(uid=UID, op=op, inputs=(given,), args=args, select=select)


def _operator(random: Random, producer: str, source: str) -> tuple[StagePlan, SinkPlan]:
    select = ("g", "id", "k") if producer == NEWEST else ()
    return _by_g("latest", producer, {"by": ["id"]}, select), _OF_G


def _ranking(random: Random, producer: str, source: str) -> tuple[StagePlan, SinkPlan]:
    unique = ["xk"] if producer == NEWEST else ["k"]
    by, ties = ("k", ["id"]) if producer == NEWEST else ("id", [])
    args = {"n": random.choice((1, 2, 3)), "by": by, "ties_by": ties, "unique": unique}
    return _by_g("top_n", producer, args), _OF_RANKS


def _resting(random: Random, producer: str, source: str) -> tuple[StagePlan, SinkPlan]:
    args = {"n": 2, "by": "k", "ttl": FOREVER}
    return _by_g("top_n", producer, args), _OF_RANKS


def _sums(random: Random, producer: str, source: str) -> tuple[StagePlan, SinkPlan]:
    aggregates = {"total": ["sum", "k", None, None], "n": ["count", "k", None, None]}
    return _by_g("aggregate", producer, {"aggregates": aggregates}), _OF_G


def _join(kinds: tuple[str, ...]) -> Draw:
    def drawn(random: Random, producer: str, source: str) -> tuple[StagePlan, SinkPlan]:
        left = InputPlan(producer=producer, keys=("k",))
        right = InputPlan(producer=source, select=("k AS rk", "id AS rid"), keys=("rk",))
        args = {"how": random.choice(kinds)}
        return StagePlan(uid=UID, op="join", inputs=(left, right), args=args), _OF_CHANGES

    return drawn


STAGES: dict[str, Draw] = {
    "operator": _operator,
    "unique": _ranking,
    "n": _ranking,
    "ties": _ranking,
    "by": _ranking,
    "ttl": _resting,
    "mean": _sums,
    "how": _join(("inner", "left", "right", "full", "semi", "anti")),
    "partners": _join(("left", "right", "full", "anti")),
}
