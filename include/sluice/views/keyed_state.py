"""The keyed state of a stage in a checkpoint, for people and other programs.

state = open_state(job, "latest", "window_rule")
state.frame()                         # Polars; see sluice.spark.keyed_state for a Spark DataFrame
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.core.completed import CheckpointMetadata, StageState
from sluice.core.handles import StateHandle
from sluice.declaration.declared_states import migrates, ttl_of_table
from sluice.declaration.nodes import StageNode
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from sluice.job.retained import LATEST, retained_checkpoint
from sluice.storage.open import StoreLocation

if TYPE_CHECKING:
    import polars as pl

    from sluice.subtask.state.schema import StateSchema

PIECE_ROWS = 1_048_576
PAGE_PIECE_ROWS = 65_536  # Held in memory by who looks at a page: a few megabytes.


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTable:
    """One table of a stage's state.

    Its rows are spread over ``subtasks``, each with segments from oldest to newest; ``as_of_ms``
    is the time at which rows have expired or not.  ``migrating`` is the stage as it is declared, if
    its states migrate rows of older segments.
    """

    location: StoreLocation
    stage: str
    name: str
    subtasks: tuple[tuple[StateHandle, ...], ...]
    ttl_ms: int | None
    as_of_ms: int
    migrating: StageNode | None = None

    def frame(self, max_rows: int | None = None) -> pl.DataFrame:
        """The live rows, at most *max_rows* of them."""
        import polars as pl

        frames: list[pl.DataFrame] = []
        missing = max_rows
        for index in range(len(self.subtasks)):
            for piece in self.pieces(index):
                frames.append(piece if missing is None else piece.head(missing))
                if missing is not None:
                    missing -= frames[-1].height
                    if missing <= 0:
                        return pl.concat(frames)
        return pl.concat(frames) if frames else self.schema().columns.to_frame()

    def page(self, offset: int, limit: int) -> pl.DataFrame:
        """At most *limit* live rows, behind the first *offset*; in the order of their hashes."""
        import polars as pl

        found: list[pl.DataFrame] = []
        for index in range(len(self.subtasks)):
            for piece in self.pieces(index, rows=PAGE_PIECE_ROWS):
                found.append(piece.slice(offset, limit))
                offset, limit = max(0, offset - piece.height), limit - found[-1].height
                if limit <= 0:
                    return pl.concat(found)
        return pl.concat(found) if found else self.schema().columns.to_frame()

    def pieces(self, subtask: int, *, rows: int = PIECE_ROWS) -> Iterator[pl.DataFrame]:
        """A subtask's live rows, about a million at a time, or about *rows*."""
        from sluice.subtask.state.cache import SegmentCache
        from sluice.subtask.state.keyed import KeyedState
        from sluice.subtask.state.segments import HASH
        from sluice.subtask.state_files import open_runs

        state = KeyedState(
            self.schema(),
            open_runs(SegmentCache(self.location), self.subtasks[subtask]),
            now_ms=self.as_of_ms,
            owner=f"stage {self.stage!r}",
        )
        for piece in state.scan_pieces(rows):
            yield piece.drop(HASH)

    def schema(self) -> StateSchema:
        """The schema of the newest segment, to which older ones are evolved."""
        import polars as pl

        from sluice.subtask.operators.keyed_entries import declared_columns
        from sluice.subtask.state.cache import SegmentCache
        from sluice.subtask.state.schema import StateSchema
        from sluice.subtask.state.segments import DELETED, HASH, IDENTITY, WRITTEN, to_frame

        handles = [handle for handles in self.subtasks for handle in handles]
        newest = max(handles, key=lambda handle: handle.run)
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


def open_state(job: Job, checkpoint: str, stage: str, table: str | None = None) -> StateTable:
    """The table *table* of *stage* in a checkpoint: its id, ``latest``, or a savepoint's name.

    A stage with one table needs no name for it.

    Raises:
        ConfigurationError: there is no such checkpoint, stage or table; it lists the existing ones.
        RestoreError: its ``_metadata`` is gone.
    """
    metadata = _metadata(job, checkpoint)
    names = _tables_of(metadata, stage)
    if table is None and len(names) > 1:
        raise ConfigurationError(
            f"the state of stage {stage!r} has several tables; name one: {', '.join(names)}"
        )
    if table is not None and table not in names:
        raise ConfigurationError(
            f"the state of stage {stage!r} has no table {table!r}; it has {', '.join(names)}"
        )
    return stored_table(job, metadata, stage, names[0] if table is None else table)


def stored_table(job: Job, metadata: CheckpointMetadata, stage: str, table: str) -> StateTable:
    """The table as *metadata* has it; without subtasks if it has none."""
    declared = job.pipeline.stages.get(stage)
    found = metadata.stage(stage)
    return StateTable(
        location=job.location,
        stage=stage,
        name=table,
        subtasks=tuple(
            tuple(handle for handle in one.state if handle.table == table)
            for one in (found.subtasks if found is not None else ())
            if any(handle.table == table for handle in one.state)
        ),
        ttl_ms=ttl_of_table(declared, table) if declared is not None else None,
        as_of_ms=metadata.triggered_at_ms,
        migrating=declared if declared is not None and migrates(declared, table) else None,
    )


def state_tables(job: Job, checkpoint: str, stage: str) -> tuple[str, ...]:
    """The names of the tables of *stage*; see ``open_state``."""
    return _tables_of(_metadata(job, checkpoint), stage)


def _tables_of(metadata: CheckpointMetadata, stage: str) -> tuple[str, ...]:
    found = metadata.stage(stage)
    if found is None:
        known = ", ".join(one.uid for one in metadata.stages)
        raise ConfigurationError(
            f"checkpoint {metadata.checkpoint_id} has no stage {stage!r}; it has {known}"
        )
    names = table_names(found)
    if not names:
        raise ConfigurationError(
            f"stage {stage!r} has no keyed state in checkpoint {metadata.checkpoint_id}"
        )
    return names


def table_names(stage: StageState) -> tuple[str, ...]:
    """The tables of which the stage has segments, sorted."""
    return tuple(sorted({handle.table for one in stage.subtasks for handle in one.state}))


def _metadata(job: Job, checkpoint: str) -> CheckpointMetadata:
    if checkpoint != LATEST and not checkpoint.isdecimal():
        return job.savepoint_metadata(checkpoint)
    return job.metadata(retained_checkpoint(job, checkpoint))
