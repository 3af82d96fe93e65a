"""Segments on the executor's own disk (Flink's task-local recovery); the bucket is the truth.

A file enters the cache only after its bytes matched their checksum, and is named by it, so what is
here is right or absent.  Losing the folder costs downloads, nothing else.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pyarrow as pa

from sluice.core.handles import SegmentHandle
from sluice.errors import CorruptSegment
from sluice.runtime.state.segments import checksum, decode_segment, open_segment
from sluice.storage.object_store import ObjectStore
from sluice.storage.open import StoreLocation, open_store
from sluice.storage.patience import PatientStore

ENVIRONMENT_VARIABLE = "SLUICE_CACHE_DIR"
MAX_BYTES = 8 * 1024**3  # Room for a few times the state that fits one executor's memory.


def default_folder() -> Path:
    """Where this user's executors keep segments, unless ``SLUICE_CACHE_DIR`` names a place."""
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    return Path(named) if named else Path(tempfile.gettempdir()) / f"sluice-cache-{os.getuid()}"


class SegmentCache:
    """Of the root *location*; *store* is an open client of it, if there is one."""

    def __init__(
        self,
        location: StoreLocation,
        store: ObjectStore | None = None,
        *,
        folder: Path | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._location = location
        self._store = store or PatientStore(open_store(location))
        self._folder = folder or default_folder()
        self._max_bytes = max_bytes

    def open(self, handle: SegmentHandle) -> pa.Table:
        """The segment's rows, memory-mapped.

        Raises:
            CorruptSegment: the bucket's object is missing, or is not what the ack described.
        """
        if handle.inline is not None:
            return decode_segment(handle.inline, checksum=handle.checksum, name="inline")
        path = self._path(handle)
        try:
            os.utime(path)  # Recently used goes last.
            return open_segment(path, checksum=None, name=handle.key)
        except OSError:
            pass  # Not here, or evicted between the two calls.
        body = self.read(handle)
        table = decode_segment(body, checksum=handle.checksum, name=handle.key)
        self._keep(path, body)
        return table

    def read(self, handle: SegmentHandle) -> bytes:
        """The file's bytes as they are in the bucket, or in the other root that the handle names.

        Raises:
            CorruptSegment: there is no such object.
        """
        store = self._store
        if handle.root:
            store = PatientStore(open_store(self._location.elsewhere(handle.root)))
        body = store.get(handle.key)
        if body is None:
            raise CorruptSegment(f"segment {handle.key} is missing from {store.root}")
        return body

    def add(self, handle: SegmentHandle, body: bytes) -> None:
        """Keep what this executor just uploaded: the next epoch reads it here."""
        assert checksum(body) == handle.checksum
        self._keep(self._path(handle), body)

    def _path(self, handle: SegmentHandle) -> Path:
        return self._folder / handle.checksum[:2] / handle.checksum

    def _keep(self, path: Path, body: bytes) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
                file.write(body)
            Path(file.name).replace(path)
            self._evict()
        except OSError:
            return  # A full or read-only disk slows us down; it must not fail a checkpoint.

    def _evict(self) -> None:
        files = sorted(
            (stat.st_mtime_ns, stat.st_size, path)
            for path in self._folder.glob("*/*")
            if (stat := path.stat())
        )
        total = sum(size for _, size, _ in files)
        for _, size, path in files:
            if total <= self._max_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size
