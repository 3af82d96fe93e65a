"""``assert_exactly_once``: what it draws and compares; disturbances change no result."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa
import pytest

from sluice import Checkpointing, aggregates
from sluice.declaration import aggregates as agg
from sluice.declaration.pipeline import Pipeline
from sluice.local.exactly_once import (
    MOST_EPOCHS,
    MOST_PARALLELISM,
    applied_changelog,
    difference,
    drawn,
)
from sluice.local.given import RowsByEpoch, cut_at
from sluice.local.run_local import check_script
from sluice.sinks import FilesTable
from sluice.sources import Column, Files, PostgresTable, Snapshot, SparkRead
from sluice.testing import Kill, Restore, assert_exactly_once, run_local
from tests.examples import slow
from tests.testing.shop import MINUTE, named, order, presents, takings, totals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


ORDERS = [order(shop, price, f"12:0{price}:00") for price in range(6) for shop in "ab"]


def test_a_killed_attempt_is_run_again_and_a_restore_reads_again_over_more_subtasks() -> None:
    undisturbed = run_local(totals(), {"orders": ORDERS}, epochs=3)

    result = run_local(
        totals(),
        {"orders": ORDERS},
        epochs=3,
        script=[
            Kill(stage="per_shop", epoch=2),
            Restore(to_epoch=1, after_epoch=2, parallelism=3),
        ],
    )

    assert sorted(result.table("totals").rows()) == sorted(undisturbed.table("totals").rows())
    assert [(epoch.number, epoch.attempts["per_shop"]) for epoch in result.epochs] == [
        (1, 1),
        (2, 2),
        (2, 1),
        (3, 1),
    ]


def test_a_pipeline_is_exactly_once_wherever_it_is_cut() -> None:
    assert_exactly_once(presents(), {"orders": ORDERS}, seed=11)


def test_a_result_that_depends_on_the_epochs_is_found_and_the_play_is_named() -> None:
    backwards = list(reversed(ORDERS))

    with pytest.raises(AssertionError) as found:
        assert_exactly_once(takings(), {"orders": backwards}, seed=3)

    assert "sink 'takings' depends on what happened" in str(found.value)
    assert "seed=3: orders cut at rows [" in str(found.value)


def test_event_time_that_waits_long_enough_makes_it_exactly_once_again() -> None:
    patient = takings(lateness=timedelta(minutes=6))

    assert_exactly_once(patient, {"orders": list(reversed(ORDERS))}, seed=3)


def test_a_function_that_says_something_else_when_it_is_run_again_is_found() -> None:
    def drawn(rows: DataFrame) -> DataFrame:
        from pyspark.sql.functions import rand

        return rows.withColumn("lot", rand())

    pipeline = Pipeline("lots")
    pipeline.source("rows", PostgresTable("dsn", "public.t", "id")).transform("drawn", drawn).sink(
        "lots", FilesTable()
    )

    with pytest.raises(AssertionError, match="sink 'lots' depends on what happened"):
        assert_exactly_once(pipeline, {"rows": [{"id": number} for number in range(4)]}, seed=1)


def test_a_repeated_epoch_drops_what_it_dropped() -> None:
    pipeline = Pipeline("recent", checkpointing=Checkpointing(interval=MINUTE))
    visits = pipeline.source("visits", Files("visits", format="json", schema="user string"))
    per_user = visits.key_by("user").aggregate("per_user", ttl=1.5 * MINUTE, n=aggregates.count())
    per_user.sink("counts", FilesTable(upsert_key=("user",)))
    rows = {"visits": [[{"user": user}] for user in "xxy"]}

    result = run_local(pipeline, rows, script=[Restore(to_epoch=1, after_epoch=2)])

    assert sorted(result.table("counts").rows()) == [("x", 2), ("y", 1)]
    assert_exactly_once(pipeline, rows, seed=7)


def test_order_does_not_count_and_the_last_digits_of_a_float_do_not() -> None:
    one = pl.DataFrame({"id": [1, 2], "mean": [0.1 + 0.2, float("nan")], "tags": [["a"], None]})
    other = pl.DataFrame({"mean": [float("nan"), 0.3], "tags": [None, ["a"]], "id": [2, 1]})

    assert difference(one, other) is None


def test_a_row_that_comes_twice_is_not_one_that_comes_once() -> None:
    once = pl.DataFrame({"id": [1, 2]})

    said = difference(once, pl.DataFrame({"id": [1, 1, 3]}))

    assert said == (
        "1 rows are missing, 2 too many\n    - {'id': 2}\n    + {'id': 1}\n    + {'id': 3}"
    )


def test_a_column_that_is_not_there_is_a_difference() -> None:
    said = difference(pl.DataFrame({"id": [1]}), pl.DataFrame({"it": [1]}))

    assert said == "it has the columns ['it'] where undisturbed it has ['id']"


def test_a_changelog_is_what_it_adds_up_to() -> None:
    short = pl.DataFrame({"kind": ["+I"], "id": [1], "n": [2]})
    long = pl.DataFrame({"kind": ["+I", "-U", "+U"], "id": [1, 1, 1], "n": [1, 1, 2]})
    broken = pl.DataFrame({"kind": ["+I", "-U", "+U"], "id": [1, 1, 1], "n": [1, 3, 2]})

    assert difference(applied_changelog(short), applied_changelog(long)) is None
    assert difference(applied_changelog(short), applied_changelog(broken)) is not None


def rows(*chunks: int) -> RowsByEpoch:
    tables = tuple(pa.table({"id": pa.array(range(count), pa.int64())}) for count in chunks)
    return RowsByEpoch(tables, is_cut=len(chunks) > 1)


def epochs_of(pipeline: Pipeline, given: dict[str, RowsByEpoch], seed: int) -> int:
    play = drawn(pipeline, given, seed)
    cut = [
        len(cut_at(one, play.bounds[uid]).chunks) if uid in play.bounds else len(one.chunks)
        for uid, one in given.items()
    ]
    return max(cut)


def test_every_script_that_is_drawn_can_be_played() -> None:
    for pipeline, given in (
        (totals(), {"orders": rows(12)}),
        (totals(), {"orders": rows(0)}),
        (totals(), {"orders": rows(3, 4, 0, 2, 1)}),
        (named(), {"orders": rows(5), "names": rows(2)}),
    ):
        for seed in range(200):
            play = drawn(pipeline, given, seed)
            check_script(pipeline, play.script, epochs_of(pipeline, given, seed), ends=True)
            assert 1 <= play.parallelism <= MOST_PARALLELISM


def test_all_kinds_of_plays_are_drawn_and_each_by_its_seed() -> None:
    given = {"orders": rows(12)}
    plays = [drawn(totals(), given, seed) for seed in range(200)]

    assert plays == [drawn(totals(), given, seed) for seed in range(200)]
    assert {len(play.bounds["orders"]) + 1 for play in plays} == set(range(2, MOST_EPOCHS + 1))
    happenings = [one for play in plays for one in play.script]
    assert {one.epoch for one in happenings if isinstance(one, Kill)} == {1, 2, 3, 4}
    restores = [one for one in happenings if isinstance(one, Restore)]
    assert {one.parallelism for one in restores} == set(range(1, MOST_PARALLELISM + 1))
    assert {one.after_epoch - one.to_epoch for one in restores} == {0, 1, 2}


def test_rows_by_epoch_and_tables_are_left_as_they_are() -> None:
    given = {"orders": rows(3, 4), "names": rows(2)}

    assert [drawn(named(), given, seed).bounds for seed in range(5)] == [{}] * 5


EPOCHS = 4
SCHEMA = "id bigint, v bigint, at bigint"
Row = tuple[int, int, int]


class Place:
    """A table of which each reading finds other rows: some came, some changed, some went."""

    def __init__(self, seed: int, *, deletes: bool) -> None:
        self._random, self._deletes = Random(seed), deletes
        self._rows: dict[int, Row] = {}
        self.readings: list[list[Row]] = []

    def __call__(self, spark: SparkSession) -> DataFrame:
        at = len(self.readings)
        for number in self._random.sample(range(40), 12):
            self._rows[number] = (number, self._random.randrange(9), at)
        for number in self._random.sample(sorted(self._rows), 4 if self._deletes else 0):
            del self._rows[number]
        self.readings.append(sorted(self._rows.values()))
        return spark.createDataFrame(self.readings[-1], SCHEMA)


@pytest.mark.spark
@pytest.mark.parametrize("by", [Snapshot("id"), pytest.param(Column("at", "id"), marks=slow)])
def test_every_version_is_that_of_one_reading(by: Snapshot | Column, tmp_path: Path) -> None:
    place = Place(7, deletes=isinstance(by, Snapshot))
    pipeline = Pipeline("chain")
    spec = SparkRead(place, SCHEMA, by=by, every=timedelta(hours=1), version="1")
    rows = pipeline.source("place", spec)
    rows.sink("out", FilesTable(upsert_key=("id",)))
    sums = rows.key_by("v").aggregate("sums", n=agg.count())
    sums.sink("counted", FilesTable(upsert_key=("v",)))
    due = [[{"due": datetime(2026, 1, 1, hour, tzinfo=UTC)}] for hour in range(EPOCHS)]

    run = run_local(
        pipeline,
        {"due_place": due},
        script=(
            Kill(stage="place", epoch=2),
            Kill(stage="sums", epoch=3),
            Restore(to_epoch=1, after_epoch=3, parallelism=3),
        ),
    )

    assert len(place.readings) > EPOCHS  # Some were repeated.
    live: dict[int, dict[int, Row]] = {0: {}}
    for epoch in run.epochs:
        now = dict(live[epoch.number - 1])
        for row in sorted(epoch.published("out").to_dicts(), key=lambda row: not row["_deleted"]):
            now.pop(row["id"], None)
            if not row["_deleted"]:
                now[row["id"]] = (row["id"], row["v"], row["at"])
        live[epoch.number] = now
        assert sorted(now.values()) in place.readings
    last = place.readings[-1]
    assert sorted(run.table("out").rows()) == last
    counts = {row["v"]: row["n"] for row in run.table("counted").to_dicts()}
    values = [v for _, v, _ in last]
    assert counts == {v: values.count(v) for v in {*values}}
