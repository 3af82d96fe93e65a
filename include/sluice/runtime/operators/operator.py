"""What a stateful operator is to the subtask that hosts it.

    rows of the epoch --partial--> groups --combine--> one row per group --process--> Outcome
        (chunk by chunk)                                    ^ state, watermarks

An operator is a pure function: the same rows, state and watermarks give the same outcome, whatever
the order of the rows and wherever the chunks were cut.  It writes nothing; its outcome says what
the subtask shall write.  It refuses, when it is built, a declaration that the input cannot satisfy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Protocol

import polars as pl

from sluice.errors import ConfigurationError
from sluice.runtime.state.keyed import KeyedState, StateSchema
from sluice.runtime.state.segments import DELETED, HASH

MIN_WATERMARK = -(2**63)
MAX_WATERMARK = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermarks:
    """``previous_ms``, of the epoch's start, decides what is late; ``current_ms`` what fires."""

    previous_ms: int = MIN_WATERMARK
    current_ms: int = MIN_WATERMARK

    def __post_init__(self) -> None:
        assert MIN_WATERMARK <= self.previous_ms <= self.current_ms <= MAX_WATERMARK


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Partial:
    """A chunk of rows, pre-aggregated, and the rows of it that came too late."""

    groups: pl.DataFrame
    late: pl.DataFrame


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """What an epoch changed.  Every frame has its exact types even when it is empty.

    ``upserts`` has the columns of ``state_schema.live``, ``deletes`` at least the identity.
    """

    output: pl.DataFrame
    upserts: pl.DataFrame
    deletes: pl.DataFrame
    late: pl.DataFrame


class Operator(Protocol):
    """A built-in stateful operator, built for one stage and the schema of its input."""

    @property
    def state_schema(self) -> StateSchema: ...

    @property
    def output_schema(self) -> pl.Schema: ...

    def partial(self, rows: pl.DataFrame, watermarks: Watermarks) -> Partial:
        """Pre-aggregate one chunk; *rows* carry ``_hash`` and the input's columns."""
        ...

    def combine(self, groups: pl.DataFrame) -> pl.DataFrame:
        """One row per group, of the concatenated groups of several chunks.  Associative."""
        ...

    def process(self, groups: pl.DataFrame, state: KeyedState, watermarks: Watermarks) -> Outcome:
        """The epoch's outcome; *groups* are combined, and may be empty: windows still fire."""
        ...


def column_type(uid: str, schema: pl.Schema, column: str, purpose: str) -> pl.DataType:
    """The type of a column that the declaration names for *purpose*.

    Raises:
        ConfigurationError: the stage's input has no such column.
    """
    if column in schema:
        return schema[column]
    close = get_close_matches(column, schema.names(), n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ";"
    raise ConfigurationError(
        f"stage {uid!r} has no column {column!r} {purpose}{hint} {_columns_of(schema)}"
    )


def wrong_type(uid: str, schema: pl.Schema, column: str, purpose: str) -> ConfigurationError:
    """The error for a column that is there, but cannot serve its purpose."""
    return ConfigurationError(
        f"stage {uid!r} cannot use column {column!r} of type {schema[column]} {purpose}; "
        f"{_columns_of(schema)}"
    )


def require_distinct(uid: str, names: Iterable[str]) -> None:
    """Refuse result columns that share a name, or take one of ours."""
    seen = {HASH, DELETED}
    for name in names:
        if name in seen:
            taken = "is reserved" if name in (HASH, DELETED) else "is there twice"
            raise ConfigurationError(
                f"stage {uid!r} would have a column {name!r} that {taken}; rename it"
            )
        seen.add(name)


def key_types(uid: str, schema: pl.Schema, keys: Sequence[str]) -> pl.Schema:
    """The key columns and their types.

    Raises:
        ConfigurationError: there is no key, or no such column.
    """
    if not keys:
        raise ConfigurationError(f"stage {uid!r} needs at least one key column")
    return pl.Schema({key: column_type(uid, schema, key, "for its key") for key in keys})


def input_schema(schema: pl.Schema) -> pl.Schema:
    """*schema* without the hash, which some callers have already added."""
    return pl.Schema({name: dtype for name, dtype in schema.items() if name != HASH})


def _columns_of(schema: pl.Schema) -> str:
    return "its columns are: " + ", ".join(schema.names())
