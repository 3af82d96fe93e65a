"""Kills, restores and rescales change no result; where one does, it is found, with its seed."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from sluice import Checkpointing, aggregates
from sluice.declaration.pipeline import Pipeline
from sluice.sinks import FilesTable
from sluice.sources import Files, PostgresTable
from sluice.testing import Kill, Restore, assert_exactly_once, run_local
from tests.testing.shop import MINUTE, order, presents, takings, totals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
