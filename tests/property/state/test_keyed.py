"""Keyed state against a dictionary, whatever is merged, cut, sliced, deleted, or shares a hash.

See ``keyed_world``; after the last epoch everything that can be read is compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from random import Random
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.handles import MAX_HASH, MIN_HASH
from sluice.state import runs
from sluice.state.keyed import KeyedState, delta_table
from sluice.state.runs import Run
from sluice.state.segments import DELETED, HASH, WRITTEN, StateSchema, encode_segment
from tests.examples import examples
from tests.property.state.keyed_world import (
    MORTAL,
    SCHEMA,
    TTL_MS,
    Epoch,
    Identity,
    Key,
    Value,
    World,
    a_delta,
    a_hash,
    a_run,
    are_disjoint,
    frame_of,
    histories,
    identities,
    ids,
    is_sorted,
    keys,
    names,
    played,
    ranges,
    rows_of,
    schemas,
)

PER_KEY = StateSchema(
    columns=pl.Schema({"id": pl.Int64(), "name": pl.String(), "value": pl.Int64()}),
    key_columns=("id", "name"),
)
SubKey = tuple[str | None, float | None, bool | None]
NOTHING = (None,) * len(SCHEMA.live)


@pytest.fixture(autouse=True)
def _search_in_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two values are all the hashes there are: most blocks of one hash are larger than this."""
    monkeypatch.setattr(runs, "BISECT_FROM", 2)


def state_of(world: World) -> KeyedState:
    return KeyedState(world.schema, world.runs, now_ms=world.now_ms)


def check_reads(state: KeyedState, live: dict[Identity, Value], wanted: set[Key]) -> None:
    scanned = state.scan()
    looked_up = state.lookup(frame_of(wanted, SCHEMA.key))

    assert scanned.schema == looked_up.schema == SCHEMA.live
    assert set(scanned.rows()) == rows_of(live)
    assert scanned.height == len(live)
    assert is_sorted(scanned, SCHEMA.identity)
    assert looked_up.rows() == [row for row in scanned.rows() if row[:3] in wanted]


def check_finds(state: KeyedState, live: dict[Identity, Value], wanted: Sequence[Identity]) -> None:
    found = state.find(frame_of(wanted, SCHEMA.identity))

    assert found.schema == SCHEMA.live
    assert found.rows() == [(*i, *live[i]) if i in live else NOTHING for i in wanted]


@examples(60)
@given(histories, schemas, st.sets(keys, max_size=6))
def test_reading_equals_a_dictionary_whatever_was_merged(
    history: list[Epoch], schema: StateSchema, wanted: set[Key]
) -> None:
    world = played(history, schema)

    check_reads(state_of(world), world.live, wanted)


@examples(40)
@given(histories, schemas, st.lists(identities, unique=True))
def test_finding_answers_each_identity_in_its_place(
    history: list[Epoch], schema: StateSchema, wanted: list[Identity]
) -> None:
    world = played(history, schema)

    check_finds(state_of(world), world.live, wanted)


@examples(40)
@given(histories, schemas, st.integers(-6, 21))
def test_due_rows_are_the_live_ones_whose_newest_time_has_come(
    history: list[Epoch], schema: StateSchema, watermark_ms: int
) -> None:
    world = played(history, schema)

    due = state_of(world).due(watermark_ms)

    expected = {
        identity: value
        for identity, value in world.live.items()
        if value[0] is not None and value[0] <= watermark_ms
    }
    assert set(due.rows()) == rows_of(expected)
    assert is_sorted(due, SCHEMA.identity)


@examples(30)
@given(histories, st.integers(-6, 21), st.integers(-6, 21))
def test_what_was_due_before_can_be_left_out(history: list[Epoch], after: int, now: int) -> None:
    state = state_of(played(history))

    due = state.due(now, after_ms=after)

    assert due.rows() == state.due(now).filter(pl.col("at") > after).rows()


