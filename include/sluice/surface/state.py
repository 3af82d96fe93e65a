"""The keyed state of a stage in a checkpoint, for people and other programs.

    state = open_state(job, "latest", "window_rule")
    state.frame()                         # Polars; see sluice.spark.frames for a Spark DataFrame

``state_page`` is a page of it as JSON.  People name keys as ``column=value``, the value as JSON
shows it; ``column`` alone means null, and of a key with several columns one is enough.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec

from sluice.core.completed import CheckpointMetadata, StageState
from sluice.core.handles import StateHandle
from sluice.core.ids import CheckpointId
from sluice.declaration.arguments import checked_arguments
from sluice.declaration.declared_states import is_broadcast_table, migrates, ttl_of_table
from sluice.declaration.nodes import StageNode
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from sluice.job.snapshots import LATEST, retained_checkpoint
from sluice.store.open import StoreLocation

if TYPE_CHECKING:
    import polars as pl

    from sluice.state.segments import StateSchema

PIECE_ROWS = 1_048_576
PAGE_PIECE_ROWS = 65_536  # In memory for a page: a few megabytes.


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTable:
    """One table of a stage's state.

    Its rows are spread over ``subtasks``, each with segments from oldest to newest; ``as_of_ms``
    is the time by which rows are expired.  ``migrating`` is the stage as it is declared, if its
    states migrate rows of older segments.
    """

    location: StoreLocation
    stage: str
    name: str
    subtasks: tuple[tuple[StateHandle, ...], ...]
    ttl_ms: int | None
    as_of_ms: int
    migrating: StageNode | None = None

    @property
    def handles(self) -> tuple[StateHandle, ...]:
        """The segments of all subtasks."""
        return tuple(handle for handles in self.subtasks for handle in handles)

    def frame(self, max_rows: int | None = None) -> pl.DataFrame:
        """The live rows, at most *max_rows* of them."""
        return self._rows(0, max_rows, PIECE_ROWS)

    def page(self, offset: int, limit: int) -> pl.DataFrame:
        """The live rows behind the first *offset*, at most *limit*, in their hashes' order."""
        return self._rows(offset, limit, PAGE_PIECE_ROWS)

    def _rows(self, offset: int, limit: int | None, piece_rows: int) -> pl.DataFrame:
        import polars as pl

        found: list[pl.DataFrame] = []
        for index in range(len(self.subtasks)):
            for piece in self.pieces(index, rows=piece_rows):
                found.append(piece.slice(offset, limit))
                offset = max(0, offset - piece.height)
                if limit is not None:
                    limit -= found[-1].height
                    if limit <= 0:
                        return pl.concat(found)
        return pl.concat(found) if found else self.schema().columns.to_frame()

    def pieces(self, subtask: int, *, rows: int = PIECE_ROWS) -> Iterator[pl.DataFrame]:
        """A subtask's live rows, about a million at a time, or about *rows*."""
        from sluice.state.cache import SegmentCache
        from sluice.state.keyed import KeyedState
        from sluice.state.merging import open_runs
        from sluice.state.segments import HASH

        state = KeyedState(
            self.schema(),
            open_runs(SegmentCache(self.location), self.subtasks[subtask]),
            now_ms=self.as_of_ms,
            owner=f"stage {self.stage!r}",
        )
        for piece in state.scan_pieces(rows):
            yield piece.drop(HASH)

    def of_key(self, key: Mapping[str, Any]) -> pl.DataFrame:
        """The live rows of *key*, a value for each of the key columns.

        Only the subtask that owns the key is read, at its hash; all rows are, where only Spark
        computes the hash, and of broadcast state, whose rows share one.
        """
        import polars as pl

        from sluice.state.cache import SegmentCache
        from sluice.state.key_hash import can_hash, with_hash
        from sluice.state.keyed import KeyedState
        from sluice.state.merging import open_runs
        from sluice.state.segments import HASH

        schema = self.schema()
        kinds = {name: schema.columns[name] for name in schema.key_columns}
        found = [schema.columns.to_frame()]
        if is_broadcast_table(self.name) or not all(map(can_hash, kinds.values())):
            is_wanted = pl.all_horizontal(
                pl.col(name).eq_missing(pl.lit(key[name], kind)) for name, kind in kinds.items()
            )
            for index in range(len(self.subtasks)):
                found += (piece.filter(is_wanted) for piece in self.pieces(index))
            return pl.concat(found)
        wanted = with_hash(pl.DataFrame([key], schema=kinds), schema.key_columns)
        hashed, cache = wanted[HASH].item(), SegmentCache(self.location)
        for handles in self.subtasks:
            owned = [one for one in handles if one.first_hash <= hashed <= one.last_hash]
            state = KeyedState(
                schema, open_runs(cache, owned), now_ms=self.as_of_ms, owner=f"stage {self.stage!r}"
            )
            found.append(state.lookup(wanted).drop(HASH))
        return pl.concat(found)

    def schema(self) -> StateSchema:
        """The schema of the newest segment, to which older ones are evolved."""
        import polars as pl

        from sluice.operators.keyed_entries import declared_columns
        from sluice.state.cache import SegmentCache
        from sluice.state.segments import DELETED, HASH, IDENTITY, WRITTEN, StateSchema, to_frame

        newest = max(self.handles, key=lambda handle: handle.run)
        table = SegmentCache(self.location).open(newest.segment)
        keys, sub_keys = json.loads((table.schema.metadata or {})[IDENTITY])
        columns = to_frame(table.slice(0, 0)).drop(HASH, DELETED, WRITTEN, strict=False).schema
        return StateSchema(
            columns=pl.Schema(columns),
            key_columns=tuple(keys),
            sub_key_columns=tuple(sub_keys),
            ttl_ms=self.ttl_ms,
            declared={} if self.migrating is None else declared_columns(self.migrating, self.name),
        )


