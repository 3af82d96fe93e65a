"""The oracle's queries: each operation as a batch query, over its input up to a barrier.

``QUERIES`` are the rows that a stage yields; ``left_out`` those that its side outputs must hold,
which are late or without event time.
"""

# ruff: noqa: S608 - queries are made of what a drawing named

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tests.fuzz.changing import DRAWS
from tests.fuzz.past import MIN_WATERMARK
from tests.fuzz.plans import StagePlan
from tests.fuzz.sessions import sessions_of

if TYPE_CHECKING:
    from tests.fuzz.oracle import Oracle

EPOCH = "_epoch"
DRAW = "random()"
BOUNDS = ("window_start", "window_end")
INTEGERS = ("BIGINT", "INTEGER", "SMALLINT", "TINYINT")
LATE = ("late", "late_right")
MANY = 1_000_000  # Epochs, which no play has.
TIMED = ("window", "window_top_n", "interval_join", "window_join")


def transform(oracle: Oracle, stage: StagePlan) -> str:
    given = oracle.given(stage)
    if stage.uid == DRAWS:  # Each number is what the table of all rows has.
        columns = listed(stage.args["columns"].split("\n")[:-1], "g.")
        drawn = "(SELECT id, min(drawn) AS drawn FROM _drawn GROUP BY id)"
        return f"SELECT {columns}, drawn, {EPOCH} FROM {q(given)} g LEFT JOIN {drawn} USING (id)"
    condition = stage.args.get("condition")
    where = f" WHERE {condition}" if condition else ""
    columns = stage.args["columns"].replace("\n", ", ")
    return f"SELECT {columns}, {EPOCH} FROM {q(given)}{where}"


def union(oracle: Oracle, stage: StagePlan) -> str:
    names = [oracle.given(stage, side) for side in range(len(stage.inputs))]
    return " UNION ALL BY NAME ".join(f"SELECT * FROM {q(name)}" for name in names)


def lookup(oracle: Oracle, stage: StagePlan) -> str:
    args, added = stage.args, stage.args.get("add") or {}
    stream = oracle.seen_by(stage, stage.inputs[0].producer)
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
    by = listed([*keys, *(n for n in BOUNDS if n not in keys)])
    epoch = 0 if lateness else fires(stage, "_over")
    return (
        f"SELECT {by}, {found}, {epoch} AS {EPOCH} FROM ({rows}) "
        f"WHERE _over <= {now(stage)} GROUP BY {by}, _over"
    )


def window_top_n(oracle: Oracle, stage: StagePlan) -> str:
    given, args = oracle.given(stage), stage.args
    types = oracle.columns(given)
    columns = [*types]
    bounds = [name for name in BOUNDS if name not in columns]
    by = [*stage.inputs[0].keys, *BOUNDS]
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
    """What was sent of the ranks of a key that was forgotten since stays."""
    given, args, keys = oracle.given(stage), stage.args, stage.inputs[0].keys
    others = oracle.of(given, keys)
    ties = dict.fromkeys([*args.get("ties_by", ()), *args.get("unique", ()), *others])
    types = oracle.columns(given)
    rest = sorted_by(types, [c for c in ties if c not in (*keys, args["by"])], "ASC NULLS FIRST")
    order = ", ".join([f"{q(args['by'])} DESC NULLS LAST", *rest])
    rows = in_lives(oracle, stage, given) or f"(SELECT *, 1 AS _life FROM {q(given)})"
    rank = f"ROW_NUMBER() OVER (PARTITION BY {listed(keys)}, _life ORDER BY {order})"
    if args.get("unique") and not oracle.is_updating(given):
        one = f"{listed([*keys, *args['unique']])}, _life"
        newest = f"ROW_NUMBER() OVER (PARTITION BY {one} ORDER BY {q(args['by'])} DESC NULLS LAST)"
        rows = f"(SELECT * FROM {rows} QUALIFY {newest} = 1)"
    ranked = (
        f"SELECT {listed(keys)}, CAST({rank} AS INTEGER) AS rank, {listed(others)}, 0 AS {EPOCH}, "
        f"_life FROM {rows} QUALIFY rank <= {args['n']}"
    )
    newest = f"_life = max(_life) OVER (PARTITION BY {listed([*keys, 'rank'])})"
    return f"SELECT * EXCLUDE (_life) FROM ({ranked}) QUALIFY {newest}"


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
    ttl = stage.args.get("ttl")
    within = listed(keys) if ttl is None else f"{listed(keys)}, {EPOCH}"
    firsts = (
        f"SELECT {listed(columns)}, {EPOCH} FROM {q(given)} QUALIFY ROW_NUMBER() "
        f"OVER (PARTITION BY {within} ORDER BY {order}) = 1"
    )
    return firsts if ttl is None else _forgetting(oracle, stage, firsts, ttl)


