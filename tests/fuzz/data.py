"""The rows of a play: nulls, NaN, -0.0, extremes, unicode, nested values, duplicates, late rows.

A value follows from seed, source, batch, column and row number alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import fastavro
import pyarrow as pa

from tests.fuzz.plans import Plan, SourcePlan

INSTANT = pa.timestamp("us", tz="UTC")
TYPES: dict[str, pa.DataType] = {
    "int": pa.int32(),
    "long": pa.int64(),
    "huge": pa.int64(),
    "double": pa.float64(),
    "text": pa.string(),
    "bool": pa.bool_(),
    "date": pa.date32(),
    "decimal": pa.decimal128(12, 2),
    "time": INSTANT,
    "struct": pa.struct([("a", pa.int64()), ("b", pa.string())]),
    "list": pa.list_(pa.int64()),
}
LINE = pa.schema([("line", pa.string())])
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
BATCH_MS = 12_000  # Event time that passes from one batch to the next.

TEXTS = ("a", "b", "", "ä", "Ω", "日本", "é", "e\u0301", "a b", "Z", "🦀", "A", "'", "\u0000x")
DOUBLES = (
    0.0, -0.0, math.nan, math.inf, -math.inf, 1.5, -2.25, 1e308, -1e308, 5e-324, 0.1, 3.0, 1.0
)  # fmt: skip
# Added up in any order they are the same, and what is left when one goes shows whether it was lost.
WILD = (math.nan, math.inf, -math.inf, 1e300, 1.0, 2.5, -3.25, 0.5, 4.0, -1.0, 7.0, 0.25)
HOSTILE = (
    "a", "A", "a ", " a", "", " ", "\t", "b", "B", '"', "\\", "`", "%", "/", "null", "NULL", "0",
    "a=b", "..", "x" * 200, "x" * 200 + " ", "ﬁ", "fi", "ß", "SS",
)  # fmt: skip
LONGS = (0, 1, -1, 2**63 - 1, -(2**63), 2**31, 42)
DECIMALS = ("0.00", "1.10", "-1.10", "9999999999.99", "-9999999999.99", "0.01")


def batch_of(plan: Plan, source: SourcePlan, batch: int, rows: Sequence[int]) -> pa.Table:
    """These rows of a batch, in their order; of a table source, lines."""
    count = max(rows, default=-1) + 1
    columns = []
    for name, kind in source.columns:
        random = Random(f"{plan.seed}/{source.uid}/{batch}/{name}")
        draw = _column(name, kind, batch, () if source.is_table else plan.values)
        values = [draw(random, number) for number in range(count)]
        columns.append(pa.array([values[row] for row in rows], TYPES[kind]))
    table = pa.Table.from_arrays(columns, names=[name for name, _ in source.columns])
    return lines_of(table) if source.is_table else table


def lines_of(rows: pa.Table) -> pa.Table:
    """A table source's rows: texts, for only text can be looked up."""
    texts = [
        "|".join("" if value is None else str(value) for value in row.values())
        for row in rows.to_pylist()
    ]
    return pa.Table.from_arrays([pa.array(texts, pa.string())], schema=LINE)


def column_sql(source: SourcePlan, name: str) -> str:
    """A column of a table source, in SQL that Spark and DuckDB read alike."""
    place = [column for column, _ in source.columns].index(name) + 1
    text = f"nullif(split_part(line, '|', {place}), '')"
    casts = {"int": "INT", "long": "BIGINT"}
    kind = casts.get(dict(source.columns)[name])
    return f"CAST({text} AS {kind})" if kind else text


def schema_of(source: SourcePlan) -> pa.Schema:
    if source.is_table:
        return LINE
    return pa.schema([(name, TYPES[kind]) for name, kind in source.columns])


def _column(
    name: str, kind: str, batch: int, values: Sequence[str]
) -> Callable[[Random, int], Any]:
    """The function that draws a column's values; ``id`` is unique, a small domain repeats keys."""
    match name:
        case "id":
            return lambda _, number: batch * 1_000 + number
        case "ts":
            return lambda random, _: _event_time(random, batch)
        case "y" if "wild" in values:
            return _or_null(lambda random: random.choice(WILD))
        case _ if kind == "text" and "hostile" in values:
            return _or_null(lambda random: random.choice(HOSTILE))
        case "y":
            return _or_null(lambda random: random.randrange(-400, 400) / 10)
        case _:
            return _or_null(_DRAWN[kind])


def _or_null(draw: Callable[[Random], Any]) -> Callable[[Random, int], Any]:
    return lambda random, _: None if random.random() < 0.12 else draw(random)


def _event_time(random: Random, batch: int) -> datetime | None:
    """Mostly within the batch's stretch, some out of order, some late, some far too late."""
    chance = random.random()
    if chance < 0.03:
        return None
    offset = random.randrange(BATCH_MS)
    if chance > 0.85:
        offset -= random.randrange(4 * BATCH_MS)
    if chance > 0.98:
        offset -= 100 * BATCH_MS
    if random.random() < 0.4:
        offset -= offset % 1_000  # On a window's very edge.
    micros = random.choice((0, 0, 0, 1, 999))
    return EPOCH + timedelta(milliseconds=batch * BATCH_MS + offset, microseconds=micros)


_DRAWN: dict[str, Callable[[Random], Any]] = {
    "int": lambda random: random.randrange(4),
    "long": lambda random: random.randrange(-5, 15),
    "huge": lambda random: random.choice(LONGS),
    "double": lambda random: random.choice(DOUBLES),
    "text": lambda random: random.choice(TEXTS),
    "bool": lambda random: random.random() < 0.5,
    "date": lambda random: date(2026, 1, 1) + timedelta(days=random.randrange(-40_000, 40_000)),
    "decimal": lambda random: Decimal(random.choice(DECIMALS)),
    "time": lambda random: EPOCH + timedelta(milliseconds=random.randrange(-(10**6), 10**6)),
    "struct": lambda random: {
        "a": random.choice((None, 1, 2)),
        "b": random.choice((None, *TEXTS[:4])),
    },
    "list": lambda random: [random.choice((None, 1, 2)) for _ in range(random.randrange(3))],
}


def write_avro(rows: pa.Table, path: Path) -> None:
    """Blocks of some rows, compressed."""
    fields = [{"name": f.name, "type": ["null", _avro(f.name, f.type)]} for f in rows.schema]
    schema = fastavro.parse_schema({"type": "record", "name": "rows", "fields": fields})
    with path.open("wb") as file:
        fastavro.writer(file, schema, rows.to_pylist(), codec="deflate", sync_interval=500)


def _avro(name: str, kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind):
        inner = [{"name": f.name, "type": ["null", _avro(f.name, f.type)]} for f in kind]
        return {"type": "record", "name": f"of_{name}", "fields": inner}
    if pa.types.is_list(kind):
        return {"type": "array", "items": ["null", _avro(name, kind.value_type)]}
    if pa.types.is_decimal(kind):
        logical = {"logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
        return {"type": "bytes", **logical}
    return _AVRO[kind]


_AVRO: dict[pa.DataType, Any] = {
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float64(): "double",
    pa.string(): "string",
    pa.bool_(): "boolean",
    pa.date32(): {"type": "int", "logicalType": "date"},
    INSTANT: {"type": "long", "logicalType": "timestamp-micros"},
}
