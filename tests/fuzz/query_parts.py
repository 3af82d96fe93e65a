"""Pieces of queries: names, the two sides of a join, aggregates."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tests.fuzz.plans import StagePlan

if TYPE_CHECKING:
    from tests.fuzz.oracle import Oracle

EPOCH = "_epoch"
INTEGERS = ("BIGINT", "INTEGER", "SMALLINT", "TINYINT")


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
        return f"list_transform({q(name)}, lambda x: {{'is': x IS NOT NULL, 'value': x}})"
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
        f"{_aggregated(kind, column, where, by or at, types)} AS {q(name)}"
        for name, (kind, column, where, by) in stage.args["aggregates"].items()
    )


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
