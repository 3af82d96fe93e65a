"""Rows that Python reads, hashes and sends are the same as those of Spark's JVM.

Held are: hashes of keys and key groups, SQL that Python computes, groups that Spark SQL folds, and
whole jobs, byte by byte.  Of every place, what is read is what was written: types at their extremes
under hostile names, cut at any row, read once more after a restore; without a key, keyed through
Spark's JVM and past it, from the source and from the stream of a stage.  ``SLUICE_WAYS=200`` plays
so many drawn cases a place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pytest

from harness.kafka_broker import Broker, running_broker
from harness.key_groups import key_group_of, subtask_of
from harness.postgres_database import Database, running_postgres
from sluice.connectors.files.parquet import ParquetSource
from sluice.core.completed import CheckpointMetadata
from sluice.core.key_groups import hash_range, key_group_range
from sluice.core.plan import TaskPlan
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.expressions import Filter, Projection, Step
from sluice.declaration.nodes import Input, StageNode
from sluice.declaration.operations import Hopping, TopN, Tumbling
from sluice.declaration.operations import KeyedAggregate as Declared
from sluice.declaration.pipeline import Pipeline
from sluice.exchange.faults import FAULT_VARIABLE
from sluice.exchange.reading import Feed, SourceRows
from sluice.job.job import Job, open_job
from sluice.job.places import open_result_table
from sluice.local.driver import Epoch, run_epochs
from sluice.operators.aggregate import KeyedAggregateOperator, aggregate_arguments, to_compute
from sluice.operators.operator import EpochTime, Operator
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.spark.deployment import Exchange, exchange_of, keyed_rows, with_computed_columns
from sluice.spark.tasks import Frame, StageRun
from sluice.state.key_hash import key_hash
from sluice.state.segments import HASH, to_frame, to_table
from sluice.store.open import StoreLocation
from tests.examples import slow
from tests.property.operators.played import a_stage
from tests.spark.folder_job import FolderJob, a_submitted_job, completed_epochs
from tests.spark.ways.arrow_places import Iceberg, ParquetFolder
from tests.spark.ways.kafka_places import AvroTopic, JsonTopic, ProtobufTopic, RawTopic
from tests.spark.ways.play import Case, Place, play
from tests.spark.ways.postgres_place import Postgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED = 20261121
ROWS = 2_000
START = datetime(2026, 1, 1, tzinfo=UTC)
TEXT_LENGTHS = (0, 1, 3, 4, 5, 7, 8, 12, 31, 32, 33, 40, 63, 64, 70, 100)

SELECTED = [
    "id",
    "ID",
    "id AS other",
    "bid.price",
    "Bid.PRICE",
    "bid.price as cost",
    "timestamp_millis(bid.at) AS at",
    "timestamp_millis(id) AS at",
    "id + 1 AS more",
    "1 AS one",
    "CASE WHEN bid.price > 9 THEN name END AS `a b`",
]
CONDITIONS = [
    "id = 2",
    "id <> 2 AND bid.price >= 10",
    "name = 'b c'",
    "name != 'b c' and name IS NOT NULL",
    "bid.price IS NULL",
    "small<-1",
    "bid.name > 'b'",
    "not name = 'b' 'c\\'' and (id = 2 AND `small` > -9)",
    "ID = 2 OR id = 3",
    "id > 2.5",
    "real > 1",
    "name LIKE 'b%'",
    "real < 1 OR bid.price IN (1, 2)",
]
LEFT_TO_SPARK = [
    "nobody",
    "id = '2'",
    "name = 2",
    "twice",
    "bid.nobody IS NULL",
    "timestamp_millis(id)",
    "timestamp_millis(name) AS at",
    "shiftleft(id, 1) AS doubled",
    "id AS _hash",
    "id AS name",
]


def keys() -> pl.DataFrame:
    random = Random(SEED)

    def some(make: Any) -> list[Any]:
        return [None if random.random() < 0.1 else make() for _ in range(ROWS)]

    def text() -> str:
        return "".join(random.choice("abcé日") for _ in range(random.choice(TEXT_LENGTHS)))

    def whole(bits: int) -> int:
        return random.randint(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)

    def instant() -> datetime:
        return START + timedelta(microseconds=random.randint(-(10**16), 10**15))

    columns: dict[str, tuple[pl.DataType, Callable[[], Any]]] = {
        "long": (pl.Int64(), lambda: whole(64)),
        "int": (pl.Int32(), lambda: whole(32)),
        "short": (pl.Int16(), lambda: whole(16)),
        "byte": (pl.Int8(), lambda: whole(8)),
        "boolean": (pl.Boolean(), lambda: random.random() < 0.5),
        "string": (pl.String(), text),
        "binary": (pl.Binary(), lambda: random.randbytes(random.choice(TEXT_LENGTHS))),
        "instant": (pl.Datetime("us", "UTC"), instant),
        "day": (pl.Date(), lambda: date(1930, 1, 1) + timedelta(days=random.randint(0, 70_000))),
    }
    return pl.DataFrame(
        {name: some(make) for name, (_, make) in columns.items()},
        schema={name: dtype for name, (dtype, _) in columns.items()},
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


def read_of(rows: pl.DataFrame, *steps: Step) -> Feed:
    schema = to_table(rows).schema.serialize().to_pybytes()
    given = Input(producer="events", steps=steps)
    rows_of = SourceRows(ParquetSource(""), (), schema)
    return Feed(rows=rows_of, schema=schema, given=given, hashed=())


@pytest.mark.parametrize("sql", SELECTED)
def test_columns_that_python_computes_are_what_spark_selects(spark: SparkSession, sql: str) -> None:
    rows = events()

    ours = read_of(rows, Projection((sql,))).prepared(rows)

    by_spark = to_frame(_in_spark(spark, rows).selectExpr(sql).toArrow())
    assert ours.equals(by_spark)
    assert ours.schema == by_spark.schema


@pytest.mark.parametrize("sql", CONDITIONS)
def test_conditions_that_python_computes_keep_what_spark_keeps(
    spark: SparkSession, sql: str
) -> None:
    rows = events()

    ours = read_of(rows, Filter(sql), Projection(("id", "bid.price"))).prepared(rows)

    by_spark = to_frame(_in_spark(spark, rows).where(sql).selectExpr("id", "bid.price").toArrow())
    assert ours.equals(by_spark)
    assert 0 < by_spark.height < rows.height


@pytest.mark.parametrize("sql", LEFT_TO_SPARK)
def test_what_may_mean_something_else_is_left_to_spark(sql: str) -> None:
    rows = events()

    assert not read_of(rows, Projection((sql, "name"))).compiled.is_possible
    assert not read_of(rows, Filter(sql)).compiled.is_possible


def test_columns_that_differ_in_case_alone_are_left_to_spark() -> None:
    rows = events()

    assert not read_of(rows).compiled.is_possible
    assert not read_of(rows, Projection(("*",))).compiled.is_possible
    assert not read_of(rows, Projection(("id AS a", "id AS A"))).compiled.is_possible
    assert read_of(rows, Projection(("*",)), Projection(("id",))).compiled.is_possible


QUOTIENTS = pl.DataFrame({"k": [1, 1, 2], "a": [7, 9, 5], "b": [2, 0, 5]})


def test_a_row_for_which_spark_would_stop_is_left_to_spark(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark computes the quotient behind the filter: it needs no quotient of the row without."""
    caplog.set_level("INFO", "sluice.spark.stage")
    job = FolderJob(spark, tmp_path)
    quotients = job.rows().select("k", "b", "a DIV b AS q").where("b <> 0")
    quotients.key_by("k").aggregate("sums", total=agg.sum("q")).sink(
        "out", FilesTable(upsert_key=("k",))
    )
    job.write("rows.parquet", QUOTIENTS)

    job.epoch()

    assert "rows are left to Spark checkpoint_id=1 stage=sums" in caplog.messages
    assert job.table("out").sort("k").select("k", "total").rows() == [(1, 3), (2, 1)]


