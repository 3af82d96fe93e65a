"""A folder of files named by their content, of bounded size, shared by processes.

Promises: a file appears whole; the least recently used file is deleted first; any process may
delete any file at any time.  On a disk that is full or read-only nothing is kept, without an error.

Files are not synced, as every epoch would have to wait for the disk.  A loss of power can then
leave a file of the right name and size with wrong bytes, so files that were written before the
machine's last start are not trusted.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

# The unit of the count, and the least that a file counts, even if it is empty.
BLOCK_BYTES = 64 * 1024

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # Of Linux; others do not tell.
_COUNT = "blocks"


class CacheFolder:
    """A cache in *folder*, which is created with the first file."""

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
            found = path.stat()
        except OSError:
            return None
        return found if found.st_uid == os.getuid() else None

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
        file.  Deleted files count until the next eviction.  Under the lock a look misses one file
        per process at most: the one that is counted and not yet written.
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
        """Delete the oldest files if *blocks* more are too many; what is then here, with them."""
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
            found = path.stat()
            yield found.st_mtime_ns, _blocks(found.st_size), path


def _blocks(size_bytes: int) -> int:
    return max(1, -(-size_bytes // BLOCK_BYTES))


def _boot() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return "unknown-boot"