@examples(40)
@given(st.lists(st.tuples(st.lists(st.integers(0, 30), max_size=8), st.integers(0, 9)), max_size=6))
def test_rows_that_are_written_once_are_due_without_a_search(
    epochs: list[tuple[list[int], int]],
) -> None:
    columns = pl.Schema({"id": pl.Int64(), "number": pl.Int64(), "at": pl.Int64()})
    once = StateSchema(
        columns=columns,
        key_columns=("id",),
        sub_key_columns=("number",),
        time_column="at",
        is_written_once=True,
    )
    written: list[Run] = []
    waiting: list[tuple[int, int, int, int]] = []
    watermark = 0
    for times, advance in epochs:
        before, watermark = watermark, watermark + advance
        due = KeyedState(once, written).due(watermark, after_ms=before)
        searched = KeyedState(replace(once, is_written_once=False), written)

        expected = sorted(row for row in waiting if row[3] <= watermark)
        assert due.rows() == searched.due(watermark, after_ms=before).rows() == expected

        waiting = [row for row in waiting if row[3] > watermark]
        new = [
            (at % 3, at % 3, len(written) * 100 + number, at)
            for number, at in enumerate(times)
            if at > watermark
        ]
        waiting += new
        upserts = pl.DataFrame(new, once.live, orient="row")
        table = delta_table(once, upserts, due)
        written.append(Run(table=table, min_time_ms=min((row[3] for row in new), default=None)))


@examples(40)
@given(histories, schemas, st.sets(keys), st.lists(identities, unique=True), ranges)
def test_a_slice_holds_exactly_the_rows_between_its_bounds(
    history: list[Epoch],
    schema: StateSchema,
    wanted: set[Key],
    found: list[Identity],
    between: tuple[int, int],
) -> None:
    world = played(history, schema)
    first, last = between
    state = state_of(world)
    inside = {i: value for i, value in world.live.items() if first <= i[0] <= last}

    part = state.slice(first, last)

    check_reads(part, inside, wanted)
    check_finds(part, inside, found)
    check_reads(part.slice(MIN_HASH, MAX_HASH), inside, wanted)
    check_reads(state, world.live, wanted)
    assert max(world.opened.values()) <= 1


@examples(30)
@given(histories, schemas, st.sets(keys), ranges)
def test_a_run_is_cut_to_its_bounds_as_after_a_rescale(
    history: list[Epoch], schema: StateSchema, wanted: set[Key], between: tuple[int, int]
) -> None:
    world = played(history, schema)
    first, last = between
    runs = [
        replace(run, first_hash=max(first, run.first_hash), last_hash=min(last, run.last_hash))
        for run in world.runs
        if run.first_hash <= last and run.last_hash >= first
    ]
    inside = {i: value for i, value in world.live.items() if first <= i[0] <= last}

    check_reads(KeyedState(schema, runs, now_ms=world.now_ms), inside, wanted)


@examples(40)
@given(histories, schemas, st.integers(1, 9))
def test_scanning_in_pieces_yields_what_scanning_does(
    history: list[Epoch], schema: StateSchema, max_rows: int
) -> None:
    state = state_of(played(history, schema))

    pieces = [*state.scan_pieces(max_rows)]

    assert pl.concat([SCHEMA.live.to_frame(), *pieces]).equals(state.scan())
    assert all(0 < p.height <= max_rows or p[HASH].n_unique() == 1 for p in pieces)
    assert are_disjoint(pieces)


@examples(40)
@given(histories, schemas, st.sets(identities, min_size=1))
def test_only_segments_that_can_hold_what_is_wanted_are_opened_and_only_once(
    history: list[Epoch], schema: StateSchema, wanted: set[Identity]
) -> None:
    world = played(history, schema)
    world.opened.clear()
    state = state_of(world)
    hashes = {identity[0] for identity in wanted}
    possible = [r for r in world.runs if any(r.first_hash <= h <= r.last_hash for h in hashes)]

    for part in (state, state.slice(min(hashes), max(hashes))):
        part.find(frame_of(wanted, SCHEMA.identity))
        part.lookup(frame_of({identity[:3] for identity in wanted}, SCHEMA.key))

    assert sum(world.opened.values()) <= len(possible)
    assert set(world.opened.values()) <= {1}


