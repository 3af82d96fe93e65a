"""The places where a job's rows come from and go to: its declared sources and sinks, opened.

A table source is small and changes, so it is pinned as a whole at every barrier: as one segment of
its rows, or of texts that Spark decodes as it reads them, each with its origin.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeGuard

from sluice.connectors.columns import check_announced
from sluice.core.handles import SegmentHandle
from sluice.core.ids import CheckpointId
from sluice.core.plan import CheckpointPlan, SourceCut
from sluice.declaration.pipeline import side_outputs
from sluice.declaration.places import (
    MALFORMED_COLUMN,
    RAW,
    RECORD,
    InputCopy,
    KeepingSource,
    PlacedSinkSpec,
    ProbedSink,
    ReadableSink,
    Source,
    StartingSource,
)
from sluice.errors import ConfigurationError, RestoreError
from sluice.exchange.sinks import open_side_output, open_sink
from sluice.job.job import Job
from sluice.job.lineage import position_of
from sluice.job.snapshots import verified
from sluice.protocol.keys import PipelinePaths
from sluice.protocol.records import checksum
from sluice.store.object_store import in_parallel

if TYPE_CHECKING:
    import pyarrow as pa

    from sluice.declaration.pipeline import Pipeline
    from sluice.declaration.places import OwnTable, Sink
    from sluice.store.open import StoreLocation


# Every subtask of a lookup holds the table in memory, and each barrier reads it whole.  Larger
# tables belong into a stream with keyed state.
MAX_TABLE_BYTES = 64 * 1024 * 1024

COPY_THREADS = 4  # Each holds a file in memory.

# Of content that a plan begins to read, until ``store_copies`` has written its copy.
NOT_COPIED = SegmentHandle(key="", size_bytes=0, rows=0, checksum="none", inline=b"")


def open_source(job: Job, uid: str, params: Mapping[str, str]) -> Source:
    return job.pipeline.sources[uid].spec.open(params, job.location.endpoint_url)


def open_source_at(job: Job, cut: SourceCut, params: Mapping[str, str]) -> Source:
    """The source of *cut*, whose columns are those that it has in this checkpoint."""
    read = {piece.partition for piece in cut.slices}
    source = with_copies(job, cut, open_source(job, cut.uid, params), read)
    return source.settled(_partitions_of(job, cut))


def with_copies(
    job: Job, cut: SourceCut | None, source: Source, partitions: Collection[str] | None = None
) -> Source:
    """*source* with the copies of its input that *cut* names; only of *partitions*, if given."""
    if cut is None or not keeps_copies(source):
        return source

    def opened(handles: Mapping[str, SegmentHandle]) -> dict[str, InputCopy]:
        return {
            name: InputCopy(
                place=job.location.elsewhere(handle.root or job.location.root),
                key=handle.key,
                size_bytes=handle.size_bytes,
                checksum=handle.checksum,
            )
            for name, handle in handles.items()
            if partitions is None or name in partitions
        }

    return source.with_copies(opened(cut.copies), opened(cut.taken_back))


def keeps_copies(source: Source) -> TypeGuard[KeepingSource]:
    return isinstance(source, KeepingSource) and source.keeps_copies


def starts_at_end(source: Source) -> bool:
    return isinstance(source, StartingSource) and source.starts_at_end


def store_copies(job: Job, cut: SourceCut, source: Source, plan: CheckpointPlan) -> SourceCut:
    """Keep in the root what the epoch begins to read of an input that may be replaced.

    Each copy is written under the checkpoint's id and its content's name, as ``store_layers`` does.
    Where the checkpoint shares no file with its parent, all are written once more.
    """
    if not keeps_copies(source):
        return cut
    entries = {entry.partition: entry for entry in cut.position}

    def stored(name: str) -> SegmentHandle:
        handle = cut.copies[name]
        body = source.content(entries[name]) if handle == NOT_COPIED else _copied(job, handle)
        digest = checksum(body)
        key = job.paths.copy_of_input(cut.uid, plan.checkpoint_id, digest)
        job.store.put(key, body)
        return SegmentHandle(key=key, size_bytes=len(body), rows=0, checksum=digest)

    names = [name for name, of in cut.copies.items() if plan.is_full or of == NOT_COPIED]
    copied = dict(zip(names, in_parallel(stored, names, COPY_THREADS), strict=True))
    return replace(cut, copies={**cut.copies, **copied})


def _copied(job: Job, handle: SegmentHandle) -> bytes:
    body = job.store_at(handle.root).get(handle.key)
    if body is None:
        raise RestoreError(
            f"{handle.root or job.store.root}/{handle.key} is gone, the copy of input that may "
            "have to be taken back; restore another checkpoint"
        )
    return verified(handle, body, "restore another checkpoint")


def _partitions_of(job: Job, cut: SourceCut) -> Iterator[str]:
    """All partitions at the barrier; layers of the position are loaded behind those at hand."""
    yield from (entry.partition for entry in cut.position)
    if cut.layers:
        yield from (entry.partition for entry in position_of(job, cut))


class Sources:
    """The sources of a job for one act of its coordinator; each is opened once, at first use."""

    def __init__(self, job: Job, params: Mapping[str, str]) -> None:
        self._job = job
        self._params = params
        self._opened: dict[str, Source] = {}

    def __getitem__(self, uid: str) -> Source:
        if uid not in self._opened:
            self._opened[uid] = open_source(self._job, uid, self._params)
        return self._opened[uid]


def open_sinks(job: Job, params: Mapping[str, str]) -> dict[str, Sink]:
    """Every declared sink, and a table for each side output that a stage may have."""
    declared = {
        uid: open_sink(node, params, job.location, job.names)
        for uid, node in job.pipeline.sinks.items()
    }
    return declared | {uid: open_side_table(job, uid) for uid in side_outputs(job.pipeline)}


def check_tables(pipeline: Pipeline, params: Mapping[str, str], root: StoreLocation) -> None:
    """Raises ConfigurationError if two sinks of a job at *root* write one table, which has one time
    line.
    """
    writers: dict[tuple[str, ...], str] = {}
    names = PipelinePaths(pipeline.uid)
    for uid, node in pipeline.sinks.items():
        if not isinstance(node.spec, PlacedSinkSpec):
            continue
        table = node.spec.table_of(params, root.below(names.table(uid)))
        first = writers.setdefault(table, uid)
        if first != uid:
            raise ConfigurationError(
                f"sinks {first!r} and {uid!r} write one table, {table[0]}, whose versions are one "
                "sink's checkpoints; name another for one of them, or write the union() of their "
                "streams"
            )


def verify_tables(job: Job, params: Mapping[str, str]) -> None:
    """Probe the stores of the tables of files that do not lie in the job's own.

    Raises:
        ConfigurationError: one ignores conditional writes, or lets two writers win; it is named.
            Or two sinks write one table.
    """
    check_tables(job.pipeline, params, job.location)
    for uid, node in job.pipeline.sinks.items():
        sink = open_sink(node, params, job.location, job.names)
        if isinstance(sink, ProbedSink):
            try:
                sink.probe(job.store)
            except ConfigurationError as error:
                raise ConfigurationError(f"the table of sink {uid!r}: {error}") from error


def open_side_table(job: Job, uid: str) -> OwnTable:
    """The rows of a side output, published like a table of its own, exactly once."""
    return open_side_output(uid, job.location, job.names)


def has_result_table(job: Job, params: Mapping[str, str], uid: str) -> bool:
    """Whether the sink *uid* can be read back."""
    return _result_table(job, params, uid) is not None


def open_result_table(job: Job, params: Mapping[str, str], uid: str | None = None) -> ReadableSink:
    """The table of the sink *uid*, by default of the first.

    Raises:
        ConfigurationError: that sink cannot be read back.
    """
    uid = next(iter(job.pipeline.sinks)) if uid is None else uid
    table = _result_table(job, params, uid)
    if table is None:
        raise ConfigurationError(
            f"sink {uid!r} cannot be read back, as a FilesTable can; look where it publishes"
        )
    return table


def _result_table(job: Job, params: Mapping[str, str], uid: str) -> ReadableSink | None:
    sink = open_sink(job.pipeline.sinks[uid], params, job.location, job.names)
    return sink if isinstance(sink, ReadableSink) else None


def write_table(
    job: Job,
    uid: str,
    params: Mapping[str, str],
    checkpoint_id: CheckpointId,
    previous: SegmentHandle | None,
) -> SegmentHandle:
    """The table as it is now, as an immutable segment: *previous*, if it did not change."""
    from sluice.state.segments import encode_segment

    table = read_table(uid, open_source(job, uid, params))
    raw = encode_segment(table)
    digest = checksum(raw)
    if previous is not None and previous.checksum == digest:
        return previous
    key = job.paths.shared_segment(uid, checkpoint_id, digest)
    job.store.put(key, raw)
    return SegmentHandle(key=key, size_bytes=len(raw), rows=table.num_rows, checksum=digest)


def read_table(uid: str, source: Source) -> pa.Table:
    """Everything that is there now: its rows, or its texts, of which Spark makes rows.

    Raises:
        ConfigurationError: it is too large for a table, or a record is not what the declaration
            says.
    """
    import pyarrow as pa

    from sluice.exchange.reading import SOURCE, rows_with_origin, with_origin

    source = source.settled()
    schema, how = source.schema(), source.decoding
    columns = _row_columns(schema) if how is None else [how.column, *how.keeps, SOURCE]
    found, whole = [], with_origin(schema)
    for partition, first_record, batch in _records(uid, source):
        check_announced(batch.schema, schema, partition)
        rows = rows_with_origin(batch, partition, first_record, whole)
        _check_well_formed(uid, rows, rows.column(SOURCE))
        found.append(rows.select(columns))
    empty = whole.empty_table().select(columns)
    return pa.Table.from_batches(found, schema=empty.schema)


def _row_columns(schema: pa.Schema) -> list[str]:
    ours = (RECORD, MALFORMED_COLUMN, RAW)
    return [name for name in schema.names if name not in ours]


def _check_well_formed(uid: str, rows: pa.RecordBatch, origins: pa.Array) -> None:
    """A malformed row is an error: without it, lookups would silently find nothing."""
    if MALFORMED_COLUMN not in rows.schema.names:
        return
    for reason, origin in zip(rows.column(MALFORMED_COLUMN), origins, strict=True):
        if reason.is_valid:
            where = origin.as_py()
            raise ConfigurationError(
                f"record {where['record'] + 1} of {where['partition']}, which table source {uid!r} "
                f"reads, is malformed: {reason}; mend it, or leave it out of the table"
            )


def _records(uid: str, source: Source) -> Iterator[tuple[str, int, pa.RecordBatch]]:
    """The records, each batch with its partition and the number of its first record in that."""
    numbers: Counter[str] = Counter()
    whole = source.whole(MAX_TABLE_BYTES)
    for partition, batch in _planned(uid, source) if whole is None else whole:
        yield partition, numbers[partition], batch
        numbers[partition] += batch.num_rows


def _planned(uid: str, source: Source) -> Iterator[tuple[str, pa.RecordBatch]]:
    remaining = MAX_TABLE_BYTES
    for piece in source.plan((), max_records=None, parallelism=1).slices:
        for batch in source.read(piece):
            remaining -= batch.nbytes
            if remaining < 0:
                raise ConfigurationError(
                    f"the table source {uid!r} has more than {MAX_TABLE_BYTES} bytes of rows; read "
                    "it as a stream into keyed state, with join()"
                )
            yield piece.partition, batch
