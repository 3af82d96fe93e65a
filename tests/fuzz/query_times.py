"""What the queries say of event time: windows, sessions, who is late, when something fires."""

# ruff: noqa: S608 - queries are made of what a drawing named
from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from tests.fuzz.past import MIN_WATERMARK
from tests.fuzz.plans import StagePlan
from tests.fuzz.query_parts import EPOCH, listed, q

if TYPE_CHECKING:
    from tests.fuzz.oracle import Oracle


def now(stage: StagePlan) -> str:
    return f"(SELECT max(now) FROM _watermarks WHERE stage = '{stage.uid}')"


def fires(stage: StagePlan, at_ms: str) -> str:
    """The first epoch whose barrier has come to that."""
    watermarks = f"_watermarks w WHERE w.stage = '{stage.uid}'"
    return f"(SELECT min(w.epoch) FROM {watermarks} AND w.now >= {at_ms})"


def in_windows(
    oracle: Oracle, stage: StagePlan, given: str, side: int = 0, *, lateness: int = 0
) -> str:
    """Each row once for each window that it is in and in time for; ``_over`` is when that ends."""
    kind, *lengths = stage.args["window"]
    if kind == "attached":
        rows = (
            f"SELECT *, (epoch_us(window_end) - 1) // 1000 AS _over FROM {q(given)} "
            "WHERE window_start IS NOT NULL AND window_end IS NOT NULL"
        )
    else:
        size, slide = lengths[0] * 1_000, lengths[-1] * 1_000
        at = f"epoch_us({q(oracle.event_time(stage, side) or '')})"
        starts = f"SELECT *, ({at} // {slide} - unnest(range({size // slide}))) * {slide} AS _start"
        hidden = [n for n in ("window_start", "window_end") if n in oracle.columns(given)]
        without = f" EXCLUDE ({listed(hidden)})" if hidden else ""
        rows = (
            f"SELECT *{without}, make_timestamptz(_start) AS window_start, "
            f"make_timestamptz(_start + {size}) AS window_end, "
            f"(_start + {size} - 1) // 1000 AS _over "
            f"FROM ({starts} FROM {q(given)} WHERE {at} IS NOT NULL)"
        )
    return (
        f"SELECT x.* FROM ({rows}) x JOIN _watermarks w "
        f"ON w.stage = '{stage.uid}' AND w.epoch = x.{EPOCH} AND x._over + {lateness} > w.before"
    )


def in_sessions(oracle: Oracle, stage: StagePlan, given: str, lateness: int) -> str:
    """Each row in time, with the bounds of its session."""
    from tests.fuzz.sessions import sessions_of

    keys, at = listed(stage.inputs[0].keys), oracle.event_time(stage)
    numbered = f"{stage.uid}_rows"
    oracle.make(
        numbered,
        f"SELECT *, ROW_NUMBER() OVER () AS _row, dense_rank() OVER (ORDER BY {keys}) AS _key "
        f"FROM {q(given)} WHERE {q(at or '')} IS NOT NULL",
    )
    rows = oracle.sql.execute(
        f"SELECT _row, _key, epoch_us({q(at or '')}), {EPOCH} FROM {q(numbered)}"
    ).fetchall()
    gap_us = stage.args["window"][1] * 1_000
    watermarks = [MIN_WATERMARK, *oracle.watermarks_of(stage.uid)]
    found = [
        (number, session.start, session.end, session.fired)
        for session in sessions_of(rows, watermarks, gap_us=gap_us, lateness_ms=lateness)
        for number in session.rows
    ]
    columns = list(zip(*found, strict=True)) or [(), (), (), ()]
    names = ["_row", "_start", "_end", "_fired"]
    table = pa.table([pa.array(column, pa.int64()) for column in columns], names=names)
    oracle.sql.register("_given", table)
    oracle.make(f"{stage.uid}_sessions", "SELECT * FROM _given")
    oracle.sql.unregister("_given")
    return (
        f"SELECT *, make_timestamptz(_start) AS window_start, make_timestamptz(_end) AS window_end,"
        f" (_end - 1) // 1000 AS _over "
        f"FROM {q(numbered)} JOIN {q(stage.uid + '_sessions')} USING (_row) WHERE _fired > 0"
    )


def on_time(oracle: Oracle, stage: StagePlan, side: int) -> str:
    given, at = oracle.given(stage, side), oracle.event_time(stage, side)
    return (
        f"(SELECT x.* FROM {q(given)} x JOIN _watermarks w ON w.stage = '{stage.uid}' "
        f"AND w.epoch = x.{EPOCH} AND epoch_us(x.{q(at or '')}) // 1000 > w.before)"
    )


def remembered(oracle: Oracle, stage: StagePlan, given: str) -> str:
    """The rows that state still knows: with a TTL, of a key that rested that long, those since."""
    ttl = stage.args.get("ttl")
    if ttl is None:
        return q(given)
    names = stage.inputs[0].keys
    keys = listed(names)
    times = ", ".join(f"({n}, {at})" for n, at in enumerate(oracle.past.barriers_ms(), start=1))
    rests = (
        f"SELECT {keys}, {EPOCH}, _at - lag(_at) OVER (PARTITION BY {keys} ORDER BY {EPOCH}) AS "
        f"_rest FROM (SELECT DISTINCT {keys}, {EPOCH}, _at FROM {q(given)} "
        f"JOIN (VALUES {times}) t(_epoch_of, _at) ON _epoch_of = {EPOCH})"
    )
    begins = (
        f"SELECT {keys}, max({EPOCH}) AS _begin FROM ({rests}) "
        f"WHERE _rest IS NULL OR _rest >= {ttl} GROUP BY {keys}"
    )
    same = " AND ".join(f"r.{q(name)} IS NOT DISTINCT FROM b.{q(name)}" for name in names)
    return f"(SELECT r.* FROM {q(given)} r JOIN ({begins}) b ON {same} AND r.{EPOCH} >= b._begin)"
