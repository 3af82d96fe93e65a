"""Broadcast state of a keyed function in a job: every subtask sees it, and one copy is kept."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import polars as pl
import pytest

from harness.jobs import a_running_job
from sluice.coordinator.restore import restore
from sluice.core.restoring import Latest, RestoreOptions
from sluice.core.transitions import Consent
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.fingerprints import fingerprints
from sluice.declaration.keyed_functions import (
    BroadcastContext,
    BroadcastState,
    Context,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    Row,
)
from sluice.declaration.keyed_states import ValueState
from sluice.declaration.pipeline import Pipeline, Stream
from sluice.errors import ConfigurationError, StageFailed
from sluice.job.analysis import analyse, check_state
from sluice.job.job import Job
from sluice.sinks import FilesTable
from sluice.sources import Nexmark
from sluice.surface.state import open_state, state_table_names
from tests.unit.surface.epochs import play

STAGE = "flagged"


class Flagged(KeyedBroadcastProcessFunction):
    """Keeps, for each remainder, the newest price that was broadcast; a bid yields all of them."""

    prices = BroadcastState(int, tuple[int, int])
    seen = ValueState(int)
    log: ClassVar[list[tuple[Any, ...]]] = []

    def process_broadcast(self, row: Row, context: BroadcastContext) -> None:
        price = row["price"]
        if price is None:
            return
        self.log.append(("rule", None, price))
        if price % 5 == 4:
            self.prices.remove(price % 4)
        else:
            self.prices.put(price % 5, (price, self.prices.get(price % 5, (0, 0))[1] + 1))

    def process(self, row: Row, context: Context) -> Iterable[Row]:
        self.seen.set(self.seen.get(0) + 1)
        prices = [(key, *value) for key, value in self.prices.items()]
        auction, seen = context.key["bid_auction"], self.seen.get()
        self.log.append(("bid", auction, (seen, prices)))
        assert self.prices.get(prices[0][0]) == prices[0][1:]
        yield {"auction": auction, "seen": seen, "prices": str(prices)}


def a_pipeline(function: Any, parallelism: int = 2) -> Pipeline:
    pipeline = Pipeline("bids", Checkpointing(max_records_per_epoch=150), parallelism=parallelism)
    bids = pipeline.source("bids", Nexmark(600, columns=("bid_auction", "price")))
    broadcast = pipeline.source("broadcast", Nexmark(450, columns=("bid_auction", "price")))
    rules = broadcast.transform("rules", lambda rows: rows)
    result = {"auction": int, "seen": int, "prices": str}
    flagged = bids.key_by("bid_auction").process_keyed(
        STAGE, function, result=result, broadcast=rules
    )
    flagged.sink("out", FilesTable())
    return pipeline


def test_the_key_of_a_stage_behind_is_traced_to_the_input_that_has_keys() -> None:
    pipeline = Pipeline("bids")
    bids = pipeline.source("bids", Nexmark(600, columns=("bid_auction", "price")))
    flagged = bids.key_by(auction="bid_auction").process_keyed(
        STAGE,
        Flagged(),
        result={"auction": int, "seen": int, "prices": str},
        broadcast=bids.transform("rules", lambda rows: rows),
    )
    newest = flagged.key_by("auction").latest("newest", by="seen")
    newest.sink("out", FilesTable(upsert_key=("auction",)))

    assert fingerprints(pipeline, {})["newest"].parts["keys"] == "auction = bid_auction"


def changed(job: Job, function: KeyedProcessFunction) -> Job:
    """The job with another function, to which the state so far is left."""
    job = replace(job, pipeline=a_pipeline(function, 2))
    restore(job, Latest(), RestoreOptions(consent=Consent(kept=(STAGE,))))
    return job


def rows_of(job: Job, table: str) -> list[tuple[Any, ...]]:
    return open_state(job, "latest", STAGE, table).frame().sort(pl.first()).rows()


def test_every_subtask_sees_all_broadcast_rows_before_those_of_its_keys() -> None:
    bids: dict[int, list[dict[Any, list[Any]]]] = {}
    for parallelism in (1, 3):
        job = a_running_job(a_pipeline(Flagged(), parallelism))
        bids[parallelism] = []
        for _ in range(2):
            Flagged.log.clear()
            play(job, 1)
            calls = [kind for kind, *_ in Flagged.log]
            rules = calls.count("rule") // parallelism
            assert calls.count("rule") == rules * parallelism > 0
            assert calls[:rules] == ["rule"] * rules
            assert "bid" in calls
            bids[parallelism].append(by_auction(Flagged.log))

    assert bids[1] == bids[3]


def by_auction(log: Sequence[tuple[Any, ...]]) -> dict[Any, list[Any]]:
    found = defaultdict(list)
    for kind, key, value in log:
        if kind == "bid":
            found[key].append(value)
    return dict(found)


def test_one_copy_is_kept_which_is_what_the_rows_wrote_at_any_parallelism() -> None:
    job = a_running_job(a_pipeline(Flagged(), 3))
    expected: dict[int, tuple[int, int]] = {}

    for parallelism in (3, 1, 4):
        Flagged.log.clear()
        play(replace(job, pipeline=a_pipeline(Flagged(), parallelism)), 1)
        rules = [value for kind, _, value in Flagged.log if kind == "rule"]
        for price in rules[: len(rules) // parallelism]:
            wrote(expected, price)

        assert rows_of(job, "broadcast:prices") == [
            (key, {"f0": price, "f1": count}) for key, (price, count) in sorted(expected.items())
        ]
        table = open_state(job, "latest", STAGE, "broadcast:prices")
        assert len(table.subtasks) == 1
        for key, (price, count) in expected.items():
            of_key = table.of_key({table.schema().key_columns[0]: key})
            assert of_key.rows() == [(key, {"f0": price, "f1": count})]
    assert state_table_names(job, "latest", STAGE) == ("broadcast:prices", "values")


def wrote(prices: dict[int, tuple[int, int]], price: int) -> None:
    if price % 5 == 4:
        prices.pop(price % 4, None)
    else:
        prices[price % 5] = (price, prices.get(price % 5, (0, 0))[1] + 1)


class Misused(Flagged):
    """Calls the functions of a test in place of its own."""

    def __init__(self, on_rule: Callable[[Any], Any], on_bid: Callable[[Any], Any]) -> None:
        self.on_rule, self.on_bid = on_rule, on_bid

    def process_broadcast(self, row: Row, context: BroadcastContext) -> None:
        return self.on_rule(self)  # type: ignore[no-any-return]

    def process(self, row: Row, context: Context) -> Iterable[Row]:
        self.on_bid(self)
        return ()


def nothing(_: Any) -> None: ...


def put(function: Any) -> None:
    function.prices.put(1, (2, 3))


# What the function does with a broadcast row, and with a bid; the message.
MISUSES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], str]] = {
    "put": (put, put, "'prices' is read-only for rows of keys; write it in process_broadcast"),
    "remove": (nothing, lambda f: f.prices.remove(1), "'prices' is read-only"),
    "clear": (nothing, lambda f: f.prices.clear(), "'prices' is read-only"),
    "state of a key": (
        lambda f: f.seen.set(1),
        nothing,
        "'flagged', broadcast row: state 'seen' is that of a key; use it inside process",
    ),
    "type": (
        lambda f: f.prices.put(1, 2),
        nothing,
        r"broadcast row: state 'prices' holds tuple\[int, int\], not 2 of type int",
    ),
    "yields": (
        lambda _: iter(()),
        nothing,
        r"process_broadcast\(\) yields rows, but every subtask calls it",
    ),
    "raises": (lambda _: 1 / 0, nothing, r"process_broadcast\(\) raised ZeroDivisionError"),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_a_function_that_misuses_its_state_is_refused(misuse: str) -> None:
    on_rule, on_bid, message = MISUSES[misuse]
    job = a_running_job(a_pipeline(Misused(on_rule, on_bid), 1))

    with pytest.raises(StageFailed, match=message):
        play(job, 1)


def test_broadcast_state_that_is_cleared_is_gone() -> None:
    job = a_running_job(a_pipeline(Flagged(), 2))
    play(job, 1)
    cleared = Misused(lambda f: f.prices.clear(), nothing)

    play(changed(job, cleared), 1)

    assert "broadcast:prices" in state_table_names(job, "1", STAGE)
    assert "broadcast:prices" not in state_table_names(job, "2", STAGE)


class Renamed(Misused):
    prices: Any = BroadcastState(int, str, migrations={tuple[int, int]: str})


class Refused(Misused):
    prices: Any = BroadcastState(int, str)


def test_broadcast_state_is_migrated_like_any_other() -> None:
    job = a_running_job(a_pipeline(Flagged(), 2))
    play(job, 1)
    before = rows_of(job, "broadcast:prices")
    seen: list[Any] = []
    renamed = changed(job, Renamed(nothing, lambda f: seen.append(f.prices.items())))
    play(renamed, 1)
    refused = changed(job, Refused(nothing, nothing))

    expected = [(key, str((value["f0"], value["f1"]))) for key, value in before]
    assert seen
    assert seen == [expected] * len(seen)
    with pytest.raises(ConfigurationError, match=r"state 'prices' was Struct.* is now Str"):
        check_state(refused, analyse(refused.pipeline, {}, None))


class Keyed(KeyedProcessFunction):
    def process(self, row: Row, context: Context) -> None: ...


class Stray(Keyed):
    rules = BroadcastState(int, int)


def test_a_stream_and_a_function_that_do_not_fit_are_refused_where_they_are_declared() -> None:
    pipeline = Pipeline("bids")
    bids = pipeline.source("bids", Nexmark(600, columns=("bid_auction", "price")))
    rules = bids.transform("rules", lambda rows: rows)
    other = Pipeline("other").source("bids", Nexmark(1)).transform("rules", lambda rows: rows)
    counted = bids.key_by("price").aggregate("counted", n=agg.count())
    mistakes: list[tuple[KeyedProcessFunction, Stream | None, str]] = [
        (Keyed(), rules, "'rules', but Keyed has no process_broadcast"),
        (Stray(), None, "Stray declares broadcast state 'rules', which nothing writes"),
        (Flagged(), None, "say which stream it sees whole: process_keyed"),
        (Flagged(), bids, "broadcasts the source 'bids' itself; put a stage"),
        (Flagged(), other, "streams of two pipelines, 'bids' and 'other'"),
        (Flagged(), counted, "'counted', whose rows replace earlier ones"),
    ]
    for function, broadcast, message in mistakes:
        keyed = bids.key_by("bid_auction")
        with pytest.raises(ConfigurationError, match=message):
            keyed.process_keyed(STAGE, function, result={"auction": int}, broadcast=broadcast)


def test_keys_go_on_with_what_was_broadcast_when_the_stream_has_ended() -> None:
    job = a_running_job(a_pipeline(Flagged(), 2))
    play(job, 3)
    last = rows_of(job, "broadcast:prices")
    Flagged.log.clear()

    play(job, 1)

    prices = [value[1] for kind, _, value in Flagged.log if kind == "bid"]
    assert len(prices) == len(Flagged.log) == 150
    assert prices == [[(key, value["f0"], value["f1"]) for key, value in last]] * 150
