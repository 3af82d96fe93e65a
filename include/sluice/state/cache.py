"""A cache of segments on the executor's own disk (Flink's task-local recovery).

A file enters the cache only after its bytes matched their checksum, and is named by it, so a cached
segment is never wrong.  Losing the folder costs downloads, nothing else.

Where the root is a folder itself, its own files are mapped into memory.  The cache then only marks
those that were verified on this machine, with an empty file whose name changes when the file does.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock

import pyarrow as pa

from sluice.core.handles import SegmentHandle
from sluice.errors import ConfigurationError, CorruptSegment
from sluice.protocol.records import checksum
from sluice.state.segments import decode_segment, open_segment, verify
from sluice.store.folder import FileStore
from sluice.store.object_store import ObjectStore, in_parallel
from sluice.store.open import StoreLocation, open_store

FOLDER_VARIABLE = "SLUICE_CACHE_DIR"
MAX_BYTES_VARIABLE = "SLUICE_CACHE_MAX_BYTES"
MAX_BYTES = 8 * 1024**3  # Several times the state that fits into one executor's memory.

# Parallel downloads.  S3 gives one request some 100 MB/s, and a machine many times that.  Each
# download holds a segment in memory.
DOWNLOADS = 8

# The unit in which the files of a cache are counted; even an empty file counts as one.
BLOCK_BYTES = 64 * 1024

_FILE_SCHEME = "file://"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # Linux alone has it.
_COUNT = "blocks"


def default_folder() -> Path:
    """The folder of this user's executors: ``SLUICE_CACHE_DIR`` or a temporary folder."""
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named) if named else Path(tempfile.gettempdir()) / f"sluice-cache-{os.getuid()}"


def default_max_bytes() -> int:
    """The size of the cache in bytes: ``SLUICE_CACHE_MAX_BYTES`` or a default.

    Raises:
        ConfigurationError: the variable is not a number.
    """
    text = os.environ.get(MAX_BYTES_VARIABLE)
    if not text:
        return MAX_BYTES
    if not text.isdecimal():
        raise ConfigurationError(
            f"{MAX_BYTES_VARIABLE} is {text!r}; write a number of bytes, such as {MAX_BYTES}, or "
            "leave it out"
        )
    return int(text)


class SegmentCache:
    """The cached segments of the root *location*; *store* is an open client of it, if any.

    Threads may share a cache.
    """

    def __init__(
        self,
        location: StoreLocation,
        store: ObjectStore | None = None,
        *,
        folder: Path | None = None,
        max_bytes: int | None = None,
    ) -> None:
        self._location = location
        self._stores = {} if store is None else {location.root: store}
        self._lock = Lock()
        self._folder = CacheFolder(
            folder or default_folder(), default_max_bytes() if max_bytes is None else max_bytes
        )

    def open(self, handle: SegmentHandle) -> pa.Table:
        """The segment's rows, memory-mapped.

        Raises:
            CorruptSegment: the bucket's object is missing, or is not what the ack described.
        """
        if handle.inline is not None:
            return decode_segment(handle.inline, checksum=handle.checksum, name="inline")
        path = self._root_file(handle)
        table = self._mapped_copy(handle) if path is None else self._mapped_original(handle, path)
        return self._downloaded(handle) if table is None else table

    def open_all(self, handles: Sequence[SegmentHandle]) -> list[pa.Table]:
        """The rows of all *handles*, in their order; missing files are downloaded in parallel.

        Raises:
            CorruptSegment: see ``open``.
        """
        distinct = {handle.checksum: handle for handle in handles}
        opened = in_parallel(self.open, distinct.values(), DOWNLOADS)
        tables = dict(zip(distinct, opened, strict=True))
        return [tables[handle.checksum] for handle in handles]

    def prefetch(self, handles: Iterable[SegmentHandle]) -> None:
        """Download these segments ahead of use, as far as the cache has room.

        Raises:
            CorruptSegment: see ``open``.
        """
        self.open_all([h for h in handles if h.inline is None and not self._is_here(h)])

    def read(self, handle: SegmentHandle) -> bytes:
        """The file's verified bytes, from the root, or from the other root that the handle names.

        Raises:
            CorruptSegment: there is no such object, or it is not what the ack described.
        """
        body = self._read(handle)
        verify(body, expected=handle.checksum, name=handle.key)
        return body

    def add(self, handle: SegmentHandle, body: bytes) -> None:
        """Keep a segment that this executor has just uploaded, for the next epoch.

        *body* is not verified: the caller has just computed the checksum in the handle.
        """
        assert len(body) == handle.size_bytes
        if self._root_file(handle) is None:
            self._folder.keep(handle.checksum, body)
        else:
            self.mark(handle)

    def mark(self, handle: SegmentHandle) -> None:
        """Mark the segment's file, which this executor has just written, as verified.

        Without effect if the root is no folder, or the file is not there yet.
        """
        path = self._root_file(handle)
        if path is not None and (marker := _marker(handle, path)) is not None:
            self._folder.keep(marker, b"")

    def _is_here(self, handle: SegmentHandle) -> bool:
        path = self._root_file(handle)
        name = handle.checksum if path is None else _marker(handle, path)
        return name is not None and self._folder.path(name).exists()

    def _mapped_copy(self, handle: SegmentHandle) -> pa.Table | None:
        """The segment from the cache's own file, if there is one of the right size."""
        stat = self._folder.use(handle.checksum)
        if stat is None:
            return None
        try:
            if stat.st_size == handle.size_bytes:
                path = self._folder.path(handle.checksum)
                return open_segment(path, checksum=None, name=handle.key)
        except OSError:
            return None  # Evicted between the two calls.
        except CorruptSegment:
            pass  # The file is damaged; the bucket has another.
        self._folder.drop(handle.checksum)
        return None

    def _mapped_original(self, handle: SegmentHandle, path: Path) -> pa.Table | None:
        """The segment from the root's own file; None if the store is to report why it is not."""
        marker = _marker(handle, path)
        if marker is None:
            return None
        is_verified = self._folder.use(marker) is not None
        try:
            table = open_segment(
                path, checksum=None if is_verified else handle.checksum, name=handle.key
            )
        except OSError:
            return None
        if not is_verified:
            self._folder.keep(marker, b"")
        return table

    def _root_file(self, handle: SegmentHandle) -> Path | None:
        root = handle.root or self._location.root
        if not root.startswith(_FILE_SCHEME):
            return None
        return FileStore(root.removeprefix(_FILE_SCHEME)).path_of(handle.key)

    def _downloaded(self, handle: SegmentHandle) -> pa.Table:
        body = self._read(handle)
        table = decode_segment(body, checksum=handle.checksum, name=handle.key)
        if self._root_file(handle) is not None:
            return table
        self._folder.keep(handle.checksum, body)
        mapped = self._mapped_copy(handle)
        return table if mapped is None else mapped  # The mapped file need not stay in memory.

    def _read(self, handle: SegmentHandle) -> bytes:
        store = self._store(handle.root or self._location.root)
        body = store.get(handle.key)
        if body is None:
            raise CorruptSegment(f"segment {handle.key} is missing from {store.root}")
        return body

    def _store(self, root: str) -> ObjectStore:
        with self._lock:  # Clients are made one at a time: boto3's session is not thread-safe.
            if root not in self._stores:
                self._stores[root] = open_store(self._location.elsewhere(root))
            return self._stores[root]


