"""The table of transitions is true: each change of a declaration is played on Spark.

A job takes an epoch as it was declared before and one as it is declared then.  What is *same*,
*taken over* or *recomputed* ends as if it had been declared so from the beginning; what *begins
anew* as if there had been the later rows alone; what is *kept* as if the later rows had come as
they are read now.  What is refused is let through by force, and ends as none of these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import polars as pl
import pytest

from sluice.coordinator import compatibility
from sluice.coordinator.compatibility import require_same_chain
from sluice.coordinator.restore import restore
from sluice.coordinator.submission import configure, reconfigure, submit
from sluice.core import restoring
from sluice.core.ids import CheckpointId
from sluice.core.restoring import (
    Choice,
    Latest,
    RestoreOptions,
    changes_since,
    recomputed_since,
)
from sluice.core.transitions import (
    TRANSITIONS,
    Becomes,
    Consent,
    PartChange,
    PartDifference,
    begins_with,
    row_of,
)
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.fingerprints import fingerprints
from sluice.declaration.keyed_functions import Context, KeyedProcessFunction, Row
from sluice.declaration.keyed_states import MapState
from sluice.declaration.operations import KeyedAggregate, Tumbling, Window
from sluice.declaration.pipeline import Pipeline, Stream
from sluice.declaration.results import Replace, Upsert
from sluice.errors import ConfigurationError, RestoreError
from sluice.exchange.faults import FAULT_VARIABLE
from sluice.job.job import Job, open_job
from sluice.job.lineage import lineage_of_tip
from sluice.job.places import open_sinks
from sluice.local.driver import EpochDriver
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.state.segments import to_frame
from sluice.store.open import StoreLocation
from tests.examples import slow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START, MINUTE, DAY = datetime(2026, 1, 1, tzinfo=UTC), timedelta(minutes=1), timedelta(days=1)
MILLISECOND = timedelta(milliseconds=1)
CHANGED = PartDifference.CHANGED
BY_K = FilesTable(upsert_key=("k",))
BY_K_V = FilesTable(upsert_key=("k", "v"))


@dataclass(frozen=True, slots=True)
class Rows:
    """The sources of a declaration; what it reads *is_updated*: the newest row of each user, which
    its stage *forgets*.
    """

    pipeline: Pipeline
    folder: Path
    is_updated: bool
    forgets: bool = False

    def stream(self, event_time: str = "at", bound: timedelta = timedelta(0)) -> Stream:
        spec = Files(str(self.folder), format="parquet", bounded=False)
        if not self.is_updated:
            return self.pipeline.source("rows", spec, event_time=event_time, out_of_orderness=bound)
        rows = self.pipeline.source("rows", spec, event_time="at")
        ttl = timedelta(days=30) if self.forgets else None
        newest = rows.key_by("u").latest("newest", by="n", ttl=ttl)
        return newest.event_time(event_time, out_of_orderness=bound)

    def names(self) -> Stream:
        spec = Files(str(self.folder), format="parquet", bounded=False)
        return self.pipeline.source("names", spec, table=True)


Declaration: TypeAlias = Callable[[Rows], None]


@dataclass(frozen=True, slots=True)
class Case:
    """Two declarations; *later* has the later rows as *before* would have to read them."""

    before: Declaration
    after: Declaration
    later: Callable[[pl.DataFrame], pl.DataFrame] = lambda rows: rows
    is_updated: bool = False


def rows_of(numbers: range, users: int) -> pl.DataFrame:
    """The first three users move between keys, and values go up and down."""
    columns = {
        "u": [i % users for i in numbers],
        "k": [9 if i % users >= 3 else i * i % 11 % 3 for i in numbers],
        "x": [i * 37 % 23 for i in numbers],
        "n": [*numbers],
        "at": [START + i * MINUTE for i in numbers],
        "then": [START + (500 - i * 7 % 40) * MINUTE for i in numbers],
    }
    instant = pl.Datetime("us", "UTC")
    return pl.DataFrame(columns, schema_overrides={"at": instant, "then": instant})


# Four users, and their key, do not come again.
EARLIER, LATER = rows_of(range(20), 7), rows_of(range(20, 41), 3)
ALL = pl.concat([EARLIER, LATER])


def aggregate(**columns: agg.Aggregate) -> Declaration:
    def declare(rows: Rows) -> None:
        computed = rows.stream().key_by("k").stage("stage", KeyedAggregate(aggregates=columns))
        computed.sink("out", BY_K)

    return declare


def projected(**columns: agg.Aggregate) -> Declaration:
    def declare(rows: Rows) -> None:
        stream = rows.stream().select("k", "x", "n * 2 AS y", "n", "at")
        computed = stream.key_by("k").stage("stage", KeyedAggregate(aggregates=columns))
        computed.sink("out", BY_K)

    return declare


def count_of(condition: str = "", key: str = "k", ttl: timedelta | None = None) -> Declaration:
    def declare(rows: Rows) -> None:
        stream = rows.stream()
        stream = stream.where(condition) if condition else stream
        counted = stream.key_by(k=key).aggregate("stage", ttl=ttl, v=agg.count())
        counted.sink("out", BY_K)

    return declare


def count_by(text: str) -> Declaration:
    """Counts by a key that is selected before, as *text*."""

    def declare(rows: Rows) -> None:
        counted = rows.stream().select(f"{text} AS k").key_by("k").aggregate("stage", v=agg.count())
        counted.sink("out", BY_K)

    return declare


def in_place(location: Callable[[Path], str]) -> Declaration:
    def declare(rows: Rows) -> None:
        spec = Files(location(rows.folder), format="parquet", bounded=False)
        counted = rows.pipeline.source("rows", spec).key_by("k").aggregate("stage", v=agg.count())
        counted.sink("out", BY_K)

    return declare


def latest(by: str) -> Declaration:
    def declare(rows: Rows) -> None:
        newest = rows.stream().select("k", "x AS v", "x", "n").key_by("k").latest("stage", by=by)
        newest.sink("out", BY_K)

    return declare


def last(event_time: str, bound: timedelta = timedelta(0)) -> Declaration:
    def declare(rows: Rows) -> None:
        keyed = rows.stream(event_time, bound).key_by("k")
        keyed.aggregate("stage", v=agg.last("x")).sink("out", BY_K)

    return declare


def top(
    n: int, by: str, ties_by: str | tuple[str, ...] = "n", unique: str | tuple[str, ...] = ()
) -> Declaration:
    def declare(rows: Rows) -> None:
        ranked = rows.stream().key_by("k").top_n("stage", n, by=by, ties_by=ties_by, unique=unique)
        ranked.sink("out", FilesTable(upsert_key=("k", "rank")))

    return declare


def best_in_windows(n: int) -> Declaration:
    def declare(rows: Rows) -> None:
        best = rows.stream().key_by("k").window_top_n("stage", Tumbling(15 * MINUTE), n, by="x")
        best.sink("out", FilesTable(upsert_key=("k", "window_start", "rank")))

    return declare


def ranked_apart(n: int, by: str = "x") -> Declaration:
    """Ranks in a table of changes, and counts of them; what forgets cannot be read again."""

    def declare(rows: Rows) -> None:
        spec = Files(str(rows.folder), format="parquet", bounded=False)
        newest = rows.pipeline.source("rows", spec).key_by("u").latest("newest", by="n", ttl=DAY)
        ranked = newest.key_by("k").top_n("stage", n, by=by, ties_by="n")
        ranked.sink("log", FilesTable(changelog=True))
        ranked.key_by("x").aggregate("sizes", v=agg.count(), w=agg.max("n")).sink(
            "out", FilesTable(upsert_key=("x",))
        )

    return declare


def windows(window: Window, late: timedelta = timedelta(0), **source: Any) -> Declaration:
    def declare(rows: Rows) -> None:
        keyed = rows.stream(**source).key_by("k")
        counted = keyed.window("stage", window, allowed_lateness=late, v=agg.count())
        counted.sink("out", FilesTable(upsert_key=("k", "window_start")))

    return declare


def appended_windows(rows: Rows) -> None:
    counted = rows.stream().key_by("k").window("stage", Tumbling(10 * MINUTE), v=agg.count())
    counted.sink("out", FilesTable())


def join(how: Any) -> Declaration:
    def declare(rows: Rows) -> None:
        stream = rows.stream()
        left = stream.where("x < 9").select("k", "x").key_by("k")
        right = stream.where("x >= 9").select("k", "n").key_by("k")
        joined = left.join("stage", right, how=how).select("k", "x")
        joined.sink("out", FilesTable(changelog=rows.is_updated))

    return declare


def paired(how: Any, *, is_counted: bool = True) -> Declaration:
    """A join of rows of which some have no key, and counts of it, or its changes."""

    def declare(rows: Rows) -> None:
        stream = rows.stream()
        left = stream.where("x < 12").select("IF(n % 5 = 0, NULL, k) AS k", "x").key_by("k")
        others = stream.where("x >= 9 AND k <> 1")
        right = others.select("IF(n % 4 = 0, NULL, k) AS k", "n").key_by("k")
        joined = left.join("stage", right, how=how)
        if is_counted:
            sums = {"v": agg.count(), "x": agg.sum("x"), "n": agg.sum("n")}
            summed = joined.key_by("k").stage("sums", KeyedAggregate(aggregates=sums))
            summed.sink("out", BY_K)
        else:
            joined.sink("out", FilesTable(changelog=True))

    return declare


def changes_of(how: Any) -> Declaration:
    return paired(how, is_counted=False)


def interval(upper: timedelta) -> Declaration:
    def declare(rows: Rows) -> None:
        left = rows.stream()
        right = left.where("x >= 9").select("k", "x AS y", "at").key_by("k")
        joined = left.key_by("k").interval_join("stage", right, upper=upper)
        joined.select("k", "n", "y").sink("out", FilesTable())

    return declare


def lookup(keep: Any) -> Declaration:
    def declare(rows: Rows) -> None:
        table = rows.names().where("x > 19")
        rows.stream().lookup("stage", table, on="k", keep=keep).key_by("k").aggregate(
            "total", v=agg.count()
        ).sink("out", BY_K)

    return declare


def shown(condition: str, *columns: str) -> Declaration:
    def declare(rows: Rows) -> None:
        newest = rows.stream().key_by("k").latest("stage", by="n")
        rows_shown = newest.where(condition)
        rows_shown = rows_shown.select("k", *columns) if columns else rows_shown
        rows_shown.sink("out", BY_K)

    return declare


def firsts(shown_of: str) -> Declaration:
    """First rows by two orders, of which a table has those of one."""

    def declare(rows: Rows) -> None:
        stream = rows.stream()
        for uid, by in (("stage", "n"), ("other", "x")):
            kept = stream.key_by("k").deduplicate(uid, by=by)
            kept.sink(f"{uid}_log", FilesTable())
            if uid == shown_of:
                kept.sink("out", BY_K)

    return declare


def counted(rows: pl.DataFrame, state: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    new = rows.group_by("k").agg(v=pl.len().cast(pl.Int64))
    both = pl.concat([new, state.select("k", "v")]).group_by("k").agg(pl.col("v").sum())
    return both, both


def counted_twice(rows: pl.DataFrame, state: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    return counted(pl.concat([rows, rows]), state)


def process(function: Any, version: str) -> Declaration:
    def declare(rows: Rows) -> None:
        kept = {"k": int, "v": int}
        totals = (
            rows.stream()
            .key_by("k")
            .process("stage", function, state={"v": int}, result=kept, version=version)
        )
        totals.key_by("k").latest("newest", by="v").sink("out", BY_K)

    return declare


def totalled(rows: DataFrame, previous: DataFrame) -> DataFrame:
    new = rows.groupBy("k").count().toDF("k", "v")
    return previous.unionByName(new).groupBy("k").sum("v").toDF("k", "v")


def totalled_twice(rows: DataFrame, previous: DataFrame) -> DataFrame:
    return totalled(rows.unionByName(rows), previous)


def spark_code(*given: Any, by: FilesTable = BY_K, **options: Any) -> Declaration:
    def declare(rows: Rows) -> None:
        code(rows, *given, **options).sink("out", by)

    return declare


def behind_spark_code(**columns: agg.Aggregate) -> Declaration:
    def declare(rows: Rows) -> None:
        keyed = code(rows, uid="code").key_by(k="k % 2")
        keyed.stage("stage", KeyedAggregate(aggregates=columns)).sink("out", BY_K)

    return declare


def code(
    rows: Rows,
    function: Any = totalled,
    version: str = "1",
    condition: str = "true",
    result: Upsert | Replace = Replace("k"),  # noqa: B008 - it never changes
    uid: str = "stage",
) -> Stream:
    spec = Files(str(rows.folder), format="parquet", bounded=False)
    return rows.pipeline.spark(
        uid,
        function,
        reads={"rows": rows.pipeline.source("rows", spec).where(condition)},
        schema="k bigint, v bigint",
        result=result,
        version=version,
    )


Cases: TypeAlias = dict[tuple[str | None, PartDifference], Case]
# Changes of what reads any rows.
ANY: Cases = {
    ("operator", CHANGED): Case(latest("n"), aggregate(v=agg.count())),
    (None, PartDifference.ADDED): Case(
        aggregate(v=agg.count()), aggregate(v=agg.count(), w=agg.sum("x"))
    ),
    (None, PartDifference.MEAN): Case(
        aggregate(v=agg.sum("x", where="x > 3"), w=agg.count("x", where="x > 3")),
        aggregate(
            v=agg.sum("x", where="x > 3"),
            w=agg.count("x", where="x>3"),
            m=agg.avg("x", where="x > 3"),
        ),
    ),
    (None, PartDifference.RENAMED): Case(
        aggregate(v=agg.count(), w=agg.sum("x")), aggregate(v=agg.count(), total=agg.sum("x"))
    ),
    (None, CHANGED): Case(
        aggregate(v=agg.count(), w=agg.sum("x")), aggregate(v=agg.count(), w=agg.max("x"))
    ),
    (None, PartDifference.REMOVED): Case(
        aggregate(v=agg.sum("x"), w=agg.count()), aggregate(v=agg.sum("x"))
    ),
    ("keys", CHANGED): Case(count_of(), count_of(key="u % 3")),
    ("input", CHANGED): Case(
        count_of(), count_of("x > 9"), lambda rows: rows.filter(pl.col("x") > 9)
    ),
    ("event time", CHANGED): Case(
        last("at"), last("then"), lambda rows: rows.with_columns(at="then")
    ),
    ("out of orderness", CHANGED): Case(last("at"), last("at", 3 * MINUTE)),
    ("ttl", CHANGED): Case(count_of(ttl=60 * MINUTE), count_of(ttl=90 * MINUTE)),
    ("n", PartDifference.SMALLER): Case(top(3, "x"), top(1, "x")),
    ("n", PartDifference.LARGER): Case(top(1, "x"), top(3, "x")),
    ("by", CHANGED): Case(latest("x"), latest("n")),
    ("ties", CHANGED): Case(top(2, "k"), top(2, "k", ties_by="x")),
    ("unique", CHANGED): Case(top(2, "k", (), unique="n"), top(2, "k", (), unique="x")),
    ("how", PartDifference.OUTER): Case(paired("left"), paired("full")),
    ("how", PartDifference.INNER): Case(paired("inner"), paired("left")),
    ("how", CHANGED): Case(join("inner"), join("semi")),
}
APPEND: Cases = ANY | {
    ("n", CHANGED): Case(best_in_windows(3), best_in_windows(1)),
    ("function", CHANGED): Case(
        process(counted, "1"), process(counted_twice, "2"), lambda rows: pl.concat([rows, rows])
    ),
    ("window", CHANGED): Case(windows(Tumbling(10 * MINUTE)), windows(Tumbling(2 * MINUTE))),
    ("allowed lateness", CHANGED): Case(
        windows(Tumbling(10 * MINUTE), MINUTE), windows(Tumbling(10 * MINUTE), 3 * MINUTE)
    ),
    ("bounds", CHANGED): Case(interval(3 * MINUTE), interval(9 * MINUTE)),
    ("rows", CHANGED): Case(firsts("stage"), firsts("other")),
    # The same folder by another name.
    ("place", CHANGED): Case(in_place(str), in_place(lambda folder: f"{folder}/../{folder.name}")),
}  # fmt: skip
UPDATES: Cases = ANY | {
    ("table", CHANGED): Case(lookup("matched"), lookup("unmatched")),
    ("rows", CHANGED): Case(shown("x > 3"), shown("x > 15")),
    ("columns", CHANGED): Case(shown("k < 99", "x + 1 AS x"), shown("k < 99", "n", "x * 2 AS y")),
}
# Other declarations of the same rows of the table: whether over updates, and the case.
OUTER, INNER = ("how", PartDifference.OUTER), ("how", PartDifference.INNER)
SMALLER, LARGER = ("n", PartDifference.SMALLER), ("n", PartDifference.LARGER)
REMOVED = (None, PartDifference.REMOVED)
MORE: dict[str, tuple[bool, tuple[str | None, PartDifference], Case]] = {
    "keys selected": (
        False, ("keys", CHANGED), Case(count_by("k"), count_by("u % 3"))
    ),
    "keys selected over updates": (
        True, ("keys", CHANGED), Case(count_by("k"), count_by("u % 3"))
    ),
    "column removed that alone reads a projected one": (
        False,
        REMOVED,
        Case(
            projected(v=agg.sum("x"), w=agg.max("y"), z=agg.last("n")),
            projected(v=agg.sum("x"), z=agg.last("n")),
        ),
    ),
    "column removed that alone goes by event time": (
        True,
        REMOVED,
        Case(
            projected(v=agg.sum("x"), w=agg.last("y")),
            projected(v=agg.sum("x")),
        ),
    ),
    "mean of a sum that is called so in another case": (
        False,
        (None, PartDifference.MEAN),
        Case(
            aggregate(V=agg.sum("x"), W=agg.count("x")),
            aggregate(v=agg.sum("x"), w=agg.count("x"), m=agg.avg("x")),
        ),
    ),
    "column that is called so in another case": (
        False,
        (None, CHANGED),
        Case(
            aggregate(v=agg.count(), W=agg.count_distinct("x")),
            aggregate(v=agg.count(), w=agg.count_distinct("n")),
        ),
    ),
    "n smaller of versions": (
        False, SMALLER, Case(top(3, "n", (), unique="u"), top(1, "n", (), unique="u"))
    ),
    "n smaller, and changes of it": (True, SMALLER, Case(ranked_apart(3), ranked_apart(2))),
    "n larger, and changes of it": (True, LARGER, Case(ranked_apart(1), ranked_apart(2))),
    "how from right to left": (True, OUTER, Case(changes_of("right"), changes_of("left"))),
    "how from full to left of added rows": (
        False, OUTER, Case(changes_of("full"), changes_of("left"))
    ),
    "how from full to inner": (True, INNER, Case(changes_of("full"), changes_of("inner"))),
    "how from inner to full": (True, INNER, Case(changes_of("inner"), changes_of("full"))),
    "how from right to inner": (True, INNER, Case(paired("right"), paired("inner"))),
    "another order, and changes of it": (
        True, ("by", CHANGED), Case(ranked_apart(2), ranked_apart(2, by="n"))
    ),
}  # fmt: skip
# The same of Spark code, and of what reads the result that it holds.
SPARK_CODE: Sequence[tuple[bool, tuple[str | None, PartDifference], Case]] = (
    (
        False,
        ("function", CHANGED),
        Case(
            spark_code(),
            spark_code(totalled_twice, "2"),
            lambda rows: pl.concat([rows, rows]),
        ),
    ),
    (
        False,
        ("input", CHANGED),
        Case(
            spark_code(),
            spark_code(condition="x > 9"),
            lambda rows: rows.filter(pl.col("x") > 9),
        ),
    ),
    (False, ("operator", CHANGED), Case(spark_code(), spark_code(result=Upsert("k")))),
    (
        False,
        ("keys", CHANGED),
        Case(spark_code(by=BY_K_V), spark_code(by=BY_K_V, result=Replace(("k", "v")))),
    ),
    (
        True,
        (None, CHANGED),
        Case(behind_spark_code(n=agg.count()), behind_spark_code(n=agg.sum("v"))),
    ),
)
CASES = (
    [pytest.param(*case, id=name) for name, case in MORE.items()]
    + [
        pytest.param(
            is_updated,
            key,
            case,
            id=f"{key[0] or 'column'} {key[1]}{' over updates' * is_updated}",
            marks=[slow] * (not is_updated and key in UPDATES),
        )
        for is_updated, cases in ((False, APPEND), (True, UPDATES))
        for key, case in cases.items()
    ]
    + [
        pytest.param(is_updated, key, case, id=f"{key[0] or 'column behind'} of Spark code")
        for is_updated, key, case in SPARK_CODE
    ]
)


def is_recomputed(key: tuple[str | None, PartDifference]) -> bool:
    row = row_of(*key)
    return row is not None and row.updates is Becomes.RECOMPUTED


BY_RESTORES = ((PartDifference.SENDER,), (PartDifference.ABSENT,))


def test_every_row_of_the_table_is_played() -> None:
    said = {
        (is_updated, row.part, row.differences)
        for row in TRANSITIONS
        for is_updated, becomes in ((False, row.append), (True, row.updates))
        # What two restores, or a ttl that passes, bring about is played by tests of its own.
        if becomes is not None and row.differences not in BY_RESTORES and row.part != "partners"
    }

    played = {
        (is_updated, key[0], row.differences)
        for is_updated, cases in ((False, APPEND), (True, UPDATES))
        for key in cases
        if (row := row_of(*key)) is not None
    }
    assert played == said
    assert {of for part, of in APPEND if part is None} >= {
        PartDifference.ADDED, CHANGED, PartDifference.REMOVED
    }  # fmt: skip


@pytest.mark.parametrize(("is_updated", "key", "case"), CASES)
def test_a_change_does_what_the_table_says(
    *,
    is_updated: bool,
    key: tuple[str | None, PartDifference],
    case: Case,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def batch(declare: Declaration, rows: pl.DataFrame) -> pl.DataFrame:
        folder = tmp_path / f"batch{len([*tmp_path.iterdir()])}"
        job = job_of(folder, declare, is_updated=is_updated)
        submit(job, configure(job.pipeline, {}))
        return take(job, spark, rows, drain=True)

    old = job_of(tmp_path / "job", case.before, is_updated=is_updated)
    submit(old, configure(old.pipeline, {}))
    before = take(old, spark, EARLIER)
    job = job_of(tmp_path / "job", case.after, is_updated=is_updated)
    change = change_of(job)
    assert (change.part, change.difference) == key
    assert change.row is not None
    assert change.becomes is (change.row.updates if is_updated else change.row.append)

    if change.becomes in (Becomes.SAME, Becomes.TAKEN_OVER, Becomes.RECOMPUTED):
        restore(job, Latest())
    else:
        refuses(job, change)
    match change.becomes:
        case Becomes.SAME | Becomes.TAKEN_OVER | Becomes.RECOMPUTED:
            after = take(job, spark, LATER, drain=True)
            right = batch(case.after, ALL)
            assert counter(after.select(right.columns)) == counter(right)
        case Becomes.KEPT:
            restore(job, Latest(), RestoreOptions(consent=Consent(kept=(change.uid,))))
            after = take(job, spark, LATER, drain=True)
            right = batch(case.before, pl.concat([EARLIER, case.later(LATER)]))
            assert counter(after) == counter(right)
        case Becomes.BEGUN_ANEW:
            begun = frozenset({change.target})
            if change.column is None:
                begun = begins_with(change.uid, fingerprints(job.pipeline, {}))
            restore(job, Latest(), RestoreOptions(consent=Consent(begun=tuple(sorted(begun)))))
            after = take(job, spark, LATER, drain=True)
            begins_from(after, before, batch(case.after, LATER), change.column)
            if change.column is not None:
                whole = batch(case.after, ALL).drop(change.column)
                assert counter(after.select(whole.columns)) == counter(whole)
        case Becomes.REFUSED:
            right = batch(case.after, ALL)
            monkeypatch.setattr(restoring, "problems_of", lambda *_: [])
            monkeypatch.setattr(compatibility, "problems_of", lambda *_: [])
            assert forced(job, spark) != counter(right)


@pytest.mark.parametrize("is_updated", [False, True])
def test_a_name_in_another_case_is_the_same(
    is_updated: bool,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    def declared(folder: str, key: str) -> Job:
        def declare(rows: Rows) -> None:
            def spelt(name: str) -> str:
                return name if key == "k" else name.upper()

            stream, x = rows.stream(spelt("at")), spelt("x")
            aggregates = {
                "n": agg.count(),
                "s": agg.sum(x),
                "d": agg.count_distinct(x),
                "least": agg.first(x, by=x),
                "median": agg.percentile(x, 0.5),
            }
            held = stream.key_by(key).stage(
                "held",
                KeyedAggregate(aggregates={spelt(n): of for n, of in aggregates.items()}),
            )
            held.sink("out", BY_K)
            right = stream.where("n % 3 = 0").select("k", "n", "at").key_by(key)
            pairs = stream.select("k", "x", "at").key_by(key).join("pairs", right, how="left")
            pairs.key_by(key).aggregate("sums", v=agg.count(), w=agg.max("right_at")).sink(
                "paired", BY_K
            )
            best = stream.key_by(key).top_n("top", 2, by="n")
            best.sink("best", FilesTable(upsert_key=(key, "rank")))
            last = stream.select("k", f"x AS {x}").key_by(key).latest("last", by=x)
            last.sink("is_last", FilesTable(upsert_key=(key,)))

        return job_of(tmp_path / folder, declare, is_updated=is_updated)

    old, right = declared("job", "k"), declared("batch", "k")
    for job in (old, right):
        submit(job, configure(job.pipeline, {}))
    take(old, spark, EARLIER)

    job = declared("job", "K")
    restore(job, Latest())
    take(job, spark, LATER, drain=True)

    take(right, spark, ALL, drain=True)
    assert tables_of(job) == tables_of(right)


@pytest.mark.parametrize(
    "key",
    [key for key in ANY if is_recomputed(key)],
    ids=lambda key: f"{key[0] or 'column'} {key[1]}",
)
def test_what_is_recomputed_is_refused_where_the_rows_are_not_held(
    key: tuple[str | None, PartDifference],
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def declared(folder: str, declare: Declaration) -> Job:
        job = job_of(tmp_path / folder, declare, is_updated=True, forgets=True)
        submit(job, configure(job.pipeline, {}))
        return job

    old, fresh = declared("job", ANY[key].before), declared("batch", ANY[key].after)
    take(old, spark, EARLIER)
    job = job_of(tmp_path / "job", ANY[key].after, is_updated=True, forgets=True)
    change = change_of(job)

    assert change.becomes is Becomes.REFUSED
    refuses(job, change)
    monkeypatch.setattr(restoring, "problems_of", lambda *_: [])
    monkeypatch.setattr(compatibility, "problems_of", lambda *_: [])
    assert forced(job, spark) != counter(take(fresh, spark, ALL, drain=True))


def counting(ttl: timedelta) -> Declaration:
    """A count by key, of which the function's own state has a *ttl*."""

    class Counting(KeyedProcessFunction):
        seen = MapState(str, int, ttl=ttl)

        def process(self, row: Row, context: Context) -> Iterable[Row]:
            self.seen.put("rows", self.seen.get("rows", 0) + 1)
            yield {"k": row["k"], "v": self.seen.get("rows")}

    def declare(rows: Rows) -> None:
        result = {"k": int, "v": int}
        keyed = rows.stream().key_by("k")
        keyed.process_keyed("stage", Counting(), result=result, version="1").sink(
            "out", FilesTable()
        )

    return declare


