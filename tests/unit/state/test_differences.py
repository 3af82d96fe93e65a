"""What the difference of two states reads, and how it compares rows of changed columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl
import pyarrow as pa
import pytest

from sluice.core.handles import SegmentHandle, StateHandle
from sluice.state.differences import STRETCHES_AT_ONCE, Differences, Side, key_change, stretches
from sluice.state.keyed import delta_table
from sluice.state.merging import describe_segment
from sluice.state.segments import HASH, StateSchema, decode_segment

ROWS = 1_000
SCHEMA = StateSchema(
    columns=pl.Schema({"user": pl.Int64(), "bids": pl.Int64()}), key_columns=("user",)
)


def a_segment(
    hashes: range | list[int], bids: int, schema: StateSchema = SCHEMA, now_ms: int = 0
) -> StateHandle:
    """Of each hash the user of that number."""
    rows = pl.DataFrame({HASH: [*hashes], "user": [*hashes], "bids": [bids] * len(hashes)})
    return stored(schema, rows.cast(dict(schema.live)), now_ms)  # type: ignore[arg-type]


def stored(schema: StateSchema, rows: pl.DataFrame, now_ms: int = 0) -> StateHandle:
    table = delta_table(schema, rows, schema.live.to_frame(), now_ms=now_ms)
    return describe_segment(schema, table)[0]


def a_side(*handles: StateHandle, schema: StateSchema = SCHEMA, now_ms: int = 0) -> Side:
    return Side(schema=schema, handles=handles, now_ms=now_ms)


class Opened:
    """The segments that were opened, by checksum."""

    def __init__(self) -> None:
        self.checksums: list[str] = []

    def __call__(self, segment: SegmentHandle) -> pa.Table:
        self.checksums.append(segment.checksum)
        assert segment.inline is not None
        return decode_segment(segment.inline, checksum=segment.checksum, name="it")


def differences_of(
    before: Side, after: Side, opened: Opened, rows: int = ROWS
) -> list[tuple[str, int]]:
    windows = Differences(before, after, opened).windows(-(2**63), rows)
    return [
        (kind, user)
        for window in windows
        for kind, user in zip(window.kinds, window.keys["user"], strict=True)
    ]


def test_of_ten_shared_segments_only_the_one_with_a_changed_key_is_opened() -> None:
    base = [a_segment(range(start, start + 10), 1) for start in range(0, 100, 10)]
    change = a_segment([42], 2)
    opened = Opened()

    found = differences_of(a_side(*base), a_side(*base, change), opened)

    assert found == [("changed", 42)]
    assert opened.checksums == [change.segment.checksum, base[4].segment.checksum]


def test_an_older_version_is_not_looked_for_behind_the_newest_that_both_have() -> None:
    oldest, newest = a_segment(range(100), 1), a_segment([42], 2)
    change = a_segment([42], 3)
    opened = Opened()

    differences_of(a_side(oldest, newest), a_side(oldest, newest, change), opened)

    assert oldest.segment.checksum not in opened.checksums


def test_where_both_have_the_same_segments_nothing_is_opened() -> None:
    base = [a_segment(range(start, start + 10), 1) for start in range(0, 100, 10)]
    copies = [replace(h, segment=replace(h.segment)) for h in base]
    opened = Opened()

    assert differences_of(a_side(*base), a_side(*copies), opened) == []
    assert opened.checksums == []


def test_a_rescale_opens_nothing() -> None:
    whole = a_segment(range(100), 1)
    halves = [replace(whole, first_hash=0, last_hash=49), replace(whole, first_hash=50)]

    assert stretches([whole], halves) == ()


def test_a_segment_between_two_shared_ones_is_all_that_can_differ() -> None:
    old, new, one, other = (a_segment([1], bids) for bids in (1, 2, 7, 8))

    found = stretches([old, one, new], [old, other, new])

    assert [[s.checksum for s in stretch.own] for stretch in found] == [
        [one.segment.checksum, other.segment.checksum]
    ]
    opened = Opened()
    assert differences_of(a_side(old, one, new), a_side(old, other, new), opened) == []


def test_a_window_takes_no_more_rows_than_it_was_told_and_the_next_is_not_read() -> None:
    before, after = a_side(a_segment(range(100), 1)), a_side(a_segment(range(100), 2))

    first, second, *_ = Differences(before, after, Opened()).windows(-(2**63), 20)

    assert first.read <= 20
    assert first.kinds.len() == first.read
    assert second.keys["user"][0] == first.read
    assert next(Differences(before, after, Opened()).windows(97, 20)).keys["user"].to_list() == [
        97, 98, 99,
    ]  # fmt: skip


def test_many_stretches_of_few_rows_are_looked_up_together() -> None:
    before = a_side(a_segment(range(200), 1))
    pieces = [a_segment([n], 2) for n in range(100)]
    prefetched: list[str] = []

    def prefetch(segments: Sequence[SegmentHandle]) -> None:
        prefetched.extend(segment.checksum for segment in segments)

    differences = Differences(before, a_side(*before.handles, *pieces), Opened(), prefetch)
    windows = [window.keys["user"].to_list() for window in differences.windows(-(2**63), ROWS)]

    assert [user for window in windows for user in window] == [*range(100)]
    assert len(windows) == -(-100 // STRETCHES_AT_ONCE)
    assert prefetched == [piece.segment.checksum for piece in pieces]


def test_rows_that_may_have_expired_count_before_the_next_stretch_is_read() -> None:
    mortal = replace(SCHEMA, ttl_ms=10)
    shared = [a_segment(range(n, n + 10), 1, mortal, 100) for n in range(0, 30, 10)]
    before, after = (a_side(*shared, schema=mortal, now_ms=now) for now in (105, 108))
    opened = Opened()

    first = next(Differences(before, after, opened).windows(-(2**63), 10))

    assert (first.read, first.last_hash) == (10, 9)
    assert len(opened.checksums) == 1


def test_rows_that_expire_in_between_are_found_in_segments_that_both_have() -> None:
    mortal = replace(SCHEMA, ttl_ms=10)
    early, late = a_segment([1, 2], 1, mortal, 100), a_segment([3], 1, mortal, 105)
    opened = Opened()

    def side(now_ms: int) -> Side:
        return a_side(early, late, schema=mortal, now_ms=now_ms)

    assert differences_of(side(105), side(112), opened) == [("removed", 1), ("removed", 2)]
    assert differences_of(side(112), side(105), opened) == [("added", 1), ("added", 2)]
    opened.checksums.clear()
    assert differences_of(side(115), side(200), opened) == []
    assert opened.checksums == [], "all had expired in both"


def test_a_column_of_one_side_does_not_make_a_row_differ_and_a_wider_type_neither() -> None:
    narrow, wider = (
        StateSchema(columns=pl.Schema({"user": pl.Int64(), **columns}), key_columns=("user",))
        for columns in ({"bids": pl.Int32()}, {"bids": pl.Int64(), "most": pl.Int64()})
    )
    old = a_segment([1, 2], 5, narrow)
    rows = pl.DataFrame({HASH: [1, 2], "user": [1, 2], "bids": [5, 6], "most": [9, 9]})
    before = a_side(old, schema=narrow)
    after = a_side(old, stored(wider, rows), schema=wider)

    (window, *_) = Differences(before, after, Opened()).windows(-(2**63), ROWS)

    assert window.keys["user"].to_list() == [2]
    assert window.changed.to_dicts() == [{"bids": True}]


@pytest.mark.parametrize(
    ("type_", "was", "is_now"),
    [
        (pl.List(pl.Int64()), [1], [2]),
        (pl.Struct({"a": pl.Int64()}), {"a": 1}, {"a": 2}),
        (pl.Float64(), float("nan"), None),
        (pl.String(), "", None),
    ],
)
def test_values_of_any_type_are_compared(type_: pl.DataType, was: object, is_now: object) -> None:
    schema = StateSchema(
        columns=pl.Schema({"user": pl.Int64(), "kept": type_}), key_columns=("user",)
    )

    def segment(kept: object) -> StateHandle:
        rows = pl.DataFrame(
            {HASH: [1, 2], "user": [1, 2], "kept": [kept, was]}, schema=dict(schema.live)
        )
        return stored(schema, rows)

    before, after = a_side(segment(was), schema=schema), a_side(segment(is_now), schema=schema)

    assert differences_of(before, after, Opened()) == [("changed", 1)]


def test_keys_of_other_columns_are_refused_in_words() -> None:
    other = StateSchema(
        columns=pl.Schema({"user": pl.String(), "bids": pl.Int64()}), key_columns=("user",)
    )

    assert key_change(SCHEMA, SCHEMA) is None
    assert key_change(SCHEMA, other) == "its key was user (Int64) and is user (String)"
