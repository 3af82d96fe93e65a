"""Rows as lines of JSON or CSV, packed or not, and back: the work of whoever writes such files, and
of Spark's ``from_json`` and ``from_csv``.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tests.fuzz.data import INSTANT, TYPES
from tests.fuzz.plans import SourcePlan

DDL: dict[str, str] = {
    "int": "int",
    "long": "bigint",
    "huge": "bigint",
    "double": "double",
    "text": "string",
    "bool": "boolean",
    "date": "date",
    "decimal": "decimal(12,2)",
    "time": "timestamp",
    "struct": "struct<a: bigint, b: string>",
    "list": "array<bigint>",
}
NO_ROW = "no row"  # How a malformed line begins.
FORMATS = ("json", "csv")
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda body: pa.compress(body, "zstd", asbytes=True),
}
_COLUMN = re.compile(rf"(\w+) ({'|'.join(map(re.escape, DDL.values()))})(?:, |$)")
_NOT_FINITE = {"NaN": math.nan, "Inf": math.inf, "-Inf": -math.inf}


def ddl_of(source: SourcePlan) -> str:
    return ", ".join(f"{name} {DDL[kind]}" for name, kind in source.columns)


def as_read(source: SourcePlan, rows: pa.Table) -> pa.Table:
    """*rows* as they come back: in CSV an empty text is a null."""
    if source.format != "csv":
        return rows
    texts = [name for name, kind in source.columns if kind == "text"]
    columns = [
        pa.array([value or None for value in rows.column(name).to_pylist()], pa.string())
        if name in texts
        else rows.column(name)
        for name in rows.column_names
    ]
    return pa.table(columns, schema=rows.schema)


def encoded(source: SourcePlan, rows: pa.Table, *, begins: bool) -> bytes:
    """A line for each row; of a file that begins perhaps one before them."""
    if source.format == "json":
        lines = [
            line
            for row in rows.to_pylist()
            for line in (json.dumps(row, default=_text), *behind(source, row))
        ]
        return "".join(f"{line}\n" for line in lines).encode()
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if source.has_header and begins:
        writer.writerow([name.upper() for name in rows.column_names])
    for row in rows.to_pylist():
        writer.writerow(["" if value is None else _field(value) for value in row.values()])
        text.writelines(f"{bad}\n" for bad in behind(source, row))
    return text.getvalue().encode()


def behind(source: SourcePlan, row: Mapping[str, Any]) -> list[str]:
    """The malformed lines behind that of *row*: one, or none."""
    is_followed = source.malformed and row["id"] % source.malformed == 0
    return [f"{NO_ROW} {row['id']}"] if is_followed else []


def with_malformed(source: SourcePlan, rows: pa.Table) -> tuple[pa.Table, list[str | None]]:
    """A row for each line of *rows*, of nulls where it is none; and the text of those lines."""
    places: list[int | None] = []
    texts: list[str | None] = []
    for place, row in enumerate(rows.to_pylist()):
        bad = behind(source, row)
        places += [place, *(None for _ in bad)]
        texts += [None, *bad]
    return rows.take(pa.array(places, pa.int64())), texts


def decoded(format_: str, ddl: str, lines: Iterable[str]) -> pa.Table:
    """The rows of *lines*, as Spark reads them by the schema *ddl*."""
    kinds = {ddl: kind for kind, ddl in DDL.items() if kind != "huge"}
    columns = {name: kinds[declared] for name, declared in _COLUMN.findall(ddl)}
    schema = pa.schema([(name, TYPES[kind]) for name, kind in columns.items()])
    rows: list[dict[str, Any]] = []
    for line in lines:
        if line.startswith(NO_ROW):
            rows.append(dict.fromkeys(columns))
            continue
        if format_ == "json":
            values = json.loads(line)
        else:
            fields = zip(columns.items(), next(csv.reader([line])), strict=True)
            values = {name: _of_field(kind, text) for (name, kind), text in fields}
        rows.append({name: _value(schema.field(name).type, values[name]) for name in columns})
    return pa.Table.from_pylist(rows, schema)


def _text(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case Decimal():
            return str(value)
        case _:
            raise TypeError(value)


def _field(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case float() if not math.isfinite(value):
            return next(text for text, one in _NOT_FINITE.items() if repr(one) == repr(value))
        case int() | float() | str():
            return str(value)
        case _:
            return str(_text(value))


def _of_field(kind: str, text: str) -> Any:
    match kind:
        case _ if not text:
            return None
        case "int" | "long":
            return int(text)
        case "double":
            return _NOT_FINITE[text] if text in _NOT_FINITE else float(text)
        case "bool":
            return text == "true"
        case _:
            return text


def _value(of: pa.DataType, value: Any) -> Any:
    if value is None:
        return None
    if of == INSTANT:
        return datetime.fromisoformat(value)
    if pa.types.is_date(of):
        return date.fromisoformat(value)
    return Decimal(value) if pa.types.is_decimal(of) else value
