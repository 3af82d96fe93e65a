"""The merge of neighbouring runs of one subtask's table: a compaction, inside a Spark task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from sluice.core.compaction import MergedRuns, SortedRun, replaced_segment
from sluice.core.handles import StateHandle
from sluice.protocol.paths import PipelinePaths
from sluice.protocol.records import encode_merged_runs
from sluice.storage.open import StoreLocation, open_store
from sluice.storage.patience import PatientStore
from sluice.subtask.row_file_writer import RowFiles
from sluice.subtask.state.cache import SegmentCache
from sluice.subtask.state.schema import StateSchema
from sluice.subtask.state_files import describe_segment, merged_frames, open_runs

MERGED_SCHEMA = pa.schema([("merged", pa.binary())])


@dataclass(frozen=True, slots=True, kw_only=True)
class DueMerge:
    """A merge to do: runs of one table of one subtask, oldest first.

    ``is_oldest``: no other run is before them, so their tombstones can be dropped.
    """

    subtask: int
    table: str
    schema: StateSchema
    runs: tuple[SortedRun, ...]
    is_oldest: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSpec:
    """The merges of a compaction; ``now_ms``, a checkpoint's processing time, expires rows."""

    location: StoreLocation
    pipeline: str
    stage: str
    checkpoint_id: int
    now_ms: int
    merges: tuple[DueMerge, ...]


def run_merges(spec: CompactionSpec, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Do the merges whose numbers *batches* hold; run in a Spark task."""
    store = PatientStore(open_store(spec.location))
    cache = SegmentCache(spec.location, store)
    for batch in batches:
        for number in batch.column(0).to_pylist():
            merged = encode_merged_runs(_merge(spec, spec.merges[number], store, cache))
            yield pa.RecordBatch.from_pydict({"merged": [merged]}, schema=MERGED_SCHEMA)


def _merge(
    spec: CompactionSpec, due: DueMerge, store: PatientStore, cache: SegmentCache
) -> MergedRuns:
    paths = PipelinePaths(spec.pipeline)
    written: list[StateHandle] = []

    def write(table: pa.Table) -> None:
        handle, body = describe_segment(due.schema, table)
        name = f"{due.subtask:05d}-{handle.segment.checksum}"
        key = paths.compacted_segment(spec.stage, spec.checkpoint_id, name)
        store.put(key, body)
        segment = replace(handle.segment, key=key, inline=None)
        cache.add(segment, body)
        written.append(replace(handle, segment=segment, table=due.table, run=due.runs[-1].run))

    files = RowFiles(write)
    handles = [handle for run in due.runs for handle in run.handles]
    cache.prefetch(handle.segment for handle in handles)
    for frame in merged_frames(
        due.schema, open_runs(cache, handles), drop_tombstones=due.is_oldest, now_ms=spec.now_ms
    ):
        files.add(frame)
    files.finish()
    return MergedRuns(replaced=tuple(map(replaced_segment, handles)), merged=tuple(written))
