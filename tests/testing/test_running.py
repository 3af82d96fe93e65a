"""A declared pipeline over given rows: what its sinks, its side outputs and its state hold."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest

from sluice import Pipeline, Tumbling
from sluice.declaration import aggregates as agg
from sluice.declaration.changelog import Append
from sluice.declaration.keyed_functions import BEGINNING_OF_TIME, END_OF_TIME
from sluice.declaration.pipeline import Stream
from sluice.local.run_local import LocalRun, session_of
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.testing import run_local
from tests.examples import slow
from tests.testing.shop import named, order, takings, totals, visits


def rows_of(frame: pl.DataFrame) -> list[dict[str, Any]]:
    return sorted(frame.to_dicts(), key=repr)


def at(clock: str) -> datetime:
    return datetime.fromisoformat(f"2026-01-01T{clock}").replace(tzinfo=UTC)


def test_tables_and_state_are_those_behind_the_last_epoch_and_each_epoch_published_its_own() -> (
    None
):
    result = run_local(totals(), {"orders": [[order("a", 3), order("b", 5)], [order("a", 4)]]})

    assert (result.pipeline, result.status) == ("totals", "FINISHED")
    assert rows_of(result.table("totals")) == [
        {"shop": "a", "total": 7, "n": 2},
        {"shop": "b", "total": 5, "n": 1},
    ]
    assert rows_of(result.state("per_shop")) == rows_of(result.table("totals"))
    first, second = result.epochs
    assert rows_of(first.published("totals")) == [
        {"shop": "a", "total": 3, "n": 1, "_deleted": False},
        {"shop": "b", "total": 5, "n": 1, "_deleted": False},
    ]
    assert rows_of(second.published("totals")) == [
        {"shop": "a", "total": 7, "n": 2, "_deleted": False}
    ]
    assert (first.records, second.records) == (2, 1)


def test_windows_wait_for_the_watermark_late_rows_stay_out_and_the_last_epoch_fires_the_rest() -> (
    None
):
    result = run_local(
        takings(),
        {
            "orders": [
                [order("a", 1, "12:00:10"), order("a", 2, "12:01:10")],
                [order("a", 4, "12:00:50"), order("a", 8, "12:01:20")],
            ]
        },
    )

    first, second = result.epochs
    assert first.published("takings")["taken"].to_list() == [1]
    assert second.published("takings")["taken"].to_list() == [10]
    assert first.watermarks["per_minute"] == at("12:01:10") - timedelta(milliseconds=1)
    assert second.watermarks["per_minute"] == END_OF_TIME
    late = result.side_output("per_minute", "late")
    assert late.select("shop", "price").rows() == [("a", 4)]


def test_a_source_that_does_not_end_leaves_its_windows_open() -> None:
    orders = [order("a", 1, "12:00:10"), order("a", None, None)]

    result = run_local(takings(), {"orders": [orders, []]}, bounded=False)

    assert result.status == "RUNNING"
    assert result.table("takings").is_empty()
    assert result.table("takings").columns == ["shop", "window_start", "window_end", "taken"]
    assert [epoch.records for epoch in result.epochs] == [2, 0]
    assert result.epochs[0].watermarks["per_minute"] > BEGINNING_OF_TIME
    assert result.side_output("per_minute", "no_event_time").height == 1


def test_a_table_is_as_it_was_given_for_the_epoch_and_a_transform_gets_its_parameter() -> None:
    result = run_local(
        named(),
        {
            "orders": [[order("a", 1), order("a", 9)], [order("a", 8), order("b", 7)]],
            "names": [["a,Ada"], ["a,Bo", "c,Cy"]],
        },
        params={"least": 7, "topic": "nobody asks for it"},
    )

    assert rows_of(result.table("out").select("shop", "price", "name")) == [
        {"shop": "a", "price": 8, "name": "Bo"},
        {"shop": "a", "price": 9, "name": "Ada"},
        {"shop": "b", "price": 7, "name": None},
    ]


def test_rows_may_be_the_texts_that_the_place_would_hold_and_some_may_be_malformed() -> None:
    texts = ['{"shop": "a", "price": 2}', '{"shop": ', '{"shop": "a", "price": 3}']

    result = run_local(totals(), {"orders": texts})

    assert result.table("totals").rows() == [("a", 5, 2)]
    assert result.side_output("per_shop", "malformed").height == 1


def test_a_source_whose_columns_only_its_place_knows_has_those_of_its_rows() -> None:
    stream = visits("visits")
    stream.key_by("user").aggregate("per_user", n=agg.count()).sink(
        "counts", FilesTable(upsert_key=("user",))
    )
    frame = pl.DataFrame({"id": [1, 2, 3], "user": ["x", "y", "x"]})

    result = run_local(stream.pipeline, {"visits": frame}, rows_per_epoch=2)

    assert sorted(result.state("per_user").rows()) == [("x", 2), ("y", 1)]
    assert [epoch.records for epoch in result.epochs] == [2, 1]


def test_a_session_that_is_there_is_used_reads_its_own_frames_and_gets_its_settings_back() -> None:
    stream = visits("days")
    stream.transform("same", lambda rows: rows.selectExpr("id", "string(at) AS said")).sink(
        "out", FilesTable()
    )
    with session_of(None) as own:
        pass
    own.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    frame = own.sql("SELECT 7 AS id, TIMESTAMP '2026-01-01 09:00:00' AS at")

    result = run_local(stream.pipeline, {"visits": frame})

    assert result.table("out").rows() == [(7, "2026-01-01 00:00:00")]
    assert own.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
    own.conf.set("spark.sql.session.timeZone", "UTC")


def test_processing_time_passes_between_epochs_so_that_state_can_expire() -> None:
    stream = visits("recent")
    stream.key_by("user").aggregate("per_user", ttl=timedelta(hours=1), n=agg.count()).sink(
        "counts", FilesTable(upsert_key=("user",))
    )
    rows = {"visits": [[{"user": "x"}], [{"user": "x"}]]}

    soon = run_local(stream.pipeline, rows, interval=timedelta(minutes=50))
    later = run_local(stream.pipeline, rows, interval=timedelta(minutes=70))

    assert soon.table("counts").rows() == [("x", 2)]
    assert later.table("counts").rows() == [("x", 1)]


MINUTE = Tumbling(timedelta(minutes=1))
Sided = Callable[[Stream, Callable[[], Stream]], Stream]


def with_bad_rows(declare: Sided, *, has_bad: bool) -> LocalRun:
    """*declare* over two streams, which have malformed, late and timeless rows if *has_bad*."""
    pipeline = Pipeline("sides")
    schema = "k string, at timestamp, n bigint"
    files = Files("/rows", format="json", schema=schema)
    found = declare(
        pipeline.source("one", files, event_time="at"),
        lambda: pipeline.source("other", files, event_time="at"),
    )
    found.sink("out", FilesTable(changelog=not isinstance(found.kind, Append)))
    good = [f'{{"k": "a", "at": "2026-01-01T12:0{minute}:00Z", "n": 1}}' for minute in (1, 9)]
    bad = ['{"k": "a", "at": "2026-01-01T12:00:00Z", "n": 2}', "{", '{"k": "a", "n": 3}']
    given = [good, bad if has_bad else []]
    return run_local(pipeline, dict.fromkeys(pipeline.sources, given), bounded=False)


SIDES: dict[str, Sided] = {
    "transform": lambda one, _: one.transform("s", lambda rows: rows.selectExpr("*", "n + 1 AS m")),
    "narrow": lambda one, _: one.transform("s", lambda rows: rows.select("at", "_source")),
    "latest": lambda one, _: one.key_by("k").latest("s", by="n"),
    "computed": lambda one, _: one.key_by(x="upper(k)").aggregate("s", m=agg.sum("n + 1")),
    "window": lambda one, _: one.key_by("k").window("s", MINUTE, m=agg.sum("n")),
    "union": lambda one, other: one.union("s", other()),
    "join": lambda one, other: one.key_by("k").interval_join(
        "s",
        other().select("k", "n AS m", "at").key_by("k"),
        upper=timedelta(minutes=1),
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[slow] * (name in ("computed", "union"))) for name in SIDES]
)
def test_a_side_output_without_rows_has_the_columns_that_it_would_have(name: str) -> None:
    empty = with_bad_rows(SIDES[name], has_bad=False)
    full = with_bad_rows(SIDES[name], has_bad=True)

    sides = [side for side in full.side_outputs if full.side_output(side).height]
    assert "s.malformed" in sides
    for side in sides:
        assert empty.side_output(side).is_empty()
        assert dict(empty.side_output(side).schema) == dict(full.side_output(side).schema), side
