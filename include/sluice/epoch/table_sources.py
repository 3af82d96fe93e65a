"""Table sources: small, changing, and pinned whole at every barrier.

A segment holds what the files hold: their rows, or the lines that Spark decodes as it reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from sluice.connectors.contracts.source import Source
from sluice.connectors.files.csv_header import check_header
from sluice.connectors.files.text_source import MAX_TABLE_BYTES, FilesSource
from sluice.connectors.files.whole_files import WholeFileSource
from sluice.core.handles import SegmentHandle
from sluice.core.ids import CheckpointId
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from sluice.job.places import open_source

if TYPE_CHECKING:
    import pyarrow as pa


def write_table(
    job: Job,
    uid: str,
    params: Mapping[str, str],
    checkpoint_id: CheckpointId,
    previous: SegmentHandle | None,
) -> SegmentHandle:
    """The table as it is now, as an immutable segment; *previous* when it did not change."""
    from sluice.subtask.state.segments import checksum, encode_segment

    table = read_table(uid, open_source(job, uid, params))
    raw = encode_segment(table)
    digest = checksum(raw)
    if previous is not None and previous.checksum == digest:
        return previous
    key = job.paths.shared_segment(uid, checkpoint_id, digest)
    job.store.put(key, raw)
    return SegmentHandle(key=key, size_bytes=len(raw), rows=table.num_rows, checksum=digest)


def check_table(uid: str, source: Source) -> None:
    """Raises ConfigurationError unless the whole of *source* can be read at every barrier."""
    if not isinstance(source, FilesSource | WholeFileSource):
        raise ConfigurationError(
            f"source {uid!r} cannot be a table; only Files can: stream it, and join() its rows"
        )


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


def _check_headers(source: FilesSource, lines: pa.Table) -> None:
    import pyarrow.compute as pc

    how = source.text_decoding
    if how is None or not how.has_header:
        return
    for row in lines.filter(pc.equal(lines["line_number"], 1)).to_pylist():
        check_header(row["line"].encode(), how, f"{row['file']} of {source.location}")
