"""A table of state that is written anew says of every live row what a function makes of it.

Method: see ``tests.property.state.keyed_world``; the function is drawn, and played on the
dictionary that the state stands for, too.  Most keys share their hash with another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from unittest import mock

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.handles import SegmentHandle, StateHandle
from sluice.core.key_groups import hash_range, key_group_range
from sluice.local import savepoint_tables
from sluice.local.savepoint_tables import NewTable, RewrittenTable, rewrite_table
from sluice.state.cache import SegmentCache
from sluice.state.merging import describe_segment
from sluice.state.segments import HASH, WRITTEN, StateSchema, to_frame
from sluice.store.open import StoreLocation
from tests.examples import examples
from tests.property.state.keyed_world import (
    Epoch,
    Identity,
    Value,
    World,
    histories,
    is_sorted,
    played,
    schemas,
)

MAX_PARALLELISM = 128
LATER_MS = 1_000


@dataclass(frozen=True)
class Edit:
    """Rows of values below ``least`` go; the others get ``plus``; a start of 1 becomes ``start``.

    With ``reverses`` the function gives its rows in another order.
    """

    least: int = 0
    plus: int = 0
    start: int = 1
    reverses: bool = False

    def __call__(self, rows: pl.DataFrame) -> pl.DataFrame:
        start = pl.when(pl.col("start") == 1).then(self.start).otherwise(pl.col("start"))
        kept = rows.filter(pl.col("value") >= self.least)
        edited = kept.with_columns(pl.col("value") + self.plus, start.alias("start"))
        return edited.reverse() if self.reverses else edited

    def of(self, live: Mapping[Identity, Value]) -> dict[Identity, Value]:
        return {
            (*identity[:3], self.start if identity[3] == 1 else identity[3]): (at, n + self.plus)
            for identity, (at, n) in live.items()
            if n >= self.least
        }


edits = st.builds(
    Edit,
    least=st.integers(0, 2),
    plus=st.integers(0, 3),
    start=st.sampled_from([1, 1, 9]),
    reverses=st.booleans(),
)


def handles_of(world: World) -> list[StateHandle]:
    found: list[StateHandle] = []
    for age, segments in enumerate(world.sorted_runs):
        for run in segments:
            table = run.table() if callable(run.table) else run.table
            if table.num_rows:
                handle, _ = describe_segment(world.schema, table)
                found.append(replace(handle, table="t", run=age))
    return found


def rewritten(world: World, edit: Edit, parallelism: int, piece_rows: int) -> NewTable:
    place = RewrittenTable(
        stage="s",
        table="t",
        schema=world.schema,
        parallelism=parallelism,
        max_parallelism=MAX_PARALLELISM,
        now_ms=LATER_MS,
    )

    def keep(segment: SegmentHandle, _: bytes) -> SegmentHandle:
        return segment

    cache = SegmentCache(StoreLocation(root="memory://rewriting"))
    with mock.patch.object(savepoint_tables, "PIECE_ROWS", piece_rows):
        return rewrite_table(
            place, [handles_of(world)], [edit], as_of_ms=world.now_ms, cache=cache, keep=keep
        )


def frames(table: NewTable, subtask: int) -> list[pl.DataFrame]:
    cache = SegmentCache(StoreLocation(root="memory://rewriting"))
    return [to_frame(cache.open(handle.segment)) for handle in table.subtasks[subtask]]


@examples(60)
@given(histories, schemas, edits, st.integers(1, 4), st.integers(1, 6))
def test_every_live_row_is_what_the_function_makes_of_it(
    history: list[Epoch], schema: StateSchema, edit: Edit, parallelism: int, piece_rows: int
) -> None:
    world = played(history, schema)
    expected = edit.of(world.live)

    made = rewritten(world, edit, parallelism, piece_rows)

    found: dict[Identity, Value] = {}
    for index in range(parallelism):
        first, last = hash_range(
            MAX_PARALLELISM, key_group_range(MAX_PARALLELISM, parallelism, index)
        )
        pieces = frames(made, index)
        for piece, handle in zip(pieces, made.subtasks[index], strict=True):
            assert is_sorted(piece, schema.identity)
            assert (handle.first_hash, handle.last_hash) == (piece[HASH][0], piece[HASH][-1])
            assert first <= handle.first_hash <= handle.last_hash <= last
            earliest = piece["at"].min()
            assert handle.min_time_ms == earliest
            found |= {
                (row[0], row[1], row[2], row[3]): (row[4], row[5])
                for row in piece.select(*schema.identity, "at", "value").iter_rows()
            }
            if schema.ttl_ms is not None:
                _check_times(world, edit, piece)
        assert all(a[HASH][-1] <= b[HASH][0] for a, b in pairwise(pieces))
    assert found == expected
    assert (made.rows_before, made.rows) == (len(world.live), len(expected))


def _check_times(world: World, edit: Edit, piece: pl.DataFrame) -> None:
    """A row is as old as it was; one of a new identity is written now."""
    for row in piece.select(*world.schema.identity, WRITTEN).iter_rows():
        *identity, written_ms = row
        before = world.written.get((identity[0], identity[1], identity[2], identity[3]))
        is_new = edit.start != 1 and identity[3] == edit.start
        assert written_ms == (LATER_MS if is_new or before is None else before[1])
