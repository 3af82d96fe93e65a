"""Plain SQL: columns, fields and comparisons, which Polars computes exactly as Spark does.

Most declarations need no more to select the rows and columns of a source.  For any other SQL the
functions return None, and the rows go through Spark's JVM.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import polars as pl

_PATH = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)?"
_COLUMN = re.compile(
    rf"(?:(?P<path>{_PATH})|timestamp_millis\(\s*(?P<millis>{_PATH})\s*\))"
    r"(?:\s+AS\s+(?P<name>[A-Za-z_]\w*))?",
    re.IGNORECASE,
)
_COMPARISON = re.compile(
    rf"(?P<path>{_PATH})\s*(?P<operator>==?|<>|!=|<=|>=|<|>)\s*"
    r"(?:(?P<number>-?\d+)|'(?P<text>[^'\\]*)')"
)
_NULLITY = re.compile(rf"(?P<path>{_PATH})\s+IS\s+(?P<negated>NOT\s+)?NULL", re.IGNORECASE)
_AND = re.compile(r"\s+AND\s+", re.IGNORECASE)
_METHODS = {
    "=": "eq",
    "==": "eq",
    "<>": "ne",
    "!=": "ne",
    "<": "lt",
    "<=": "le",
    ">": "gt",
    ">=": "ge",
}
_MAX_LONG = 2**63 - 1
_MAX_MILLIS = _MAX_LONG // 1000


@dataclass(frozen=True, slots=True, eq=False)
class PlainSql:
    """An expression, and the columns or their fields that it ``reads``, such as ``bid.price``."""

    expression: pl.Expr
    reads: tuple[str, ...]


def plain_column(text: str, schema: pl.Schema) -> PlainSql | None:
    """One item of a SELECT over rows of *schema*, with the name that Spark gives it; else None."""
    found = _COLUMN.fullmatch(text.strip())
    if found is None:
        return None
    path = found["path"] or found["millis"]
    field = _field(path, schema)
    if field is None:
        return None
    expression, dtype = field
    name = found["name"]
    if found["millis"]:
        if not dtype.is_integer() or name is None:  # Spark would generate a name.
            return None
        millis = expression.cast(pl.Int64)
        is_instant = millis.is_between(-_MAX_MILLIS, _MAX_MILLIS)
        micros = pl.when(is_instant).then(millis) * 1000
        expression = micros.cast(pl.Datetime("us", "UTC"))
    return PlainSql(expression.alias(name or path.rpartition(".")[2]), (path,))


def plain_condition(text: str, schema: pl.Schema) -> PlainSql | None:
    """A condition over rows of *schema*: comparisons with literals, joined by AND; else None."""
    parts = [_comparison(part.strip(), schema) for part in _AND.split(text.strip())]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    holds = known[0].expression
    for part in known[1:]:
        holds &= part.expression
    return PlainSql(holds, tuple(path for part in known for path in part.reads))


def _comparison(text: str, schema: pl.Schema) -> PlainSql | None:
    found = _NULLITY.fullmatch(text) or _COMPARISON.fullmatch(text)
    field = None if found is None else _field(found["path"], schema)
    if found is None or field is None:
        return None
    expression, dtype = field
    if found.re is _NULLITY:
        is_null = expression.is_null()
        return PlainSql(~is_null if found["negated"] else is_null, (found["path"],))
    literal: int | str
    if found["number"] is not None:
        literal = int(found["number"])
        is_comparable = dtype.is_integer() and abs(literal) <= _MAX_LONG
    else:
        literal = found["text"]
        is_comparable = dtype == pl.String()
    if not is_comparable:  # Spark would cast one of the two.
        return None
    if isinstance(literal, int):
        expression = expression.cast(pl.Int64)
    method = getattr(expression, _METHODS[found["operator"]])
    return PlainSql(method(literal), (found["path"],))


def _field(path: str, schema: pl.Schema) -> tuple[pl.Expr, pl.DataType] | None:
    """A column or a field of one by its exact name; None if the name is ambiguous to Spark."""
    name, _, inner = path.partition(".")
    if not _is_unique(name, schema.names()):
        return None
    dtype = schema[name]
    if not inner:
        return pl.col(name), dtype
    if not isinstance(dtype, pl.Struct):
        return None
    fields = {field.name: field.dtype for field in dtype.fields}
    if not _is_unique(inner, list(fields)):
        return None
    found = fields[inner]
    expression = pl.col(name).struct.field(inner)
    return expression, found if isinstance(found, pl.DataType) else found()


def _is_unique(name: str, names: list[str]) -> bool:
    return name in names and sum(other.lower() == name.lower() for other in names) == 1
