"""Merging keeps what reading shows, drops what it may, and takes no more memory than it was told.

Method: see ``keyed_world``; the policy is played for as many epochs as it takes to settle.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from weakref import ref

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.compaction import SortedRun
from sluice.protocol.keys import PipelinePaths
from sluice.protocol.records import checksum, decode_merged_runs
from sluice.state import merging
from sluice.state.cache import SegmentCache
from sluice.state.keyed import KeyedState
from sluice.state.merging import FAN_IN, GROWTH, MAX_RUNS, last_write, merge_pieces, runs_to_merge
from sluice.state.runs import Run
from sluice.state.segments import (
    DELETED,
    HASH,
    WRITTEN,
    StateSchema,
    decode_segment,
    encode_segment,
)
from sluice.store.open import StoreLocation, open_store
from tests.examples import examples
from tests.merged_runs import merge_runs
from tests.property.state.keyed_world import (
    MORTAL,
    SCHEMA,
    TTL_MS,
    Epoch,
    World,
    a_delta,
    a_run,
    are_disjoint,
    bounds,
    histories,
    is_sorted,
    played,
    rows_of,
    schemas,
)

ROW = (7, 1, "b", 0)


def frames_of(tables: list[pa.Table]) -> list[pl.DataFrame]:
    return [pl.DataFrame(table) for table in tables]


@examples(60)
@given(histories, schemas, st.integers(1, 9), st.booleans())
def test_pieces_are_the_merged_run_cut_between_hashes(
    history: list[Epoch], schema: StateSchema, max_rows: int, drop: bool
) -> None:
    world = played([Epoch(e.upserts, e.deletes, e.pause_ms, cuts=e.cuts) for e in history], schema)
    merge: dict[str, Any] = {"drop_tombstones": drop, "now_ms": world.now_ms}

    tables = [*merge_pieces(schema, world.runs, **merge, max_rows=max_rows)]

    whole = merge_runs(schema, world.runs, **merge)
    assert pa.concat_tables([whole.slice(0, 0), *tables]).equals(whole, check_metadata=True)
    pieces = frames_of(tables)
    assert all(0 < p.height <= max_rows or p[HASH].n_unique() == 1 for p in pieces)
    assert all(is_sorted(piece, schema.identity) for piece in pieces)
    assert are_disjoint(pieces)


@examples(30)
@given(histories, schemas, st.integers(1, 9), st.frozensets(bounds, max_size=4))
def test_how_runs_were_cut_does_not_show_in_the_bytes_of_the_pieces(
    history: list[Epoch], schema: StateSchema, max_rows: int, cuts: frozenset[int]
) -> None:
    worlds = [
        played([Epoch(e.upserts, e.deletes, e.pause_ms, cuts=where) for e in history], schema)
        for where in (frozenset(), cuts)
    ]

    bodies = [
        [
            encode_segment(piece)
            for piece in merge_pieces(
                schema, w.runs, drop_tombstones=True, now_ms=w.now_ms, max_rows=max_rows
            )
        ]
        for w in worlds
    ]

    assert bodies[0] == bodies[1]


@examples(30)
@given(histories)
def test_dropping_leaves_just_the_living(history: list[Epoch]) -> None:
    world = played(history, MORTAL)

    merged = merge_runs(MORTAL, world.runs, drop_tombstones=True, now_ms=world.now_ms)

    assert set(pl.DataFrame(merged).select(SCHEMA.live.names()).rows()) == rows_of(world.live)
    assert merged.num_rows == len(world.live)


def test_a_window_of_rows_is_as_small_as_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    heights: list[int] = []
    merged_rows = merging.merged_rows

    def watched(schema: StateSchema, frames: list[pl.DataFrame]) -> pl.DataFrame:
        heights.append(sum(frame.height for frame in frames))
        return merged_rows(schema, frames)

    monkeypatch.setattr(merging, "merged_rows", watched)
    runs = [many_rows(range(0, 20_000, step), value) for value, step in enumerate((1, 2, 50, 900))]

    pieces = [*merge_pieces(SCHEMA, runs, drop_tombstones=True, max_rows=1_000)]

    assert [piece.num_rows for piece in pieces] == [1_000] * 20
    tables = [run.table for run in runs]
    assert sum(heights) == sum(table.num_rows for table in tables if isinstance(table, pa.Table))
    assert max(heights) <= 1_000
    assert len(heights) < 4 * sum(heights) / 1_000


def many_rows(hashes: range, value: int) -> Run:
    return Run(table=a_delta(Epoch({(h, h, "b", 0): (None, value) for h in hashes})))


def test_merging_opens_a_segment_when_it_is_reached_and_lets_go_of_what_it_has_read() -> None:
    opened: list[ref[np.ndarray]] = []

    def opening(hash_: int) -> pa.Table:
        table = a_delta(Epoch({(hash_, hash_, "b", n): (None, 0) for n in range(3)}))
        memory = np.frombuffer(encode_segment(table), np.uint8)
        opened.append(ref(memory))
        return decode_segment(memory.data, checksum=checksum(memory.data), name="s")

    runs = [Run(table=partial(opening, h), first_hash=h, last_hash=h) for h in (1, 2, 3)]

    pieces = merge_pieces(SCHEMA, runs, drop_tombstones=True, max_rows=2)

    alive = [[memory() is not None for memory in opened] for _ in pieces]
    assert alive == [[True], [False, True], [False, False, True]]


def test_a_hash_full_of_tombstones_is_merged_away_only_with_the_oldest_run() -> None:
    runs = [a_run(a_delta(Epoch({ROW: (1, 1)}))), a_run(a_delta(Epoch({}, {ROW})))]

    kept = merge_runs(SCHEMA, runs[1:], drop_tombstones=False)
    gone = merge_runs(SCHEMA, runs, drop_tombstones=True)

    assert kept.column(DELETED).to_pylist() == [True]
    assert kept.column(HASH).to_pylist() == [7]
    assert gone.num_rows == 0
    assert runs[1].min_time_ms is None


@pytest.mark.parametrize(("is_oldest", "rows"), [(False, [(*ROW, None, None, True)]), (True, [])])
def test_a_compaction_keeps_the_tombstones_that_hide_rows_of_older_runs(
    is_oldest: bool, rows: list[Any], tmp_path: Path
) -> None:
    """What a Spark task writes, of two runs of which the newer deletes a row of a third, or not."""
    tables = [a_delta(Epoch({ROW: (2, 2)})), a_delta(Epoch({}, {ROW}))]
    handles = [merging.describe_segment(SCHEMA, table)[0] for table in tables]
    due = merging.DueMerge(
        subtask=0,
        table="rows",
        schema=SCHEMA,
        runs=tuple(SortedRun(run=n + 1, handles=(handle,)) for n, handle in enumerate(handles)),
        is_oldest=is_oldest,
    )
    spec = merging.CompactionSpec(
        location=StoreLocation(root=f"file://{tmp_path}"),
        paths=PipelinePaths("p").of_journal("j-1"),
        stage="stage",
        checkpoint_id=7,
        now_ms=0,
        merges=(due,),
    )
    numbers = pa.RecordBatch.from_pydict({"number": pa.array([0], pa.int64())})

    (answer,) = merging.run_merges(spec, [numbers])

    merged = decode_merged_runs(answer.column(0)[0].as_py(), "the answer")
    cache = SegmentCache(spec.location, open_store(spec.location), folder=tmp_path / "cache")
    shown = [
        row for handle in merged.merged for row in pl.DataFrame(cache.open(handle.segment)).rows()
    ]
    assert shown == rows
    assert len(merged.replaced) == 2


def test_an_expired_row_becomes_a_tombstone_until_it_is_merged_with_the_oldest_run() -> None:
    """An older version may not have expired: it was written before there was a TTL."""
    ancient = a_run(a_delta(Epoch({ROW: (1, 1)})))
    expired = a_run(a_delta(Epoch({ROW: (2, 2)}), MORTAL, 100), MORTAL)
    now_ms = 100 + TTL_MS

    buried = merge_runs(MORTAL, [expired], drop_tombstones=False, now_ms=now_ms)
    gone = merge_runs(MORTAL, [ancient, expired], drop_tombstones=True, now_ms=now_ms)

    assert pl.DataFrame(buried).rows() == [(*ROW, None, None, 100, True)]
    assert gone.num_rows == 0
    for newest in (expired, a_run(buried, MORTAL)):
        assert KeyedState(MORTAL, [ancient, newest], now_ms=now_ms).scan().is_empty()
    assert KeyedState(MORTAL, [ancient], now_ms=now_ms).scan().rows() == [(*ROW, 1, 1)]


def test_rows_that_have_not_expired_are_merged_with_the_time_of_their_write() -> None:
    other = (8, 2, "b", 0)
    runs = [
        a_run(a_delta(Epoch({ROW: (1, 1), other: (1, 1)}), MORTAL, 100), MORTAL),
        a_run(a_delta(Epoch({ROW: (2, 2)}), MORTAL, 105), MORTAL),
    ]

    for drop in (False, True):
        merged = merge_runs(MORTAL, runs, drop_tombstones=drop, now_ms=100 + TTL_MS - 1)

        assert merged.column(WRITTEN).to_pylist() == [105, 100]
        assert last_write(MORTAL, merged) == 105


def test_an_expired_run_is_merged_away_unopened() -> None:
    world = World(MORTAL)
    runs = [
        world.segment(a_delta(Epoch({ROW: (1, 1)}), MORTAL, 100), 7),
        world.segment(a_delta(Epoch({(7, 1, "b", 1): (1, 1)}), MORTAL, 105), 7),
    ]

    merged = merge_runs(MORTAL, runs, drop_tombstones=True, now_ms=100 + TTL_MS)

    assert merged.num_rows == 1
    assert world.opened == {0: 0, 1: 1}


@examples(50)
@given(st.lists(st.integers(1, 1_000_000_000), min_size=1, max_size=120))
def test_the_policy_bounds_the_runs_and_leaves_few_to_be_settled(deltas: list[int]) -> None:
    counts: list[int] = []

    for delta in deltas:
        counts.append(delta)
        count = runs_to_merge(counts)
        assert count == 1 or FAN_IN <= count <= len(counts)
        counts[-count:] = [sum(counts[-count:])]

        assert len(counts) <= MAX_RUNS
        assert count > 1 or growing(counts) < FAN_IN


def growing(counts: list[int]) -> int:
    """How many of the newest runs are each less than twice what comes after it."""
    newest_first = [*reversed(counts)]
    sums = [sum(newest_first[:n]) for n in range(1, len(counts))]
    settled = [n for n, size in enumerate(sums, 1) if newest_first[n] >= GROWTH * size]
    return settled[0] if settled else len(counts)


def test_the_policy_has_nothing_to_merge_where_there_is_nothing() -> None:
    assert runs_to_merge([]) == 0
    assert runs_to_merge([5]) == 1


def test_sizes_that_never_call_for_a_merge_meet_the_hard_bound() -> None:
    shrinking = [2 ** (40 - 2 * n) for n in range(MAX_RUNS + 1)]

    assert all(older >= GROWTH * newer for older, newer in pairwise(shrinking))
    assert runs_to_merge(shrinking[:-1]) == 1
    assert runs_to_merge(shrinking) == FAN_IN
    late = [*shrinking, *[1] * (FAN_IN + 1)]
    assert runs_to_merge(late) == len(late) - MAX_RUNS + 1


def test_equal_deltas_are_rewritten_a_logarithmic_number_of_times() -> None:
    counts: list[int] = []
    written = 0

    for _ in range(4_096):
        counts.append(1)
        count = runs_to_merge(counts)
        if count > 1:
            counts[-count:] = [sum(counts[-count:])]
            written += counts[-1]

    assert written / 4_096 < 8
    assert len(counts) <= 12
