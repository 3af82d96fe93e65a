"""One key in every stage's state, found by its hash, and what it was in earlier checkpoints."""

from __future__ import annotations

from datetime import UTC, timedelta, timezone

import msgspec
import polars as pl
import pytest

from harness.jobs import a_running_job
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from sluice.sinks import FilesTable
from sluice.sources import Nexmark
from sluice.surface.key_lookup import look_up_key
from sluice.surface.state import key_value, open_state, wanted_keys
from tests.unit.surface.epochs import COUNTING, a_counting_job, play

SUMS, HIGHEST = "sums", "highest"


def a_job_of_two_stages(*keys: str) -> Job:
    """Both by the same columns, in four subtasks each."""
    checkpointing = Checkpointing(max_records_per_epoch=100, num_retained=9)
    pipeline = Pipeline("bids", checkpointing, parallelism=4)
    bids = pipeline.source("events", Nexmark(400, columns=(*keys, "price"))).key_by(*keys)
    bids.aggregate(SUMS, price=agg.sum("price")).sink("of_sums", FilesTable(upsert_key=keys))
    bids.aggregate(HIGHEST, highest=agg.max("price")).sink(
        "of_highest", FilesTable(upsert_key=keys)
    )
    return a_running_job(pipeline)


@pytest.mark.parametrize("keys", [("bid_auction",), ("channel",), ("date_time", "bid_auction")])
def test_every_key_of_a_table_is_found_with_all_its_rows(keys: tuple[str, ...]) -> None:
    job = a_job_of_two_stages(*keys)
    play(job, 2)
    table = open_state(job, "latest", SUMS)
    rows = table.frame()

    for row in rows.to_dicts():
        found = table.of_key({name: row[name] for name in keys})
        assert found.to_dicts() == [row]
    assert rows.height > 4


def test_a_key_is_looked_up_in_every_stage_that_keeps_it() -> None:
    job = a_job_of_two_stages("bid_auction")
    play(job, 3)
    sums, highest = (open_state(job, "latest", uid).frame() for uid in (SUMS, HIGHEST))
    one = sums["bid_auction"].item(0)

    found = look_up_key(job, [f"bid_auction={one}"], checkpoint="latest")

    assert {table.stage for table in found.tables} == {SUMS, HIGHEST}
    assert found.checkpoints == (3,)
    for table, frame in zip(found.tables, (sums, highest), strict=True):
        [version] = table.versions
        assert [*version.rows] == frame.filter(bid_auction=one).to_dicts()
    assert msgspec.json.encode(found)


def test_an_instant_is_found_whatever_zone_it_is_named_in() -> None:
    job = a_job_of_two_stages("date_time")
    play(job, 1)
    table = open_state(job, "latest", SUMS)
    rows, schema = table.frame(), table.schema()
    at = rows["date_time"].item(0)
    assert at.tzinfo is not None

    for zone in (UTC, timezone(timedelta(hours=2))):
        [one, _] = look_up_key(job, [f"date_time={at.astimezone(zone).isoformat()}"]).tables
        assert [row["date_time"] for row in one.versions[0].rows] == [at]
        wanted = wanted_keys((f"date_time={at.astimezone(zone).isoformat()}",), schema)
        assert rows.filter(wanted)["date_time"].to_list() == [at]

    with pytest.raises(ConfigurationError, match="is no Datetime"):
        key_value("at", at.isoformat(), pl.Datetime("us"))


def test_the_history_of_a_key_goes_back_to_before_it_was_there() -> None:
    job = a_counting_job()
    play(job, 2)
    first, second = (open_state(job, number, COUNTING).frame() for number in ("1", "2"))
    before = dict(first.iter_rows())
    came = next(key for key, _ in second.iter_rows() if key not in before)
    stayed = next(key for key, count in second.iter_rows() if before.get(key) == count)

    [newest, oldest] = look_up_key(job, [f"bid_auction={came}"]).tables[0].versions
    [only] = look_up_key(job, [f"bid_auction={stayed}"]).tables[0].versions

    assert (newest.first, newest.last, oldest.first, oldest.rows) == (2, 2, 1, ())
    assert [*newest.rows] == second.filter(bid_auction=came).to_dicts()
    assert (only.first, only.last) == (1, 2)
    assert [*only.rows] == first.filter(bid_auction=stayed).to_dicts()


def test_a_key_that_never_was_has_one_version_without_rows() -> None:
    job = a_counting_job()
    play(job, 2)

    [table] = look_up_key(job, ["bid_auction=-1"]).tables

    assert [(one.first, one.last, one.rows) for one in table.versions] == [(1, 2, ())]


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (["k=1"], "no state is kept by the key .k.; name every column .* per_auction: bid_auction"),
        (["bid_auction=x"], "'x' is no Int64, which 'bid_auction' of the key is"),
        (["bid_auction=1", "bid_auction=2"], "the key has 'bid_auction' twice"),
    ],
)
def test_a_key_that_cannot_be_is_refused_with_those_that_can(key: list[str], said: str) -> None:
    job = a_counting_job()
    play(job, 1)

    with pytest.raises(ConfigurationError, match=said):
        look_up_key(job, key)


def test_before_the_first_checkpoint_nothing_can_be_looked_up() -> None:
    with pytest.raises(ConfigurationError, match="it has completed none"):
        look_up_key(a_counting_job(), ["bid_auction=1"])


def test_a_stage_that_is_not_there_is_refused() -> None:
    job = a_counting_job()
    play(job, 1)

    with pytest.raises(ConfigurationError, match=rf"no stage 'x' in .*{COUNTING}"):
        look_up_key(job, ["bid_auction=1"], stage="x")
