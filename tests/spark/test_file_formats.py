"""A format of files has one meaning: the same rows keyed past Spark's JVM, through it, and unkeyed.

Names that some layer may decode, expand or split are read once.  Columns that change under a source
are refused by name, or right.  Malformed rows are reported once, however many stages read them.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from polars.testing import assert_frame_equal

from sluice.connectors.files.parquet import ParquetSource
from sluice.coordinator.trigger import Triggered, trigger
from sluice.core.configuration import JobStatus
from sluice.core.pending import FIRST_ATTEMPT
from sluice.declaration import aggregates as agg
from sluice.errors import ConfigurationError, StageFailed
from sluice.exchange.reading import SourceRows
from sluice.job.places import open_side_table
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.spark.stage import run_stage
from tests.spark.folder_job import FolderJob

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WAYS = ("unkeyed", "past", "through")
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
    table = pa.table({"n": range(6), "at": column(pa.timestamp("us"), INT96_TIMES)})
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


JSON_ROWS = [
    {"n": row, "i64": PARQUET["i64"][1][row], "text": TEXTS[row], "f64": FLOATS[row]}
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
        lambda: pl.DataFrame({"n": range(6), "i64": PARQUET["i64"][1], "text": CSV_TEXTS}),
        {"format": "csv", "schema": "n bigint, i64 bigint, text string"},
    ),
}


def a_job(spark: SparkSession, folder: Path, **how: Any) -> FolderJob:
    """Its rows take all WAYS."""
    job = FolderJob(spark, folder)
    rows = job.pipeline.source("rows", Files(str(job.files), bounded=False, partitions="", **how))
    rows.transform("unkeyed", lambda found: found).sink("unkeyed_out", FilesTable())
    for way, condition in (("past", "n >= 0"), ("through", "length(hex(n)) >= 0")):
        keyed = rows.where(condition).key_by("n")
        keyed.deduplicate(way).sink(f"{way}_out", FilesTable())
    return job


@pytest.mark.parametrize("name", CASES)
def test_rows_are_the_same_whichever_way_they_take(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    case = CASES[name]
    job = a_job(spark, tmp_path, **case.options)
    for row, file in enumerate(NAMES):
        (job.files / file).parent.mkdir(exist_ok=True)
        (job.files / file).write_bytes(case.encoded(slice(row, row + 1)))

    job.epoch()

    for way in WAYS:
        assert_frame_equal(job.table(f"{way}_out").sort("n"), case.expected())


# Where a name is a pattern, or is another one encoded, what it would match is beside it.
DECODED = ["2024-01-01T00+01.parquet", "c++ data/a%20b.parquet", "c++ data/a b.parquet"]
EXPANDED = ["a[1].parquet", "a1.parquet", "b*.parquet", "bc.parquet", "d?.parquet", "de.parquet"]
EXPANDED += ["{x,y}.parquet", "x.parquet"]
SPLIT = ["k=1/12:30.parquet", "k=2/ü#1.parquet", "back\\slash", "new\nline"]
HOSTILE_NAMES = [*DECODED, *EXPANDED, *SPLIT]


@pytest.mark.parametrize(
    "way", ["shiftleft(n, 0) % 1 AS k", "k"]
)  # Through Spark's SQL, and past it.
def test_rows_of_files_with_any_name_are_read_once(job: FolderJob, way: str) -> None:
    job.limit(6 * len(HOSTILE_NAMES) - 8)  # The barrier is within a file.
    spec = Files(str(job.files), format="parquet", bounded=False, partitions="")
    rows = job.pipeline.source("rows", spec)
    counts = (
        rows.select("n", way).key_by("k").aggregate("counts", n=agg.count(), total=agg.sum("n"))
    )
    counts.sink("out", FilesTable(upsert_key=("k",)))
    for number, name in enumerate(HOSTILE_NAMES):
        (job.files / name).parent.mkdir(parents=True, exist_ok=True)
        job.write(name, pl.DataFrame({"n": range(number * 6, number * 6 + 6), "k": [0] * 6}))
    total = 6 * len(HOSTILE_NAMES)

    job.epoch()
    job.epoch()

    assert job.table("out").to_dicts() == [{"k": 0, "n": total, "total": total * (total - 1) // 2}]


@pytest.mark.parametrize(
    ("stage", "rows"), [("unkeyed", range(3)), ("past", range(1, 6)), ("through", range(9))]
)
def test_a_file_that_is_replaced_after_the_plan_fails_the_stage_that_reads_it(
    spark: SparkSession, tmp_path: Path, stage: str, rows: range
) -> None:
    """By a shorter one, one as long, a longer one."""
    job = a_job(spark, tmp_path, format="parquet")
    job.write("a+b", pl.DataFrame({"n": range(5)}))
    planned = trigger(job.job)
    assert isinstance(planned, Triggered)
    job.write("new", pl.DataFrame({"n": rows}))
    (job.files / "new").replace(job.files / "a+b")

    with pytest.raises(
        StageFailed,
        match=rf"'{stage}' failed .*: a\+b of .* was replaced after this epoch was planned",
    ):
        run_stage(job.job, spark, planned.plan.checkpoint_id, stage, attempt=FIRST_ATTEMPT)


Columns = dict[str, tuple[str, Any]]  # Name: Avro's type and a value.

FIRST: Columns = {"n": ("long", 1), "a": ("int", 10), "b": ("int", 20)}
DRIFTS: dict[str, Columns] = {
    "new": {**FIRST, "c": ("int", 30)},
    "dropped": {"n": ("long", 2), "a": ("int", 11)},
    "renamed": {"n": ("long", 2), "a": ("int", 11), "c": ("int", 21)},
    "swapped": {"n": ("long", 2), "b": ("int", 21), "a": ("int", 11)},
    "widened": {"n": ("long", 2), "a": ("long", 11), "b": ("int", 21)},
    "narrowed": {"n": ("int", 2), "a": ("int", 11), "b": ("int", 21)},
    "other": {"n": ("long", 2), "a": ("string", "11"), "b": ("int", 21)},
}
ARROW = {"int": pa.int32(), "long": pa.int64(), "string": pa.string()}
FORMATS = ("parquet", "avro")

every_drift = pytest.mark.parametrize("drift", DRIFTS)
each_format = pytest.mark.parametrize("format_", FORMATS)
# Past the JVM columns are found by their names, wherever they are: see the next test.
EVERY = [one for one in product(FORMATS, DRIFTS, WAYS) if one != ("parquet", "swapped", "past")]
FEW = [
    ("parquet", "swapped", "unkeyed"),
    ("parquet", "swapped", "through"),
    ("parquet", "renamed", "past"),
    ("parquet", "widened", "past"),
    ("avro", "swapped", "through"),
]
SOME = EVERY if os.environ.get("SLUICE_WAYS") else FEW


def write(path: Path, columns: Columns) -> None:
    """A file of one row, moved into place."""
    temporary = path.with_name("." + path.name)
    if path.suffix == ".parquet":
        arrays = {name: pa.array([value], ARROW[kind]) for name, (kind, value) in columns.items()}
        pq.write_table(pa.table(arrays), temporary)
    else:
        fields = [{"name": name, "type": kind} for name, (kind, _) in columns.items()]
        row = {name: value for name, (_, value) in columns.items()}
        schema = {"type": "record", "name": "row", "fields": fields}
        with temporary.open("wb") as file:
            fastavro.writer(file, schema, [row])
    temporary.replace(path)


def tables(job: FolderJob) -> list[list[dict[str, Any]]]:
    return [job.table(f"{way}_out").sort("n").to_dicts() for way in WAYS]


@every_drift
@each_format
def test_files_of_other_columns_are_refused_in_one_epoch_and_in_the_next(
    spark: SparkSession, tmp_path: Path, format_: str, drift: str
) -> None:
    """Nothing of such a file is read; without it the job goes on."""
    job = a_job(spark, tmp_path, format=format_)
    write(job.files / f"b.{format_}", FIRST)
    assert job.job.state().status is JobStatus.RUNNING
    bad = job.files / f"a.{format_}"
    write(bad, DRIFTS[drift])
    with pytest.raises(ConfigurationError, match=r"column '\w' of b\.\w+ is .* rewrite one of"):
        job.epoch()
    bad.unlink()
    if (drift, format_) != ("new", "parquet"):  # Epochs of Spark's for one of them are enough.
        return
    job.epoch()
    write(bad.with_stem("c"), DRIFTS[drift])
    with pytest.raises(ConfigurationError, match=r"column 'c' of c\.\w+ is int32, and of b"):
        job.epoch()
    bad.with_stem("c").unlink()
    write(bad.with_stem("d"), {**FIRST, "n": ("long", 2)})
    job.epoch()

    first = {name: value for name, (_, value) in FIRST.items()}
    assert tables(job) == [[first, {**first, "n": 2}]] * len(WAYS)


@pytest.mark.parametrize(("format_", "drift", "way"), SOME)
def test_what_arrives_between_plan_and_read_lends_its_columns_to_nobody(
    spark: SparkSession, tmp_path: Path, format_: str, drift: str, way: str
) -> None:
    """A file of a lesser name, which a stage asks for the columns of all."""
    job = a_job(spark, tmp_path, format=format_)
    write(job.files / f"b.{format_}", FIRST)
    planned = trigger(job.job)
    assert isinstance(planned, Triggered)
    write(job.files / f"a.{format_}", DRIFTS[drift])

    with pytest.raises(StageFailed, match=r"'\w+' failed .*: (column '\w'|the columns) of b\."):
        run_stage(job.job, spark, planned.plan.checkpoint_id, way, attempt=FIRST_ATTEMPT)


def test_past_the_jvm_columns_are_found_by_their_names(tmp_path: Path) -> None:
    write(tmp_path / "b.parquet", FIRST)
    source = ParquetSource(str(tmp_path))
    slices = source.plan((), max_records=None, parallelism=1).slices
    moved = pa.schema([(name, ARROW[kind]) for name, (kind, _) in DRIFTS["swapped"].items()])
    rows = SourceRows(source, (slices,), moved.serialize().to_pybytes())

    ((_, batch),) = rows.read(0, moved.names)

    assert batch.to_pylist() == [{"n": 1, "b": 20, "a": 10}]


LINES = [
    '{"n": 1, "a": 1, "b": "x"}',
    '{"n": 2, "a": 2, "b": "y", "c": {"new": 1}}',
    '{"n": 3, "b": "dropped"}',
    '{"b": "moved", "a": 4, "n": 4}',
    '{"n": 5, "a": 2147483648, "b": "wider"}',
    '{"n": 6, "a": "text", "b": "other"}',
    '{"n": 7, "a": 1.5, "b": "real"}',
]


def test_lines_of_json_with_other_fields_are_read_by_the_schema_or_malformed(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = a_job(spark, tmp_path, format="json", schema="n bigint, a int, b string")
    for number, line in enumerate(LINES):
        (job.files / f"{number}.json").write_text(line + "\n")
        if number == 2:
            job.epoch()
    job.epoch()

    rows = [(1, 1, "x"), (2, 2, "y"), (3, None, "dropped"), (4, 4, "moved")]
    expected = [dict(zip("nab", row, strict=True)) for row in rows]
    assert tables(job) == [expected] * len(WAYS)
    malformed = open_side_table(job.job, "unkeyed.malformed").read()
    assert sorted(malformed["line"].to_pylist()) == LINES[4:]


def test_a_row_that_cannot_be_read_is_reported_by_the_first_stage_alone(job: FolderJob) -> None:
    files = Files(str(job.files), format="json", schema="id bigint", bounded=False)
    rows = job.pipeline.source("rows", files)
    first = rows.key_by("id").join("first", rows.key_by("id"))
    first.sink("first_out", FilesTable())
    rows.key_by("id").aggregate("second", n=agg.count()).sink(
        "second_out", FilesTable(upsert_key=("id",))
    )
    rows.where("id > 1").transform("third", lambda frame: frame).sink("third_out", FilesTable())
    (job.files / "a.json").write_text('{"id": 1}\n{"id": \n{"id": 2}\n')

    job.epoch()

    reported = {
        uid: [
            (row["line"], row["record_number"])
            for row in open_side_table(job.job, uid).read().to_pylist()
        ]
        for uid in ("first.malformed", "second.malformed", "third.malformed")
    }
    assert reported == {
        "first.malformed": [('{"id": ', 2)],
        "second.malformed": [],
        "third.malformed": [],
    }
    assert sorted(job.table("second_out")["id"]) == [1, 2]
    assert [*job.table("third_out")["id"]] == [2]


@pytest.mark.parametrize(
    "function",
    [
        lambda frame: frame.where("id > 1"),
        lambda frame: frame.where("id > 1").select("id"),
        lambda frame: frame.where("id > 1 OR _malformed IS NOT NULL"),
        lambda frame: frame.mapInArrow(lambda batches: batches, frame.schema).where("id > 1"),
        lambda frame: (
            frame.selectExpr("id + 1 AS id", "_source", "_malformed", "_raw")
            .where("id > 2")
            .selectExpr("id - 1 AS id", "_malformed", "_raw")
        ),
    ],
    ids=["filter", "without our columns", "keeps them itself", "batches", "computes"],
)
def test_a_malformed_line_passes_a_function_by(
    job: FolderJob, function: Callable[[DataFrame], DataFrame]
) -> None:
    files = Files(str(job.files), format="json", schema="id bigint", bounded=False)
    rows = job.pipeline.source("rows", files)
    rows.transform("large", function).sink("large_out", FilesTable())
    (job.files / "a.json").write_text('{"id": 1}\n{"id": \n{"id": 2}\n')

    job.epoch()

    (malformed,) = open_side_table(job.job, "large.malformed").read().to_pylist()
    assert (malformed["line"], malformed["record_number"]) == ('{"id": ', 2)
    assert [*job.table("large_out")["id"]] == [2]


def test_a_malformed_line_stays_so_where_a_function_says_itself_which_rows_are(
    job: FolderJob,
) -> None:
    files = Files(str(job.files), format="json", schema="id bigint", bounded=False)
    said = "IF(id < 2, 'small', NULL) AS _malformed"
    rows = job.pipeline.source("rows", files)
    rows.transform("large", lambda frame: frame.selectExpr("id", "_source", said, "_raw")).sink(
        "large_out", FilesTable()
    )
    (job.files / "a.json").write_text('{"id": 1}\n{"id": \n{"id": 2}\n')

    job.epoch()

    malformed = open_side_table(job.job, "large.malformed").read().to_pylist()
    found = sorted((row["record_number"], row["line"]) for row in malformed)
    assert found == [(1, None), (2, '{"id": ')]
    assert [*job.table("large_out")["id"]] == [2]


def test_only_a_function_that_leaves_rows_out_reads_them_twice(job: FolderJob) -> None:
    files = Files(str(job.files), format="json", schema="id bigint", bounded=False)
    rows = job.pipeline.source("rows", files)
    calls: list[DataFrame] = []

    def computed(frame: DataFrame) -> DataFrame:
        calls.append(frame)
        return frame.withColumn("next", frame.id + 1)

    rows.transform("computed", computed).sink("out", FilesTable())
    (job.files / "a.json").write_text('{"id": 1}\n{"id": \n')

    job.epoch()

    assert len(calls) == 1
    assert open_side_table(job.job, "computed.malformed").read().num_rows == 1
