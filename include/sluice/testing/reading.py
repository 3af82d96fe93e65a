"""Reads the result of a local run from its folder, which is temporary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl
import pyarrow as pa

from sluice.analysis.stage_results import Result
from sluice.connectors.contracts.sink import DELETED
from sluice.connectors.files_table.table_rows import read_chain
from sluice.connectors.staging.staged_files import StagedFiles
from sluice.core.completed import CheckpointMetadata
from sluice.core.ids import CheckpointId
from sluice.declaration.changelog import ROW_KIND
from sluice.declaration.side_outputs import side_outputs
from sluice.job.job import Job
from sluice.job.places import open_result_table, open_side_table
from sluice.local.epochs import Epoch
from sluice.subtask.state.schema import StateSchema
from sluice.testing.result import LocalEpoch, LocalRun, watermark_of
from sluice.views.keyed_state import open_state


def epoch_of(
    job: Job,
    yields: Mapping[str, Result],
    number: int,
    epoch: Epoch,
    attempts: Mapping[str, int],
) -> LocalEpoch:
    metadata = job.metadata(epoch.plan.checkpoint_id)
    return LocalEpoch(
        number=number,
        checkpoint_id=metadata.checkpoint_id,
        records=epoch.plan.records,
        watermarks={one.uid: watermark_of(one.watermark_ms) for one in metadata.stages},
        attempts=attempts,
        _published={uid: _published(job, yields, uid, metadata) for uid in job.pipeline.sinks},
    )


def run_of(
    job: Job, yields: Mapping[str, Result], epochs: Sequence[LocalEpoch], *, seconds: float
) -> LocalRun:
    metadata = job.metadata(CheckpointId(epochs[-1].checkpoint_id))
    sides = {uid: open_side_table(job, uid).read() for uid in side_outputs(job.pipeline)}
    return LocalRun(
        pipeline=job.pipeline.uid,
        status=job.state().status.value,
        seconds=seconds,
        epochs=tuple(epochs),
        _tables={
            uid: _frame(open_result_table(job, {}, uid).read(), _columns(job, yields, uid))
            for uid in job.pipeline.sinks
        },
        _side_outputs={uid: _frame(table, {}) for uid, table in sides.items()},
        _state={
            uid: {name: _state(job, metadata, uid, name, schema) for name, schema in tables.items()}
            for uid, result in yields.items()
            if (tables := result.tables)
        },
    )


def _state(
    job: Job, metadata: CheckpointMetadata, stage: str, table: str, schema: StateSchema
) -> pl.DataFrame:
    found = metadata.stage(stage)
    handles = found.subtasks if found is not None else ()
    if not any(handle.table == table for one in handles for handle in one.state):
        return schema.columns.to_frame()
    return open_state(job, str(metadata.checkpoint_id), stage, table).frame()


def _published(
    job: Job, yields: Mapping[str, Result], uid: str, metadata: CheckpointMetadata
) -> pl.DataFrame:
    table, columns = open_result_table(job, {}, uid), _columns(job, yields, uid)
    if table.upsert_key:
        columns = {**columns, DELETED: pl.Boolean()}
    if metadata.tables.get(uid) != metadata.checkpoint_id:
        return pl.DataFrame(schema=columns)
    files = table.chain(metadata.checkpoint_id)[-1].files
    staged = StagedFiles(uid, table.store, table.upsert_key, table.format, table.partition_by)
    frame = _frame(read_chain(staged, files, None), columns)
    if not table.upsert_key:
        return frame
    if DELETED not in frame.columns:
        return frame.with_columns(pl.lit(False).alias(DELETED))  # noqa: FBT003 - a value
    return frame.with_columns(pl.col(DELETED).fill_null(False))  # noqa: FBT003 - a value


def _columns(job: Job, yields: Mapping[str, Result], uid: str) -> dict[str, pl.DataType]:
    """The columns that readers of the sink see, also without rows."""
    node = job.pipeline.sinks[uid]
    kind = {ROW_KIND: pl.String()} if node.spec.changelog else {}
    return {**dict(yields[node.input].columns), **kind}


def _frame(table: pa.Table, columns: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """*table* as a frame, with *columns* also where the table has no file, and so no columns."""
    if not table.column_names:
        return pl.DataFrame(schema=columns)
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame
