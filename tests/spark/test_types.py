"""Columns of every type and every name give the same rows past Spark's JVM and through it.

``where`` and ``select`` apply in the order written, on a source and behind a stage; streams of
different kinds are united.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pytest

from sluice.declaration import aggregates as agg
from sluice.declaration.operations import Tumbling
from sluice.declaration.pipeline import Pipeline, Stream
from sluice.declaration.sql_tree import LITERAL
from sluice.errors import ConfigurationError
from sluice.job.analysis import analyse
from sluice.job.places import open_side_table
from sluice.operators.common_types import common_type
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.spark.checking import check_pipeline
from sluice.spark.frames import polars_schema
from tests.spark.folder_job import FolderJob
from tests.sql_keywords import KEYWORDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
NAIVE = AT.replace(tzinfo=None)
TYPES: dict[str, tuple[pa.DataType, Any, Any]] = {
    "nanos": (pa.timestamp("ns"), NAIVE, AT),
    "micros": (pa.timestamp("us"), NAIVE, AT),
    "zoned": (pa.timestamp("ms", tz="Europe/Berlin"), AT, AT.replace(microsecond=678_000)),
    "u32": (pa.uint32(), 2**32 - 1, 2**32 - 1),
    "u64": (pa.uint64(), 2**64 - 1, Decimal(2**64 - 1)),
    "half": (pa.float16(), 1.5, 1.5),
    "list": (pa.list_(pa.int64()), [2, 1], [2, 1]),
    "struct": (pa.struct([("a", pa.uint8()), ("b", pa.string())]), {"a": 1, "b": None}, None),
    "structs": (pa.list_(pa.struct([("at", pa.timestamp("ns"))])), [{"at": NAIVE}], [{"at": AT}]),
    "map": (pa.map_(pa.string(), pa.int64()), [("b", 1), ("a", None)], {"b": 1, "a": None}),
    "maps": (
        pa.map_(pa.int32(), pa.list_(pa.struct([("at", pa.timestamp("ns"))]))),
        [(1, [{"at": NAIVE}]), (2, None)],
        {1: [{"at": AT}], 2: None},
    ),
    "truth": (pa.bool_(), True, True),
}


def a_table() -> pa.Table:
    columns = {name: pa.array([one[1]] * 2, one[0]) for name, one in TYPES.items()}
    return pa.table({"k": pa.array([1, 1], pa.int64()), **columns})


@pytest.mark.parametrize("condition", ["k = 1", "k + 0 = 1"])  # Past the JVM, and through it.
def test_a_row_is_the_same_either_way(job: FolderJob, spark: SparkSession, condition: str) -> None:
    source = job.rows()
    keyed = source.where(condition).key_by("k")
    keyed.latest("latest", by="nanos").sink("latest_out", FilesTable(upsert_key=("k",)))
    keyed.deduplicate("first").sink("first_out", FilesTable())
    keyed.join("pairs", source.select("k AS other").key_by("other")).sink("out", FilesTable())
    keyed.aggregate("counts", n=agg.count("structs"), last=agg.max("u64")).sink(
        "counts_out", FilesTable(upsert_key=("k",))
    )
    job.write("1.parquet", a_table())
    expected = {name: one[2] for name, one in TYPES.items()} | {"struct": {"a": 1, "b": None}}

    check_pipeline(job.pipeline, spark, {}, None)
    job.epoch()

    assert job.table("latest_out").to_dicts() == [{"k": 1, **expected}]
    assert job.table("first_out").to_dicts() == [{"k": 1, **expected}]
    assert job.table("out").drop("other").to_dicts() == [{"k": 1, **expected}] * 4
    assert job.table("counts_out").rows() == [(1, 2, Decimal(2**64 - 1))]


def test_what_is_known_without_spark_is_what_spark_says(
    job: FolderJob, spark: SparkSession
) -> None:
    source = job.rows()
    for number, name in enumerate(TYPES):
        latest = source.select("k", f"`{name}`").key_by("k").latest(f"latest_{number}", by="k")
        latest.sink(f"out_{number}", FilesTable(upsert_key=("k",)))
    job.write("1.parquet", a_table())

    known = {uid: one for uid, one in analyse(job.pipeline, {}, None).items() if one is not None}

    assert known.items() <= check_pipeline(job.pipeline, spark, {}, None).items()
    types = {of for one in known.values() for of in map(type, one.columns.dtypes())}
    assert types >= {pl.List, pl.Map, pl.Int64}


def test_what_reads_updates_is_known_without_spark(job: FolderJob, spark: SparkSession) -> None:
    source = job.rows()
    table = FilesTable(changelog=True)
    counts = source.key_by("k").aggregate("counts", n=agg.count(), most=agg.max("v"))
    by_count = counts.where("n > 1").key_by("n")
    by_count.aggregate("sums", total=agg.sum("most"), least=agg.min("k + 1")).sink(
        "sums_out", table
    )
    by_count.top_n("best", 3, by="most", unique="k").sink("best_out", table)
    by_count.join("pairs", source.select("k AS n", "v").key_by("n")).sink("pairs_out", table)
    both = counts.union("both", counts.select("k", "n", "most + 1 AS most"))
    both.key_by("k").aggregate("again", n=agg.count()).sink("again_out", table)
    job.write("1.parquet", pl.DataFrame({"k": [1], "v": [2]}))

    known = analyse(job.pipeline, {}, None)

    assert known == check_pipeline(job.pipeline, spark, {}, None)


def test_a_list_of_a_stage_before_passes_through_the_jvm(job: FolderJob) -> None:
    """A running variance of a stage's doubles is computed behind Spark's own shuffle."""
    lists = job.rows().transform("same", lambda frame: frame).key_by("k")
    lists.aggregate("spread", spread=agg.variance("v"), last=agg.max("nested[0].tags[0]")).sink(
        "out", FilesTable(upsert_key=("k",))
    )
    nested = [{"tags": ["a", None]}]
    job.write("1.parquet", pl.DataFrame({"k": [1, 1], "v": [1.0, 3.0], "nested": [nested] * 2}))

    job.epoch()

    assert job.table("out").to_dicts() == [{"k": 1, "spread": 2.0, "last": "a"}]


AT_ = datetime(2026, 1, 1, tzinfo=UTC)
WORDS = [word for word in KEYWORDS if not LITERAL.fullmatch(word)] + ["now", "pi", "e"]


def test_every_keyword_names_a_column_in_every_operator(job: FolderJob) -> None:
    source = job.rows(event_time="at_")
    all_there = " AND ".join(f"{word} = '{word}'" for word in WORDS)
    as_read = source.where(all_there).select(*WORDS, "at_")
    same = as_read.transform("same", lambda rows: rows).where(all_there).select(*WORDS, "at_")
    keyed = same.key_by(*WORDS)
    keyed.aggregate("totals", n_=agg.count(WORDS[0], where=f"{WORDS[1]} IS NOT NULL")).sink(
        "totals_out", FilesTable(upsert_key=tuple(WORDS))
    )
    largest: dict[str, Any] = {f"{word}_": agg.max(word) for word in WORDS}
    same.key_by(loud="upper(user)").window("hours", Tumbling(timedelta(hours=1)), **largest).sink(
        "hours_out", FilesTable()
    )
    keyed.join("joined", as_read.select(*WORDS).key_by(*WORDS)).sink("joined_out", FilesTable())
    row = {word: [word] * 2 for word in WORDS} | {"at_": [AT_, AT_ + timedelta(hours=3)]}
    job.write("1.parquet", pl.DataFrame(row))

    job.epoch()

    totals, hours, joined = (job.table(f"{sink}_out") for sink in ("totals", "hours", "joined"))
    assert totals.rows(named=True) == [{word: word for word in WORDS} | {"n_": 2}]
    assert hours.select(f"{word}_" for word in WORDS).rows() == [tuple(WORDS)]
    assert joined.select(WORDS).rows() == [tuple(WORDS)] * 4


@pytest.mark.parametrize(
    "condition", ["n >= 0", "length(hex(n)) >= 0"]
)  # Past the JVM, and through it.
def test_a_column_with_a_name_of_ours_is_lost_nowhere(
    tmp_path: Path, spark: SparkSession, condition: str
) -> None:
    """Where sluice has a column of that name it is refused, and renamed it goes through."""
    folder = FolderJob(spark, tmp_path)
    rows = folder.rows()
    rows.where(condition).key_by("n").deduplicate("keyed").sink("keyed_out", FilesTable())
    folder.write("1.parquet", pl.DataFrame({"n": [1], "_hash": ["mine"]}))

    with pytest.raises(ConfigurationError, match="'keyed' reads a column '_hash' of 'rows', a nam"):
        folder.epoch()

    other = FolderJob(spark, tmp_path / "other")
    rows = other.rows()
    with pytest.raises(ConfigurationError, match=r"select\(\) of 'rows' has a column '_deleted'"):
        rows.select("n", "_deleted")
    kept = rows.where(condition).select("n", "_hash AS hash_", "_deleted AS gone")
    kept.transform("same", lambda found: found).sink("same_out", FilesTable())
    kept.select("n", "hash_").key_by("n").deduplicate("keyed").sink("keyed_out", FilesTable())
    other.write("1.parquet", pl.DataFrame({"n": [1], "_hash": ["mine"], "_deleted": [True]}))

    other.epoch()

    assert other.table("same_out").rows(named=True) == [{"n": 1, "hash_": "mine", "gone": True}]
    assert other.table("keyed_out").rows(named=True) == [{"n": 1, "hash_": "mine"}]


ROWS = pl.DataFrame({"k": [1, 2, 3], "v": [1, 2, 30], "user": ["a", "b", "c"]})


@pytest.mark.parametrize("first", ["v AS w", "v + 0 AS w"])  # Without Spark's JVM, and through it.
def test_the_steps_of_a_source_apply_in_the_order_written(job: FolderJob, first: str) -> None:
    source = job.rows()
    renamed = source.where("v < 30").select("k AS v", first, "user").where("v >= 2").select("*")
    renamed.key_by("user").aggregate("sums", w=agg.sum("w"), n=agg.count()).sink(
        "out", FilesTable(upsert_key=("user",))
    )
    job.write("1.parquet", ROWS)

    job.epoch()

    assert job.table("out").rows() == [("b", 2, 1)]


def test_the_steps_behind_a_stage_apply_in_the_order_written(job: FolderJob) -> None:
    source = job.rows()
    sums = source.key_by("user").aggregate("sums", v=agg.sum("v"))
    sums.select("user", "v * 10 AS v").where("v >= 20").select("user", "v + 1 AS v").sink(
        "out", FilesTable(upsert_key=("user",))
    )
    job.write("1.parquet", ROWS)

    job.epoch()

    assert sorted(job.table("out").rows()) == [("b", 21), ("c", 301)]


def test_a_check_knows_the_columns_of_every_step(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = Pipeline("checked")
    ROWS.write_parquet(tmp_path / "1.parquet")
    source = pipeline.source("rows", Files(str(tmp_path), format="parquet"))
    stream: Stream = source.select("*", "v * 2 AS twice").select("user", "twice")
    stream.transform("same", lambda rows: rows).select("user", "twice > 3 AS dear").sink(
        "out", FilesTable()
    )

    result = check_pipeline(pipeline, spark, {}, None)["same"]

    assert result.columns == pl.Schema({"user": pl.String(), "dear": pl.Boolean()})


def test_a_stage_and_a_source_whose_rows_may_be_malformed_are_united(
    job: FolderJob, spark: SparkSession, tmp_path: Path
) -> None:
    source = job.rows()
    (tmp_path / "lines").mkdir()
    files = Files(
        str(tmp_path / "lines"), format="json", schema="k bigint, v string", bounded=False
    )
    lines = job.pipeline.source("lines", files)
    first = source.key_by("k").deduplicate("first")
    first.union("all_rows", lines, source).sink("out", FilesTable())
    job.write("1.parquet", pl.DataFrame({"k": [1, 1], "v": ["a", "b"]}))
    (tmp_path / "lines" / "1.json").write_text('{"k": 2, "v": "c"}\nno json\n')

    job.epoch()

    assert sorted(job.table("out").rows()) == [(1, "a"), (1, "a"), (1, "b"), (2, "c")]
    malformed = open_side_table(job.job, "all_rows.malformed").read().to_pylist()
    assert [(row["partition"], row["record_number"], row["line"]) for row in malformed] == [
        ("1.json", 2, "no json")
    ]
    assert set(check_pipeline(job.pipeline, spark, {}, None)) == {"first", "all_rows"}


UNITED = (
    *("void", "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string"),
    *("date", "timestamp", "binary", "decimal(10,2)", "decimal(12,4)", "decimal(20,0)"),
    *("decimal(38,2)", "decimal(38,38)", "array<int>", "array<bigint>", "array<string>"),
    *("struct<a:int>", "struct<a:bigint>", "struct<b:int>", "struct<a:int,b:int>"),
    *("map<string,int>", "map<string,bigint>", "map<int,int>"),
)


def test_streams_are_united_in_the_types_that_spark_has_for_both(spark: SparkSession) -> None:
    rows = {of: spark.createDataFrame([], f"x {of}") for of in UNITED}
    known = {of: polars_schema(rows[of])["x"] for of in UNITED}
    united = 0
    for one, other in product(UNITED, repeat=2):
        ours = common_type(known[one], known[other])
        if ours is None:
            assert one != other
            assert "void" not in (one, other)
            continue
        united += 1
        assert polars_schema(rows[one].unionByName(rows[other]))["x"] == ours, (one, other)
    assert united > 2 * len(UNITED)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("k", "CAST(k AS string) AS k"),
        ("k", "k / 1 AS k"),
        ("k", "array(k) AS k"),
        ("array(k) AS k", "array('a') AS k"),
        ("named_struct('a', k) AS k", "named_struct('b', k) AS k"),
        ("CAST(k AS decimal(38,0)) AS k", "CAST(k AS decimal(38,38)) AS k"),
    ],
)
def test_columns_that_spark_alone_knows_are_not_united_if_no_type_holds_both(
    job: FolderJob, spark: SparkSession, one: str, other: str
) -> None:
    rows = job.rows()
    first = rows.select(one).transform("first", lambda rows: rows)
    first.union("both", rows.select(other)).sink("out", FilesTable())
    job.write("1.parquet", pl.DataFrame({"k": [1, 2**60 + 1]}))
    refused = "stage 'both' unites column 'k', which is .* in 'first' and .* in 'rows'; "

    with pytest.raises(ConfigurationError, match=refused):
        check_pipeline(job.pipeline, spark, {}, None)

    with pytest.raises(ConfigurationError, match=refused):
        job.epoch()


def test_integers_of_two_widths_and_dates_with_instants_are_united(job: FolderJob) -> None:
    rows = job.rows()
    small = rows.where("k < 9").select("CAST(k AS int) AS k", "date(at) AS at", "1.5F AS x")
    small.transform("small", lambda rows: rows).union("both", rows.select("k", "at", "x")).sink(
        "out", FilesTable()
    )
    job.write("1.parquet", pl.DataFrame({"k": [1, 2**60 + 1], "at": [AT, AT], "x": [0.1, 0.2]}))

    job.epoch()

    day = AT.replace(hour=0, minute=0, second=0, microsecond=0)
    assert sorted(job.table("out").rows()) == [
        (1, day, 1.5),
        (1, AT, 0.1),
        (2**60 + 1, AT, 0.2),
    ]


def test_what_a_table_has_in_another_type_is_not_found_by_its_spelling(
    job: FolderJob, spark: SparkSession, tmp_path: Path
) -> None:
    pl.DataFrame({"code": ["1", "01"], "name": ["a", "b"]}).write_parquet(tmp_path / "t.parquet")
    table = job.pipeline.source(
        "names", Files(str(tmp_path / "t.parquet"), format="parquet"), table=True
    )
    same = job.rows().transform("same", lambda rows: rows)
    same.lookup("named", table, on={"k": "code"}, add=("name",)).sink("out", FilesTable())
    job.write("1.parquet", pl.DataFrame({"k": [1]}))
    refused = "lookup 'named' compares 'k', which is bigint, with what is string in the table"

    with pytest.raises(ConfigurationError, match=refused):
        check_pipeline(job.pipeline, spark, {}, None)

    with pytest.raises(ConfigurationError, match=refused):
        job.epoch()


@pytest.mark.parametrize(
    ("declare", "told"),
    [
        (
            lambda rows: rows.key_by("usr").aggregate("t", n=agg.count()),
            "stage 't' has no column 'usr' for its key; did you mean 'user'? its columns are: k, ",
        ),
        (
            lambda rows: rows.key_by(day="date(att)").aggregate("t", n=agg.count()),
            "stage 't' has no column 'att' in its key 'day', 'date(att)'; did you mean 'at'? its c",
        ),
        (
            lambda rows: rows.key_by("k").aggregate("t", n=agg.sum("usr * 2")),
            "stage 't' has no column 'usr' in an aggregate, 'usr * 2'; did you mean 'user'? its co",
        ),
        (
            lambda rows: rows.key_by("k").aggregate("t", n=agg.count(where="usr > 2")),
            "stage 't' has no column 'usr' in where=, 'usr > 2'; did you mean 'user'? its columns ",
        ),
    ],
)
def test_a_column_that_a_function_does_not_yield_is_told_in_our_words(
    job: FolderJob, spark: SparkSession, declare: Callable[[Stream], Stream], told: str
) -> None:
    declare(job.rows().transform("same", lambda rows: rows).disable_chaining()).sink(
        "out", FilesTable(changelog=True)
    )
    job.write("1.parquet", pl.DataFrame({"k": [1], "user": [2], "at": [AT]}))

    with pytest.raises(ConfigurationError) as when_checked:
        check_pipeline(job.pipeline, spark, {}, None)
    with pytest.raises(ConfigurationError) as when_run:
        job.epoch()

    assert str(when_checked.value).startswith(told)
    assert told in str(when_run.value)


@pytest.mark.parametrize("is_plain", [True, False])  # Without Spark's JVM, and through it.
def test_a_column_of_no_known_type_may_be_left_out(job: FolderJob, *, is_plain: bool) -> None:
    for number, kind in enumerate((pa.null(), pa.int64(), pa.time64("us"))):
        table = pa.table({"x": pa.array([None], kind), "id": [number], "mix": [10]})
        job.write(f"{number}.parquet", table)
    rows = job.rows().where("id >= 0").select("id", "mix" if is_plain else "mix + 0 AS mix")
    rows.key_by("id").aggregate("a", s=agg.sum("mix")).sink("out", FilesTable(upsert_key=("id",)))
    if not is_plain:
        rows.transform("same", lambda rows: rows).sink("all_rows", FilesTable())

    job.epoch()

    assert sorted(job.table("out").rows()) == [(0, 10), (1, 10), (2, 10)]
    assert is_plain or sorted(job.table("all_rows").rows()) == [(0, 10), (1, 10), (2, 10)]


def test_a_variant_is_refused_where_it_leaves_spark(job: FolderJob, spark: SparkSession) -> None:
    job.write("1.parquet", pa.table({"x": ["1"]}))
    rows = job.rows().select("x", "array(parse_json(x)) AS v")
    inside = rows.transform("inside", lambda rows: rows.selectExpr("x", "to_json(v) AS v"))
    inside.sink("fine", FilesTable())
    check_pipeline(job.pipeline, spark, {}, None)
    rows.transform("same", lambda rows: rows).sink("out", FilesTable())

    with pytest.raises(ConfigurationError, match=r"'v' of stage 'same' .* \"to_json\(v\) AS v\""):
        check_pipeline(job.pipeline, spark, {}, None)
