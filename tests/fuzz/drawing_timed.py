"""Random windows and joins."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from tests.fuzz.drawing_aggregates import draw_aggregates
from tests.fuzz.drawing_streams import ORDERED, Stream, keyed, keys
from tests.fuzz.known import is_drawn
from tests.fuzz.plans import InputPlan, StagePlan

BOUNDS = ("window_start", "window_end")


def draw_window(random: Random, stream: Stream) -> list[Any] | None:
    """None if there is none that the stream could be cut into."""
    if stream.event_time is None or stream.event_time not in stream.columns:
        has_bounds = all(stream.columns.get(name) == "bound" for name in BOUNDS)
        return ["attached"] if has_bounds else None
    if any(name in stream.columns for name in BOUNDS):
        return None
    slide = random.choice((1_000, 2_000, 5_000, 10_000))
    return random.choice(
        [["tumbling", slide], ["hopping", slide * random.choice((2, 3, 10)), slide]]
    )


def window(drawing: Any, uid: str, stream: Stream) -> Any:
    from tests.fuzz.drawing_stages import read

    random: Random = drawing.random
    if not stream.is_append:
        return None
    given, stream = read(drawing, stream, is_timed=True)
    found = draw_window(random, stream)
    given, stream, key = keyed(random, given, stream)
    if found is None or not key:
        return None
    if found != ["attached"] and random.random() < 0.3:
        found = ["session", random.choice((500, 2_000, 7_000))]
    lateness = random.choice((0, 0, 0, 2_000, 20_000))
    aggregates, columns = draw_aggregates(random, uid, stream, is_running=False)
    args = {"window": found, "lateness": lateness, "aggregates": aggregates}
    stage = StagePlan(uid=uid, op="window", inputs=(given,), args=args)
    result = {name: stream.columns[name] for name in key}
    result |= dict.fromkeys(BOUNDS, "bound") | columns
    unique = (*key, "window_start")
    if found == ["attached"]:
        unique = (*key, *BOUNDS)  # Windows of other stages' making: several may begin together.
    updates = unique if lateness else ()
    return stage, Stream(uid=uid, columns=result, updates=updates, unique=unique)


def window_top_n(drawing: Any, uid: str, stream: Stream) -> Any:
    from tests.fuzz.drawing_stages import has_sums, read

    random: Random = drawing.random
    if not stream.is_append or (stream.has_nested and not is_drawn("D10")):
        return None
    given, stream = read(drawing, stream, is_timed=True)
    found = draw_window(random, stream)
    if found is None or "rank" in stream.columns or has_sums(stream):
        return None
    key = keys(random, stream) if random.random() < 0.7 else ()
    orders = [n for n in stream.of(ORDERED) if n not in key]
    if not orders:
        return None
    args = {
        "window": found,
        "n": random.choice((1, 2, 3)),
        "by": random.choice(orders),
        "ties": random.random() < 0.3,
    }
    columns = {**stream.columns, **dict.fromkeys(BOUNDS, "bound"), "rank": "int"}
    stage = StagePlan(uid=uid, op="window_top_n", inputs=(replace(given, keys=key),), args=args)
    return stage, Stream(uid=uid, columns=columns)


def _sides(drawing: Any, stream: Stream, op: str) -> Any:
    """Two inputs whose other columns have names of their own, keyed by columns of one type."""
    from tests.fuzz.drawing_stages import read

    random: Random = drawing.random
    takes_all = op == "join" and is_drawn("JOINS")
    others = [one for one in drawing.streams if one.is_append or takes_all]
    if not (stream.is_append or takes_all) or not others:
        return None
    other = random.choice(others)
    left, left_stream = read(drawing, stream, is_timed=True)
    right, right_stream = read(drawing, other, is_timed=True)
    pairs = [
        (a, b)
        for a, kind in left_stream.columns.items()
        for b, of in right_stream.columns.items()
        if kind == of and kind in ("int", "text", "bool", "date", "long") and a != "id" != b
    ]
    if not pairs:
        return None
    a, b = random.choice(pairs)
    return replace(left, keys=(a,)), left_stream, replace(right, keys=(b,)), right_stream


def _joined(
    drawing: Any, left: Stream, right: Stream, keys_of: tuple[InputPlan, InputPlan], how: str
) -> tuple[InputPlan, dict[str, str]] | None:
    """The right input with new names where both have one, and the columns of the result."""
    a, b = (given.keys[0] for given in keys_of)
    given = keys_of[1]
    if how in ("semi", "anti"):
        return given, dict(left.columns)
    columns = dict(left.columns)
    select, is_renamed = [], False
    source = next((s for s in drawing.sources if s.uid == given.producer), None)
    for name, kind in right.columns.items():
        new = name
        is_same_key = name == b and a == b
        if name == right.event_time and name == left.event_time and name != b:
            new = f"right_{name}"  # As the product calls it.
        elif name in left.columns and not is_same_key:
            new, is_renamed = f"r_{name}", True
        if new in columns and not is_same_key:
            return None
        if is_renamed and name == right.event_time and new not in (name, f"right_{name}"):
            return None
        is_plain = new == name or new == f"right_{name}"
        select.append((name, name if is_plain else new))
        if not is_same_key:
            columns[new] = kind
    if is_renamed:
        if source is None or given.select:
            return None
        given = replace(
            given,
            select=tuple(old if old == new else f"{old} AS {new}" for old, new in select),
            keys=(dict(select)[b],),
        )
    return given, columns


def _two_inputs(drawing: Any, uid: str, stream: Stream, op: str, args: dict[str, Any]) -> Any:
    sides = _sides(drawing, stream, op)
    if sides is None:
        return None
    left, left_stream, right, right_stream = sides
    if "window" in args or op == "interval_join":
        for one in (left_stream, right_stream):
            if one.event_time is None or one.event_time not in one.columns:
                return None
            if op == "window_join" and any(name in one.columns for name in BOUNDS):
                return None
    found = _joined(drawing, left_stream, right_stream, (left, right), args["how"])
    if found is None:
        return None
    right, columns = found
    if op == "window_join":
        if any(name in columns for name in BOUNDS):
            return None
        columns |= dict.fromkeys(BOUNDS, "bound")
    stage = StagePlan(uid=uid, op=op, inputs=(left, right), args=args)
    is_append = left_stream.is_append and right_stream.is_append
    is_outer = op == "join" and args["how"] not in ("inner", "semi")
    return stage, Stream(uid=uid, columns=columns, is_retract=is_outer or not is_append)


def join(drawing: Any, uid: str, stream: Stream) -> Any:
    hows = ("inner", "semi", *(("left", "right", "full", "anti") if is_drawn("OUTER") else ()))
    how = drawing.random.choice(hows)
    return _two_inputs(drawing, uid, stream, "join", {"how": how})


def interval_join(drawing: Any, uid: str, stream: Stream) -> Any:
    random: Random = drawing.random
    lower = random.choice((-10_000, -1_000, 0, 0, 500))
    upper: Any = lower + random.choice((0, 1_000, 5_000, 30_000))
    if "u" in stream.columns and random.random() < 0.3:
        upper = "u"
    args = {"lower": lower, "upper": upper, "how": random.choice(("inner", "left"))}
    drawn = _two_inputs(drawing, uid, stream, "interval_join", args)
    if drawn is not None and upper == "u":
        select = drawn[0].inputs[0].select
        return None if select and "u" not in select else drawn
    return drawn


def window_join(drawing: Any, uid: str, stream: Stream) -> Any:
    random: Random = drawing.random
    slide = random.choice((1_000, 5_000, 10_000))
    found = random.choice([["tumbling", slide], ["hopping", slide * random.choice((2, 3)), slide]])
    args = {"window": found, "how": random.choice(("inner", "left", "semi", "anti"))}
    return _two_inputs(drawing, uid, stream, "window_join", args)
