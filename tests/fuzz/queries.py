"""Each operation as a batch query, over the input up to a barrier."""

# ruff: noqa: S608 - queries are made of what a drawing named
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.fuzz.in_flight import read_up_to, seen_by
from tests.fuzz.plans import StagePlan
from tests.fuzz.query_parts import (
    EPOCH,
    aggregates_of,
    join_columns,
    keys_equal,
    listed,
    q,
    sorted_by,
)
from tests.fuzz.query_times import fires, in_sessions, in_windows, now, on_time, remembered

if TYPE_CHECKING:
    from tests.fuzz.oracle import Oracle


def transform(oracle: Oracle, stage: StagePlan) -> str:
    given = oracle.given(stage)
    condition = stage.args.get("condition")
    where = f" WHERE {condition}" if condition else ""
    columns = stage.args["columns"].replace("\n", ", ")
    return f"SELECT {columns}, {EPOCH} FROM {q(given)}{where}"


def union(oracle: Oracle, stage: StagePlan) -> str:
    names = [oracle.given(stage, side) for side in range(len(stage.inputs))]
    return " UNION ALL BY NAME ".join(f"SELECT * FROM {q(name)}" for name in names)


def lookup(oracle: Oracle, stage: StagePlan) -> str:
    args, added = stage.args, stage.args.get("add") or {}
    stream = seen_by(oracle, stage, stage.inputs[0].producer)
    is_updating = oracle.is_updating(stream)
    given = oracle.given(stage, since=oracle.since(stream) if is_updating else None)
    columns = listed(oracle.columns(given), "r.")
    columns += f", 0 AS {EPOCH}" if is_updating else f", r.{EPOCH}"
    more = "".join(f", t.{q('_t_' + name)} AS {q(name)}" for name in added)
    wanted = {**args["on"], **added}
    table = ", ".join(f"({sql}) AS {q('_t_' + name)}" for name, sql in wanted.items())
    table = f"(SELECT {table}, {EPOCH} FROM {q(args['table'])})"
    on = " AND ".join(f"r.{q(name)} = t.{q('_t_' + name)}" for name in args["on"])
    on = f"r.{EPOCH} = t.{EPOCH} AND {on}"
    exists = f"EXISTS (FROM {table} t WHERE {on})"
    match args.get("keep", "matched"), bool(added):
        case "matched", False:
            return f"SELECT {columns} FROM {q(given)} r WHERE {exists}"
        case "unmatched", _:
            return f"SELECT {columns} FROM {q(given)} r WHERE NOT {exists}"
        case keep, _:
            how = "LEFT JOIN" if keep == "all" else "JOIN"
            return f"SELECT {columns}{more} FROM {q(given)} r {how} {table} t ON {on}"


def aggregate(oracle: Oracle, stage: StagePlan) -> str:
    given, keys = oracle.given(stage), listed(stage.inputs[0].keys)
    found, rows = aggregates_of(oracle, stage, given), remembered(oracle, stage, given)
    return f"SELECT {keys}, {found}, 0 AS {EPOCH} FROM {rows} GROUP BY {keys}"


def window(oracle: Oracle, stage: StagePlan) -> str:
    """A window holds the rows that came before it was over and kept no longer."""
    given, keys = oracle.given(stage), stage.inputs[0].keys
    found = aggregates_of(oracle, stage, given)
    lateness = stage.args["lateness"]
    if stage.args["window"][0] == "session":
        rows = in_sessions(oracle, stage, given, lateness)
    else:
        rows = in_windows(oracle, stage, given, lateness=lateness)
    by = listed([*keys, *(n for n in ("window_start", "window_end") if n not in keys)])
    epoch = 0 if lateness else fires(stage, "_over")
    return (
        f"SELECT {by}, {found}, {epoch} AS {EPOCH} FROM ({rows}) "
        f"WHERE _over <= {now(stage)} GROUP BY {by}, _over"
    )


def window_top_n(oracle: Oracle, stage: StagePlan) -> str:
    given, args = oracle.given(stage), stage.args
    types = oracle.columns(given)
    columns = [*types]
    bounds = [name for name in ("window_start", "window_end") if name not in columns]
    by = [*stage.inputs[0].keys, "window_start", "window_end"]
    first = f"{q(args['by'])} DESC NULLS LAST"
    others = [name for name in columns if name not in (*by, args["by"])]
    rest = sorted_by(types, others, "ASC NULLS FIRST")
    function = "RANK()" if args.get("ties") else "ROW_NUMBER()"
    order = first if args.get("ties") else ", ".join([first, *rest])
    rank = f"CAST({function} OVER (PARTITION BY {listed(by)} ORDER BY {order}) AS INTEGER)"
    rows = in_windows(oracle, stage, given)
    return (
        f"SELECT {listed([*columns, *bounds])}, {rank} AS rank, {fires(stage, '_over')} AS {EPOCH} "
        f"FROM ({rows}) WHERE _over <= {now(stage)} QUALIFY rank <= {args['n']}"
    )


