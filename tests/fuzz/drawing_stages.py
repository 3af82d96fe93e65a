"""Random stages: each operation over streams that can be given to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from tests.fuzz import drawing_timed
from tests.fuzz.data import column_sql
from tests.fuzz.drawing_aggregates import draw_aggregates
from tests.fuzz.drawing_streams import (
    ORDERED,
    Stream,
    condition,
    keyed,
    result_condition,
)
from tests.fuzz.known import is_drawn
from tests.fuzz.plans import InputPlan, SinkPlan, StagePlan

Drawn = tuple[StagePlan, Stream] | None


def add_stage(drawing: Any) -> None:
    """Add one more stage, if the drawn parts fit together."""
    random: Random = drawing.random
    uid = f"s{len(drawing.stages)}"
    source = random.random() < 0.3
    newest = [stream for stream in drawing.streams if stream.is_source == source]
    stream = random.choice(newest[-3:] or drawing.streams)
    operation = random.choice(OPERATIONS)
    drawn = operation(drawing, uid, stream)
    if drawn is None:
        return
    stage, result = drawn
    if any(len(stream.columns) > 30 for stream in (result,)):
        return
    stage, result = _narrowed(random, stage, result)
    stage = replace(stage, parallelism=random.choice((None, None, None, None, None, None, 1, 2, 3)))
    drawing.stages.append(stage)
    drawing.streams.append(result)


def read(drawing: Any, stream: Stream, *, is_timed: bool = False) -> tuple[InputPlan, Stream]:
    """An input that reads the stream, at times filtered and projected if it is a source."""
    random: Random = drawing.random
    given = InputPlan(producer=stream.uid)
    if not stream.is_source:
        return given, replace(stream, columns=dict(stream.columns))
    may_filter = is_drawn("D2") or (not is_timed and not stream.event_time)
    where: tuple[str, ...] = ()
    if may_filter and random.random() < 0.35:
        where = tuple(c for c in (condition(random, stream),) if c)
    if random.random() < 0.3:
        kept = [n for n in stream.columns if n in ("id", "k", "ts") or random.random() < 0.6]
        select = [n if random.random() < 0.8 or n in ("id", "ts") else f"{n} AS {n}2" for n in kept]
        names = [text.rpartition(" AS ")[2] for text in select]
        columns = {new: stream.columns[old] for new, old in zip(names, kept, strict=True)}
        stream = replace(stream, columns=columns)
        given = replace(given, select=tuple(select))
    given = replace(given, where=where)
    return given, replace(stream, columns=dict(stream.columns), is_source=False)


def transform(drawing: Any, uid: str, stream: Stream) -> Drawn:
    random: Random = drawing.random
    given, stream = read(drawing, stream)
    expressions, columns = [], {}
    for name, kind in stream.columns.items():
        expressions.append(name)
        columns[name] = kind
    for name, kind in list(columns.items()):
        more = _expression(random, name, kind)
        if more and random.random() < 0.2 and f"{name}_t" not in columns:
            text, new_kind = more
            expressions.append(f"{text} AS {name}_t")
            columns[f"{name}_t"] = new_kind
    is_filter = random.random() < 0.3 and (is_drawn("D2") or stream.event_time is None)
    args = {"columns": "\n".join(expressions)}
    if is_filter and (where := condition(random, stream)):
        args["condition"] = where
    stage = StagePlan(uid=uid, op="transform", inputs=(given,), args=args)
    return stage, replace(stream, uid=uid, columns=columns)


def _expression(random: Random, name: str, kind: str) -> tuple[str, str] | None:
    match kind:
        case "int":
            return f"coalesce({name}, 7)", "int"
        case "long":
            return random.choice((f"{name} + 1", f"{name} * 2", f"-{name}")), "long"
        case "text":
            return f"{name} || 'x'", "text"
        case "double" if "fsum" not in name:
            return f"-{name}", "double"
        case "bool":
            return f"NOT {name}", "bool"
        case "struct":
            return f"{name}.b", "text"
        case _:
            return None


def union(drawing: Any, uid: str, stream: Stream) -> Drawn:
    alike = [
        one
        for one in drawing.streams
        if one.columns == stream.columns and one.event_time == stream.event_time
    ]
    if stream.is_source and stream.event_time is not None and not is_drawn("F3"):
        return None
    if len(alike) < 2:
        return None
    chosen = drawing.random.sample(alike, drawing.random.choice((2, 2, min(3, len(alike)))))
    inputs = tuple(InputPlan(producer=one.uid) for one in chosen)
    result = replace(chosen[0], uid=uid, is_source=False, unique=())
    if not all(one.is_append for one in chosen):
        result = replace(result, updates=(), is_retract=True)
    return StagePlan(uid=uid, op="union", inputs=inputs), result


def lookup(drawing: Any, uid: str, stream: Stream) -> Drawn:
    random: Random = drawing.random
    if not drawing.tables or stream.is_retract or (stream.updates and has_sums(stream)):
        return None
    given, stream = read(drawing, stream)
    pairs = [(n, "tk") for n in stream.of(["int"])] + [(n, "tg") for n in stream.of(["text"])]
    if not pairs or {"name", "n"} & set(stream.columns):
        return None
    column, of_table = random.choice(pairs)
    keep = random.choice(("matched", "unmatched", "all"))
    if stream.event_time is not None and not is_drawn("D2"):
        keep = "all"
    table = drawing.tables[0]
    name, n = column_sql(table, "name"), column_sql(table, "n")
    add: dict[str, str] = {}
    if keep == "all" or (keep == "matched" and random.random() < 0.6):
        add = random.choice(({"name": name}, {"n": n}, {"name": name, "n": f"{n} + 1"}))
    args: dict[str, Any] = {
        "table": table.uid, "on": {column: column_sql(table, of_table)}, "keep": keep
    }  # fmt: skip
    kinds = {"name": "text", "n": "long"}
    if add:
        args["add"] = add
    columns = {**stream.columns, **{name: kinds[name] for name in add}}
    result = replace(stream, uid=uid, columns=columns, unique=() if add else stream.unique)
    if add and stream.updates:
        result = replace(result, updates=(), is_retract=True)
    return StagePlan(uid=uid, op="lookup", inputs=(given,), args=args), result


def aggregate(drawing: Any, uid: str, stream: Stream) -> Drawn:
    random: Random = drawing.random
    given, stream = read(drawing, stream)
    given, stream, key = keyed(random, given, stream)
    if not key:
        return None
    aggregates, columns = draw_aggregates(random, uid, stream, is_running=True)
    stage = StagePlan(uid=uid, op="aggregate", inputs=(given,), args={"aggregates": aggregates})
    columns = {**{name: stream.columns[name] for name in key}, **columns}
    return stage, Stream(uid=uid, columns=columns, updates=key)


def latest(drawing: Any, uid: str, stream: Stream) -> Drawn:
    random: Random = drawing.random
    if stream.has_nested and not is_drawn("D10"):
        return None
    given, stream = read(drawing, stream)
    given, stream, key = keyed(random, given, stream)
    orders = [n for n in stream.of(ORDERED) if "fsum" not in n and n not in key]
    if not key or not orders or has_sums(stream) or _hides_rank(stream):
        return None
    by = random.sample(orders, min(len(orders), random.choice((1, 1, 2))))
    stage = StagePlan(uid=uid, op="latest", inputs=(given,), args={"by": by})
    return stage, Stream(uid=uid, columns=stream.columns, updates=key)


def top_n(drawing: Any, uid: str, stream: Stream) -> Drawn:
    random: Random = drawing.random
    if (stream.has_nested and not is_drawn("D10")) or "rank" in stream.columns:
        return None
    given, stream = read(drawing, stream)
    given, stream, key = keyed(random, given, stream)
    orders = [n for n in stream.of(ORDERED) if "fsum" not in n and n not in key]
    if not key or not orders or has_sums(stream):
        return None
    args: dict[str, Any] = {"n": random.choice((1, 2, 3)), "by": random.choice(orders)}
    if len(orders) > 1 and random.random() < 0.4:
        args["ties_by"] = [random.choice([n for n in orders if n != args["by"]])]
    if stream.updates and random.random() < 0.5:
        args["unique"] = [*stream.updates]
    columns = {name: stream.columns[name] for name in key}
    columns |= {"rank": "int"}
    columns |= {n: k for n, k in stream.columns.items() if n not in key}
    stage = StagePlan(uid=uid, op="top_n", inputs=(given,), args=args)
    return stage, Stream(uid=uid, columns=columns, updates=(*key, "rank"))


def deduplicate(drawing: Any, uid: str, stream: Stream) -> Drawn:
    random: Random = drawing.random
    if not stream.is_append or (stream.has_nested and not is_drawn("D10")):
        return None
    given, stream = read(drawing, stream)
    given, stream, key = keyed(random, given, stream)
    orders = [n for n in stream.of(ORDERED) if "fsum" not in n and n not in key]
    if not key or has_sums(stream) or _hides_rank(stream):
        return None
    args = {"by": random.choice(orders)} if orders and random.random() < 0.5 else {}
    stage = StagePlan(uid=uid, op="deduplicate", inputs=(given,), args=args)
    return stage, replace(stream, uid=uid, unique=key)


def process(drawing: Any, uid: str, stream: Stream) -> Drawn:
    if not stream.is_append:
        return None
    given, stream = read(drawing, stream)
    names = [n for n in stream.of(("int", "text", "long")) if n not in ("id", "rows", "total")]
    if not names or has_sums(stream):
        return None
    key = drawing.random.choice(names)
    kind = stream.columns[key]
    given = replace(given, keys=(key,))
    args = {"key": key, "type": kind}
    if drawing.random.random() < 0.5:
        columns = {key: kind, "rows": "long", "total": "long"}
        stage = StagePlan(uid=uid, op="process", inputs=(given,), args=args)
        return stage, Stream(uid=uid, columns=columns, unique=(key, "total"))
    if key in ("number", "fired_at"):
        return None
    columns = {key: kind, "number": "long", "fired_at": "time"}
    stage = StagePlan(uid=uid, op="process_keyed", inputs=(given,), args=args)
    return stage, Stream(uid=uid, columns=columns)


def sink_for(random: Random, stream: Stream) -> SinkPlan:
    """A drawn sink, of those that accept the stream's kind of changes."""
    sink = SinkPlan(uid=f"{stream.uid}_out", producer=stream.uid)
    if stream.is_retract or random.random() < 0.15:
        return replace(sink, changelog=True)
    if stream.updates:
        others = [n for n in stream.columns if n not in stream.updates and "fsum" not in n]
        more = random.sample(others, 1) if others and random.random() < 0.15 else []
        return replace(sink, upsert_key=(*stream.updates, *more))
    is_keyed = stream.unique and set(stream.unique) <= set(stream.columns)
    if is_keyed and random.random() < 0.3:
        return replace(sink, upsert_key=stream.unique)
    return sink