class StateColumn(msgspec.Struct, frozen=True, kw_only=True):
    """``type`` is Polars' name of it."""

    name: str
    type: str
    is_key: bool


class StatePage(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one table of a stage's state, in no order that means anything, always the same.

    ``tables`` are all that the stage has; ``next``: the *offset* of the page behind this one.
    ``stored_rows`` counts what its segments hold, older versions and expired rows included.
    Bytes are base64, decimals, NaN and infinities text, periods seconds.
    """

    checkpoint: int | str
    stage: str
    table: str
    tables: tuple[str, ...]
    columns: tuple[StateColumn, ...]
    offset: int
    rows: tuple[dict[str, Any], ...]
    next: int | None
    stored_rows: int


@checked_arguments
def open_state(job: Job, checkpoint: str, stage: str, table: str | None = None) -> StateTable:
    """The table *table* of *stage* in a checkpoint: its id, ``latest``, or a savepoint's name.

    A stage with one table needs no name for it.

    Raises:
        ConfigurationError: there is no such checkpoint, stage or table; it lists the existing ones.
        RestoreError: its ``_metadata`` is gone.
    """
    metadata = snapshot_metadata(job, checkpoint)
    names = _tables_of(metadata, stage)
    return stored_table(job, metadata, stage, only_name(names, stage, table))


def only_name(names: Sequence[str], stage: str, table: str | None) -> str:
    """*table*, or the only one of the *names* of the tables of *stage*.

    Raises:
        ConfigurationError: there is no such table, or there are several.
    """
    if table is None and len(names) > 1:
        raise ConfigurationError(
            f"the state of stage {stage!r} has several tables; name one: {', '.join(names)}"
        )
    return chosen_name(names, stage, table)


def chosen_name(names: Sequence[str], stage: str, table: str | None) -> str:
    """*table*, or the first of the *names* of the tables of *stage*.

    Raises:
        ConfigurationError: there is no such table.
    """
    if table is not None and table not in names:
        raise ConfigurationError(
            f"the state of stage {stage!r} has no table {table!r}; it has {', '.join(names)}"
        )
    return names[0] if table is None else table


def state_page(
    job: Job, checkpoint: str, stage: str, *, table: str | None, offset: int, limit: int
) -> StatePage:
    """The rows of *table*, by default of the first; *checkpoint* as ``open_state`` takes it.

    Raises:
        ConfigurationError: there is no such checkpoint, stage or table.
        RestoreError: its ``_metadata`` is gone.
    """
    named: CheckpointId | str = checkpoint
    if checkpoint == LATEST or checkpoint.isdecimal():
        named = retained_checkpoint(job, checkpoint)
    tables = state_table_names(job, str(named), stage)
    state = open_state(job, str(named), stage, table or tables[0])
    schema = state.schema()
    page = state.page(offset, limit + 1)
    return StatePage(
        checkpoint=named,
        stage=stage,
        table=state.name,
        tables=tables,
        columns=shown_columns(schema),
        offset=offset,
        rows=tuple(json_value(row) for row in page.head(limit).to_dicts()),
        next=offset + limit if page.height > limit else None,
        stored_rows=sum(handle.segment.rows for handle in state.handles),
    )


def shown_columns(schema: StateSchema) -> tuple[StateColumn, ...]:
    keys = {*schema.key_columns, *schema.sub_key_columns}
    return tuple(
        StateColumn(name=name, type=str(kind), is_key=name in keys)
        for name, kind in schema.columns.items()
    )


def stored_table(job: Job, metadata: CheckpointMetadata, stage: str, table: str) -> StateTable:
    """The table as *metadata* has it; without subtasks if it has none."""
    declared = job.pipeline.stages.get(stage)
    found = metadata.stage(stage)
    return StateTable(
        location=job.location,
        stage=stage,
        name=table,
        subtasks=tuple(
            tuple(handle for handle in subtask.state if handle.table == table)
            for subtask in (found.subtasks if found is not None else ())
            if any(handle.table == table for handle in subtask.state)
        ),
        ttl_ms=ttl_of_table(declared, table) if declared is not None else None,
        as_of_ms=metadata.processing_time_ms,
        migrating=declared if declared is not None and migrates(declared, table) else None,
    )


def snapshot_metadata(job: Job, checkpoint: str) -> CheckpointMetadata:
    """The ``_metadata`` of a checkpoint by its id, of the ``latest`` one, or of a savepoint."""
    if checkpoint != LATEST and not checkpoint.isdecimal():
        return job.savepoint_metadata(checkpoint)
    return job.metadata(retained_checkpoint(job, checkpoint))


def state_table_names(job: Job, checkpoint: str, stage: str) -> tuple[str, ...]:
    """The names of the tables of *stage*; see ``open_state``."""
    return _tables_of(snapshot_metadata(job, checkpoint), stage)


def table_names(stage: StageState) -> tuple[str, ...]:
    """The tables of which the stage has segments, sorted."""
    return tuple(sorted({handle.table for subtask in stage.subtasks for handle in subtask.state}))


def json_value(value: Any) -> Any:  # noqa: ANN401 - whatever a column holds
    """*value* as JSON has it; see ``StatePage``."""
    match value:
        case Mapping():
            return {str(name): json_value(field) for name, field in value.items()}
        case list() | tuple():
            return [json_value(item) for item in value]
        case bytes():
            return base64.b64encode(value).decode()
        case timedelta():
            return value.total_seconds()
        case float() if not math.isfinite(value):
            return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
        case Decimal():
            return str(value)
        case _:
            return value


def wanted_keys(key: tuple[str, ...], schema: StateSchema) -> pl.Expr:
    """Whether a row has the value of every column that *key* names.

    Raises:
        ConfigurationError: there is no such column, or it cannot have such a value.
    """
    import polars as pl

    wanted = pl.lit(value=True)
    for pair in key:
        name, is_given, text = pair.partition("=")
        kind = schema.columns.get(name)
        keys = (*schema.key_columns, *schema.sub_key_columns)
        if kind is None or name not in keys:
            raise ConfigurationError(f"{name!r} is no column of the key; it has {', '.join(keys)}")
        value = key_value(name, text, kind) if is_given else None
        wanted &= pl.col(name).eq_missing(pl.lit(value, kind))
    return wanted


def _tables_of(metadata: CheckpointMetadata, stage: str) -> tuple[str, ...]:
    found = metadata.stage(stage)
    if found is None:
        known = ", ".join(state.uid for state in metadata.stages)
        raise ConfigurationError(
            f"checkpoint {metadata.checkpoint_id} has no stage {stage!r}; it has {known}"
        )
    names = table_names(found)
    if not names:
        raise ConfigurationError(
            f"stage {stage!r} has no keyed state in checkpoint {metadata.checkpoint_id}"
        )
    return names


def _moment(at: datetime, *, is_instant: bool) -> datetime:
    """*at* as a column has it: of instants in UTC, whatever zone it was named in."""
    if at.tzinfo is None:
        return at
    if not is_instant:
        raise ValueError("it names an instant, and the column has none")
    return at.astimezone(UTC)


def key_value(name: str, text: str, kind: pl.DataType) -> Any:  # noqa: ANN401 - whatever it holds
    """The value of a column of this type that JSON shows as *text*.

    Raises:
        ConfigurationError: the column cannot have such a value.
    """
    import polars as pl

    try:
        match kind:
            case pl.String():
                return text
            case pl.Binary():
                return base64.b64decode(text, validate=True)
            case pl.Boolean():
                return {"true": True, "false": False}[text]
            case pl.Datetime():
                return _moment(datetime.fromisoformat(text), is_instant=kind.time_zone is not None)
            case pl.Date():
                return date.fromisoformat(text)
            case pl.Duration():
                return timedelta(seconds=float(text))
            case _:
                return pl.Series([text]).cast(kind, strict=True).item()
    except (
        KeyError,
        ValueError,
        OverflowError,
        binascii.Error,
        pl.exceptions.PolarsError,
    ) as error:
        raise ConfigurationError(f"{text!r} is no {kind}, which {name!r} of the key is") from error