def test_what_has_expired_by_the_ttl_of_a_state_does_not_come_back_by_a_longer_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    old, fresh = (job_of(tmp_path / of, counting(MILLISECOND), is_updated=False) for of in "ab")
    for job in (old, fresh):
        submit(job, configure(job.pipeline, {}))
    before = take(old, spark, EARLIER)
    job = job_of(tmp_path / "a", counting(DAY), is_updated=False)
    assert change_of(job).becomes is Becomes.TAKEN_OVER

    restore(job, Latest())
    after = take(job, spark, LATER)

    assert counter(after) - counter(before) == counter(take(fresh, spark, LATER))
    begun = counter(take(job, spark, LATER)) - counter(after)
    assert begun
    assert all(v != 1 for _, v in begun), "the longer one holds from then on"


SUMMED = {"v": agg.sum("y"), "w": agg.count("y")}
MEANS = {
    "of floats": ("y / 4D", False),
    "of decimals": ("y * 0.25", False),
    "of floats over updates": ("y / 4D", True),
    "of decimals over updates": ("y * 0.25", True),
}


@pytest.mark.parametrize("values", MEANS)
def test_a_mean_is_that_of_the_sum_and_the_count_beside_it(
    values: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Also in a table of changes, and for what counts the rows; some groups have no value."""
    text, is_updated = MEANS[values]

    def declared(folder: str, **columns: agg.Aggregate) -> Job:
        def declare(rows: Rows) -> None:
            known = f"IF(n % 9 < 4 OR k = 9, NULL, {text.replace('y', 'x')})"
            stream = rows.stream().select("k", "n", f"{known} AS y").key_by("k")
            computed = stream.stage("stage", KeyedAggregate(aggregates=SUMMED | columns))
            computed.sink("log", FilesTable(changelog=True))
            computed.key_by("w").aggregate("sizes", groups=agg.count()).sink(
                "sizes_out", FilesTable(upsert_key=("w",))
            )
            computed.sink("out", BY_K)

        return job_of(tmp_path / folder, declare, is_updated=is_updated, forgets=True)

    old, fresh = declared("job"), declared("batch", m=agg.avg("y"))
    submit(old, configure(old.pipeline, {}))
    take(old, spark, EARLIER)
    job = declared("job", m=agg.avg("y"))
    restore(job, Latest())
    submit(fresh, configure(fresh.pipeline, {}))
    take(fresh, spark, EARLIER)
    for rows in (LATER.clear(), LATER.head(3), LATER.tail(-3)):
        take(job, spark, rows)
        if rows.height:
            take(fresh, spark, rows)
        shown, right = tables_of(job), tables_of(fresh)
        assert shown["out"] == right["out"]
        assert shown["sizes_out"] == right["sizes_out"]


def test_a_mean_of_a_sum_that_began_anew_is_not_taken_over(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The sum says what came since, and the count does not; whatever became of both later."""

    def declared(**columns: agg.Aggregate) -> Job:
        return job_of(tmp_path, aggregate(v=agg.count("x"), **columns), is_updated=False)

    old = declared()
    submit(old, configure(old.pipeline, {}))
    take(old, spark, EARLIER)
    since = declared(w=agg.sum("x"))
    restore(since, Latest(), RestoreOptions(consent=Consent(begun=("stage.w",))))
    take(since, spark, LATER.head(5))
    take(since, spark, LATER.slice(5, 5))

    change = change_of(declared(w=agg.sum("x"), m=agg.avg("x")))
    assert (change.difference, change.becomes) == (PartDifference.ADDED, Becomes.BEGUN_ANEW)


FORMS = {
    "values of its own": (agg.sum("x"), agg.count_distinct("x")),
    "other values": (agg.count_distinct("x"), agg.count_distinct("u")),
    "all values": (agg.max("x"), agg.percentile("x", 0.5)),
    "several columns of state": (agg.max("x"), agg.avg("x")),
    "one column of state": (agg.avg("x"), agg.min("x")),
    "an order": (agg.count("x"), agg.last("x", by="n")),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_column_begins_anew_whatever_it_keeps(
    form: str, spark: SparkSession, tmp_path: Path
) -> None:
    before, after = FORMS[form]
    name = after.kind.value

    def declared(folder: str, column: agg.Aggregate) -> Job:
        def declare(rows: Rows) -> None:
            computed = rows.stream().key_by("k").aggregate("stage", v=agg.count(), w=column)
            computed.select("k", "v", f"w AS {column.kind.value}_").sink("out", BY_K)

        return job_of(tmp_path / folder, declare, is_updated=False)

    old, later = declared("job", before), declared("later", after)
    submit(later, configure(later.pipeline, {}))
    right = take(later, spark, LATER)
    submit(old, configure(old.pipeline, {}))
    take(old, spark, EARLIER)
    job = declared("job", after)
    restore(job, Latest(), RestoreOptions(consent=Consent(begun=("stage.w",))))
    take(job, spark, LATER.head(7))
    shown = take(job, spark, LATER.tail(-7)).filter(pl.col("k") < 9)

    assert counter(shown.select("k", f"{name}_")) == counter(right.select("k", f"{name}_"))
    counts = ALL.filter(pl.col("k") < 9).group_by("k").agg(v=pl.len().cast(pl.Int64))
    assert counter(shown.select("k", "v")) == counter(counts)


def test_a_column_that_begins_anew_is_shown_so_in_all_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Where nothing is counted yet, too: the table does not go on with what it was."""

    def declared(column: agg.Aggregate) -> Job:
        return job_of(tmp_path, aggregate(v=agg.count(), w=column), is_updated=False)

    old = declared(agg.stddev("x"))
    submit(old, configure(old.pipeline, {}))
    take(old, spark, EARLIER)
    job = declared(agg.variance("x"))
    restore(job, Latest(), RestoreOptions(consent=Consent(begun=("stage.w",))))
    shown = take(job, spark, LATER.head(1))

    assert shown["w"].to_list() == [None] * 4
    assert shown["v"].sum() == EARLIER.height + 1


def test_a_row_that_changes_in_nothing_that_its_table_shows_is_shown_anew(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A table gets another column while a group changes in one that the table never has."""

    def declared(*shown: str) -> Job:
        def declare(rows: Rows) -> None:
            computed = rows.stream().key_by("k").aggregate("stage", v=agg.sum("x"), n=agg.count())
            computed.select("k", "v", *shown).sink("out", BY_K)

        return job_of(tmp_path, declare, is_updated=False)

    old = declared()
    submit(old, configure(old.pipeline, {}))
    before = take(old, spark, EARLIER)
    job = declared("v * 2 AS twice")
    restore(job, Latest())
    nothing = EARLIER.with_columns(x=pl.col("x") * 0)
    shown = take(job, spark, nothing)

    assert counter(shown.select("k", "v")) == counter(before.select("k", "v"))
    assert shown["twice"].to_list() == (shown["v"] * 2).to_list()


def test_what_a_filter_drops_as_a_column_begins_anew_leaves_the_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Wherever the filter is: the row of before passed it, by what the column was."""

    def declared(folder: str, column: agg.Aggregate) -> Job:
        def declare(rows: Rows) -> None:
            computed = rows.stream().key_by("k").aggregate("stage", v=agg.count(), w=column)
            shared = computed.where("w > 3")
            shared.sink("out", BY_K)
            named = shared.select("k AS g", "v", "w").where("v % 5 <> w % 3")
            named.sink("named", FilesTable(upsert_key=("g",), partition_by=("g",)))

        return job_of(tmp_path / folder, declare, is_updated=False)

    old, since = declared("job", agg.sum("x")), declared("since", agg.max("x"))
    submit(old, configure(old.pipeline, {}))
    take(old, spark, EARLIER)
    submit(since, configure(since.pipeline, {}))
    job = declared("job", agg.max("x"))
    restore(job, Latest(), RestoreOptions(consent=Consent(begun=("stage.w",))))
    for first, end in ((0, 1), (1, 4), (4, LATER.height)):
        shown = take(job, spark, LATER[first:end])
        take(since, spark, LATER[first:end])
        maxima = to_frame(open_sinks(since, {})["out"].read())  # type: ignore[attr-defined]
        assert counter(shown.select("k", "w")) == counter(maxima.select("k", "w"))
        both = pl.concat([EARLIER, LATER[:end]]).group_by("k").agg(v=pl.len().cast(pl.Int64))
        right = (
            maxima.select("k", "w").join(both, on="k").filter(pl.col("v") % 5 != pl.col("w") % 3)
        )
        named = to_frame(open_sinks(job, {})["named"].read())  # type: ignore[attr-defined]
        assert counter(named) == counter(right.rename({"k": "g"}))


def test_a_stage_whose_rows_would_stay_behind_a_filter_begins_with_another_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    def declared(column: agg.Aggregate, sink: str) -> Job:
        def declare(rows: Rows) -> None:
            computed = rows.stream().key_by("k").aggregate("stage", v=column)
            computed.where("v > 3").sink(sink, BY_K)

        return job_of(tmp_path, declare, is_updated=False)

    old = declared(agg.sum("x"), "sums")
    submit(old, configure(old.pipeline, {}))
    with EpochDriver(old, spark) as driver:
        EARLIER.write_parquet(tmp_path / "files" / "0.parquet")
        driver.take()
    begun = RestoreOptions(consent=Consent(begun=("stage",)))
    with pytest.raises(RestoreError, match="'stage' cannot begin anew while sink 'sums' has its"):
        restore(declared(agg.max("x"), "sums"), Latest(), begun)

    job = declared(agg.max("x"), "out")
    restore(job, Latest(), replace(begun, allow_non_restored_state=True))
    shown = take(job, spark, LATER)
    right = LATER.group_by("k").agg(v=pl.col("x").max())
    assert counter(shown) == counter(right.filter(pl.col("v") > 3))


@pytest.mark.parametrize("operator", ["aggregate", "deduplicate"])
def test_rows_of_a_stage_that_is_gone_stay_in_a_table_by_consent(
    operator: str, spark: SparkSession, tmp_path: Path
) -> None:
    def declared(folder: str, uid: str) -> Job:
        def declare(rows: Rows) -> None:
            keyed = rows.stream().key_by("k")
            if operator == "aggregate":
                keyed.aggregate(uid, v=agg.sum("x")).sink("out", BY_K)
            else:
                keyed.deduplicate(uid, by="n").sink("out", BY_K)

        return job_of(tmp_path / folder, declare, is_updated=False)

    old, later = declared("job", "first"), declared("later", "second")
    submit(old, configure(old.pipeline, {}))
    before = take(old, spark, EARLIER)
    job = declared("job", "second")
    state = job.state()
    what = (
        "stage 'first' is not declared any more, and sink 'out': its rows were first as upsert by "
        "k and are now second as upsert by k"
    )
    with pytest.raises(ConfigurationError, match=what) as at_a_trigger:
        require_same_chain(job.pipeline, state, lineage_of_tip(job, state))
    assert "stage 'first' has state but is not in the pipeline" in str(at_a_trigger.value)
    dropped = RestoreOptions(allow_non_restored_state=True)
    with pytest.raises(RestoreError, match=f"restored: {what}; put it back, .* with --keep out"):
        restore(job, Latest(), dropped)

    restore(job, Latest(), replace(dropped, consent=Consent(kept=("out",))))
    submit(later, configure(later.pipeline, {}))
    begins_from(take(job, spark, LATER), before, take(later, spark, LATER))


@pytest.mark.parametrize("is_updated", [False, True])
def test_a_sink_that_was_left_out_for_a_while_goes_on_by_consent(
    *, is_updated: bool, spark: SparkSession, tmp_path: Path
) -> None:
    def declared(*, has_sink: bool = True) -> Job:
        def declare(rows: Rows) -> None:
            summed = rows.stream().key_by("k").aggregate("stage", v=agg.sum("x"))
            summed.sink("other", FilesTable(changelog=True))
            if has_sink:
                summed.sink("out", BY_K)

        return job_of(tmp_path, declare, is_updated=is_updated)

    old = declared()
    submit(old, configure(old.pipeline, {}))
    before = take(old, spark, EARLIER)
    without = declared(has_sink=False)
    restore(without, Latest(), RestoreOptions(allow_non_restored_state=True))
    take(without, spark, LATER.head(4), shows="other")
    take(without, spark, LATER.slice(4, 4), shows="other")

    job, state = declared(), without.state()
    what = "sink 'out' was not declared for a while, and its table lacks what was sent meanwhile"
    with pytest.raises(ConfigurationError, match=what):
        require_same_chain(job.pipeline, state, lineage_of_tip(job, state))
    with pytest.raises(RestoreError, match=f"{what}; give the sink .* with --keep out"):
        restore(job, Latest())
    restore(job, Latest(), RestoreOptions(consent=Consent(kept=("out",))))
    after = take(job, spark, LATER.slice(8, 1))

    right = counter(net(to_frame(open_sinks(job, {})["other"].read())))  # type: ignore[attr-defined]
    assert counter(after) <= counter(before) | right
    assert counter(after) != counter(before)


def test_a_count_of_open_windows_begins_with_nothing(spark: SparkSession, tmp_path: Path) -> None:
    def declared(column: agg.Aggregate) -> Job:
        def declare(rows: Rows) -> None:
            keyed = rows.stream().key_by("k")
            keyed.window("stage", Tumbling(15 * MINUTE), w=column).sink("out", FilesTable())

        return job_of(tmp_path, declare, is_updated=False)

    old = declared(agg.sum("x"))
    submit(old, configure(old.pipeline, {}))
    take(old, spark, EARLIER)
    job = declared(agg.count())
    restore(job, Latest(), RestoreOptions(consent=Consent(begun=("stage.w",))))
    shown = take(job, spark, LATER.tail(1))

    fired = shown.filter(pl.col("window_start") == START + 15 * MINUTE)
    assert not fired.is_empty()
    assert set(fired["w"].to_list()) == {0}


def test_a_column_of_open_windows_begins_anew(spark: SparkSession, tmp_path: Path) -> None:
    def declared(column: agg.Aggregate) -> Job:
        def declare(rows: Rows) -> None:
            keyed = rows.stream().key_by("k")
            windows = keyed.window("stage", Tumbling(15 * MINUTE), v=agg.count(), w=column)
            windows.sink("out", FilesTable())

        return job_of(tmp_path, declare, is_updated=False)

    old = declared(agg.sum("x"))
    submit(old, configure(old.pipeline, {}))
    take(old, spark, EARLIER)
    job = declared(agg.max("n"))
    restore(job, Latest(), RestoreOptions(consent=Consent(begun=("stage.w",))))
    shown = take(job, spark, LATER)

    opened = pl.col("at").is_between(START + 15 * MINUTE, START + 29 * MINUTE)
    whole = ALL.filter(opened).group_by("k").agg(v=pl.len().cast(pl.Int64))
    since = LATER.filter(opened).group_by("k").agg(w=pl.col("n").max())
    fired = shown.filter(pl.col("window_start") == START + 15 * MINUTE).select("k", "v", "w")
    assert counter(fired) == counter(whole.join(since, on="k", how="left"))


def test_windows_of_another_size_begin_at_a_time(spark: SparkSession, tmp_path: Path) -> None:
    """As docs/guides/upgrades.md tells it."""

    def declare(rows: Rows) -> None:
        stream, at = rows.stream(), "timestamp '2026-01-01T00:30:00Z'"
        before, behind = stream.where(f"at < {at}"), stream.where(f"at >= {at}")
        old = before.key_by("k").window("stage", Tumbling(10 * MINUTE), v=agg.count())
        new = behind.key_by("k").window("stage_4", Tumbling(4 * MINUTE), v=agg.count())
        old.union("both", new).sink("out", FilesTable())

    old = job_of(tmp_path / "job", appended_windows, is_updated=False)
    right = job_of(tmp_path / "batch", declare, is_updated=False)
    for job in (old, right):
        submit(job, configure(job.pipeline, {}))
    take(old, spark, EARLIER)

    job = job_of(tmp_path / "job", declare, is_updated=False)
    restore(job, Latest(), RestoreOptions(consent=Consent(kept=("stage",))))
    after = take(job, spark, LATER, drain=True)

    assert counter(after) == counter(take(right, spark, ALL, drain=True))


@pytest.mark.parametrize(
    "key", [key for key in ANY if key[0] != "how"], ids=lambda key: f"{key[0] or 'column'} {key[1]}"
)
def test_over_updates_all_of_them_begin_anew_together(
    key: tuple[str | None, PartDifference], spark: SparkSession, tmp_path: Path
) -> None:
    old = job_of(tmp_path / "job", ANY[key].before, is_updated=True)
    submit(old, configure(old.pipeline, {}))
    before = take(old, spark, EARLIER)
    job = job_of(tmp_path / "job", ANY[key].after, is_updated=True)
    together = begins_with("stage", fingerprints(job.pipeline, {}))

    restore(job, Latest(), RestoreOptions(consent=Consent(begun=tuple(sorted(together)))))
    after = take(job, spark, LATER, drain=True)

    fresh = job_of(tmp_path / "batch", ANY[key].after, is_updated=True)
    submit(fresh, configure(fresh.pipeline, {}))
    assert together == {"newest", "stage"}
    begins_from(after, before, take(fresh, spark, LATER, drain=True))


# What is before and behind a stage that is recomputed; "k" keys hold other keys once it is.
def declared_around(key: str, least: int, n: int, *, has_more: bool = True) -> Declaration:
    """Two readers of the newest rows, one of them with a reader of its own, and tables behind."""

    def declare(rows: Rows) -> None:
        newest = rows.stream()
        counts = newest.where(f"x > {least}").key_by(k=key).aggregate("stage", v=agg.count())
        counts.where("v > 1").select("k AS group", "v").sink(
            "out", FilesTable(upsert_key=("group",))
        )
        sizes = counts.key_by("v").aggregate("sizes", groups=agg.count(), least=agg.min("k"))
        sizes.sink("sizes_out", FilesTable(upsert_key=("v",)))
        ranked = newest.key_by("k").top_n("ranked", n, by="x", ties_by="n")
        ranked.sink("ranked_out", FilesTable(upsert_key=("k", "rank")))
        if has_more:
            best = ranked.where("rank = 1").key_by("x").latest("best", by="n")
            best.select("x", "n", "k").sink("best_out", FilesTable(upsert_key=("x",)))

    return declare


def held_by(holder: str, key: str) -> Declaration:
    def declare(rows: Rows) -> None:
        spec = Files(str(rows.folder), format="parquet", bounded=False)
        stream = rows.pipeline.source("rows", spec, event_time="at")
        keyed = stream.key_by("u")
        if holder == "aggregate":
            held = keyed.aggregate("held", x=agg.count_distinct("x"), k=agg.max("k"))
        elif holder in ("inner", "left", "full", "semi"):
            held = joined(stream, holder)
        elif holder == "aggregate of updates":
            held = keyed.latest("newest", by="n").key_by("x").aggregate("held", k=agg.max("k"))
        else:
            held = keyed.top_n("held", 3, by="x", ties_by="n")
        counted = held.select("x", "k").key_by(k=key).aggregate("stage", v=agg.sum("x"))
        counted.sink("out", BY_K)

    return declare


def joined(stream: Stream, how: Any) -> Stream:
    """A join of updates, or of added rows, of which some come twice and some have no key."""
    newest = stream.key_by("u").latest("newest", by="n") if how in ("inner", "semi") else stream
    left = newest.select("IF(x % 7 = 3, NULL, k) AS k", "x % 4 AS x")
    right = stream.where("k <> 1").select("IF(n % 5 = 2, NULL, k) AS k", "n % 3 AS m")
    return left.key_by("k").join("held", right.key_by("k"), how=how)


HOLDERS = {"newest", "held"}
SHAPES: dict[str, tuple[Declaration, Declaration]] = {
    "readers of the same rows, and those behind": (
        declared_around("k", 3, 2), declared_around("u % 3", 9, 3)
    ),
    "a stage in the middle": (declared_around("k", 3, 2), declared_around("k", 9, 2)),
    "a new stage": (declared_around("k", 3, 2, has_more=False), declared_around("k", 3, 2)),
    "of an aggregate": (held_by("aggregate", "k"), held_by("aggregate", "k % 2")),
    "of an aggregate of updates": (
        held_by("aggregate of updates", "k"), held_by("aggregate of updates", "x % 4")
    ),
    "of a top n": (held_by("top_n", "k"), held_by("top_n", "x % 4")),
    "of an inner join": (held_by("inner", "k"), held_by("inner", "x % 3")),
    "of a left join": (held_by("left", "k"), held_by("left", "x % 3")),
    "of a full join": (held_by("full", "k"), held_by("full", "x % 3")),
    "of a semi join": (held_by("semi", "k"), held_by("semi", "x % 3")),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_all_that_reads_the_rows_that_are_sent_again_is_recomputed(
    shape: str, spark: SparkSession, tmp_path: Path
) -> None:
    before, after = SHAPES[shape]
    old = job_of(tmp_path / "job", before, is_updated=True)
    submit(old, configure(old.pipeline, {}))
    take(old, spark, EARLIER)
    job = job_of(tmp_path / "job", after, is_updated=True)
    fresh = job_of(tmp_path / "batch", after, is_updated=True)
    submit(fresh, configure(fresh.pipeline, {}))

    metadata = job.base_metadata(job.state())
    assert metadata is not None
    anew = recomputed_since(metadata, fingerprints(job.pipeline, {}))
    restore(job, Latest())
    take(job, spark, EARLIER.clear())
    take(fresh, spark, EARLIER)
    assert tables_of(job) == tables_of(fresh), "without a change of the rows"
    take(job, spark, LATER, drain=True)
    take(fresh, spark, LATER, drain=True)
    assert tables_of(job) == tables_of(fresh)
    assert anew == ({"best"} if shape == "a new stage" else {*job.pipeline.stages} - HOLDERS)


def test_a_stage_is_recomputed_whatever_fails_and_from_any_checkpoint(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = job_of(tmp_path / "job", declared_around("k", 3, 2), is_updated=True)
    submit(old, configure(old.pipeline, {}))
    take(old, spark, EARLIER)
    take(old, spark, LATER.head(9))
    after = declared_around("u % 3", 9, 3)
    job = job_of(tmp_path / "job", after, is_updated=True)
    fresh = job_of(tmp_path / "batch", after, is_updated=True)
    submit(fresh, configure(fresh.pipeline, {}))
    take(fresh, spark, ALL)

    wider = reconfigure(job.pipeline, job.state().configuration, {}, parallelism=3)
    restore(job, Latest(), configuration=wider)
    monkeypatch.setenv(FAULT_VARIABLE, "decline stage=sizes checkpoint=3")
    with pytest.raises(RestoreError, match="fault injected"):
        take(job, spark, LATER.tail(-9))
    monkeypatch.delenv(FAULT_VARIABLE)
    restore(job, Latest())
    take(job, spark, ALL.clear())
    assert tables_of(job) == tables_of(fresh)

    restore(job, Choice(CheckpointId(1)), RestoreOptions(roll_back_tables=True))
    take(job, spark, ALL.clear())
    assert tables_of(job) == tables_of(fresh)


def job_of(folder: Path, declare: Declaration, *, is_updated: bool, forgets: bool = False) -> Job:
    pipeline = Pipeline("job", checkpointing=Checkpointing(interval=None), parallelism=2)
    (folder / "files").mkdir(parents=True, exist_ok=True)
    declare(Rows(pipeline, folder / "files", is_updated, forgets))
    return open_job(pipeline, StoreLocation(root=f"file://{folder / 'root'}"))


def take(
    job: Job, spark: SparkSession, rows: pl.DataFrame, *, drain: bool = False, shows: str = "out"
) -> pl.DataFrame:
    """The table of the job that *shows* what it holds, behind an epoch of *rows*; a table calls a
    column as it was called first, in any case.
    """
    files = Path(job.location.root.removeprefix("file://")).parent / "files"
    rows.write_parquet(files / f"{len([*files.iterdir()])}.parquet")
    with EpochDriver(job, spark) as driver:
        epoch = driver.take(drain=drain)
    assert epoch is not None
    if epoch.completed is None:
        raise RestoreError(str(epoch.failure))
    table = to_frame(open_sinks(job, {})[shows].read())  # type: ignore[attr-defined]
    table = table.rename(str.lower)
    return net(table) if "kind" in table.columns else table


def net(log: pl.DataFrame) -> pl.DataFrame:
    """The rows that are there behind a log of changes."""
    came = pl.when(pl.col("kind").str.starts_with("+")).then(1).otherwise(-1).sum()
    rows = log.group_by(pl.exclude("kind")).agg(came.alias("copies"))
    assert rows.filter(pl.col("copies") < 0).is_empty(), "what was not there was taken back"
    rows = rows.with_columns(pl.int_ranges("copies").alias("copies"))
    return rows.explode("copies").drop_nulls("copies").drop("copies")


def tables_of(job: Job) -> dict[str, Counter[tuple[object, ...]]]:
    sinks = open_sinks(job, {}).items()
    return {uid: counter(to_frame(sink.read())) for uid, sink in sinks}  # type: ignore[attr-defined]


def change_of(job: Job) -> PartChange:
    """The one change since the job's latest checkpoint."""
    metadata = job.base_metadata(job.state())
    assert metadata is not None
    (change,) = changes_since(metadata, fingerprints(job.pipeline, {}))
    return change


def refuses(job: Job, change: PartChange) -> None:
    state = job.state()
    with pytest.raises(ConfigurationError) as at_a_trigger:
        require_same_chain(job.pipeline, state, lineage_of_tip(job, state))
    with pytest.raises(RestoreError) as at_a_restore:
        restore(job, Latest())
    assert change.what in str(at_a_trigger.value)
    assert change.what in str(at_a_restore.value)


def forced(job: Job, spark: SparkSession) -> Counter[tuple[object, ...]] | None:
    """What comes of a change that nobody refuses; None if its state cannot even be read."""
    try:
        restore(job, Latest())
        return counter(take(job, spark, LATER, drain=True))
    except (ConfigurationError, RestoreError):
        return None


def begins_from(
    after: pl.DataFrame, before: pl.DataFrame, right: pl.DataFrame, column: str | None = None
) -> None:
    """Of each key that came later the table has what came later; of others what it had before."""
    columns = right.columns if column is None else ["k", column]
    after, right = after.select(columns), right.select(columns)
    assert counter(right) <= counter(after)
    if column is None:
        known = [name for name in columns if name in before.columns]
        assert set(counter(after.select(known))) <= {
            *counter(right.select(known)), *counter(before.select(known))
        }  # fmt: skip


def counter(table: pl.DataFrame) -> Counter[tuple[object, ...]]:
    return Counter(table.select(sorted(table.columns)).rows())
