"""The state of a keyed function in a job: what its checkpoints keep of it, and its pages."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import msgspec
import pytest

from harness.jobs import a_running_job
from sluice.coordinator.restore import restore
from sluice.core.restoring import Latest, RestoreOptions
from sluice.core.transitions import Consent
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.keyed_functions import Context, KeyedProcessFunction, Row
from sluice.declaration.keyed_states import (
    AggregateFunction,
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    StateTtlConfig,
    ValueState,
)
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError
from sluice.job.analysis import analyse, check_state
from sluice.job.job import Job
from sluice.sinks import FilesTable
from sluice.sources import Nexmark
from sluice.surface.state import json_value, open_state, state_page, state_table_names
from tests.unit.surface.epochs import COUNTING, a_counting_job, play, take

STAGE = "prices"
ONCE_MORE = StateTtlConfig(
    timedelta(days=1),
    state_visibility=StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp,
)


class Mean(AggregateFunction[int, tuple[int, int], float]):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]


class Prices(KeyedProcessFunction):
    highest = ReducingState(max, int)
    mean = AggregatingState(Mean(), tuple[int, int])
    bids = ValueState(int, ttl=timedelta(days=1))
    categories = MapState(int, int, ttl=ONCE_MORE)
    recent = ListState(int, ttl=StateTtlConfig.DISABLED)

    def process(self, row: Row, context: Context) -> Iterable[Row]:
        if row["price"] is None:
            return
        self.highest.add(row["price"])
        self.mean.add(row["price"])
        self.bids.set(self.bids.get(0) + 1)
        self.categories.put(row["price"] % 3, self.bids.get(0))
        self.recent.update([*self.recent.get(), row["price"]][-2:])
        yield {
            "auction": context.key["bid_auction"],
            "highest": self.highest.get(),
            "mean": self.mean.get(),
        }


def a_pipeline(
    function: KeyedProcessFunction, ttl: timedelta | None = None, parallelism: int = 2
) -> Pipeline:
    config = Checkpointing(max_records_per_epoch=150)
    pipeline = Pipeline("bids", config, parallelism=parallelism)
    events = pipeline.source("events", Nexmark(600, columns=("bid_auction", "price")))
    told = events.key_by("bid_auction").process_keyed(
        STAGE, function, result={"auction": int, "highest": int, "mean": float}, ttl=ttl
    )
    told.sink("out", FilesTable())
    return pipeline


def rows_of(job: Job, table: str) -> list[dict[str, object]]:
    frame = open_state(job, "latest", STAGE, table).frame()
    return frame.sort(frame.columns[:2]).to_dicts()


def test_every_state_is_shown_in_its_table() -> None:
    job = a_running_job(a_pipeline(Prices()))

    play(job, 3)

    assert state_table_names(job, "latest", STAGE) == (
        "list:recent",
        "map:categories",
        "value:bids",
        "values",
    )
    values, bids = rows_of(job, "values"), rows_of(job, "value:bids")
    assert [list(row) for row in values[:1]] == [["bid_auction", "highest", "mean"]]
    assert {row["bid_auction"]: row["mean"]["f1"] for row in values} == {  # type: ignore[index]
        row["bid_auction"]: row["bids"] for row in bids
    }
    page = state_page(job, "latest", STAGE, table="values", offset=0, limit=1)
    assert isinstance(page.rows[0]["mean"], dict)


def test_what_is_shown_has_expired_as_its_state_says() -> None:
    job = a_running_job(a_pipeline(Prices(), ttl=timedelta(hours=1)))
    play(job, 2)
    written = open_state(job, "latest", STAGE, "values")

    def left_after(table: str, **later: float) -> bool:
        state = open_state(job, "latest", STAGE, table)
        later_ms = int(timedelta(**later) / timedelta(milliseconds=1))
        return not replace(state, as_of_ms=state.as_of_ms + later_ms).frame().is_empty()

    assert written.ttl_ms == 3_600_000
    assert [left_after("values", minutes=at) for at in (50, 70)] == [True, False]
    assert [left_after("value:bids", hours=at) for at in (23, 25)] == [True, False]
    assert [left_after("map:categories", hours=at) for at in (47, 49)] == [True, False]
    assert left_after("list:recent", days=10_000)


def test_the_state_is_the_same_at_any_parallelism() -> None:
    jobs = [a_running_job(a_pipeline(Prices(), parallelism=count)) for count in (1, 3)]

    for job in jobs:
        play(job, 3)

    for table in state_table_names(jobs[0], "latest", STAGE):
        assert rows_of(jobs[0], table) == rows_of(jobs[1], table) != []


class Named(KeyedProcessFunction):
    """Prices with states of other types, that are migrated."""

    highest = ReducingState(max, str, migrations={int: lambda price: f"{price:09}"})
    categories = MapState(
        int, tuple[int, str], ttl=ONCE_MORE, migrations={int: lambda seen: (seen, "before")}
    )
    recent = ListState(
        float, ttl=StateTtlConfig.DISABLED, migrations={int: lambda price: price / 100}
    )

    def process(self, row: Row, context: Context) -> None:
        if row["price"] is not None:
            self.highest.add(f"{row['price']:09}")
            self.categories.put(row["price"] % 3, (0, "now"))
            self.recent.update([*self.recent.get(), row["price"] / 100][-2:])


class Refused(KeyedProcessFunction):
    recent = ListState(bool, ttl=StateTtlConfig.DISABLED)

    def process(self, row: Row, context: Context) -> None:
        self.recent.clear()


def changed(job: Job, function: KeyedProcessFunction) -> Job:
    """The job with another function, to which the state so far is left."""
    job = replace(job, pipeline=a_pipeline(function))
    restore(job, Latest(), RestoreOptions(consent=Consent(kept=(STAGE,))))
    return job


def test_state_of_former_types_is_migrated_in_the_job_and_where_it_is_shown() -> None:
    before = a_running_job(a_pipeline(Prices()))
    play(before, 2)
    was = {table: rows_of(before, table) for table in ("values", "list:recent", "map:categories")}
    job = changed(before, Named())

    check_state(job, analyse(job.pipeline, {}, None))
    play(job, 1)

    highest = {row["bid_auction"]: row["highest"] for row in rows_of(job, "values")}
    for row in was["values"]:
        now = highest[row["bid_auction"]]
        assert isinstance(now, str)
        assert now >= f"{row['highest']:09}"
    categories = rows_of(job, "map:categories")
    assert {row["_value"]["f1"] for row in categories} == {"before", "now"}  # type: ignore[index]
    recent = {row["_value"] for row in rows_of(job, "list:recent")}
    assert all(isinstance(price, float) for price in recent)
    assert recent & {row["_value"] / 100 for row in was["list:recent"]}  # type: ignore[operator]
    page = state_page(job, "latest", STAGE, table="values", offset=0, limit=1_000)
    assert len(page.rows) == len(highest)


def test_state_of_another_type_without_a_migration_is_refused_before_it_is_read() -> None:
    job = a_running_job(a_pipeline(Prices()))
    play(job, 1)
    job = changed(job, Refused())

    with pytest.raises(ConfigurationError, match="state 'recent' was Int64 and is now Boolean, an"):
        check_state(job, analyse(job.pipeline, {}, None))


class Some(KeyedProcessFunction):
    """Adds the prices of some keys."""

    highest = ReducingState(max, str, migrations={int: str})

    def __init__(self, keys: set[int]) -> None:
        self._keys = keys

    def process(self, row: Row, context: Context) -> None:
        if context.key["bid_auction"] in self._keys and row["price"] is not None:
            self.highest.add(str(row["price"]))


def test_a_migration_is_asked_for_while_a_run_needs_it() -> None:
    class Forgetful(Some):
        highest = ReducingState(max, str)

    job = a_running_job(a_pipeline(Prices()))
    play(job, 1)
    of_one_subtask = next(open_state(job, "latest", STAGE, "values").pieces(0))["bid_auction"]
    job = changed(job, Some(set(of_one_subtask.to_list())))
    play(job, 1)
    types = {type(row["highest"]) for row in rows_of(job, "values")}
    job = changed(job, Forgetful(set()))

    assert types == {str}
    with pytest.raises(ConfigurationError, match=r"'highest' was Int64 .* migrations={int: \.+}"):
        check_state(job, analyse(job.pipeline, {}, None))


def test_a_value_that_gets_a_ttl_of_its_own_is_refused_before_it_is_read() -> None:
    class Moved(Prices):
        highest = ReducingState(max, int, ttl=timedelta(days=1))
        bids = ValueState(int)

    job = a_running_job(a_pipeline(Prices()))
    play(job, 1)
    job = changed(job, Moved())

    with pytest.raises(ConfigurationError) as error:
        check_state(job, analyse(job.pipeline, {}, None))

    assert "state 'highest' had the TTL of its stage and now has its own" in str(error.value)
    assert "state 'bids' had a TTL of its own and now has that of its stage" in str(error.value)


def test_pages_of_any_size_have_every_row_once() -> None:
    job = a_counting_job()
    take(job)
    whole = state_page(job, "latest", COUNTING, table=None, offset=0, limit=1_000)
    rows: list[dict[str, object]] = []
    offset: int | None = 0

    while offset is not None:
        page = state_page(job, "1", COUNTING, table=whole.table, offset=offset, limit=7)
        rows += page.rows
        offset = page.next

    assert len(rows) > 14
    assert rows == [*whole.rows]
    assert whole.next is None
    assert (whole.checkpoint, whole.stored_rows) == (1, len(rows))
    assert {column.name: column.is_key for column in whole.columns}["bid_auction"]
    assert msgspec.json.decode(msgspec.json.encode(whole))["rows"] == [*whole.rows]


def test_a_table_that_is_not_there_is_refused_with_those_that_are() -> None:
    job = a_counting_job()
    take(job)

    with pytest.raises(ConfigurationError, match=f"of stage '{COUNTING}' has no table 'x'; it has"):
        state_page(job, "latest", COUNTING, table="x", offset=0, limit=1)


def test_what_json_has_no_value_for_is_text() -> None:
    row = {"b": b"\xff", "d": Decimal("1.50"), "t": timedelta(milliseconds=1500), "l": [b"a"]}
    row["f"] = [math.nan, -math.inf, 0.5]

    shown = {"b": "/w==", "d": "1.50", "t": 1.5, "l": ["YQ=="], "f": ["NaN", "-Infinity", 0.5]}
    assert json_value(row) == shown