def test_threads_that_read_slices_of_one_state_open_a_run_once() -> None:
    world = World(SCHEMA)
    rows = [(n, n, "b", 0) for n in range(4)]
    run = world.segment(a_delta(Epoch({row: (None, row[0]) for row in rows})), 0, 3)
    state = KeyedState(SCHEMA, [replace(run, table=slowly(run.table))])

    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda row: state.slice(row[0], row[0]).scan().rows(), rows)

    assert [*found] == [[(*row, None, row[0])] for row in rows]
    assert world.opened == {0: 1}


def slowly(opening: Callable[[], pa.Table]) -> Callable[[], pa.Table]:
    def opened() -> pa.Table:
        time.sleep(0.05)
        return opening()

    return opened


@examples(15)
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


@examples(15)
@given(histories, st.randoms(use_true_random=False))
def test_a_delta_does_not_depend_on_the_order_of_its_rows(
    history: list[Epoch], random: Random
) -> None:
    epoch = history[0]
    shuffled = list(epoch.upserts.items())
    random.shuffle(shuffled)

    again = Epoch(dict(shuffled), epoch.deletes)

    assert encode_segment(a_delta(again)) == encode_segment(a_delta(epoch))


def test_a_deleted_row_is_neither_found_nor_looked_up_nor_due() -> None:
    kept, deleted = (7, 1, "b", 0), (7, 1, "b", 1)
    first = Epoch({kept: (1, 1), deleted: (1, 2)})
    second = Epoch({}, {deleted})
    state = KeyedState(SCHEMA, [a_run(a_delta(first)), a_run(a_delta(second))])
    both = frame_of([deleted, kept], SCHEMA.identity)

    found = state.find(both)

    assert found.rows() == [(None,) * 6, (*kept, 1, 1)]
    assert state.lookup(both.head(1)).rows() == [(*kept, 1, 1)]
    assert state.due(1).rows() == [(*kept, 1, 1)]


def test_a_run_in_which_nothing_is_due_is_searched_but_not_read() -> None:
    row = (7, 1, "b", 0)
    world = World(SCHEMA)
    world.play(Epoch({row: (50, 1)}))
    world.play(Epoch({(8, 2, "b", 0): (60, 1)}))
    world.opened.clear()

    assert state_of(world).due(49).is_empty()
    assert world.opened.total() == 0
    assert state_of(world).due(50).rows() == [(*row, 50, 1)]


def test_a_delta_says_when_its_rows_were_written_and_reading_does_not() -> None:
    epoch = Epoch({(7, 1, "b", 0): (1, 1)}, {(8, 2, "b", 0)})

    table = a_delta(epoch, MORTAL, 1_234)

    assert table.column_names == [*MORTAL.live, WRITTEN, DELETED]
    assert table.column(WRITTEN).to_pylist() == [1_234, 1_234]
    assert table.column(DELETED).to_pylist() == [False, True]
    assert KeyedState(MORTAL, [a_run(table, MORTAL)]).scan().schema == SCHEMA.live


@pytest.mark.parametrize(("age_ms", "is_there"), [(TTL_MS - 1, True), (TTL_MS, False)])
def test_a_row_lives_until_its_ttl_has_passed_since_its_last_write(
    age_ms: int, is_there: bool
) -> None:
    row = (7, 1, "b", 0)
    runs = [a_run(a_delta(Epoch({row: (1, n)}), MORTAL, 100 + n), MORTAL) for n in (0, 1)]

    state = KeyedState(MORTAL, runs, now_ms=101 + age_ms)

    expected: list[tuple[Any, ...]] = [(*row, 1, 1)] if is_there else []
    assert state.scan().rows() == expected
    assert state.lookup(frame_of([row[:3]], SCHEMA.key)).rows() == expected
    assert state.find(frame_of([row], SCHEMA.identity)).rows() == (expected or [NOTHING])
    assert state.due(1).rows() == expected


