"""Rows that Python reads, hashes and sends are the same as those of Spark's JVM."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pytest

from sluice.coordinator.submission import configure, submit
from sluice.core.completed import CheckpointMetadata
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.operations import Hopping, Tumbling
from sluice.declaration.pipeline import Pipeline
from sluice.exchange.faults import FAULT_VARIABLE
from sluice.job.job import Job, open_job
from sluice.job.places import open_result_table
from sluice.local.driver import Epoch, EpochDriver, run_epochs
from sluice.operators.expressions import plain_column, plain_condition
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.spark.deployment import Exchange, exchange_of
from sluice.spark.tasks import StageRun
from sluice.state.key_hash import key_hash
from sluice.store.open import StoreLocation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED = 20261121
ROWS = 2_000
START = datetime(2026, 1, 1, tzinfo=UTC)
TEXT_LENGTHS = (0, 1, 3, 4, 5, 7, 8, 12, 31, 32, 33, 40, 63, 64, 70, 100)

PLAIN_COLUMNS = [
    "id",
    "id AS other",
    "bid.price",
    "bid.price as cost",
    "timestamp_millis(bid.at) AS at",
    "timestamp_millis(id) AS at",
]
PLAIN_CONDITIONS = [
    "id = 2",
    "id <> 2 AND bid.price >= 10",
    "name = 'b c'",
    "name != 'b c' and name IS NOT NULL",
    "bid.price IS NULL",
    "small<-1",
    "bid.name > 'b'",
]
NOT_PLAIN = [
    "id + 1 AS more",
    "*",
    "nobody",
    "ID",
    "id = 2 OR id = 3",
    "id = '2'",
    "name = 2",
    "id = 2.5",
    "real > 1",
    "name LIKE 'b%'",
    "twice",
    "bid.nobody IS NULL",
    "name = 'b\\'c'",
    "id = 99999999999999999999",
    "timestamp_millis(id)",
    "timestamp_millis(name) AS at",
]


def keys() -> pl.DataFrame:
    random = Random(SEED)

    def some(make: Any) -> list[Any]:
        return [None if random.random() < 0.1 else make() for _ in range(ROWS)]

    def text() -> str:
        return "".join(random.choice("abcé日") for _ in range(random.choice(TEXT_LENGTHS)))

    return pl.DataFrame(
        {
            "long": some(lambda: random.randint(-(2**63), 2**63 - 1)),
            "int": some(lambda: random.randint(-(2**31), 2**31 - 1)),
            "short": some(lambda: random.randint(-(2**15), 2**15 - 1)),
            "byte": some(lambda: random.randint(-(2**7), 2**7 - 1)),
            "boolean": some(lambda: random.random() < 0.5),
            "string": some(text),
            "binary": some(lambda: random.randbytes(random.choice(TEXT_LENGTHS))),
            "instant": some(
                lambda: START + timedelta(microseconds=random.randint(-(10**16), 10**15))
            ),
            "day": some(lambda: date(1930, 1, 1) + timedelta(days=random.randint(0, 70_000))),
        },
        schema={
            "long": pl.Int64(),
            "int": pl.Int32(),
            "short": pl.Int16(),
            "byte": pl.Int8(),
            "boolean": pl.Boolean(),
            "string": pl.String(),
            "binary": pl.Binary(),
            "instant": pl.Datetime("us", "UTC"),
            "day": pl.Date(),
        },
    )


def test_keys_of_every_type_have_the_hash_that_spark_gives_them(spark: SparkSession) -> None:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    rows = keys()
    choices = [[name] for name in rows.columns] + [rows.columns, ["string", "long", "string"]]
    frame = spark.createDataFrame(rows.to_arrow(compat_level=pl.CompatLevel.oldest()))
    hashes = frame.select(
        *(F.xxhash64(*choice).alias(f"{number}") for number, choice in enumerate(choices))
    ).toArrow()

    for number, choice in enumerate(choices):
        ours = key_hash(rows, choice).tolist()
        assert ours == hashes.column(number).to_pylist(), choice
        assert key_hash(rows.clear(), choice).tolist() == []
    sliced = rows.slice(700, 100)
    assert key_hash(sliced, ["string"]).tolist() == hashes.column(5).to_pylist()[700:800]


def events() -> pl.DataFrame:
    bid = pl.Struct({"price": pl.Int64(), "at": pl.Int64(), "name": pl.String()})
    rows = [
        (number % 4 or None, ("b c", "d", None)[number % 3], number % 5 - 3, number / 4)
        for number in range(60)
    ]
    bids = [
        None
        if number % 7 == 0
        else {"price": number, "at": 10**12 + number, "name": "abcd"[number % 4]}
        for number in range(60)
    ]
    frame = pl.DataFrame(
        rows,
        schema={"id": pl.Int32(), "name": pl.String(), "small": pl.Int16(), "real": pl.Float64()},
        orient="row",
    )
    return frame.with_columns(
        pl.Series("bid", bids, bid),
        pl.lit(1).alias("twice"),
        pl.lit(2).alias("Twice"),
    )


@pytest.mark.parametrize("sql", PLAIN_COLUMNS)
def test_plain_columns_are_what_spark_selects(spark: SparkSession, sql: str) -> None:
    rows = events()
    found = plain_column(sql, rows.schema)
    assert found is not None

    by_spark = pl.from_arrow(_in_spark(spark, rows).selectExpr(sql).toArrow())

    assert isinstance(by_spark, pl.DataFrame)
    assert rows.select(found.expression).equals(by_spark)
    assert rows.select(found.expression).schema == by_spark.schema


@pytest.mark.parametrize("sql", PLAIN_CONDITIONS)
def test_plain_conditions_keep_what_spark_keeps(spark: SparkSession, sql: str) -> None:
    rows = events()
    found = plain_condition(sql, rows.schema)
    assert found is not None

    by_spark = pl.from_arrow(_in_spark(spark, rows).where(sql).toArrow())

    assert isinstance(by_spark, pl.DataFrame)
    assert rows.filter(found.expression).equals(by_spark)
    assert 0 < by_spark.height < rows.height


@pytest.mark.parametrize("sql", NOT_PLAIN)
def test_what_may_mean_something_else_is_left_to_spark(sql: str) -> None:
    schema = events().schema
    assert plain_column(sql, schema) is None
    assert plain_condition(sql, schema) is None


def two_stages(folder: Path) -> Pipeline:
    """Of each kind: a source with a filter, a projection and event time; a stream; a join."""
    pipeline = Pipeline("both_ways", checkpointing=Checkpointing(interval=None))
    source = pipeline.source(
        "events",
        Files(str(folder), format="parquet", bounded=False),
        event_time="at",
        out_of_orderness=timedelta(seconds=1),
    )
    bids = source.where("bid.price IS NOT NULL").select(
        "id", "name", "bid.price", "timestamp_millis(bid.at) AS at"
    )
    bids.key_by("id").window(
        "windows",
        Hopping(timedelta(seconds=4), timedelta(seconds=2)),
        bids=agg.count(),
        dear=agg.count(where="price > 500"),
    ).key_by("window_start").aggregate("per_window", most=agg.max("bids"), dear=agg.sum("dear"))
    names = source.select("name AS label", "id AS other", "timestamp_millis(bid.at) AS at")
    bids.key_by("id").window_join(
        "pairs", names.key_by("other"), Tumbling(timedelta(seconds=1))
    ).sink("pairs_table", FilesTable())
    return pipeline


def write_epochs(folder: Path) -> None:
    random = Random(SEED)
    folder.mkdir()
    bid = pl.Struct({"price": pl.Int64(), "at": pl.Int64(), "name": pl.String()})
    for epoch in range(3):
        at = 10**12 + epoch * 5_000
        bids = [
            {"price": random.randint(0, 999), "at": at + random.randint(-3_000, 4_000), "name": "n"}
            for _ in range(400)
        ]
        frame = pl.DataFrame(
            {
                "id": [random.randint(0, 9) for _ in bids],
                "name": [random.choice(["a", "b", None]) for _ in bids],
                "bid": bids,
            },
            schema={"id": pl.Int64(), "name": pl.String(), "bid": bid},
        )
        for part in range(2):
            frame[part::2].write_parquet(folder / f"{epoch}-{part}.parquet")


@pytest.mark.parametrize(("parallelism", "pre_aggregated_from"), [(1, 10.0), (3, 1.0)])
def test_both_ways_leave_the_same_state_byte_by_byte(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    parallelism: int,
    pre_aggregated_from: float,
) -> None:
    write_epochs(tmp_path / "events")
    monkeypatch.setattr(
        "sluice.spark.deployment.PRE_AGGREGATED_ROWS_PER_GROUP", pre_aggregated_from
    )

    exchanged: dict[str, bool] = {}

    def noting(run: StageRun) -> Exchange | None:
        exchange = exchange_of(run)
        exchanged[run.node.uid] = exchange is not None
        return exchange

    monkeypatch.setattr("sluice.spark.deployment.exchange_of", noting)
    in_columns = played(spark, tmp_path / "columns", tmp_path, parallelism)
    assert exchanged == {"windows": True, "per_window": True, "pairs": True}
    monkeypatch.setattr("sluice.spark.deployment.exchange_of", lambda _: None)
    in_rows = played(spark, tmp_path / "rows", tmp_path, parallelism)

    assert len(in_columns) == 3
    assert checksums(in_columns) == checksums(in_rows)
    assert watermarks(in_columns) == watermarks(in_rows)


def test_a_killed_worker_and_a_restore_leave_the_same_bytes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_epochs(tmp_path / "events")
    undisturbed = played(spark, tmp_path / "undisturbed", tmp_path, 2)
    job = submitted(tmp_path / "killed", tmp_path, 2)
    monkeypatch.setenv(FAULT_VARIABLE, "kill-worker stage=windows checkpoint=2")

    completed: list[CheckpointMetadata] = []

    def note(epoch: Epoch) -> None:
        if epoch.completed is not None:
            completed.append(job.metadata(epoch.completed.checkpoint_id))

    run_epochs(job, spark, epochs=None, drain=True, report=note)

    assert [one.checkpoint_id for one in completed] == [1, 3, 4]
    # Rows that wait in a join are numbered by the checkpoint that brought them: 3, not 2.
    assert without_join(checksums(completed)) == without_join(checksums(undisturbed))
    tables = [
        open_result_table(
            open_job(
                two_stages(tmp_path / "events"), StoreLocation(root=f"file://{tmp_path / name}")
            ),
            {},
        ).read()
        for name in ("undisturbed", "killed")
    ]
    assert tables[0].num_rows > 0
    assert tables[0].equals(tables[1])


def submitted(root: Path, folder: Path, parallelism: int) -> Job:
    job = open_job(two_stages(folder / "events"), StoreLocation(root=f"file://{root}"))
    submit(job, configure(job.pipeline, {}, parallelism=parallelism, max_records_per_epoch=700))
    return job


def played(
    spark: SparkSession, root: Path, folder: Path, parallelism: int
) -> list[CheckpointMetadata]:
    job = submitted(root, folder, parallelism)
    completed = []
    with EpochDriver(job, spark) as driver:
        while driver.begin(drain=True):
            epoch = driver.end_oldest()
            assert epoch.completed is not None, epoch.failure
            completed.append(job.metadata(epoch.completed.checkpoint_id))
    return completed


def checksums(completed: list[CheckpointMetadata]) -> list[set[tuple[str, str]]]:
    return [
        {
            (f"{stage.uid}/{index}/{handle.table}", handle.segment.checksum)
            for stage in one.stages
            for index, subtask in enumerate(stage.subtasks)
            for handle in subtask.state
        }
        for one in completed
    ]


def without_join(of_checkpoints: list[set[tuple[str, str]]]) -> list[set[tuple[str, str]]]:
    return [{one for one in names if not one[0].startswith("pairs/")} for names in of_checkpoints]


def watermarks(completed: list[CheckpointMetadata]) -> list[dict[str, int]]:
    return [{stage.uid: stage.watermark_ms for stage in one.stages} for one in completed]


def _in_spark(spark: SparkSession, rows: pl.DataFrame) -> Any:
    table: pa.Table = rows.to_arrow(compat_level=pl.CompatLevel.oldest())
    return spark.createDataFrame(table)
