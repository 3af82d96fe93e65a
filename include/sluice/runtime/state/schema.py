"""What a table of keyed state keeps: columns, which of them identify a row, and for how long.

A row's identity is its hash, its key columns and its sub-key columns (a window's start, a rank);
the hash is of the key columns alone.  With a TTL every row also carries the processing time of its
last write, and is dead ``ttl_ms`` after it (Flink's OnCreateAndWrite and NeverReturnExpired).
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from sluice.runtime.state.segments import DELETED, HASH, WRITTEN


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSchema:
    """The columns of a stage's state, all but those of ours.

    ``time_column`` holds, as int64 milliseconds, the event time that a row waits for.
    """

    columns: pl.Schema
    key_columns: tuple[str, ...]
    sub_key_columns: tuple[str, ...] = ()
    time_column: str | None = None
    ttl_ms: int | None = None

    def __post_init__(self) -> None:
        assert self.key_columns, "keyed state needs a key"
        assert {*self.key_columns, *self.sub_key_columns} <= self.columns.keys()
        assert not {HASH, DELETED, WRITTEN} & self.columns.keys(), "these three are ours"
        assert self.time_column is None or self.columns[self.time_column] == pl.Int64()
        assert self.ttl_ms is None or self.ttl_ms > 0

    @property
    def key(self) -> tuple[str, ...]:
        return (HASH, *self.key_columns)

    @property
    def identity(self) -> tuple[str, ...]:
        return (*self.key, *self.sub_key_columns)

    @property
    def live(self) -> pl.Schema:
        """What reading returns: the hash and the columns."""
        return pl.Schema({HASH: pl.Int64(), **self.columns})

    @property
    def stored(self) -> pl.Schema:
        """What a run holds."""
        written = {} if self.ttl_ms is None else {WRITTEN: pl.Int64()}
        return pl.Schema({**self.live, **written, DELETED: pl.Boolean()})

    def has_expired(self, written_ms: int | None, now_ms: int) -> bool:
        """A write of unknown time, made before the stage had a TTL, never expires."""
        return (
            self.ttl_ms is not None
            and written_ms is not None
            and written_ms <= now_ms - self.ttl_ms
        )

    def expired(self, now_ms: int) -> pl.Expr:
        """As ``has_expired``, of stored rows."""
        if self.ttl_ms is None:
            return pl.lit(False)  # noqa: FBT003 - a value
        return (pl.col(WRITTEN) <= now_ms - self.ttl_ms).fill_null(value=False)

    def dead(self, now_ms: int) -> pl.Expr:
        """Stored rows that no reader sees, and that hide the older versions of themselves."""
        return pl.col(DELETED) if self.ttl_ms is None else pl.col(DELETED) | self.expired(now_ms)
