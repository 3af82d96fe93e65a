"""Random aggregates of a stage."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.fuzz.drawing_streams import ORDERED, Stream, condition
from tests.fuzz.known import is_drawn

ADDED = ("count", "sum", "avg")


def draw_aggregates(
    random: Random, uid: str, stream: Stream, *, is_running: bool
) -> tuple[dict[str, Any], dict[str, str]]:
    """Name -> (kind, column, condition, by), and the columns of the result."""
    aggregates: dict[str, Any] = {}
    columns: dict[str, str] = {}
    for number in range(random.choice((1, 2, 2, 3, 4))):
        kind, column, by = _one(random, stream, is_running=is_running)
        of = stream.columns.get(column or "", "")
        name, result = _named(f"{uid}_a{number}", kind, of)
        if column is not None and "fsum" in column and kind != "count":
            name = f"fsum_{name}"
        where = condition(random, stream) if random.random() < 0.25 else None
        if where is not None and "xk" in where:
            where = None
        aggregates[name] = [kind, column, where, by]
        columns[name] = result
    return aggregates, columns


def _one(random: Random, stream: Stream, *, is_running: bool) -> tuple[str, str | None, str | None]:
    kinds: tuple[str, ...] = (
        *ADDED, "min", "max", "first", "last", "count_distinct", "collect", "stddev", "variance",
        "percentile", "string_agg",
    )  # fmt: skip
    if not stream.is_append and not is_drawn("F4"):
        kinds = tuple(kind for kind in kinds if kind not in ("first", "last"))
    kind = random.choice(kinds)
    if kind in ("sum", "avg"):
        exact = ["int", "long", "decimal"]
        numbers = [n for n in stream.of(exact) if n != "id"]
        numbers += [n for n in stream.columns if n == "y"]
        return (kind, random.choice(numbers), None) if numbers else ("count", None, None)
    if kind in ("stddev", "variance", "percentile"):
        numbers = [n for n in stream.columns if n in ("y", "v", "k")]
        return (kind, random.choice(numbers), None) if numbers else ("count", None, None)
    if kind == "string_agg":
        texts = stream.of(["text"])
        return (kind, random.choice(texts), None) if texts else ("count", None, None)
    ordered = [n for n in stream.of(ORDERED) if "fsum" not in n]
    if kind == "count":
        return kind, random.choice([None, *stream.columns]), None
    if not ordered:
        return "count", None, None
    column, by = random.choice(ordered), None
    if kind in ("first", "last") and (
        stream.event_time not in stream.columns or random.random() < 0.5
    ):
        by = random.choice(ordered)
    return kind, column, by


def _named(name: str, kind: str, of: str) -> tuple[str, str]:
    match kind:
        case "count" | "count_distinct":
            return name, "long"
        case "sum" if of == "double":
            return f"fsum_{name}", "double"
        case "sum":
            return name, {"int": "long", "long": "long"}.get(of, "wide")
        case "avg" | "stddev" | "variance" | "percentile":
            return f"fsum_{name}", "double"
        case "collect":
            return name, "values"
        case "string_agg":
            return name, "text"
        case _:
            return name, of
