"""One key across the stages of a job, and how its state came to be over the retained checkpoints.

A table of state answers if its key columns are those that are named; the others are listed, with
theirs.  Of each table only the subtask that owns the key is read (``StateTable.of_key``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from sluice.core.completed import CheckpointMetadata
from sluice.core.ids import CheckpointId
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from sluice.job.snapshots import LATEST
from sluice.surface.state import (
    StateColumn,
    StateTable,
    json_value,
    key_value,
    shown_columns,
    snapshot_metadata,
    stored_table,
    table_names,
)

if TYPE_CHECKING:
    from sluice.state.segments import StateSchema

MAX_CHECKPOINTS = 20  # Of the history, the newest.
MAX_ROWS = 100  # Of a key in one table: windows, ranks, the entries of a map.


class KeyVersion(msgspec.Struct, frozen=True, kw_only=True):
    """The rows that a table has of the key, the same in all checkpoints from *first* to *last*.

    ``processing_time`` is that of *first*, in ms since 1970.  ``has_more``: rows beyond the first
    100 are left out.
    """

    first: int | str
    last: int | str
    processing_time: int
    rows: tuple[dict[str, Any], ...]
    has_more: bool


class KeyInTable(msgspec.Struct, frozen=True, kw_only=True):
    """``versions`` are the newest first; one without rows says that the key was not there."""

    stage: str
    table: str
    columns: tuple[StateColumn, ...]
    versions: tuple[KeyVersion, ...]


class OtherKey(msgspec.Struct, frozen=True, kw_only=True):
    """A table that cannot be asked for the key, as it is kept by other columns."""

    stage: str
    table: str
    key_columns: tuple[str, ...]


class KeyLookup(msgspec.Struct, frozen=True, kw_only=True):
    """The rows that the ``checkpoints``, newest first, hold of a ``key``."""

    key: dict[str, str | None]
    checkpoints: tuple[int | str, ...]
    tables: tuple[KeyInTable, ...]
    others: tuple[OtherKey, ...]


def look_up_key(
    job: Job,
    key: Sequence[str],
    *,
    checkpoint: str | None = None,
    stage: str | None = None,
) -> KeyLookup:
    """The rows of *key*, each column as ``column=value``, as JSON shows it; ``column`` alone: null.

    By default of the 20 newest retained checkpoints; *checkpoint* is one, as ``open_state`` takes
    it.  *stage* looks at one stage alone.

    Raises:
        ConfigurationError: there is no such checkpoint, no such stage, or no table with this key;
            or a column of the key cannot have such a value.
        RestoreError: the ``_metadata`` of a checkpoint is gone.
    """
    given = _given(key)
    known = _snapshots(job, checkpoint)
    newest = next(iter(known.values()))
    if stage is not None and newest.stage(stage) is None:
        uids = ", ".join(one.uid for one in newest.stages)
        raise ConfigurationError(f"there is no stage {stage!r} in the checkpoint; it has {uids}")
    tables: list[KeyInTable] = []
    others: list[OtherKey] = []
    for one in newest.stages:
        for name, newest_of in _tables(known, one.uid) if stage in (None, one.uid) else ():
            columns = stored_table(job, newest_of, one.uid, name).schema().key_columns
            if {*columns} == {*given}:
                tables.append(_in_table(job, known, one.uid, name, given))
            else:
                others.append(OtherKey(stage=one.uid, table=name, key_columns=columns))
    if not tables:
        held = "; ".join(f"{one.stage}: {', '.join(one.key_columns)}" for one in others)
        raise ConfigurationError(
            f"no state is kept by the key ({', '.join(given)}); name every column of a key as "
            f"column=value: {held or 'there is no keyed state'}"
        )
    return KeyLookup(
        key=given,
        checkpoints=tuple(known),
        tables=tuple(tables),
        others=tuple(others),
    )


def _given(key: Sequence[str]) -> dict[str, str | None]:
    """The texts of the columns of *key*; None: null."""
    found: dict[str, str | None] = {}
    for pair in key:
        name, is_given, text = pair.partition("=")
        if name in found:
            raise ConfigurationError(f"the key has {name!r} twice; give each column once")
        found[name] = text if is_given else None
    return found


def _snapshots(job: Job, checkpoint: str | None) -> dict[int | str, CheckpointMetadata]:
    """By id or name the metadata of the snapshots, the newest first."""
    if checkpoint is not None:
        metadata = snapshot_metadata(job, checkpoint)
        is_id = checkpoint == LATEST or checkpoint.isdecimal()
        return {metadata.checkpoint_id if is_id else checkpoint: metadata}
    ids = sorted((done.checkpoint_id for done in job.state().completed), reverse=True)
    if not ids:
        return {LATEST: snapshot_metadata(job, LATEST)}  # Says why there is none.
    return {one: job.metadata(CheckpointId(one)) for one in ids[:MAX_CHECKPOINTS]}


def _tables(
    known: Mapping[int | str, CheckpointMetadata], stage: str
) -> list[tuple[str, CheckpointMetadata]]:
    """The tables that *stage* has or had, each with the newest checkpoint in which it has rows."""
    found: dict[str, CheckpointMetadata] = {}
    for metadata in known.values():
        state = metadata.stage(stage)
        for name in table_names(state) if state is not None else ():
            found.setdefault(name, metadata)
    return sorted(found.items(), key=lambda one: one[0])


def _in_table(
    job: Job,
    known: Mapping[int | str, CheckpointMetadata],
    stage: str,
    name: str,
    given: Mapping[str, str | None],
) -> KeyInTable:
    """Back to where the table had another key, if it had."""
    columns: tuple[StateColumn, ...] = ()
    versions: list[KeyVersion] = []
    for named, metadata in known.items():
        table = stored_table(job, metadata, stage, name)
        found: tuple[tuple[dict[str, Any], ...], bool] = ((), False)
        if table.handles:
            schema = table.schema()
            if {*schema.key_columns} != {*given}:
                break
            columns = columns or shown_columns(schema)
            found = _rows(table, schema, given)
        rows, has_more = found
        if versions and (versions[-1].rows, versions[-1].has_more) == (rows, has_more):
            versions[-1] = msgspec.structs.replace(
                versions[-1], first=named, processing_time=metadata.processing_time_ms
            )
            continue
        versions.append(
            KeyVersion(
                first=named,
                last=named,
                processing_time=metadata.processing_time_ms,
                rows=rows,
                has_more=has_more,
            )
        )
    return KeyInTable(stage=stage, table=name, columns=columns, versions=tuple(versions))


def _rows(
    table: StateTable, schema: StateSchema, given: Mapping[str, str | None]
) -> tuple[tuple[dict[str, Any], ...], bool]:
    key = {
        name: None if text is None else key_value(name, text, schema.columns[name])
        for name, text in given.items()
    }
    found = table.of_key(key)
    shown = found.head(MAX_ROWS).to_dicts()
    return tuple(json_value(row) for row in shown), found.height > MAX_ROWS
