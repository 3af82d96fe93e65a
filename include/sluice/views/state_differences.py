"""The keys by which a table of state differs in two snapshots, a page at a time.

before, after = (stored_table(job, one, "totals", "totals") for one in (older, newer))
page = table_difference(before, after, Asked(limit=100))
page = table_difference(before, after, Asked(limit=100, after=page.next))

What is read is bounded by what is asked: only segments that one of the two has, until ``limit``
differences are found, or ``most_rows`` rows were compared.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from sluice.core.handles import MAX_HASH, MIN_HASH, StateHandle
from sluice.errors import ConfigurationError
from sluice.subtask.state.stretches import stretches
from sluice.views.keyed_state import StateTable
from sluice.views.state_keys import wanted_keys
from sluice.views.state_pages import plain

if TYPE_CHECKING:
    import polars as pl

    from sluice.subtask.state.differences import Differences, Window
    from sluice.subtask.state.schema import StateSchema

WINDOW_ROWS = 65_536  # Compared at a time: some megabytes of keys, and as many rows of each side.
PLACE = re.compile(r"(-?[0-9]{1,19})\.([0-9]{1,18})")  # A hash, and the identities of it before.


class ChangeKind(StrEnum):
    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


class Cut(StrEnum):
    """Why a page ends before the differences do."""

    LIMIT = "limit"  # It has as many as were asked for.
    ROWS = "rows"  # So many rows were compared.


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which differences: of these *kinds*, of a *key* as in ``state_keys``, from a ``next`` on.

    A *limit* of 0 counts them all and returns none.  *most_rows* None: however many there are.
    """

    limit: int
    after: str | None = None
    kinds: frozenset[ChangeKind] = frozenset(ChangeKind)
    key: tuple[str, ...] = ()
    most_rows: int | None = None


class DifferenceColumn(msgspec.Struct, frozen=True, kw_only=True):
    """Types are Polars' names; None on the side that lacks the column, whose values count not."""

    name: str
    is_key: bool
    before: str | None
    after: str | None


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A key with the other columns of its row in both; ``changed`` names those that differ."""

    kind: ChangeKind
    key: dict[str, Any]
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    changed: tuple[str, ...] = ()


class ChangeCounts(msgspec.Struct, frozen=True, kw_only=True):
    added: int = 0
    removed: int = 0
    changed: int = 0


class TableDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Differences of one table, in the order of its keys' hashes, in values as of ``StatePage``.

    ``counts`` are of this page, and of all if nothing was cut; ``next`` is the place behind it.
    ``problem``: why the two cannot be compared, or is null.
    """

    stage: str
    table: str
    columns: tuple[DifferenceColumn, ...]
    changes: tuple[Change, ...]
    counts: ChangeCounts
    rows_compared: int
    cut: Cut | None
    next: str | None
    problem: str | None = None


def table_difference(before: StateTable, after: StateTable, asked: Asked) -> TableDifference:
    """
    Raises:
        ConfigurationError: *asked* names a column that is no key, or a place that is none.
        CorruptSegment: a segment is gone, or damaged.
    """
    from sluice.subtask.state.cache import SegmentCache
    from sluice.subtask.state.differences import Differences, Side, key_change

    place = _place(asked.after)
    if not may_differ(before, after):
        return _answer(after, (), _Found())
    schemas = _schemas(before, after)
    columns = _columns(*schemas)
    problem = key_change(*schemas)
    if problem is not None:
        return _answer(after, columns, _Found(), problem)
    old, new = (
        Side(schema=schema, handles=_handles(table), now_ms=table.as_of_ms)
        for schema, table in zip(schemas, (before, after), strict=True)
    )
    cache = SegmentCache(after.location)
    differences = Differences(old, new, cache.open, cache.prefetch)
    wanted = wanted_keys(asked.key, schemas[1])
    return _answer(after, columns, _found(differences, asked, place, wanted))


def may_differ(before: StateTable, after: StateTable) -> bool:
    """Whether a key can differ, told without opening a segment."""
    has_ttl = after.ttl_ms is not None and before.as_of_ms != after.as_of_ms
    expires_after_ms = min(before.as_of_ms, after.as_of_ms) - (after.ttl_ms or 0)
    return bool(
        stretches(
            _handles(before),
            _handles(after),
            expires_after_ms=expires_after_ms if has_ttl else None,
        )
    )