def test_the_error_in_a_row_of_a_source_is_that_of_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = FolderJob(spark, tmp_path)
    sums = job.rows().key_by("k").aggregate("sums", total=agg.sum("a DIV b"))
    sums.sink("out", FilesTable(upsert_key=("k",)))
    job.write("rows.parquet", QUOTIENTS)

    assert "in 'a DIV b': DIVIDE_BY_ZERO: Division by zero" in job.failure()


def test_an_error_in_a_row_of_a_stream_names_the_row(spark: SparkSession, tmp_path: Path) -> None:
    job = FolderJob(spark, tmp_path)
    first = job.rows().key_by("k", "a").deduplicate("first")
    second = first.key_by(q="a DIV b").aggregate("second", n=agg.count())
    second.sink("out", FilesTable(upsert_key=("q",)))
    job.write("rows.parquet", QUOTIENTS)

    assert (
        "what is read of 'first' cannot be computed: a div b divides by zero in a row with "
        "a = 9, b = 0"
    ) in job.failure().lower()


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


@pytest.mark.parametrize(
    ("parallelism", "pre_aggregated_from"), [pytest.param(1, 10.0, marks=slow), (3, 1.0)]
)
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
    place = StoreLocation(root=f"file://{tmp_path / 'undisturbed'}")
    expected = open_result_table(open_job(job.pipeline, place), {}).read()
    assert expected.num_rows > 0
    assert expected.equals(open_result_table(job, {}).read())


