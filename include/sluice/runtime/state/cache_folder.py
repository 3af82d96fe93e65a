"""A folder of files named by their content, no larger than a bound, shared by processes.

Promises: a file appears whole; what was used least recently goes first; any of it may be deleted
by anybody at any time.  A disk that is full or read-only keeps nothing, and that is no error.

Files are not synced: that would cost every epoch the disk's time for writing its delta.  A loss of
power can then leave a file of the right name and size with wrong bytes, so nothing is trusted that
was written before the machine's last start.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

# What a file takes at least, an empty one too; the unit of the count.
BLOCK_BYTES = 64 * 1024

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # Linux; elsewhere a loss of power goes unseen.
_COUNT = "blocks"


class CacheFolder:
    """Below *folder*; the first file that is kept makes it."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        # Nobody else's: who can write here decides what our state is.
        self._ours = folder / f"{os.getuid()}-{_boot()}"
        self._max_blocks = max_bytes // BLOCK_BYTES
        self._blocks_after_eviction = self._max_blocks * 7 // 8  # Not every file causes one.

    def path(self, name: str) -> Path:
        return self._ours / name

    def use(self, name: str) -> os.stat_result | None:
        """What the file is, now the most recently used; None if it is not here."""
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
            _write(self.path(name), body)
            counted = self._count(blocks)
            if counted == blocks or counted > self._max_blocks:
                self._evict()

    def drop(self, name: str) -> None:
        with suppress(OSError):
            self.path(name).unlink()

    def _count(self, blocks: int) -> int:
        """How many blocks are here, to judge by what all processes have added.

        The length of a file to which each appends a byte for a block: one write, one look, instead
        of one look at every file.  What was replaced or deleted counts until the next eviction.
        """
        descriptor = os.open(self._folder / _COUNT, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, bytes(blocks))
            return os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)

    def _evict(self) -> None:
        """Count what is really here, and delete the oldest of it if that is too much."""
        files = sorted(_files(self._folder))
        total = sum(blocks for _, blocks, _ in files)
        if total > self._max_blocks:
            for _, blocks, path in files:
                if total <= self._blocks_after_eviction:
                    break
                with suppress(OSError):
                    path.unlink(missing_ok=True)
                    total -= blocks
        _write(self._folder / _COUNT, bytes(total))


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
    """When each file was used, its blocks and where it is; temporary ones of the dead, too."""
    for path in folder.glob("*/*"):
        with suppress(OSError):  # Somebody else has deleted it.
            found = path.stat()
            yield found.st_mtime_ns, _blocks(found.st_size), path


def _blocks(size_bytes: int) -> int:
    return max(1, -(-size_bytes // BLOCK_BYTES))


def _boot() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return "unknown-boot"