def top_n(oracle: Oracle, stage: StagePlan) -> str:
    given, args, keys = oracle.given(stage), stage.args, stage.inputs[0].keys
    others = oracle.of(given, keys)
    ties = dict.fromkeys([*args.get("ties_by", ()), *args.get("unique", ()), *others])
    types = oracle.columns(given)
    rest = sorted_by(types, [c for c in ties if c not in (*keys, args["by"])], "ASC NULLS FIRST")
    order = ", ".join([f"{q(args['by'])} DESC NULLS LAST", *rest])
    rank = f"ROW_NUMBER() OVER (PARTITION BY {listed(keys)} ORDER BY {order})"
    return (
        f"SELECT {listed(keys)}, CAST({rank} AS INTEGER) AS rank, {listed(others)}, 0 AS {EPOCH} "
        f"FROM {q(given)} QUALIFY rank <= {args['n']}"
    )


def latest(oracle: Oracle, stage: StagePlan) -> str:
    given, keys = oracle.given(stage), stage.inputs[0].keys
    columns = oracle.columns(given)
    order = [n for n in dict.fromkeys([*stage.args["by"], *columns]) if n not in keys]
    ordered = ", ".join(sorted_by(columns, order, "DESC NULLS LAST")) or "1"
    return (
        f"SELECT {listed(columns)}, 0 AS {EPOCH} FROM {remembered(oracle, stage, given)} "
        f"QUALIFY ROW_NUMBER() OVER (PARTITION BY {listed(keys)} ORDER BY {ordered}) = 1"
    )


def deduplicate(oracle: Oracle, stage: StagePlan) -> str:
    """The epoch in which a key came first decides, then the order within it."""
    given, keys = oracle.given(stage), stage.inputs[0].keys
    columns = oracle.columns(given)
    by = stage.args.get("by") or oracle.event_time(stage)
    names = dict.fromkeys([*([by] if by else []), *columns])
    ordered = sorted_by(columns, [name for name in names if name not in keys], "ASC NULLS LAST")
    order = ", ".join([EPOCH, *ordered])
    return (
        f"SELECT {listed(columns)}, {EPOCH} FROM {q(given)} QUALIFY ROW_NUMBER() "
        f"OVER (PARTITION BY {listed(keys)} ORDER BY {order}) = 1"
    )


def join(oracle: Oracle, stage: StagePlan) -> str:
    how = stage.args.get("how", "inner")
    left, right = oracle.given(stage, 0), oracle.given(stage, 1)
    on = keys_equal(stage)
    columns = join_columns(oracle, stage, left, right)
    match how:
        case "inner":
            epoch = f"greatest(l.{EPOCH}, r.{EPOCH})"
            return (
                f"SELECT {columns}, {epoch} AS {EPOCH} FROM {q(left)} l JOIN {q(right)} r ON {on}"
            )
        case "semi" | "anti":
            lefts = listed([*oracle.columns(left)], "l.")
            negated = "NOT " if how == "anti" else ""
            first = f"(SELECT min(r.{EPOCH}) FROM {q(right)} r WHERE {on})"
            epoch = f"greatest(l.{EPOCH}, {first})" if how == "semi" else "0"
            exists = f"{negated}EXISTS (FROM {q(right)} r WHERE {on})"
            return f"SELECT {lefts}, {epoch} AS {EPOCH} FROM {q(left)} l WHERE {exists}"
        case _:
            return (
                f"SELECT {columns}, 0 AS {EPOCH} FROM {q(left)} l "
                f"{how.upper()} JOIN {q(right)} r ON {on}"
            )


def interval_join(oracle: Oracle, stage: StagePlan) -> str:
    args = stage.args
    left, right = (on_time(oracle, stage, side) for side in (0, 1))
    l_at, r_at = (
        f"epoch_us({p}.{q(oracle.event_time(stage, s) or '')})" for s, p in enumerate("lr")
    )
    upper = args["upper"]
    to = f"epoch_us(l.{q(upper)})" if isinstance(upper, str) else f"{l_at} + {upper * 1_000}"
    on = f"{keys_equal(stage)} AND {r_at} BETWEEN {l_at} + {args.get('lower', 0) * 1_000} AND {to}"
    names = [f"{stage.uid}_in{side}" for side in (0, 1)]
    columns = join_columns(oracle, stage, *names)
    pairs = (
        f"SELECT {columns}, greatest(l.{EPOCH}, r.{EPOCH}) AS {EPOCH} "
        f"FROM {left} l JOIN {right} r ON {on}"
    )
    if args.get("how", "inner") == "inner":
        return pairs
    until = f"coalesce({to}, {l_at}) // 1000"
    alone = join_columns(oracle, stage, *names, nulls=True)
    fired = fires(stage, until)
    return (
        f"{pairs} UNION ALL SELECT {alone}, greatest(l.{EPOCH}, {fired}) AS {EPOCH} FROM {left} l "
        f"WHERE {until} <= {now(stage)} AND NOT EXISTS (FROM {right} r WHERE {on})"
    )


