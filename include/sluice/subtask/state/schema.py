"""The schema of a table of keyed state: columns, the identity of a row, and the TTL.

A row's identity is its hash, its key columns and its sub-key columns (a window's start, a rank);
the hash is of the key columns alone.  With a TTL every row also carries the processing time of its
last write, and is gone ``ttl_ms`` after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import polars as pl

from sluice.subtask.state.segments import DELETED, HASH, WRITTEN


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredColumn:
    """A column of values that a state of a user's function declares.

    ``migrations`` make a value of ``dtype`` of one of the type that they are for.  The fields of a
    struct that ``is_positional`` are known by their place: none may be added or dropped.
    """

    state: str
    dtype: pl.DataType
    is_positional: bool = False
    migrations: tuple[tuple[pl.DataType, Callable[[object], object]], ...] = ()

    def migration_from(self, before: pl.DataType) -> Callable[[object], object] | None:
        return next((migrate for of, migrate in self.migrations if of == before), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSchema:
    """The columns of a table of state, without reserved ones.

    ``time_column`` holds the timer of a row: an event time, as int64 milliseconds.  With
    ``is_written_once`` no row replaces another, and none is deleted before its timer is due.
    ``refused`` are columns that a run may not have, with why; ``declared`` are those of a user's
    states.  ``one_hash`` is that of all rows, where it is not the hash of their key.
    """

    columns: pl.Schema
    key_columns: tuple[str, ...]
    sub_key_columns: tuple[str, ...] = ()
    time_column: str | None = None
    is_written_once: bool = False
    ttl_ms: int | None = None
    refused: Mapping[str, str] = field(default_factory=dict[str, str])
    declared: Mapping[str, DeclaredColumn] = field(default_factory=dict[str, DeclaredColumn])
    one_hash: int | None = None

    def __post_init__(self) -> None:
        assert self.key_columns, "keyed state needs a key"
        assert {*self.key_columns, *self.sub_key_columns} <= self.columns.keys()
        assert not {HASH, DELETED, WRITTEN} & self.columns.keys(), "these three are ours"
        assert self.time_column is None or self.columns[self.time_column] == pl.Int64()
        assert self.ttl_ms is None or self.ttl_ms > 0

    @property
    def is_former(self) -> bool:
        """Whether it is there to be refused alone: a stage writes no row of it."""
        return bool(self.refused) and len(self.columns) == len(self.key_columns)

    @property
    def key(self) -> tuple[str, ...]:
        return (HASH, *self.key_columns)

    @property
    def identity(self) -> tuple[str, ...]:
        return (*self.key, *self.sub_key_columns)

    @property
    def live(self) -> pl.Schema:
        """The columns of rows that are read: the hash and the declared columns."""
        return pl.Schema({HASH: pl.Int64(), **self.columns})

    @property
    def stored(self) -> pl.Schema:
        """The columns of rows in a run: those of ``live`` and the reserved ones."""
        written = {} if self.ttl_ms is None else {WRITTEN: pl.Int64()}
        return pl.Schema({**self.live, **written, DELETED: pl.Boolean()})

    def has_expired(self, written_ms: int | None, now_ms: int) -> bool:
        """Whether a write has expired; one from before the stage had a TTL never does."""
        return (
            self.ttl_ms is not None
            and written_ms is not None
            and written_ms <= now_ms - self.ttl_ms
        )

    def expired(self, now_ms: int) -> pl.Expr:
        """``has_expired`` of stored rows, as an expression."""
        if self.ttl_ms is None:
            return pl.lit(False)  # noqa: FBT003 - a value
        return (pl.col(WRITTEN) <= now_ms - self.ttl_ms).fill_null(value=False)

    def dead(self, now_ms: int) -> pl.Expr:
        """Whether a stored row is deleted or expired: not returned, but hiding older versions."""
        return pl.col(DELETED) if self.ttl_ms is None else pl.col(DELETED) | self.expired(now_ms)
