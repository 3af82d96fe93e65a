"""Lines of JSON that Python decodes hold what Spark reads of them, and all others are Spark's."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa
import pytest

from sluice.connectors.files.json import END, UndecidedError, decoded_lines, plain_schema
from sluice.coordinator.submission import configure, submit
from sluice.core.completed import CheckpointMetadata
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.operations import Tumbling
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.places import MALFORMED_COLUMN, TextDecoding
from sluice.exchange.reading import SOURCE
from sluice.job.job import open_job
from sluice.job.places import open_side_table
from sluice.local.driver import EpochDriver
from sluice.sources import Files
from sluice.spark.frames import decoded_text
from sluice.store.open import StoreLocation
from tests.spark.test_exchange import checksums

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED = 20261123
SCHEMA = "a bigint, d double, s string, b boolean, i int, t struct<x: bigint, y: string>"
HOW = TextDecoding(format="json", schema=SCHEMA)

VALUES = [
    *("0", "-0", "1", "-1.0", "1e2", "1E400", "1e-400", "0.1", "-0.0", "-0e5", "01", "+1", ".5"),
    *("2147483648", "9223372036854775807", "9223372036854775808", "1" * 30, "1" * 1_001, "1.", "-"),
    *("null", "true", "false", "True", "NaN", "-Infinity", "Inf", "INF", "nil", "undefined", ""),
    *(
        '""',
        '"x"',
        '"1"',
        '"NaN"',
        '"é日😀"',
        '"\\u00e9"',
        '"\\ud83d\\ude00"',
        '"\\ud800"',
        '"\\x"',
    ),
    *(
        '"\\/\\b\\n\\t\\""',
        '"a\tb"',
        '"\x7f"',
        '"\\u0000"',
        "'x'",
        '"x',
        '": NaN"',
        '"{\\"a\\":1}"',
    ),
    *("{}", '{"x":1}', '{"x":1,"x":2}', '{"x":"1"}', '{"y":null,"z":[{}]}', "[]", "[1]", "[[1,]]"),
    *('{"y":"q"}', "[" * 400 + "]" * 400, "[" * 1_100 + "]" * 1_100, f'"{END}"', "/*c*/1", "1 2"),
]
GOOD_SHAPES = ['{"%s":%s}', '{"%s" : %s ,"z":{"a":[1]}}', '{"a":1,"%s":%s}']
SHAPES = [
    ' {"%s":%s}',
    '{"%s":%s} ',
    '{"%s":%s}}',
    '{"%s":%s},',
    '{"%s":%s}{}',
    '{"%s":%s} x',
    '{"%s":%s',
    '\xa0{"%s":%s}',
]
OTHERS = ["", " ", "null", "[]", '[{"a":1}]', "1", '"x"', "{}", "{}{}", "{,}", '{"a"}', "\ufeff{}"]


def test_a_line_that_is_decoded_holds_what_spark_reads_of_it(spark: SparkSession) -> None:
    schema = plain_schema(HOW)
    assert schema is not None
    lines = hostile_lines()
    expected = by_spark(spark, lines)

    decided = 0
    for number, line in enumerate(lines):
        try:
            found = decoded_lines(line.encode(), 1, schema).to_pylist()
        except UndecidedError:
            continue
        decided += 1
        # As text, for a number may be a zero with a sign.
        assert repr(found) == repr(expected.get(number, [])), line

    assert 400 < decided < len(lines) - 400


def test_lines_are_decoded_together_or_not_at_all() -> None:
    schema = pa.schema([("a", pa.int64())])

    assert decoded_lines(b'\xef\xbb\xbf{"a":1}\r\n\n{"b":"}{"}', 0, schema)["a"].to_pylist() == [
        1,
        None,
    ]
    assert decoded_lines(b"", 0, schema).num_rows == 0
    # Two objects in one line, and one over two lines: as many objects as lines.
    for text in (b'{"a":1}{"a":2}\n{"a":[{}\n]}', b'{"a":1}\nx', b'{"a":1}\n{"b":"\xff"}', b"{\0}"):
        with pytest.raises(UndecidedError):
            decoded_lines(text, 1, schema)


@pytest.mark.parametrize(
    "schema", ["a decimal(9, 2)", "a timestamp", "a array<int>", "a string COLLATE UTF8_LCASE"]
)
def test_columns_of_other_types_are_left_to_spark(schema: str) -> None:
    assert plain_schema(TextDecoding(format="json", schema=schema)) is None


@pytest.mark.parametrize("parallelism", [1, 2])
def test_both_ways_leave_the_same_state_and_report_the_same_lines(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    parallelism: int,
) -> None:
    caplog.set_level("INFO", "sluice.spark.stage")
    (tmp_path / "events").mkdir()
    lines = [f'{{"id":{n % 7},"price":{n},"at":{10**12 + n * 40}}}' for n in range(300)]
    for epoch, wrong in enumerate([[], ['{"id":1', '{"id":1,"price":5}'], []]):
        body = "\n".join([*lines[epoch * 100 : (epoch + 1) * 100], *wrong, ""])
        (tmp_path / "events" / f"{epoch}.json").write_text(body)

    in_columns = played(spark, tmp_path / "columns", tmp_path / "events", parallelism)
    left = [line for line in caplog.messages if line.startswith("lines are left to Spark")]
    monkeypatch.setattr("sluice.spark.deployment.exchange_of", lambda _: None)
    in_rows = played(spark, tmp_path / "rows", tmp_path / "events", parallelism)

    assert left == ["lines are left to Spark checkpoint_id=2 stage=windows"]
    assert len(in_columns[0]) == 4
    assert checksums(in_columns[0]) == checksums(in_rows[0])
    assert in_columns[1:] == in_rows[1:]
    assert in_columns[1:] == ([('{"id":1', 101)], [(1, 5, 102)])


def played(
    spark: SparkSession, root: Path, events: Path, parallelism: int
) -> tuple[list[CheckpointMetadata], list[tuple[str, int]], list[tuple[int, int, int]]]:
    """The checkpoints, and what became of the two wrong lines."""
    pipeline = Pipeline("both_ways", checkpointing=Checkpointing(interval=None))
    files = Files(
        str(events), format="json", schema="id bigint, price bigint, at bigint", bounded=False
    )
    source = pipeline.source("events", files, event_time="t", out_of_orderness=timedelta(0))
    bids = source.select("id", "price", "timestamp_millis(at) AS t").where("id >= 1")
    bids.key_by("id").window(
        "windows", Tumbling(timedelta(seconds=1)), dear=agg.max("price")
    ).key_by("window_start").aggregate("per_window", ids=agg.count())
    job = open_job(pipeline, StoreLocation(root=f"file://{root}"))
    submit(job, configure(pipeline, {}, parallelism=parallelism, max_records_per_epoch=102))
    completed = []
    with EpochDriver(job, spark) as driver:
        while driver.begin(drain=True):
            epoch = driver.end_oldest()
            assert epoch.completed is not None, epoch.failure
            completed.append(job.metadata(epoch.completed.checkpoint_id))
    malformed, timeless = (
        open_side_table(job, f"windows.{name}").read().to_pylist()
        for name in ("malformed", "no_event_time")
    )
    return (
        completed,
        [(row["line"], row["record_number"]) for row in malformed],
        [(row["id"], row["price"], row["record_number"]) for row in timeless],
    )


def hostile_lines() -> list[str]:
    names = ["a", "d", "s", "b", "i", "t", "z", "A", "\\u0061", ""]
    whole, doubtful = (
        [shape % (name, value) for shape in shapes for name in names for value in VALUES]
        for shapes in (GOOD_SHAPES, SHAPES)
    )
    random = Random(SEED)
    broken = []
    for line in random.sample(whole, 1_000):
        at = random.randrange(len(line))
        broken.append(
            line[:at] + random.choice(['"', "{", "}", ",", "e", "-", ""]) + line[at + 1 :]
        )
    return [*OTHERS, *whole, *random.sample(doubtful, 1_000), *broken]


def by_spark(spark: SparkSession, lines: list[str]) -> dict[int, list[dict[str, object]]]:
    """The row of each line that Spark takes for a good one."""
    rows = pa.table({"line": pa.array(lines, pa.string()), "number": pa.array(range(len(lines)))})
    origin = f"struct('f' AS partition, number AS record) AS {SOURCE}"
    read = decoded_text(spark.createDataFrame(rows).selectExpr("line", origin), HOW)
    good = pl.from_arrow(
        read.where(f"{MALFORMED_COLUMN} IS NULL")
        .selectExpr(f"{SOURCE}.record AS number", "a", "d", "s", "b", "i", "t")
        .toArrow()
    )
    assert isinstance(good, pl.DataFrame)
    return {row.pop("number"): [row] for row in good.to_dicts()}