def submitted(root: Path, folder: Path, parallelism: int) -> Job:
    pipeline = two_stages(folder / "events")
    return a_submitted_job(pipeline, root, parallelism=parallelism, max_records_per_epoch=700)


def played(
    spark: SparkSession, root: Path, folder: Path, parallelism: int
) -> list[CheckpointMetadata]:
    return completed_epochs(submitted(root, folder, parallelism), spark, drain=True)


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


DRAWN = int(os.environ.get("SLUICE_WAYS", "0"))
SEEDS = range(DRAWN or 1)
PLACES = ("parquet", "iceberg", "postgres", "json", "avro", "protobuf", "raw")
# Their columns may have any names; the other formats check names by themselves.
WITH_ANY_NAME = (ParquetFolder, Iceberg, Postgres, JsonTopic)
CUT = PLACES if DRAWN else ("parquet", pytest.param("postgres", marks=slow))


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running_broker() as found:
        yield found


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with running_postgres(tmp_path_factory.mktemp("postgres")) as found:
        yield found


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    match request.param:
        case "parquet":
            return ParquetFolder(tmp_path)
        case "iceberg":
            return Iceberg(tmp_path)
        case "postgres":
            return Postgres(request.getfixturevalue("database"))
        case "protobuf":
            return ProtobufTopic(request.getfixturevalue("broker"), tmp_path)
        case kind:
            topics: dict[str, Callable[[Broker], Place]] = {
                "avro": AvroTopic,
                "json": JsonTopic,
                "raw": RawTopic,
            }
            return topics[kind](request.getfixturevalue("broker"))


def test_every_value_of_every_type_is_the_same_on_every_way(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    kinds = place.kinds
    if isinstance(place, WITH_ANY_NAME):
        kinds = dict(zip([*place.names, *kinds], kinds.values(), strict=False))
    rows = 1 + max(len(kind.values) for kind in kinds.values())
    walk = {
        name: [row % (len(kind.values) + 1) for row in range(rows)] for name, kind in kinds.items()
    }

    play(place, Case(kinds, walk, (rows,)), spark, tmp_path / "job")


@pytest.mark.parametrize("place", CUT, indirect=True)
@pytest.mark.parametrize("seed", SEEDS)
def test_rows_of_hostile_columns_are_the_same_however_they_are_cut(
    spark: SparkSession, place: Place, tmp_path: Path, seed: int
) -> None:
    print(f"seed {seed}")  # noqa: T201 - shown of a test that fails

    play(place, drawn(place, Random(seed)), spark, tmp_path / "job")


def drawn(place: Place, random: Random) -> Case:
    count = min(len(place.names), len(place.kinds), 8)
    names = random.sample(place.names, count)
    kinds = {name: place.kinds[random.choice([*place.kinds])] for name in names}
    rows = random.randrange(2, 12)
    choices = {
        name: [random.randrange(len(kind.values) + 1) for _ in range(rows)]
        for name, kind in kinds.items()
    }
    ends = (random.randrange(1, rows), rows)
    return Case(kinds, choices, ends, random.choice([None, 3, rows - 1]))


@pytest.mark.parametrize(("parallelism", "max_parallelism"), [(1, 128), (3, 128), (7, 10)])
def test_a_row_lands_on_the_subtask_that_owns_its_hash(
    spark: SparkSession, parallelism: int, max_parallelism: int
) -> None:
    from pyspark.sql.functions import spark_partition_id

    node = StageNode(
        uid="stage",
        operation=TopN(n=1, by="id", unique=("id",)),
        inputs=(Input(producer="source", keys=("id",)),),
    )
    task = TaskPlan(uid="stage", parallelism=parallelism, max_parallelism=max_parallelism)

    keyed = keyed_rows([spark.range(500)], node, task, None)
    assert isinstance(keyed.rows, Frame)
    placed = keyed.rows.rows.withColumn("partition", spark_partition_id())

    rows = 0
    for block in placed.collect():
        owned = key_group_range(max_parallelism, parallelism, block["partition"])
        first, last = hash_range(max_parallelism, owned)
        hashes = pl.read_ipc_stream(block["body"])[HASH]
        for one in hashes:
            group = key_group_of(one, max_parallelism)
            assert subtask_of(group, max_parallelism, parallelism) == block["partition"]
            assert first <= one <= last
        rows += hashes.len()
    assert rows == 500


SCHEMA = (
    "id INT, `odd ``name``` STRING, small SMALLINT, real DOUBLE, f FLOAT, price DECIMAL(10, 2), "
    "at TIMESTAMP, user BIGINT"
)
NAN = float("nan")
LONGEST = 2**63 - 1


def at(second: int) -> datetime:
    return datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC)