@dataclass(slots=True, kw_only=True)
class _Found:
    """What a page has so far."""

    changes: list[Change] = field(default_factory=list[Change])
    counts: dict[str, int] = field(default_factory=dict[str, int])
    rows: int = 0
    cut: Cut | None = None
    next: str | None = None


def _found(
    differences: Differences, asked: Asked, place: tuple[int, int], wanted: pl.Expr
) -> _Found:
    from sluice.subtask.state.segments import HASH

    found = _Found()
    kinds = [kind.value for kind in asked.kinds]
    for window in differences.windows(place[0], WINDOW_ROWS):
        found.rows += window.read
        is_behind = (window.keys[HASH] > place[0]) | (window.places >= place[1])
        is_wanted = window.keys.select(wanted.alias("wanted"), HASH)["wanted"]
        _add(found, window.where(is_behind & is_wanted & window.kinds.is_in(kinds)), asked.limit)
        if found.cut is not None:
            break
        is_full = asked.most_rows is not None and found.rows >= asked.most_rows
        if is_full and window.last_hash < MAX_HASH:
            found.cut, found.next = Cut.ROWS, f"{window.last_hash + 1}.0"
            break
    return found


def _add(found: _Found, window: Window, limit: int) -> None:
    """Takes what fits into *limit*; 0: counts only."""
    from sluice.subtask.state.segments import HASH

    room = limit - len(found.changes) if limit else window.kinds.len()
    if window.kinds.len() > room:
        found.cut = Cut.LIMIT
        found.next = f"{window.keys[HASH][room]}.{window.places[room]}"
    for kind, count in window.kinds.head(room).value_counts().iter_rows():
        found.counts[kind] = found.counts.get(kind, 0) + count
    if limit:
        found.changes += _changes(window, room)


def _changes(window: Window, most: int) -> list[Change]:
    keys = window.keys.columns
    sides = (window.keys.drop(keys[0]), window.before.drop(keys), window.after.drop(keys))
    rows = zip(
        window.kinds.head(most),
        *(side.head(most).to_dicts() for side in sides),
        _named(window.changed.head(most), most),
        strict=False,
    )
    return [
        Change(
            kind=ChangeKind(kind),
            key=plain(key),
            before=None if kind == ChangeKind.ADDED else plain(before),
            after=None if kind == ChangeKind.REMOVED else plain(after),
            changed=changed if kind == ChangeKind.CHANGED else (),
        )
        for kind, key, before, after, changed in rows
    ]


def _named(flags: pl.DataFrame, most: int) -> list[tuple[str, ...]]:
    """Of each row the columns with a flag."""
    if not flags.width:
        return [()] * most
    return [
        tuple(name for name, flag in zip(flags.columns, row, strict=True) if flag)
        for row in flags.iter_rows()
    ]


def _answer(
    table: StateTable,
    columns: tuple[DifferenceColumn, ...],
    found: _Found,
    problem: str | None = None,
) -> TableDifference:
    return TableDifference(
        stage=table.stage,
        table=table.name,
        columns=columns,
        changes=tuple(found.changes),
        counts=ChangeCounts(**found.counts),
        rows_compared=found.rows,
        cut=found.cut,
        next=found.next,
        problem=problem,
    )


def _handles(table: StateTable) -> tuple[StateHandle, ...]:
    return tuple(handle for handles in table.subtasks for handle in handles)


def _schemas(before: StateTable, after: StateTable) -> tuple[StateSchema, StateSchema]:
    """A side without the table has the other's."""
    if not before.subtasks:
        return after.schema(), after.schema()
    return before.schema(), after.schema() if after.subtasks else before.schema()


def _columns(before: StateSchema, after: StateSchema) -> tuple[DifferenceColumn, ...]:
    keys = {*after.key_columns, *after.sub_key_columns}
    return tuple(
        DifferenceColumn(
            name=name,
            is_key=name in keys,
            before=_kind(before.columns.get(name)),
            after=_kind(after.columns.get(name)),
        )
        for name in {**after.columns, **before.columns}
    )


def _kind(dtype: pl.DataType | None) -> str | None:
    return None if dtype is None else str(dtype)


def _place(after: str | None) -> tuple[int, int]:
    """A hash, and how many of its identities are before the page."""
    if after is None:
        return MIN_HASH, 0
    found = PLACE.fullmatch(after)
    if found is None or not MIN_HASH <= int(found[1]) <= MAX_HASH:
        raise ConfigurationError(f"{after!r} is no place in a difference; pass what `next` said")
    return int(found[1]), int(found[2])