def _forgetting(oracle: Oracle, stage: StagePlan, firsts: str, ttl: int) -> str:
    """Of the first rows of each key and epoch those that come when the key is forgotten, as no row
    of it came for the *ttl*.
    """
    name, keys = f"{stage.uid}_firsts", listed(stage.inputs[0].keys)
    oracle.make(name, f"SELECT *, dense_rank() OVER (ORDER BY {keys}) AS _key FROM ({firsts})")
    at_ms = oracle.past.barriers_ms()
    asked = f"SELECT _key, {EPOCH} FROM {q(name)} ORDER BY ALL"
    sent: list[tuple[int, int]] = []
    last_ms: dict[int, int] = {}
    for key, epoch in oracle.sql.execute(asked).fetchall():
        if key not in last_ms or at_ms[epoch - 1] - last_ms[key] >= ttl:
            sent.append((key, epoch))
        last_ms[key] = at_ms[epoch - 1]
    chosen = ", ".join(map(str, sent)) or "(0, 0)"
    return (
        f"SELECT * EXCLUDE (_key) FROM {q(name)} "
        f"WHERE (_key, {EPOCH}) IN (SELECT * FROM (VALUES {chosen}))"
    )


def join(oracle: Oracle, stage: StagePlan) -> str:
    how = stage.args.get("how", "inner")
    left, right = oracle.given(stage, 0), oracle.given(stage, 1)
    on = keys_equal(stage)
    columns = join_columns(oracle, stage, left, right)
    known = is_known_still(oracle, stage, f"l.{EPOCH}", f"r.{EPOCH}")
    if known is not None and how in ("inner", "semi"):
        on = f"{on} AND {known}"
    match how:
        case "inner":
            epoch = _later(f"l.{EPOCH}", f"r.{EPOCH}")
            return (
                f"SELECT {columns}, {epoch} AS {EPOCH} FROM {q(left)} l JOIN {q(right)} r ON {on}"
            )
        case "semi" | "anti":
            lefts = listed([*oracle.columns(left)], "l.")
            negated = "NOT " if how == "anti" else ""
            first = f"(SELECT min(r.{EPOCH}) FROM {q(right)} r WHERE {on})"
            epoch = _later(f"l.{EPOCH}", first) if how == "semi" else "0"
            exists = f"{negated}EXISTS (FROM {q(right)} r WHERE {on})"
            return f"SELECT {lefts}, {epoch} AS {EPOCH} FROM {q(left)} l WHERE {exists}"
        case _:
            return (
                f"SELECT {columns}, 0 AS {EPOCH} FROM {q(left)} l "
                f"{how.upper()} JOIN {q(right)} r ON {on}"
            )


def _later(one: str, other: str) -> str:
    """The epoch of a row that two make; none, if either may be taken back."""
    return f"CASE WHEN {one} = 0 OR {other} = 0 THEN 0 ELSE greatest({one}, {other}) END"


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
    on = " AND ".join([keys_equal(stage), *(f"l.{name} = r.{name}" for name in BOUNDS)])
    epoch = f"{fires(stage, 'l._over')} AS {EPOCH}"
    ends = listed(BOUNDS, "l.")
    if how in ("semi", "anti"):
        lefts = listed(oracle.of(names[0], BOUNDS), "l.")
        exists = f"{'NOT ' if how == 'anti' else ''}EXISTS (FROM {right} r WHERE {on})"
        return f"SELECT {lefts}, {ends}, {epoch} FROM {left} l WHERE {exists}"
    columns = join_columns(oracle, stage, *names, apart=BOUNDS)
    kind = "LEFT JOIN" if how == "left" else "JOIN"
    return f"SELECT {columns}, {ends}, {epoch} FROM {left} l {kind} {right} r ON {on}"


