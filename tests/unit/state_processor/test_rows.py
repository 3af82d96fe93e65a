"""Rows of tables with timers, sub-keys and a time to live, written anew."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from sluice.core.handles import MAX_HASH, MIN_HASH, SegmentHandle, StateHandle
from sluice.errors import ConfigurationError
from sluice.local.savepoint_tables import (
    Function,
    NewTable,
    RewrittenTable,
    bootstrap_table,
    rewrite_table,
)
from sluice.state.cache import SegmentCache
from sluice.state.key_hash import key_hash
from sluice.state.keyed import delta_table
from sluice.state.merging import describe_segment
from sluice.state.segments import HASH, WRITTEN, StateSchema, to_frame
from sluice.store.open import StoreLocation

COLUMNS = pl.Schema({"key": pl.String(), "at": pl.Int64(), "n": pl.Int64()})
TIMED = StateSchema(
    columns=COLUMNS, key_columns=("key",), sub_key_columns=("at",), time_column="at", ttl_ms=100
)
CACHE = SegmentCache(StoreLocation(root="memory://state-processor-rows"))
NOW_MS = 1_000


def a_place(schema: StateSchema = TIMED) -> RewrittenTable:
    return RewrittenTable(
        stage="s", table="panes", schema=schema, parallelism=2, max_parallelism=128, now_ms=NOW_MS
    )


def inline(segment: SegmentHandle, _: bytes) -> SegmentHandle:
    return segment


def a_run(
    rows: dict[str, list[object]], *, written_ms: int, run: int, gone: tuple[str, ...] = ()
) -> StateHandle:
    frame = pl.DataFrame(rows, schema=COLUMNS)
    hashed = frame.with_columns(pl.Series(HASH, key_hash(frame, ["key"])))
    is_gone = pl.col("key").is_in(gone)
    table = delta_table(TIMED, hashed.filter(~is_gone), hashed.filter(is_gone), now_ms=written_ms)
    handle, _ = describe_segment(TIMED, table)
    return replace(handle, table="panes", run=run)


OLDEST: dict[str, list[object]] = {
    "key": ["a", "a", "b", "c"],
    "at": [5, 6, 7, 8],
    "n": [1, 2, 3, 4],
}
NEWER: dict[str, list[object]] = {"key": ["a", "b", "d"], "at": [5, 7, 9], "n": [10, 0, 5]}
STATE = [
    a_run(OLDEST, written_ms=910, run=1),
    a_run(NEWER, written_ms=990, run=2, gone=("b",)),
    a_run({"key": ["e"], "at": [1], "n": [6]}, written_ms=800, run=3),
]


def made_of(function: Function) -> NewTable:
    return rewrite_table(a_place(), [STATE], [function], as_of_ms=1_000, cache=CACHE, keep=inline)


def stored(table: NewTable) -> list[tuple[Any, ...]]:
    """Key, time, number and last write of each row, in the order of the first two."""
    frames = [to_frame(CACHE.open(h.segment)) for one in table.subtasks for h in one]
    return pl.concat(frames).select("key", "at", "n", WRITTEN).sort("key", "at").rows()


def test_only_live_rows_are_seen_the_newest_of_each() -> None:
    seen: list[pl.DataFrame] = []

    def look(rows: pl.DataFrame) -> pl.DataFrame:
        seen.append(rows)
        return rows

    table = made_of(look)

    assert sorted(pl.concat(seen).rows()) == [("a", 5, 10), ("a", 6, 2), ("c", 8, 4), ("d", 9, 5)]
    assert (table.rows_before, table.rows) == (4, 4)


def test_a_row_keeps_the_time_of_its_last_write_and_a_new_one_is_written_now() -> None:
    def shifted(rows: pl.DataFrame) -> pl.DataFrame:
        later = pl.when(pl.col("at") == 6).then(60).otherwise(pl.col("at"))
        return rows.with_columns(later.alias("at"), pl.col("n") + 1)

    assert stored(made_of(shifted)) == [
        ("a", 5, 11, 990),
        ("a", 60, 3, NOW_MS),
        ("c", 8, 5, 910),
        ("d", 9, 6, 990),
    ]
    assert stored(made_of(lambda rows: rows.with_columns(pl.col("n") + 1)))[1] == ("a", 6, 3, 910)


def test_the_handles_tell_the_earliest_timer_and_the_newest_write() -> None:
    table = made_of(lambda rows: rows.with_columns(pl.col("at") - 4))
    handles = [handle for one in table.subtasks for handle in one]

    assert min(handle.min_time_ms or 0 for handle in handles) == 1
    assert {handle.last_write_ms for handle in handles} == {NOW_MS}
    assert {handle.run for handle in handles} == {1}
    assert {handle.table for handle in handles} == {"panes"}


def test_the_first_and_the_last_hash_of_each_subtask_are_its_own() -> None:
    hashes = [MIN_HASH, -1, 0, MAX_HASH]
    rows = pl.DataFrame({HASH: hashes, "key": [*"abcd"], "at": [1] * 4, "n": [1] * 4})
    handle, _ = describe_segment(TIMED, delta_table(TIMED, rows, rows.clear(), now_ms=990))
    state = [replace(handle, table="panes")]

    table = rewrite_table(
        a_place(), [state], [lambda rows: rows], as_of_ms=1_000, cache=CACHE, keep=inline
    )

    found = [[to_frame(CACHE.open(h.segment))[HASH].to_list() for h in s] for s in table.subtasks]
    assert found == [[[MIN_HASH, -1]], [[0, MAX_HASH]]]


def test_sub_keys_that_become_equal_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"key=a, at=0 is there more than once.*sub-key"):
        made_of(lambda rows: rows.with_columns(at=pl.lit(0, pl.Int64)))


def test_rows_that_are_bootstrapped_begin_their_time_to_live_now() -> None:
    values = {"key": ["x", "x", None], "at": [2, 1, None], "n": [1, 2, 3]}
    rows = pl.DataFrame(values, schema=COLUMNS)

    table = bootstrap_table(a_place(), rows, inline)
    handles = [handle for one in table.subtasks for handle in one]

    assert {row[-1] for row in stored(table)} == {NOW_MS}
    assert min(h.min_time_ms for h in handles if h.min_time_ms is not None) == 1


def test_no_rows_are_no_files() -> None:
    empty = bootstrap_table(a_place(), COLUMNS.to_frame(), inline)

    assert (empty.rows, empty.subtasks) == (0, ((), ()))
    assert bootstrap_table(a_place(), iter(()), inline).subtasks == ((), ())


def test_nulls_of_no_type_are_taken_where_a_column_may_be_null() -> None:
    rows = pl.DataFrame({"key": ["x"], "at": [1], "n": [None]})

    assert stored(bootstrap_table(a_place(), rows, inline)) == [("x", 1, None, NOW_MS)]