def _narrowed(random: Random, stage: StagePlan, stream: Stream) -> tuple[StagePlan, Stream]:
    """At times with a filter or a projection of the result."""
    chance = random.random()
    if stream.event_time is not None and not is_drawn("D2"):
        return stage, stream
    if chance < 0.12 and (text := result_condition(random, stream)):
        return replace(stage, where=(text,)), stream
    if chance < 0.22:
        needed = {*stream.updates, *stream.unique, stream.event_time}
        if random.random() < 0.3:
            needed = {stream.event_time}
        kept = [n for n in stream.columns if n in needed or random.random() < 0.6]
        if kept:
            columns = {name: stream.columns[name] for name in kept}
            result = replace(stream, columns=columns)
            if not set(stream.updates) <= set(kept):
                result = replace(result, updates=(), unique=(), is_retract=True)
            elif not set(stream.unique) <= set(kept):
                result = replace(result, unique=())
            return replace(stage, select=tuple(kept)), result
    return stage, stream


def _hides_rank(stream: Stream) -> bool:
    return "rank" in stream.columns and not is_drawn("F2")


def has_sums(stream: Stream) -> bool:
    """Sums of floats may differ in the last bits, and so decide nothing."""
    return any("fsum" in name for name in stream.columns)


OPERATIONS: list[Callable[[Any, str, Stream], Drawn]] = [
    transform, transform, union, lookup, aggregate, aggregate, aggregate, latest, top_n,
    deduplicate, process, drawing_timed.window, drawing_timed.window, drawing_timed.window,
    drawing_timed.window_top_n, drawing_timed.join, drawing_timed.join,
    drawing_timed.interval_join, drawing_timed.window_join,
]  # fmt: skip
