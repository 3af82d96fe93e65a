"""What the side outputs must hold: the rows that a stage leaves out, late or without event time."""

# ruff: noqa: S608 - queries are made of what a drawing named
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.fuzz.plans import StagePlan
from tests.fuzz.query_parts import EPOCH, q

if TYPE_CHECKING:
    from tests.fuzz.oracle import Oracle

LATE = ("late", "late_right")
TIMED = ("window", "window_top_n", "interval_join", "window_join")


def left_out(oracle: Oracle, stage: StagePlan) -> Iterator[tuple[str, str]]:
    """The side outputs of a stage, each with its query, once the stage itself has been computed."""
    if stage.op not in TIMED:
        return
    timeless = []
    for side in range(len(stage.inputs)):
        given, at = oracle.given(stage, side), oracle.event_time(stage, side)
        if at is None:
            continue
        timeless.append(f"SELECT {side} AS _side FROM {q(given)} WHERE {q(at)} IS NULL")
        yield LATE[side], _late(oracle, stage, side)
    if timeless:
        yield "no_event_time", " UNION ALL ".join(timeless)


def _late(oracle: Oracle, stage: StagePlan, side: int) -> str:
    given, at = f"{stage.uid}_in{side}", q(oracle.event_time(stage, side) or "")
    kind, *lengths = stage.args.get("window", ("none",))
    if kind == "session":
        names = ", ".join(q(name) for name in oracle.columns(given))
        in_time = f"(SELECT _row FROM {q(stage.uid + '_sessions')})"
        return f"SELECT {names} FROM {q(stage.uid + '_rows')} WHERE _row NOT IN {in_time}"
    if kind == "none":
        until = f"epoch_us({at}) // 1000"
    elif kind == "attached":
        until = "(epoch_us(window_end) - 1) // 1000"
    else:
        size, slide = lengths[0] * 1_000, lengths[-1] * 1_000
        until = f"(epoch_us({at}) // {slide} * {slide} + {size} - 1) // 1000"
    lateness = stage.args.get("lateness", 0)
    return (
        f"SELECT x.* EXCLUDE ({EPOCH}) FROM {q(given)} x JOIN _watermarks w "
        f"ON w.stage = '{stage.uid}' AND w.epoch = x.{EPOCH} "
        f"WHERE {at} IS NOT NULL AND {until} + {lateness} <= w.before"
    )
