"""Keyed state against a dictionary, whatever is merged, sliced, deleted, or shares a hash.

Method: keys are few and their hashes fewer, so most lookups meet true collisions; merging and
slicing happen at random points; after each epoch everything that can be read is compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import polars as pl
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.core.handles import MAX_HASH, MIN_HASH
from sluice.runtime.state.keyed import (
    GROWTH,
    MAX_RUNS,
    KeyedState,
    Run,
    StateSchema,
    delta_table,
    merge_runs,
    min_time,
    runs_to_merge,
)
from sluice.runtime.state.segments import DELETED, HASH, checksum, decode_segment, encode_segment

SCHEMA = StateSchema(
    columns=pl.Schema(
        {
            "id": pl.Int64(),
            "name": pl.String(),
            "start": pl.Int64(),
            "at": pl.Int64(),
            "value": pl.Int64(),
        }
    ),
    key_columns=("id", "name"),
    sub_key_columns=("start",),
    time_column="at",
)
PER_KEY = StateSchema(
    columns=pl.Schema({"id": pl.Int64(), "name": pl.String(), "value": pl.Int64()}),
    key_columns=("id", "name"),
)

Key = tuple[int, int | None, str | None]  # hash, id, name
Identity = tuple[int, int | None, str | None, int]
Value = tuple[int | None, int]  # at, value

ids = st.sampled_from([None, 0, 1])  # Few, so that epochs meet in the same rows.
names = st.sampled_from([None, "b"])
identities = st.tuples(ids, names, st.integers(0, 1)).map(
    lambda identity: (a_hash(identity[0], identity[1]), *identity)
)
values = st.tuples(st.none() | st.integers(-5, 20), st.integers(0, 3))


def a_hash(key_id: int | None, name: str | None) -> int:
    """A function of the key with three values, the extremes among them."""
    return (MIN_HASH, 7, MAX_HASH)[((key_id or 0) + len(name or "")) % 3]


@dataclass(frozen=True)
class Epoch:
    upserts: dict[Identity, Value]
    deletes: set[Identity]
    merged: int  # How many of the newest runs are merged afterwards.
    watermark_ms: int


epochs = st.lists(
    st.builds(
        Epoch,
        upserts=st.dictionaries(identities, values, max_size=8),
        deletes=st.sets(identities, max_size=4),
        merged=st.integers(1, 4),
        watermark_ms=st.integers(-6, 21),
    ),
    min_size=1,
    max_size=4,
)


def rows_of(live: dict[Identity, Value]) -> set[tuple[object, ...]]:
    return {(*identity, *value) for identity, value in live.items()}


def a_delta(epoch: Epoch) -> pa.Table:
    schema = SCHEMA.live
    upserts = [(*identity, *value) for identity, value in epoch.upserts.items()]
    deletes = [(*identity, None, None) for identity in epoch.deletes]
    return delta_table(
        SCHEMA,
        pl.DataFrame(upserts, schema=schema, orient="row"),
        pl.DataFrame(deletes, schema=schema, orient="row").select(SCHEMA.identity),
    )


def a_run(table: pa.Table) -> Run:
    """As a subtask sees it: through the bytes of a segment."""
    body = encode_segment(table)
    stored = decode_segment(body, checksum=checksum(body), name="run")
    return Run(table=stored, min_time_ms=min_time(SCHEMA, stored))


def play(history: list[Epoch]) -> tuple[list[Run], dict[Identity, Value]]:
    runs: list[Run] = []
    live: dict[Identity, Value] = {}
    for epoch in history:
        runs.append(a_run(a_delta(epoch)))
        live = {k: v for k, v in live.items() if k not in epoch.deletes} | epoch.upserts
        newest = runs[-epoch.merged :]
        merged = merge_runs(SCHEMA, newest, drop_tombstones=len(newest) == len(runs))
        runs[-epoch.merged :] = [a_run(merged)]
    return runs, live


def check_reads(state: KeyedState, live: dict[Identity, Value], wanted: set[Key]) -> None:
    keys = pl.DataFrame(
        list(wanted), schema={name: SCHEMA.live[name] for name in SCHEMA.key}, orient="row"
    )

    scanned = state.scan()
    looked_up = state.lookup(keys)

    assert scanned.schema == looked_up.schema == SCHEMA.live
    assert set(scanned.rows()) == rows_of(live)
    assert scanned.height == len(live)
    assert scanned.rows() == scanned.sort(SCHEMA.identity).rows()
    assert looked_up.rows() == [row for row in scanned.rows() if row[:3] in wanted]


@settings(max_examples=25, deadline=None)
@given(epochs, st.sets(identities.map(lambda identity: identity[:3]), max_size=6))
def test_reading_equals_a_dictionary_whatever_was_merged(
    history: list[Epoch], wanted: set[Key]
) -> None:
    runs, live = play(history)

    check_reads(KeyedState(SCHEMA, runs), live, wanted)


@settings(max_examples=20, deadline=None)
@given(epochs, st.sets(identities.map(lambda identity: identity[:3])), st.data())
def test_a_slice_holds_exactly_the_rows_between_its_bounds(
    history: list[Epoch], wanted: set[Key], data: st.DataObject
) -> None:
    runs, live = play(history)
    bound = st.sampled_from([MIN_HASH, MIN_HASH + 1, 6, 7, 8, MAX_HASH - 1, MAX_HASH])
    first, last = sorted([data.draw(bound), data.draw(bound)])
    sliced = [
        Run(table=r.table, first_hash=first, last_hash=last, min_time_ms=r.min_time_ms)
        for r in runs
    ]
    inside = {identity: value for identity, value in live.items() if first <= identity[0] <= last}

    check_reads(KeyedState(SCHEMA, sliced), inside, wanted)
    merged = a_run(merge_runs(SCHEMA, sliced, drop_tombstones=True))
    check_reads(KeyedState(SCHEMA, [merged]), inside, wanted)
    assert merged.table.num_rows == len(inside)


@settings(max_examples=25, deadline=None)
@given(epochs)
def test_due_rows_are_the_live_ones_whose_newest_time_has_come(history: list[Epoch]) -> None:
    runs, live = play(history)
    watermark_ms = history[-1].watermark_ms

    due = KeyedState(SCHEMA, runs).due(watermark_ms)

    expected = {
        identity: value
        for identity, value in live.items()
        if value[0] is not None and value[0] <= watermark_ms
    }
    assert set(due.rows()) == rows_of(expected)
    assert due.rows() == due.sort(SCHEMA.identity).rows()


@settings(max_examples=20, deadline=None)
@given(epochs, st.lists(identities, unique=True))
def test_finding_answers_each_identity_in_its_place(
    history: list[Epoch], wanted: list[Identity]
) -> None:
    runs, live = play(history)
    frame = pl.DataFrame(
        wanted, schema={name: SCHEMA.live[name] for name in SCHEMA.identity}, orient="row"
    )

    found = KeyedState(SCHEMA, runs).find(frame)

    nothing = (None,) * len(SCHEMA.live)
    assert found.schema == SCHEMA.live
    assert found.rows() == [(*i, *live[i]) if i in live else nothing for i in wanted]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.dictionaries(st.tuples(ids, names), st.integers(0, 3)), max_size=4))
def test_a_state_without_sub_keys_keeps_one_row_per_key(
    history: list[dict[tuple[int | None, str | None], int]],
) -> None:
    runs: list[Run] = []
    live: dict[tuple[int | None, str | None], int] = {}
    nothing = PER_KEY.live.to_frame()

    for epoch in history:
        rows = [(a_hash(*key), *key, value) for key, value in epoch.items()]
        upserts = pl.DataFrame(rows, schema=PER_KEY.live, orient="row")
        runs.append(Run(table=delta_table(PER_KEY, upserts, nothing)))
        live |= epoch

    assert set(KeyedState(PER_KEY, runs).scan().rows()) == {
        (a_hash(*key), *key, value) for key, value in live.items()
    }


@settings(max_examples=15, deadline=None)
@given(epochs, st.randoms(use_true_random=False))
def test_a_delta_does_not_depend_on_the_order_of_its_rows(history: list[Epoch], random) -> None:
    epoch = history[0]
    shuffled = list(epoch.upserts.items())
    random.shuffle(shuffled)

    again = Epoch(dict(shuffled), epoch.deletes, merged=1, watermark_ms=0)

    assert encode_segment(a_delta(again)) == encode_segment(a_delta(epoch))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 1_000_000), min_size=1, max_size=60))
def test_the_policy_bounds_the_runs_and_keeps_them_shrinking(deltas: list[int]) -> None:
    counts: list[int] = []

    for delta in deltas:
        counts.append(delta)
        count = runs_to_merge(counts)
        counts[-count:] = [sum(counts[-count:])]

        assert len(counts) <= MAX_RUNS
        assert all(older >= GROWTH * newer for older, newer in pairwise(counts))


def test_equal_deltas_are_rewritten_a_logarithmic_number_of_times() -> None:
    counts: list[int] = []
    written = 0

    for _ in range(4_096):
        counts.append(1)
        count = runs_to_merge(counts)
        counts[-count:] = [sum(counts[-count:])]
        written += counts[-1]

    assert written / 4_096 < 8
    assert len(counts) <= 12


def test_a_deleted_row_is_neither_found_nor_looked_up_nor_due() -> None:
    kept, deleted = (7, 1, "b", 0), (7, 1, "b", 1)
    first = Epoch({kept: (1, 1), deleted: (1, 2)}, set(), merged=1, watermark_ms=0)
    second = Epoch({}, {deleted}, merged=1, watermark_ms=0)
    state = KeyedState(SCHEMA, [a_run(a_delta(first)), a_run(a_delta(second))])
    schema = {name: SCHEMA.live[name] for name in SCHEMA.identity}
    both = pl.DataFrame([deleted, kept], schema=schema, orient="row")

    found = state.find(both)

    assert found.rows() == [(None,) * 6, (*kept, 1, 1)]
    assert state.lookup(both.head(1)).rows() == [(*kept, 1, 1)]
    assert state.due(1).rows() == [(*kept, 1, 1)]


def test_a_hash_full_of_tombstones_is_merged_away_only_with_the_oldest_run() -> None:
    first = Epoch({(7, 1, "b", 0): (1, 1)}, set(), merged=1, watermark_ms=0)
    second = Epoch({}, {(7, 1, "b", 0)}, merged=1, watermark_ms=0)
    runs = [a_run(a_delta(first)), a_run(a_delta(second))]

    kept = merge_runs(SCHEMA, runs[1:], drop_tombstones=False)
    gone = merge_runs(SCHEMA, runs, drop_tombstones=True)

    assert kept.column(DELETED).to_pylist() == [True]
    assert kept.column(HASH).to_pylist() == [7]
    assert gone.num_rows == 0
    assert runs[1].min_time_ms is None