def process(oracle: Oracle, stage: StagePlan) -> str:
    given, key = oracle.given(stage), q(stage.args["key"])
    rows = in_lives(oracle, stage, given) or f"(SELECT *, 1 AS _life FROM {q(given)})"
    total = f"sum(count(*)) OVER (PARTITION BY {key}, _life ORDER BY {EPOCH})"
    return (
        f'SELECT {key}, count(*) AS "rows", CAST({total} AS BIGINT) AS total, {EPOCH} '
        f"FROM {rows} GROUP BY {key}, _life, {EPOCH}"
    )


def process_keyed(oracle: Oracle, stage: StagePlan) -> str:
    """A number for each row; and one for each timer, when the watermark has come to it."""
    given, key = oracle.given(stage), q(stage.args["key"])
    number = f"ROW_NUMBER() OVER (PARTITION BY {key} ORDER BY {EPOCH})"
    if stage.args.get("hears"):
        number = _heard(oracle, stage, f"g.{EPOCH}")
    never = "NULL::TIMESTAMPTZ AS fired_at"
    rows = f"SELECT {key}, {number} AS number, {never}, {EPOCH} FROM {q(given)} g"
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
    same = f"g.{key} IS NOT DISTINCT FROM t.{key}"
    count = f"(SELECT count(*) FROM {q(given)} g WHERE {same} AND g.{EPOCH} <= t._fired)"
    count = _heard(oracle, stage, "t._fired") if stage.args.get("hears") else count
    return (
        f"{rows} UNION ALL SELECT t.{key}, {count}, make_timestamptz(t._at * 1000), t._fired "
        f"FROM ({timers}) t"
    )


def _heard(oracle: Oracle, stage: StagePlan, epoch: str) -> str:
    """How many rows all have heard of by then, without each third of a ``k``."""
    counts = (
        f"SELECT count(*) % 3 AS n FROM {q(oracle.given(stage, 1))} h WHERE h.{EPOCH} <= {epoch} "
        "GROUP BY h.k"
    )
    return f"CAST((SELECT coalesce(sum(n), 0) FROM ({counts})) AS BIGINT)"


def _one_epoch_later(oracle: Oracle, stage: StagePlan, rows: str) -> str:
    """*rows* in the next epoch in which the stage took part, if there is one yet."""
    reads = oracle.past.read_up_to()[stage.uid]
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


def left_out(oracle: Oracle, stage: StagePlan) -> Iterator[tuple[str, str]]:
    """The side outputs of a stage, each with the query of its rows and the epochs in which they
    were read, once the stage itself has been computed.
    """
    if stage.op not in TIMED:
        return
    timeless = []
    for side in range(len(stage.inputs)):
        given, at = oracle.given(stage, side), oracle.event_time(stage, side)
        if at is None:
            continue
        timeless.append(f"SELECT {side} AS _side, {EPOCH} FROM {q(given)} WHERE {q(at)} IS NULL")
        yield LATE[side], _late(oracle, stage, side)
    if timeless:
        yield "no_event_time", " UNION ALL ".join(timeless)


def _late(oracle: Oracle, stage: StagePlan, side: int) -> str:
    given, at = f"{stage.uid}_in{side}", q(oracle.event_time(stage, side) or "")
    kind, *lengths = stage.args.get("window", ("none",))
    if kind == "session":
        names = listed([*oracle.columns(given), EPOCH])
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
        f"SELECT x.* FROM {q(given)} x JOIN _watermarks w "
        f"ON w.stage = '{stage.uid}' AND w.epoch = x.{EPOCH} "
        f"WHERE {at} IS NOT NULL AND {until} + {lateness} <= w.before"
    )


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
        hidden = [n for n in BOUNDS if n in oracle.columns(given)]
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
    watermarks = [MIN_WATERMARK, *oracle.past.watermarks()[stage.uid]]
    found = [
        (number, session.start, session.end, session.fired)
        for session in sessions_of(rows, watermarks, gap_us=gap_us, lateness_ms=lateness)
        for number in session.rows
    ]
    columns = list(zip(*found, strict=True)) or [(), (), (), ()]
    names = ["_row", "_start", "_end", "_fired"]
    table = pa.table([pa.array(column, pa.int64()) for column in columns], names=names)
    oracle.make(f"{stage.uid}_sessions", "SELECT * FROM _given", _given=table)
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
    lives = in_lives(oracle, stage, given)
    if lives is None:
        return q(given)
    keys = listed(stage.inputs[0].keys)
    newest = f"_life = max(_life) OVER (PARTITION BY {keys})"
    return f"(SELECT * EXCLUDE (_life) FROM {lives} QUALIFY {newest})"


