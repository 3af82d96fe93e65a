"""The rules for every source, checked against the rows in its place.

Used with any connector on any store: epochs of any size, put together, are the whole input; a
slice read again is the same; nothing is read twice; the counts of unread rows are true.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from sluice.connectors.columns import narrowed, narrowed_schema
from sluice.declaration.places import Barrier, Source, SourcePosition

Row = dict[str, Any]
Cut = tuple[int | None, int]  # max_records, parallelism


def plan_all(source: Source, position: SourcePosition = (), parallelism: int = 2) -> Barrier:
    return source.plan(position, max_records=None, parallelism=parallelism)


def places(position: SourcePosition) -> SourcePosition:
    """*position* without the marks of its files' content."""
    return tuple(replace(offset, version="") for offset in position)


def rows_of(source: Source, barrier: Barrier) -> list[Row]:
    """The rows of an epoch; each slice yields what the barrier says, each time."""
    rows: list[Row] = []
    for piece in barrier.slices:
        first, again = (
            [row for batch in checked(source, piece) for row in batch.to_pylist()] for _ in range(2)
        )
        assert first == again
        assert len(first) == piece.records
        rows += first
    if barrier.slices:
        check_columns_asked_for(source, barrier.slices[0])
    return rows


def check_columns_asked_for(source: Source, piece: Any) -> None:
    """Each column alone, as who reads it gets it, is what it is among all; so is a field of it."""
    schema = source.schema()
    whole = pa.Table.from_batches(source.read(piece), schema)
    paths = [name for name in schema.names if "." not in name]
    paths += [f"{one.name}.{one.type[0].name}" for one in schema if pa.types.is_struct(one.type)]
    for path in paths:
        wanted = narrowed_schema(schema, [path])
        batches = [narrowed(batch, wanted) for batch in source.read(piece, [path])]
        expected = [narrowed(batch, wanted) for batch in whole.to_batches()]
        found = pa.Table.from_batches(batches, wanted)
        assert found.equals(pa.Table.from_batches(expected, wanted)), path


def checked(source: Source, piece: Any) -> Iterator[Any]:
    schema = source.schema()
    for batch in source.read(piece):
        assert batch.schema == schema
        yield batch


def epochs(source: Source, cuts: Iterable[Cut]) -> Iterator[tuple[Barrier, Cut]]:
    """Plan until the source is exhausted: the given cuts, and then one of all that is left."""
    position: SourcePosition = ()
    for cut in [*cuts, (None, 3)]:
        max_records, parallelism = cut
        barrier = source.plan(position, max_records=max_records, parallelism=parallelism)
        yield barrier, cut
        if barrier.exhausted:
            return
        position = barrier.position
    pytest.fail("a cut without a cap leaves nothing")


def check_replay(
    source: Source,
    cuts: Iterable[Cut],
    expected: list[Row],
    *,
    files: int,
    replanned: Callable[[Barrier], Barrier] = lambda barrier: barrier,
) -> None:
    """A bounded *source* of *files* partitions has the rows *expected*, however it is cut.

    *replanned* leaves of a barrier what a second plan of the same position has to repeat.
    """
    rows: list[Row] = []
    ends: dict[str, int] = {}
    position: SourcePosition = ()
    for barrier, (max_records, parallelism) in epochs(source, cuts):
        again = source.plan(position, max_records=max_records, parallelism=parallelism)
        assert replanned(barrier) == replanned(again)
        position = barrier.position
        assert max_records is None or barrier.records <= max_records
        assert len(barrier.slices) <= parallelism + files
        for piece in barrier.slices:
            assert piece.first_record == ends.get(piece.partition, 0)
            ends[piece.partition] = piece.first_record + piece.records
        rows += rows_of(source, barrier)
        check_unread(barrier, len(expected) - len(rows))
    assert rows == expected


def check_unread(barrier: Barrier, left: int) -> None:
    """What the *barrier* counts behind it, if it counts, is true of the *left* rows there."""
    unread = barrier.unread
    if unread is None:
        return
    assert unread.records in (left, None)
    if left:
        assert unread.partitions
        assert unread.size_bytes != 0
    if barrier.exhausted:  # An unread file may turn out to have no rows.
        assert (unread.partitions, unread.size_bytes or 0) == (0, 0)
