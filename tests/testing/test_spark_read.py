"""A place that is another one at each reading, over kills, a restore and a rescale."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from sluice import Pipeline
from sluice.declaration import aggregates as agg
from sluice.sinks import FilesTable
from sluice.sources import Column, Snapshot, SparkRead
from sluice.testing import Kill, Restore, run_local

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
@pytest.mark.parametrize("by", [Snapshot("id"), Column("at", "id")])
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
