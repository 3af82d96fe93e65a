"""The places where a job's rows come from and go to: its declared sources and sinks, opened.

A table source is small and changes, so it is pinned as a whole at every barrier: as one segment of
what its files hold, be that rows, or lines that Spark decodes as it reads them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from sluice.connectors.files.text import MAX_TABLE_BYTES, FilesSource, check_header
from sluice.connectors.files.whole_files import WholeFileSource
from sluice.connectors.files_table.declared import open_side_output, open_sink
from sluice.core.handles import SegmentHandle
from sluice.core.ids import CheckpointId
from sluice.declaration.pipeline import side_outputs
from sluice.declaration.places import Source
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from sluice.store.open import is_below, verify_store

if TYPE_CHECKING:
    import pyarrow as pa

    from sluice.connectors.files_table.table import ManifestTable
    from sluice.declaration.places import Sink


def open_source(job: Job, uid: str, params: Mapping[str, str]) -> Source:
    return job.pipeline.sources[uid].spec.open(params, job.location.endpoint_url)


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


def verify_tables(job: Job, params: Mapping[str, str]) -> None:
    """Probe the stores of the tables of files that do not lie in the job's own.

    Raises:
        ConfigurationError: one ignores conditional writes, or lets two writers win; it is named.
    """
    from sluice.connectors.files_table.table import ManifestTable

    for uid, node in job.pipeline.sinks.items():
        sink = open_sink(node, params, job.location, job.names)
        if isinstance(sink, ManifestTable) and not is_below(sink.store, job.store):
            try:
                verify_store(sink.store, f"_probes/{uuid.uuid4().hex}")
            except ConfigurationError as error:
                raise ConfigurationError(f"the table of sink {uid!r}: {error}") from error


def open_side_table(job: Job, uid: str) -> ManifestTable:
    """The rows of a side output, published like a table of its own, exactly once."""
    return open_side_output(uid, job.location, job.names)


def has_result_table(job: Job, params: Mapping[str, str], uid: str) -> bool:
    """Whether the sink *uid* can be read back."""
    return _result_table(job, params, uid) is not None


def open_result_table(job: Job, params: Mapping[str, str], uid: str | None = None) -> ManifestTable:
    """The table of the sink *uid*, by default of the first.

    Raises:
        ConfigurationError: that sink cannot be read back.
    """
    uid = next(iter(job.pipeline.sinks)) if uid is None else uid
    table = _result_table(job, params, uid)
    if table is None:
        raise ConfigurationError(
            f"sink {uid!r} cannot be read back, for only a FilesTable can; look where it publishes"
        )
    return table


def _result_table(job: Job, params: Mapping[str, str], uid: str) -> ManifestTable | None:
    from sluice.connectors.files_table.table import ManifestTable

    sink = open_sink(job.pipeline.sinks[uid], params, job.location, job.names)
    return sink if isinstance(sink, ManifestTable) else None


def check_table(uid: str, source: Source) -> None:
    """Raises ConfigurationError unless the whole of *source* can be read at every barrier."""
    if not isinstance(source, FilesSource | WholeFileSource):
        raise ConfigurationError(
            f"source {uid!r} cannot be a table; only Files can: stream it, and join() its rows"
        )


def write_table(
    job: Job,
    uid: str,
    params: Mapping[str, str],
    checkpoint_id: CheckpointId,
    previous: SegmentHandle | None,
) -> SegmentHandle:
    """The table as it is now, as an immutable segment: *previous*, if it did not change."""
    from sluice.protocol.records import checksum
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
    """Everything that is there now, be it rows or lines.

    Raises:
        ConfigurationError: the source cannot be a table, is too large for one, or a file of it is
            not what the declaration says.
    """
    check_table(uid, source)
    if isinstance(source, FilesSource):
        _, lines = source.snapshot()
        _check_headers(source, lines)
        return lines
    import pyarrow as pa

    return pa.Table.from_batches(_batches(uid, source), schema=source.schema())


def _check_headers(source: FilesSource, lines: pa.Table) -> None:
    import pyarrow.compute as pc

    decoding = source.text_decoding
    if decoding is None or not decoding.has_header:
        return
    for row in lines.filter(pc.equal(lines["line_number"], 1)).to_pylist():
        check_header(row["line"].encode(), decoding, f"{row['file']} of {source.location}")


def _batches(uid: str, source: Source) -> Iterator[pa.RecordBatch]:
    remaining = MAX_TABLE_BYTES
    for piece in source.plan((), max_records=None, parallelism=1).slices:
        for batch in source.read(piece):
            remaining -= batch.nbytes
            if remaining < 0:
                raise ConfigurationError(
                    f"the table source {uid!r} has more than {MAX_TABLE_BYTES} bytes of rows; read "
                    "it as a stream into keyed state, with join()"
                )
            yield batch
