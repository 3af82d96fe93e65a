"""Table sources: small, changing, and pinned whole at every barrier."""

from __future__ import annotations

from collections.abc import Mapping

from sluice.core.handles import SegmentHandle
from sluice.core.ids import CheckpointId
from sluice.errors import ConfigurationError
from sluice.runner.job import Job


def write_table(
    job: Job,
    uid: str,
    params: Mapping[str, str],
    checkpoint_id: CheckpointId,
    previous: SegmentHandle | None,
) -> SegmentHandle:
    """The table as it is now, as an immutable segment; *previous* when it did not change."""
    from sluice.connectors.files import FilesSource
    from sluice.runtime.state.segments import checksum, encode_segment

    source = job.source(uid, params)
    if not isinstance(source, FilesSource):
        raise ConfigurationError(f"source {uid!r} cannot be a table; only Files can")
    _, table = source.snapshot()
    raw = encode_segment(table)
    digest = checksum(raw)
    if previous is not None and previous.checksum == digest:
        return previous
    key = job.paths.shared_segment(uid, checkpoint_id, digest)
    job.store.put(key, raw)
    return SegmentHandle(key=key, size_bytes=len(raw), rows=table.num_rows, checksum=digest)