def window_join(oracle: Oracle, stage: StagePlan) -> str:
    how = stage.args.get("how", "inner")
    names = [oracle.given(stage, side) for side in (0, 1)]
    left, right = (
        f"(SELECT * FROM ({in_windows(oracle, stage, name, side)}) WHERE _over <= {now(stage)})"
        for side, name in enumerate(names)
    )
    bounds = ("window_start", "window_end")
    on = " AND ".join([keys_equal(stage), *(f"l.{name} = r.{name}" for name in bounds)])
    epoch = f"{fires(stage, 'l._over')} AS {EPOCH}"
    ends = listed(bounds, "l.")
    if how in ("semi", "anti"):
        lefts = listed(oracle.of(names[0], bounds), "l.")
        exists = f"{'NOT ' if how == 'anti' else ''}EXISTS (FROM {right} r WHERE {on})"
        return f"SELECT {lefts}, {ends}, {epoch} FROM {left} l WHERE {exists}"
    columns = join_columns(oracle, stage, *names, apart=bounds)
    kind = "LEFT JOIN" if how == "left" else "JOIN"
    return f"SELECT {columns}, {ends}, {epoch} FROM {left} l {kind} {right} r ON {on}"


def process(oracle: Oracle, stage: StagePlan) -> str:
    given, key = oracle.given(stage), q(stage.args["key"])
    total = f"sum(count(*)) OVER (PARTITION BY {key} ORDER BY {EPOCH})"
    return (
        f'SELECT {key}, count(*) AS "rows", CAST({total} AS BIGINT) AS total, {EPOCH} '
        f"FROM {q(given)} GROUP BY {key}, {EPOCH}"
    )


def process_keyed(oracle: Oracle, stage: StagePlan) -> str:
    """A number for each row; and one for each timer, when the watermark has come to it."""
    given, key = oracle.given(stage), q(stage.args["key"])
    number = f"ROW_NUMBER() OVER (PARTITION BY {key} ORDER BY {EPOCH})"
    rows = (
        f"SELECT {key}, {number} AS number, NULL::TIMESTAMPTZ AS fired_at, {EPOCH} FROM {q(given)}"
    )
    if stage.args.get("lists") == "split":
        rows = _one_epoch_later(oracle, stage, rows)
    at = oracle.event_time(stage)
    if at is None:
        return rows
    timer_ms = f"(epoch_us({q(at)}) // 1000 + 2000)"
    fired = f"greatest({EPOCH}, {fires(stage, timer_ms)})"
    timers = (
        f"SELECT DISTINCT {key}, {timer_ms} AS _at, {fired} AS _fired FROM {q(given)} "
        f"WHERE {q(at)} IS NOT NULL AND {timer_ms} <= {now(stage)}"
    )
    mine = f"g.{key} IS NOT DISTINCT FROM t.{key}"
    seen = f"(SELECT count(*) FROM {q(given)} g WHERE {mine} AND g.{EPOCH} <= t._fired)"
    return (
        f"{rows} UNION ALL SELECT t.{key}, {seen}, make_timestamptz(t._at * 1000), t._fired "
        f"FROM ({timers}) t"
    )


def _one_epoch_later(oracle: Oracle, stage: StagePlan, rows: str) -> str:
    """*rows* in the next epoch in which the stage took part, if there is one yet."""
    reads = read_up_to(oracle.past)[stage.uid]
    ran = [number for number, up_to in enumerate(reads, start=1) if up_to is not None]
    columns = f"{q(stage.args['key'])}, number, fired_at"
    later = f"(SELECT min(n) FROM (SELECT unnest({ran}::BIGINT[]) AS n) WHERE n > r.{EPOCH})"
    return f"SELECT {columns}, {later} AS {EPOCH} FROM ({rows}) r WHERE {later} IS NOT NULL"


QUERIES: dict[str, Callable[[Any, StagePlan], str]] = {
    "transform": transform,
    "union": union,
    "lookup": lookup,
    "aggregate": aggregate,
    "window": window,
    "window_top_n": window_top_n,
    "top_n": top_n,
    "latest": latest,
    "deduplicate": deduplicate,
    "join": join,
    "interval_join": interval_join,
    "window_join": window_join,
    "process": process,
    "process_keyed": process_keyed,
}