class CacheFolder:
    """Files named by their content in a *folder* of bounded size, shared by processes.

    Promises: a file appears whole; the least recently used file is deleted first; any process may
    delete any file at any time.  On a disk that is full or read-only nothing is kept, without an
    error.  The folder is created with the first file.

    Files are not synced, as every epoch would have to wait for the disk.  A loss of power can then
    leave a file of the right name and size with wrong bytes, so files that were written before the
    machine's last start are not trusted: each start has a folder of its own.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        # For this user only: a process that can write here could change our state.
        self._ours = folder / f"{os.getuid()}-{_boot()}"
        self._max_blocks = max_bytes // BLOCK_BYTES
        # With room to spare, so that not every new file causes an eviction.
        self._blocks_after_eviction = self._max_blocks * 7 // 8

    def path(self, name: str) -> Path:
        return self._ours / name

    def use(self, name: str) -> os.stat_result | None:
        """The file's stat, after marking it as the most recently used; None if it is missing."""
        path = self.path(name)
        try:
            os.utime(path)
            stat = path.stat()
        except OSError:
            return None
        return stat if stat.st_uid == os.getuid() else None

    def keep(self, name: str, body: bytes) -> None:
        blocks = _blocks(len(body))
        if blocks > self._blocks_after_eviction:
            return
        with suppress(OSError):
            self._ours.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._make_room(blocks)
            _write(self.path(name), body)

    def drop(self, name: str) -> None:
        with suppress(OSError):
            self.path(name).unlink()

    def _make_room(self, blocks: int) -> None:
        """Add *blocks* to the count of all processes, and evict if there are then too many.

        The count is the length of a sparse file: one lock and one stat, instead of a stat of every
        file.  Deleted files count until the next eviction.  An eviction misses at most one file per
        process, which is counted and not yet written.
        """
        descriptor = os.open(self._folder / _COUNT, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # The end of a process releases it.
            counted = os.fstat(descriptor).st_size
            total = counted + blocks
            if counted == 0 or total > self._max_blocks:
                total = self._evict(blocks)
            os.ftruncate(descriptor, total)
        finally:
            os.close(descriptor)

    def _evict(self, blocks: int) -> int:
        """Delete the oldest files if *blocks* more are too many; returns the new total."""
        files = sorted(_files(self._folder))
        total = blocks + sum(size for _, size, _ in files)
        if total > self._max_blocks:
            for _, size, path in files:
                if total <= self._blocks_after_eviction:
                    break
                with suppress(OSError):
                    path.unlink(missing_ok=True)
                    total -= size
        return total


def _marker(handle: SegmentHandle, path: Path) -> str | None:
    """The name that marks the present version of *path* as verified; None if it is not there."""
    try:
        stat = path.stat()
    except OSError:
        return None
    if stat.st_size != handle.size_bytes:
        return None
    version = (stat.st_dev, stat.st_ino, stat.st_mtime_ns, handle.checksum)
    return checksum(repr(version).encode())


def _write(path: Path, body: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(body)
            file.flush()
            Path(file.name).replace(path)
        except OSError:
            Path(file.name).unlink(missing_ok=True)
            raise


def _files(folder: Path) -> Iterator[tuple[int, int, Path]]:
    """The time of last use, blocks and path of each file, including leftover temporary ones."""
    for path in folder.glob("*/*"):
        with suppress(OSError):  # Another process has deleted it.
            stat = path.stat()
            yield stat.st_mtime_ns, _blocks(stat.st_size), path


def _blocks(size_bytes: int) -> int:
    return max(1, -(-size_bytes // BLOCK_BYTES))


def _boot() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return "unknown-boot"
