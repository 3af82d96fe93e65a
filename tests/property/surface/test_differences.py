"""The difference of two snapshots is that of their rows, whatever happened to the files between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.handles import MAX_HASH, MIN_HASH
from sluice.state.differences import stretches
from sluice.state.segments import StateSchema
from sluice.surface.differences import (
    Change,
    ChangeKind,
    DifferenceQuery,
    TableDifference,
    table_difference,
)
from tests.examples import examples
from tests.property.state.keyed_world import Identity, Value, a_hash, schemas
from tests.property.surface.state_world import Snapshot, Step, World, steps

histories = st.lists(steps, min_size=3, max_size=7)


@examples(40)
@given(histories, schemas, st.data())
def test_it_equals_the_comparison_of_the_two_whole_states(
    history: list[Step], schema: StateSchema, data: st.DataObject
) -> None:
    before, after = two_of(history, schema, data)
    limit = data.draw(st.integers(1, 5), "limit")
    most_rows = data.draw(st.none() | st.integers(1, 5), "most rows")

    pages = every_page(before, after, DifferenceQuery(limit=limit, most_rows=most_rows))

    changes = [change for page in pages for change in page.changes]
    found = {identity_of(change): row_of(change) for change in changes}
    assert found == compared(before.live, after.live)
    assert [*found] == sorted(found, key=order)
    assert len(found) == len(changes)
    assert all(len(page.changes) <= limit for page in pages)
    assert all((page.cut is None) is (page.next is None) for page in pages)


@examples(25)
@given(histories, schemas, st.data())
def test_counts_and_filters_are_of_the_same_difference(
    history: list[Step], schema: StateSchema, data: st.DataObject
) -> None:
    before, after = two_of(history, schema, data)
    kind = data.draw(st.sampled_from(ChangeKind), "kind")
    name = data.draw(st.sampled_from(["b", "bb"]), "name")
    asked = DifferenceQuery(limit=1, kinds=frozenset({kind}), key=(f"name={name}", "start=1"))

    counted = table_difference(before.table, after.table, DifferenceQuery(limit=0))
    chosen = every_page(before, after, asked)

    whole = compared(before.live, after.live)
    assert msgspec.structs.asdict(counted.counts) == {
        kind.value: sum(row[0] == kind for row in whole.values()) for kind in ChangeKind
    }
    assert counted.changes == ()
    assert {identity_of(change) for page in chosen for change in page.changes} == {
        identity
        for identity, row in whole.items()
        if row[0] == kind and identity[2] == name and identity[3] == 1
    }


@given(histories, schemas, st.data())
def test_no_key_differs_outside_of_the_stretches(
    history: list[Step], schema: StateSchema, data: st.DataObject
) -> None:
    before, after = two_of(history, schema, data)
    expires_after_ms = min(before.table.as_of_ms, after.table.as_of_ms) - (schema.ttl_ms or 0)

    found = stretches(
        before.table.handles,
        after.table.handles,
        expires_after_ms=None if schema.ttl_ms is None else expires_after_ms,
    )

    bounds = [bound for s in found for bound in (s.first_hash, s.last_hash)]
    assert bounds == sorted(bounds)
    assert all(MIN_HASH <= bound <= MAX_HASH for bound in bounds)
    for identity in compared(before.live, after.live):
        assert any(s.first_hash <= identity[0] <= s.last_hash for s in found)


def two_of(
    history: Sequence[Step], schema: StateSchema, data: st.DataObject
) -> tuple[Snapshot, Snapshot]:
    """Two snapshots of one history, in any order."""
    world = World(schema)
    snapshots = [world.snapshot(), *(world.play(step) for step in history)]
    numbers = st.permutations(range(len(snapshots)))
    before, after, *_ = data.draw(numbers, "before and after")
    return snapshots[before], snapshots[after]


def every_page(before: Snapshot, after: Snapshot, asked: DifferenceQuery) -> list[TableDifference]:
    pages = [table_difference(before.table, after.table, asked)]
    while pages[-1].next is not None:
        asked = replace(asked, after=pages[-1].next)
        pages.append(table_difference(before.table, after.table, asked))
    return pages


def compared(
    before: dict[Identity, Value], after: dict[Identity, Value]
) -> dict[Identity, tuple[str, Value | None, Value | None, tuple[str, ...]]]:
    """The differences of two dictionaries."""
    found: dict[Identity, tuple[str, Value | None, Value | None, tuple[str, ...]]] = {}
    for identity in before.keys() | after.keys():
        old, new = before.get(identity), after.get(identity)
        if old is None:
            found[identity] = ("added", None, new, ())
        elif new is None:
            found[identity] = ("removed", old, None, ())
        elif old != new:
            names = zip(("at", "value"), old, new, strict=True)
            found[identity] = ("changed", old, new, tuple(n for n, a, b in names if a != b))
    return found


def identity_of(change: Change) -> Identity:
    key = change.key
    return (a_hash(key["id"], key["name"]), key["id"], key["name"], key["start"])


def row_of(change: Change) -> tuple[str, Value | None, Value | None, tuple[str, ...]]:
    sides = (
        None if side is None else (side["at"], side["value"])
        for side in (change.before, change.after)
    )
    return (change.kind.value, *sides, change.changed)  # type: ignore[return-value]


def order(identity: Identity) -> tuple[object, ...]:
    """Hash first, nulls first."""
    hash_, key_id, name, start = identity
    return (hash_, (key_id is not None, key_id or 0), (name is not None, name or ""), start)