def in_lives(oracle: Oracle, stage: StagePlan, given: str) -> str | None:
    """The rows, each with the ``_life`` of its key, which has one more whenever it was forgotten in
    between; None where nothing was.
    """
    known = is_known_still(oracle, stage, "_last", EPOCH)
    if known is None:
        return None
    names = stage.inputs[0].keys
    keys = listed(names)
    rests = (
        f"SELECT {keys}, {EPOCH}, lag({EPOCH}) OVER (PARTITION BY {keys} ORDER BY {EPOCH}) AS "
        f"_last FROM (SELECT DISTINCT {keys}, {EPOCH} FROM {q(given)})"
    )
    begins = f"CASE WHEN _last IS NULL OR NOT {known} THEN 1 ELSE 0 END"
    lives = (
        f"SELECT {keys}, {EPOCH}, sum({begins}) OVER (PARTITION BY {keys} ORDER BY {EPOCH}) AS "
        f"_life FROM ({rests})"
    )
    same = " AND ".join(f"r.{q(name)} IS NOT DISTINCT FROM b.{q(name)}" for name in names)
    return (
        f"(SELECT r.*, b._life FROM {q(given)} r JOIN ({lives}) b ON {same} "
        f"AND r.{EPOCH} = b.{EPOCH})"
    )


def is_known_still(oracle: Oracle, stage: StagePlan, one: str, other: str) -> str | None:
    """A condition of two columns of epochs: what state wrote in the earlier of them was there in
    the later, as it had expired at none of the barriers between; None where nothing has.
    """
    ttls = [epoch.ttl_ms.get(stage.uid) for epoch in oracle.past.epochs]
    at_ms = oracle.past.barriers_ms()
    pairs = []
    for first in range(len(ttls)):
        for last in range(first, len(ttls)):
            ttl = ttls[last]
            if last > first and ttl is not None and at_ms[last] - at_ms[first] >= ttl:
                break
            pairs.append(first * MANY + last)
    if len(pairs) == len(ttls) * (len(ttls) + 1) // 2:
        return None
    pair = f"(least({one}, {other}) - 1) * {MANY} + greatest({one}, {other}) - 1"
    return f"list_contains({pairs}::BIGINT[], {pair})"


def q(name: str) -> str:
    return '"' + name + '"'


def listed(names: Iterable[str], prefix: str = "") -> str:
    return ", ".join(prefix + q(name) for name in names)


def sorted_by(columns: Mapping[str, str], names: Iterable[str], way: str) -> list[str]:
    """Terms of an ORDER BY that takes a null within a struct or a list for the smallest value.

    DuckDB takes it for the largest, whatever NULLS says.
    """
    return [f"{_ordered(name, columns[name])} {way}" for name in names]


def _ordered(name: str, kind: str) -> str:
    if kind.startswith("STRUCT"):
        fields = re.findall(r"(\w+) \w+", kind)
        of = ", ".join(f"'{f}_is': {q(name)}.{f} IS NOT NULL, '{f}': {q(name)}.{f}" for f in fields)
        return f"CASE WHEN {q(name)} IS NOT NULL THEN {{{of}}} END"
    if kind.endswith("[]"):
        return f"list_transform({q(name)}, lambda _one: {{'is': _one IS NOT NULL, 'value': _one}})"
    return q(name)