ROWS_TO_FOLD: list[tuple[Any, ...]] = [
    (1, "a", 1, 1.5, 0.5, Decimal("1.25"), at(3), LONGEST),
    (1, "a", 3, NAN, -0.0, Decimal("-9.99"), at(1), LONGEST),
    (1, "b", 2, -0.0, NAN, None, at(1), -LONGEST - 1),
    (1, "b", None, 0.0, None, None, at(1), None),
    (1, None, 9, None, None, None, None, LONGEST),
    (2, None, None, None, None, None, None, None),
    (None, "c", 5, NAN, NAN, Decimal("0.01"), at(5), -5),
    (None, "c", -5, -1.0, 2.0, Decimal("99999999.99"), at(5), -LONGEST - 1),
]

AGGREGATES = {
    "rows": agg.count(),
    "big_rows": agg.count(where="small > 1"),
    "values": agg.count("real"),
    "total": agg.sum("small"),
    "big_total": agg.sum("small", where="small > 1"),
    "sum of prices": agg.sum("price"),
    "floats": agg.sum("f", where="NOT isnan(f)"),
    "mean": agg.avg("small"),
    "mean_price": agg.avg("price", where="small > 1"),
    "least": agg.min("real"),
    "largest": agg.max("real"),
    "largest_float": agg.max("f"),
    "last_seen": agg.max("at"),
    "opening": agg.first("small"),
    "closing": agg.last("odd `name`"),
    "big_closing": agg.last("real", where="small > 1"),
    "cheapest": agg.first("small", by="price"),
    "long_total": agg.sum("user"),
    "long_mean": agg.avg("user", where="small > 1"),
    "revenue": agg.sum("small * price"),
    "doubled": agg.max("user % 7 * 2", where="user > 0"),
    "dearest": agg.last("upper(`odd ``name```)", by="-price"),
}


def test_spark_folds_rows_to_the_groups_of_partial(spark: SparkSession) -> None:
    from pyspark.sql.functions import expr, lit

    stage = a_stage(Declared(aggregates=AGGREGATES), keys=["id"])
    rows = with_computed_columns(
        spark.createDataFrame(ROWS_TO_FOLD, SCHEMA), stage, stage.inputs[0]
    )
    rows = rows.withColumn(HASH, lit(0).cast("bigint"))  # One, for all keys alike.
    frame = to_frame(rows.toArrow())
    operator: Operator = KeyedAggregateOperator(stage, frame.schema)
    partial = operator.spark_partial()
    assert partial is not None

    columns = [expr(sql).alias(name) for name, sql in partial.columns.items()]
    by_spark = to_frame(rows.groupBy(*partial.by).agg(*columns).toArrow())
    expected = operator.partial(frame, EpochTime()).groups["groups"]
    found = by_spark.with_columns(pl.lit(0, pl.Int64).alias(HASH)).select(expected.columns)
    assert found.schema == expected.schema
    assert repr(found.sort("id").rows()) == repr(expected.sort("id").rows())
    combined = operator.combine({"groups": pl.concat([found, expected])})["groups"]
    assert combined.sort("id")["rows"].to_list() == [4, 10, 2]


def test_a_name_is_a_column_where_there_is_one_and_sql_is_computed() -> None:
    stage = a_stage(Declared(aggregates=AGGREGATES), keys=["id"])

    computed = to_compute(
        aggregate_arguments(stage.operation), ["id", "user", "odd `name`", "small", "price"]
    )

    assert [one.column for one in computed if not one.is_condition] == [
        "_argument_revenue",
        "_argument_doubled",
        "_argument_dearest",
        "_order_dearest",
    ]


def test_what_sql_cannot_fold_is_left_to_partial() -> None:
    schema = pl.Schema({"id": pl.Int64(), "value": pl.Decimal(38, 2)})
    # Spark's own sum of decimals so long may overflow, and would not say which.
    for aggregate in (agg.count_distinct("value"), agg.collect("value"), agg.sum("value")):
        stage = a_stage(Declared(aggregates={"result": aggregate}), keys=["id"])

        assert KeyedAggregateOperator(stage, schema).spark_partial() is None