def test_an_expired_run_is_not_opened() -> None:
    world = World(MORTAL)
    runs = [
        world.segment(a_delta(Epoch({(7, 1, "b", n): (1, 1 + n)}), MORTAL, 100 + n), 7)
        for n in (0, 1)
    ]
    state = KeyedState(MORTAL, runs, now_ms=100 + TTL_MS)

    assert state.scan().rows() == [(7, 1, "b", 1, 1, 2)]
    assert state.due(1).height == 1
    assert world.opened == {0: 0, 1: 1}


def test_an_expired_version_hides_an_older_one_that_was_written_by_a_clock_ahead() -> None:
    row = (7, 1, "b", 0)
    older = a_run(a_delta(Epoch({row: (1, 1)}), MORTAL, 105), MORTAL)
    newer = a_run(a_delta(Epoch({row: (1, 2)}), MORTAL, 100), MORTAL)

    state = KeyedState(MORTAL, [older, newer], now_ms=100 + TTL_MS)

    assert state.scan().is_empty()
    assert state.find(frame_of([row], SCHEMA.identity)).rows() == [NOTHING]


def test_expired_rows_beside_living_ones_of_other_hashes_are_not_opened() -> None:
    old = a_delta(Epoch({(7, 1, "b", 0): (1, 1)}), MORTAL, 100)
    new = a_delta(Epoch({(-1, 2, None, 0): (1, 1)}), MORTAL, 105)
    world = World(MORTAL)
    runs = [world.segment(new, -1, -1), world.segment(old, 7, 7)]

    rows = KeyedState(MORTAL, runs, now_ms=100 + TTL_MS).scan().rows()

    assert rows == [(-1, 2, None, 0, 1, 1)]
    assert world.opened == {0: 1, 1: 0}


sub_keys = st.tuples(
    st.none() | st.sampled_from(["", "a", "ab", "\u00e9"]),
    st.none() | st.floats(),
    st.none() | st.booleans(),
)


@examples(100)
@given(st.sets(sub_keys, max_size=40), st.sets(sub_keys, max_size=20), st.integers(1, 3))
def test_one_of_many_rows_of_a_key_is_found_by_bisection(
    stored: set[SubKey], others: set[SubKey], parts: int
) -> None:
    columns = {"s": pl.String(), "f": pl.Float64(), "b": pl.Boolean()}
    schema = StateSchema(
        columns=pl.Schema({"id": pl.Int64(), **columns, "v": pl.Int64()}),
        key_columns=("id",),
        sub_key_columns=tuple(columns),
    )
    rows = [(7, 1, *sub_key, number) for number, sub_key in enumerate(stored)]
    frame = pl.DataFrame(rows, schema=schema.live, orient="row").unique(schema.identity)
    deltas = (delta_table(schema, frame[part::parts], frame.clear()) for part in range(parts))
    state = KeyedState(schema, [Run(table=delta) for delta in deltas])
    wanted = pl.DataFrame(
        [(7, 1, *sub_key) for sub_key in stored | others],
        schema={name: schema.live[name] for name in schema.identity},
        orient="row",
    ).unique(schema.identity, maintain_order=True)

    found = state.find(wanted)

    beside = wanted.join(frame, on=schema.identity, how="left", nulls_equal=True)
    assert found["v"].to_list() == beside["v"].to_list()
    looked_up = state.lookup(wanted.select(schema.key).unique())
    assert looked_up.height == (frame.height if wanted.height else 0)
