"""A store in a folder: of one machine, or of a file system that machines share.

Promises what ``ObjectStore`` does, and that an acknowledged write survives a loss of power.  An
object becomes visible whole: it is written to a temporary file in its own folder, synced, and then
linked (``create``; the link fails when the name is taken) or renamed (``put``).  A crash may leave
a temporary file behind; no listing shows it.

Refuses a file system without hard links, and keys of which one is a folder of the other.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

from sluice.errors import ObjectVanished, StoreFull, StoreRefuses, StoreUnavailable
from sluice.protocol.keys import TEMPORARY_PREFIX, check_key, check_prefix
from sluice.store.object_store import (
    AlreadyExists,
    Created,
    CreateResult,
    Listed,
    StoreClock,
    check_range,
    machine_clock_ms,
)

# A delete in another process may remove the folder that we have just made, while it is still empty.
# To lose that race every time takes as many deletes in this folder as there are attempts.
FOLDER_ATTEMPTS = 10

CLOCK_READ_EVERY_S = 60.0  # Two clocks drift apart by milliseconds in that time.

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# What a person must fix; any other failure of the file system may pass.
LASTING_ERRORS = frozenset(
    {
        errno.EACCES,
        errno.EEXIST,  # A file where a folder is needed.
        errno.EPERM,
        errno.EROFS,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ENAMETOOLONG,
        errno.EOPNOTSUPP,
        errno.EXDEV,
        errno.ELOOP,
    }
)


class FileStore:
    """An ``ObjectStore`` whose objects are the files below *folder*; the first write makes it."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder).absolute()
        self._clock = StoreClock()
        self._is_read_at = -CLOCK_READ_EVERY_S

    @property
    def root(self) -> str:
        return f"file://{self._folder}"

    @property
    def file_system(self) -> int:
        """The device number of what is mounted there."""
        return self._there.stat().st_dev

    @property
    def _there(self) -> Path:
        """The folder, or the first one above it that exists."""
        return next(path for path in (self._folder, *self._folder.parents) if path.is_dir())

    def now_ms(self) -> int:
        """The file system's clock, which on a mount is the server's; this machine's where nothing
        can be written.
        """
        if time.monotonic() - self._is_read_at >= CLOCK_READ_EVERY_S:
            with suppress(OSError):
                with NamedTemporaryFile(dir=self._there, prefix=TEMPORARY_PREFIX) as file:
                    file.write(b"x")
                    file.flush()
                    self._clock.was_told(Path(file.name).stat().st_mtime_ns // 1_000_000)
                self._is_read_at = time.monotonic()
        told_ms = self._clock.now_ms()
        return machine_clock_ms() if told_ms is None else told_ms

    def get(self, key: str) -> bytes | None:
        with self._translated(), _absent_is_none():
            return self.path_of(key).read_bytes()
        return None

    def get_range(self, key: str, start: int, end: int) -> bytes | None:
        check_range(start, end)
        with self._translated(), _absent_is_none(), self.path_of(key).open("rb") as file:
            file.seek(start)
            return file.read(end - start)
        return None

    def put(self, key: str, body: bytes) -> None:
        target = self.path_of(key)
        with self._translated(), _temporary_file(target.parent, body) as temporary:
            temporary.replace(target)
            _sync_folder(target.parent)

    def create(self, key: str, body: bytes) -> CreateResult:
        target = self.path_of(key)
        with self._translated(), _temporary_file(target.parent, body) as temporary:
            try:
                target.hardlink_to(temporary)
            except FileExistsError:
                is_created = False
            else:
                is_created = True
            # The loser syncs as well: it acts on the winner's bytes, so they must not vanish.
            _sync_folder(target.parent)
        if is_created:
            return Created()
        existing = self.get(key)
        if existing is None:
            raise ObjectVanished(f"{self.root}/{key} existed and has vanished; repeat the call")
        return AlreadyExists(existing)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[Listed]:
        check_prefix(prefix)
        folder_key = prefix[: prefix.rfind("/") + 1]
        with self._translated():
            yield from self._walk(folder_key, prefix, start_after)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete the files, and the folders that become empty.

        Not synced: a file that a loss of power brings back is garbage to be deleted again.
        """
        folders: set[Path] = set()
        with self._translated():
            for key in keys:
                path = self.path_of(key)
                with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                    path.unlink()
                folders.add(path.parent)
        for folder in sorted(folders, key=lambda path: len(path.parts), reverse=True):
            self._remove_while_empty(folder)

    def temporaries(self, prefix: str) -> Sequence[Listed]:
        """The files of unfinished writes below *prefix*; no verb takes their keys."""
        check_prefix(prefix)
        found = []
        with self._translated():
            for folder, _, names in os.walk(self._folder / prefix):
                for name in names:
                    if name.startswith(TEMPORARY_PREFIX):
                        path = Path(folder) / name
                        with suppress(FileNotFoundError):  # Its writer has ended.
                            key = path.relative_to(self._folder).as_posix()
                            found.append(_listed(key, path.stat()))
        return sorted(found, key=lambda listed: listed.key)

    def discard_temporaries(self, keys: Iterable[str]) -> None:
        """Delete files that ``temporaries`` listed.  A writer that still lives starts again."""
        with self._translated():
            for key in keys:
                folder, _, name = key.rpartition("/")
                check_key(folder)
                if name.startswith(TEMPORARY_PREFIX):
                    (self._folder / folder / name).unlink(missing_ok=True)

    def path_of(self, key: str) -> Path:
        """The object's file, for callers on this machine that map it instead of copying it."""
        check_key(key)
        return self._folder / key

    def _walk(self, folder_key: str, prefix: str, start_after: str) -> Iterator[Listed]:
        """Yield a folder's objects in key order, reading one folder per level at a time.

        Folders sort with their slash, as ``a-b`` comes before ``a/b``.
        """
        try:
            with os.scandir(self._folder / folder_key) as found:
                entries = sorted(
                    (entry.name + "/" if entry.is_dir() else entry.name, entry)
                    for entry in found
                    if not entry.name.startswith(TEMPORARY_PREFIX)
                )
        except (FileNotFoundError, NotADirectoryError):
            return
        for name, entry in entries:
            key = folder_key + name
            if name.endswith("/"):
                has_prefix = key.startswith(prefix) or prefix.startswith(key)
                if has_prefix and (key > start_after or start_after.startswith(key)):
                    yield from self._walk(key, prefix, start_after)
            elif key.startswith(prefix) and key > start_after:
                try:
                    found_now = entry.stat()
                except FileNotFoundError:  # Deleted since the folder was read.
                    continue
                if stat.S_ISREG(found_now.st_mode):  # To open a pipe would wait for its writer.
                    yield _listed(key, found_now)

    def _remove_while_empty(self, folder: Path) -> None:
        """Remove *folder* and its parents below the root, as long as they are empty."""
        while folder != self._folder and folder.is_relative_to(self._folder):
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass  # Another call removed it; its parent may be empty now.
            except OSError:
                return
            folder = folder.parent

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where = Path(error.filename or self._folder)
            if error.errno in LASTING_ERRORS:
                raise StoreRefuses(
                    f"cannot use the folder {self._folder}: {error.strerror} at {where}; "
                    f"{self._cure(error, where)}"
                ) from error
            sentence = f"the folder {self._folder} failed: {error.strerror} at {where}"
            if error.errno in FULL:
                raise StoreFull(f"{sentence}; free space there") from error
            raise StoreUnavailable(sentence) from error

    def _cure(self, error: OSError, where: Path) -> str:
        if error.errno == errno.ELOOP:
            return "the link there leads back to itself: remove it, or have it lead elsewhere"
        is_within = where != self._folder and where.exists()  # What is to be made there is not.
        if is_within and error.errno in (errno.EACCES, errno.EPERM):
            return "let this user use that, as the rest of the folder"
        return (
            "make it a folder that this user may read and write, on a file system with hard links, "
            "or correct --root"
        )


@contextmanager
def _absent_is_none() -> Iterator[None]:
    """Leave the block when there is no such file; a folder is not an object."""
    with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
        yield


@contextmanager
def _temporary_file(folder: Path, body: bytes) -> Iterator[Path]:
    """Write and sync a file in *folder* that no listing shows; it is gone afterwards."""
    path, descriptor = _open_temporary(folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        yield path
    finally:
        path.unlink(missing_ok=True)


def _open_temporary(folder: Path) -> tuple[Path, int]:
    path = folder / (TEMPORARY_PREFIX + secrets.token_hex(12))
    for attempt in range(FOLDER_ATTEMPTS):
        try:
            _make_folder(folder)
            return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileNotFoundError:
            if attempt + 1 == FOLDER_ATTEMPTS:
                raise
    raise AssertionError("unreachable")


def _make_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    if folder.parent != folder:
        _make_folder(folder.parent)
    with suppress(FileExistsError):  # Another call made it; by now it may be gone, or be a file.
        folder.mkdir()
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    """Make the folder's entries durable: without it a synced file may lose its name."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def listed_file(path: Path, key: str) -> Listed | None:
    """The file at *path* as a listing shows it; None when there is none."""
    with _absent_is_none():
        found = path.stat()
        return _listed(key, found) if stat.S_ISREG(found.st_mode) else None
    return None


def _listed(key: str, found: os.stat_result) -> Listed:
    # The inode tells apart two writes within one tick of the file system's clock.
    return Listed(
        key=key,
        size_bytes=found.st_size,
        modified_ms=found.st_mtime_ns // 1_000_000,
        version=f"{found.st_size:x}-{found.st_mtime_ns:x}-{found.st_ino:x}",
        file_id=f"{found.st_ino:x}",
    )