def keys_equal(stage: StagePlan) -> str:
    pairs = zip(stage.inputs[0].keys, stage.inputs[1].keys, strict=True)
    return " AND ".join(f"l.{q(left)} = r.{q(right)}" for left, right in pairs)


def join_columns(
    oracle: Oracle,
    stage: StagePlan,
    left: str,
    right: str,
    *,
    apart: Sequence[str] = (),
    nulls: bool = False,
) -> str:
    """Those of the left, then those of the right but keys that are called alike."""
    keys = dict(zip(stage.inputs[1].keys, stage.inputs[0].keys, strict=True))
    lefts = [f"l.{q(name)}" for name in oracle.of(left, apart)]
    is_outer = stage.args.get("how") in ("right", "full") and stage.op == "join"
    if is_outer:  # A key that is called alike is that of whichever side there is.
        same = {name for name, other in keys.items() if name == other}
        lefts = [
            f"coalesce(l.{q(n)}, r.{q(n)}) AS {q(n)}" if n in same else f"l.{q(n)}"
            for n in oracle.of(left, apart)
        ]
    rights = [
        f"NULL::{kind} AS {q(name)}" if nulls else f"r.{q(name)}"
        for name, kind in oracle.columns(right).items()
        if name not in apart and keys.get(name) != name
    ]
    return ", ".join([*lefts, *rights])


def aggregates_of(oracle: Oracle, stage: StagePlan, given: str) -> str:
    types, at = oracle.columns(given), oracle.event_time(stage)
    return ", ".join(
        f"{_aggregated(kind, column, _since(oracle, stage, name, where), by or at, types)} "
        f"AS {q(name)}"
        for name, (kind, column, where, by) in stage.args["aggregates"].items()
    )


def _since(oracle: Oracle, stage: StagePlan, name: str, where: str | None) -> str | None:
    """The filter of a column, which may have begun anew behind an epoch."""
    epoch = oracle.since_when(stage, name)
    return f"{EPOCH} > {epoch}{f' AND ({where})' if where else ''}" if epoch else where


def _aggregated(
    kind: str, column: str | None, where: str | None, by: str | None, types: dict[str, str]
) -> str:
    if column is None:
        return f"count(*){f' FILTER (WHERE {where})' if where else ''}"
    of, value = types[column], q(column)
    if of == "DOUBLE":
        value = f"({value} + 0.0::DOUBLE)"  # Of 0.0 and -0.0 there is one.
    conditions = [f"{q(column)} IS NOT NULL", *([where] if where else [])]
    if kind in ("first", "last"):
        conditions.append(f"{q(by or '')} IS NOT NULL")
    matching = f" FILTER (WHERE {' AND '.join(f'({c})' for c in conditions)})"
    return _matching(kind, value, of, by, matching)


def _matching(kind: str, value: str, of: str, by: str | None, matching: str) -> str:
    match kind:
        case "count":
            return f"count({value}){matching}"
        case "sum" if of == "DOUBLE":
            return f"sum({value}){matching}"
        case "sum":
            wide = "BIGINT" if of in INTEGERS else f"DECIMAL(38, {of.split(',')[1].strip(' )')})"
            return f"CAST(sum({value}){matching} AS {wide})"
        case "min" | "max":
            return f"{kind}({value}){matching}"
        case "avg":
            return f"CAST(sum({value}){matching} AS DOUBLE) / count({value}){matching}"
        case "first" | "last":
            way = "ASC" if kind == "first" else "DESC"
            return f"first({value} ORDER BY {q(by or '')} {way}, {value} {way}){matching}"
        case "count_distinct":
            return f"count(DISTINCT {value}){matching}"
        case "collect":
            ordered = f"list({value} ORDER BY {value} ASC){matching}"
            return f"coalesce({ordered}, CAST([] AS {of}[]))"
        case "variance" | "stddev":
            function = "var_samp" if kind == "variance" else "stddev_samp"
            return f"{function}(CAST({value} AS DOUBLE)){matching}"
        case "percentile":
            return f"quantile_cont(CAST({value} AS DOUBLE), 0.3){matching}"
        case "string_agg":
            return f"string_agg({value}, ',' ORDER BY {value} ASC){matching}"
        case _:
            raise AssertionError(kind)
