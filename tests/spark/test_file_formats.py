"""A format has one meaning: the same rows keyed past Spark's JVM, keyed through it, and unkeyed."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from polars.testing import assert_frame_equal

from sluice.sinks import FilesTable
from sluice.sources import Files
from tests.spark.folder_job import FolderJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = ["a+b", "c%20d", "e f[1]", "{x,y}#*", "k=1/ü?", "new\nline"]

I64 = 2**63 - 1
NINES = "9" * 28 + "." + "9" * 10
TEXTS = ["", None, "\0", "ü😀", "x" * 70_000, " a\t"]
FLOATS = [float("nan"), None, float("inf"), float("-inf"), -0.0, 5e-324]
TIMES = [-(2**63), None, 2**63 - 1, 0, -1, -62_135_596_800_000_000]  # The last is year 1.

# Of each column: its type in the file, its values, the type in which a stage gets them.
PARQUET: dict[str, tuple[pa.DataType, list[Any], pl.DataType]] = {
    "n": (pa.int64(), [0, 1, 2, 3, 4, 5], pl.Int64()),
    "i8": (pa.int8(), [-128, None, 127, 0, 1, -1], pl.Int8()),
    "i64": (pa.int64(), [-I64 - 1, None, I64, 0, 1, -1], pl.Int64()),
    "u8": (pa.uint8(), [0, None, 255, 1, 2, 3], pl.Int16()),
    "u32": (pa.uint32(), [0, None, 2**32 - 1, 1, 2, 3], pl.Int64()),
    "u64": (pa.uint64(), [0, None, 2**64 - 1, 1, 2, 3], pl.Decimal(20, 0)),
    "f16": (pa.float16(), [1.5, None, 65504.0, -0.0, 0.0, 1.0], pl.Float32()),
    "f64": (pa.float64(), FLOATS, pl.Float64()),
    "truth": (pa.bool_(), [True, None, False, True, True, False], pl.Boolean()),
    "money": (pa.decimal128(38, 10), [NINES, None, f"-{NINES}", "0", "1", "2"], pl.Decimal(38, 10)),
    "day": (pa.date32(), [-(2**31), None, 2**31 - 1, 0, -719_162, 2_932_896], pl.Date()),
    "at": (pa.timestamp("us", "UTC"), TIMES, pl.Datetime("us", "UTC")),
    "text": (pa.large_string(), TEXTS, pl.String()),
    "bytes": (pa.binary(), [b"", None, bytes(range(256)), b"\0", b"x", b"y"], pl.Binary()),
    "list": (pa.list_(pa.int32()), [[], None, [None], [1], [1, 2], [3]], pl.List(pl.Int32())),
    "word": (pa.dictionary(pa.int32(), pa.string()), ["a", None, "", "b", "a", "a"], pl.String()),
}


def column(kind: pa.DataType, values: list[Any]) -> pa.Array:
    if pa.types.is_decimal(kind):
        return pa.array(values, pa.string()).cast(kind)
    if pa.types.is_date32(kind):
        return pa.array(values, pa.int32()).cast(kind)
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(kind)
    return pa.array(values, kind)


def parquet_table() -> pa.Table:
    return pa.table({name: column(kind, values) for name, (kind, values, _) in PARQUET.items()})


def parquet(rows: slice) -> bytes:
    body = io.BytesIO()
    pq.write_table(parquet_table()[rows], body)
    return body.getvalue()


INT96_TIMES = [-62_135_596_800_000_000, None, 253_402_300_799_999_999, 0, -1, 10**15]


def int96(rows: slice) -> bytes:
    body = io.BytesIO()
    table = pa.table(
        {"n": range(6), "at": column(pa.timestamp("us"), INT96_TIMES)},
    )
    pq.write_table(table[rows], body, use_deprecated_int96_timestamps=True)
    return body.getvalue()


AVRO_FIELDS: dict[str, Any] = {
    "n": "long",
    "at": ["null", {"type": "long", "logicalType": "timestamp-micros"}],
    "text": ["null", "string"],
    "f64": ["null", "double"],
    "bytes": ["null", "bytes"],
    "list": ["null", {"type": "array", "items": ["null", "int"]}],
}


def avro(rows: slice) -> bytes:
    body = io.BytesIO()
    fields = [{"name": name, "type": kind} for name, kind in AVRO_FIELDS.items()]
    records = [{name: PARQUET[name][1][row] for name in AVRO_FIELDS} for row in range(6)]
    schema = {"type": "record", "name": "row", "fields": fields}
    fastavro.writer(body, schema, records[rows], codec="deflate")
    return body.getvalue()


JSON_FLOATS = [float("nan"), None, float("inf"), float("-inf"), -0.0, 5e-324]
JSON_ROWS = [
    {"n": row, "i64": PARQUET["i64"][1][row], "text": TEXTS[row], "f64": JSON_FLOATS[row]}
    for row in range(6)
]


def json_lines(rows: slice) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in JSON_ROWS[rows]).encode()


CSV_TEXTS = ["a,b", None, '"', "ü😀", "x" * 5_000, " a\t"]


def csv_lines(rows: slice) -> bytes:
    lines = []
    for row in JSON_ROWS[rows]:
        text = CSV_TEXTS[row["n"]]
        quoted = "" if text is None else '"' + text.replace('"', '""') + '"'
        number = "" if row["i64"] is None else row["i64"]
        lines.append(f"{row['n']},{number},{quoted}\n")
    return "".join(lines).encode()


def frame(names: list[str]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            name: pl.Series(pl.from_arrow(column(*PARQUET[name][:2]))).cast(PARQUET[name][2])
            for name in names
        }
    )


@dataclass(frozen=True)
class Case:
    encoded: Callable[[slice], bytes]
    expected: Callable[[], pl.DataFrame]
    options: dict[str, Any] = field(default_factory=dict[str, Any])


UTC = pl.Datetime("us", "UTC")
CASES = {
    "parquet": Case(parquet, lambda: frame(list(PARQUET)), {"format": "parquet"}),
    "int96": Case(
        int96,
        lambda: pl.DataFrame({"n": range(6), "at": INT96_TIMES}).with_columns(
            pl.col("at").cast(UTC)
        ),
        {"format": "parquet"},
    ),
    "avro": Case(avro, lambda: frame(list(AVRO_FIELDS)), {"format": "avro"}),
    "json": Case(
        json_lines,
        lambda: pl.DataFrame(JSON_ROWS),
        {"format": "json", "schema": "n bigint, i64 bigint, text string, f64 double"},
    ),
    "csv": Case(
        csv_lines,
        lambda: pl.DataFrame(
            {"n": range(6), "i64": PARQUET["i64"][1], "text": CSV_TEXTS}, schema_overrides={}
        ),
        {"format": "csv", "schema": "n bigint, i64 bigint, text string"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_rows_are_the_same_whichever_way_they_take(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    case = CASES[name]
    job = FolderJob(spark, tmp_path)
    rows = job.pipeline.source("rows", Files(str(job.files), bounded=False, **case.options))
    rows.transform("unkeyed", lambda found: found).sink("unkeyed_out", FilesTable())
    for way, condition in (("past", "n >= 0"), ("through", "abs(n) + 0 >= 0")):
        keyed = rows.where(condition).key_by("n")
        keyed.deduplicate(way).sink(f"{way}_out", FilesTable())
    for row, file in enumerate(NAMES):
        (job.files / file).parent.mkdir(exist_ok=True)
        (job.files / file).write_bytes(case.encoded(slice(row, row + 1)))

    job.epoch()

    for way in ("unkeyed", "past", "through"):
        assert_frame_equal(job.table(f"{way}_out").sort("n"), case.expected())
