"""The files that a source reads, and the identity of each: its name, its size, and a content mark.

``FileSet`` is one file, or all below a folder, in any kind of store.  As Flink and Spark do, it
ignores a folder's files and folders whose names start with ``.`` or ``_``.  Names are relative to
the folder, and sorted.

A plan stores a ``ContentMark`` in every offset and every slice, as their ``version``.  The next
plan, and the reader of a slice, find the same file by ``FileIdentity``, or raise an error that
names it: gone, shrunk, or replaced.

A mark has the number of bytes, a checksum of the last of them, and the version of the content in
the store's listing.  While the listing shows the same version, nothing is read.  When it shows
another one, a ranged read decides: a file that was touched, copied or appended to has the same
bytes before the mark's end.  A change further ahead that keeps the size is not found; the ends of
gzip, Parquet and Avro files depend on all bytes before them, those of text files do not.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from sluice.core.plan import PartitionOffset, Slice
from sluice.errors import ConfigurationError, SluiceError, StoreUnavailable
from sluice.store.folder import listed_file
from sluice.store.object_store import Listed, ObjectStore
from sluice.store.open import StoreLocation, open_store

# Python's substitute for a byte of a file's name that is not UTF-8; JSON cannot hold it.
SURROGATE = re.compile("[\ud800-\udfff]")
HIDDEN = re.compile("(?:^|/)[._]")

# Two slashes in the middle of a path are no scheme.
URI = re.compile("[A-Za-z][A-Za-z0-9+.-]*://")

# One small request to a bucket; a disk reads at least as much.
TAIL_BYTES = 4096

MARKS_KEPT = 4096

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FileSet:
    """The files at a location.

    ``location`` is a path of this machine, resolved when the set is built, or a ``file:///``,
    ``s3://`` or ``memory://`` URI.  A bucket has no empty folders: end the URI of a folder that may
    have no files yet with a slash.
    """

    location: str
    endpoint_url: str | None = None

    def __post_init__(self) -> None:
        if not URI.match(self.location):
            local = f"file://{Path(self.location).expanduser().resolve()}"
            object.__setattr__(self, "location", local)
        self._store_location(self.location)  # Raises for a misspelt URI.

    @property
    def is_local(self) -> bool:
        return self.location.startswith("file://")

    def listed(self, *, start_after: str = "") -> Iterator[Listed]:
        """The files in the order of their names, after *start_after*; listed lazily.

        Raises:
            ConfigurationError: there is nothing at the location, or a name that is not UTF-8.
        """
        parent, name = self._as_file()
        if parent is not None:
            first = next(parent.list(name), None)
            if first is not None and first.key == name:
                if name > start_after:
                    yield first
                return
        # A bucket has no folders: one whose files are all before *start_after* looks like none.
        is_empty = not start_after or self.is_local
        for file in self._as_folder().list("", start_after=start_after):
            is_empty = False
            if HIDDEN.search(file.key):
                continue
            if SURROGATE.search(file.key):
                raise ConfigurationError(
                    f"the name of {file.key!a} below {self.location} is not UTF-8; rename the file"
                )
            yield file
        if not is_empty:
            return
        exists = self._path.is_dir() if self.is_local else self.location.endswith("/")
        if not exists:
            raise ConfigurationError(
                f"there is no file and no folder at {self.location}; create it or correct the "
                "location (a folder in a bucket that has no file yet is written with a slash at "
                "its end)"
            )

    def find(self, name: str) -> Listed | None:
        """One file, without a listing of the others."""
        path = self.local_path(name)
        if path is not None:
            return listed_file(path, name)
        first = next(self.store_of(name).list(name), None)
        return first if first is not None and first.key == name else None

    def store_of(self, name: str) -> ObjectStore:
        """The store in which *name* is a key: that of the folder, or that of the single file."""
        store = self._as_folder()
        parent, own_name = self._as_file()
        if parent is not None and name == own_name and store.get_range(name, 0, 0) is None:
            return parent
        return store

    def local_path(self, name: str) -> Path | None:
        """The path of a file on this machine; None when it is in a bucket or in memory."""
        if not self.is_local:
            return None
        root = self._path
        return root if root.name == name and root.is_file() else root / name

    @property
    def _path(self) -> Path:
        return Path(self.location.removeprefix("file://"))

    def _as_folder(self) -> ObjectStore:
        return open_store(self._store_location(self.location))

    def _as_file(self) -> tuple[ObjectStore | None, str]:
        """The store and the name of the file, if the location is a single file; else None."""
        root, _, name = self.location.removesuffix("/").rpartition("/")
        if root.endswith(":/") or self.location.endswith("/"):
            return None, ""  # A bucket, or a folder by its slash.
        return open_store(self._store_location(root if root != "file://" else "file:///")), name

    def _store_location(self, root: str) -> StoreLocation:
        return StoreLocation(root=root, endpoint_url=self.endpoint_url)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileIdentity:
    """The identity of the file *name* of *files*; with ``may_grow``, appending keeps it."""

    files: FileSet
    name: str
    may_grow: bool

    def continued(self, before: PartitionOffset, file: Listed, place: str) -> PartitionOffset:
        """The offset *before*, with the mark of how *file* is listed now; *place* is for messages.

        Raises:
            ConfigurationError: the file's content up to *before* has changed.
        """
        mark = ContentMark.parse(before.version)
        if self.may_grow:
            self._check_growth(before, mark, file)
        elif file.size_bytes != mark.end:
            raise ConfigurationError(
                f"{self.what} had {mark.end} bytes when its first rows "
                f"were read, and has {file.size_bytes} now; restore it, and write new rows to "
                "a new file: a file of this kind may not change"
            )
        found = tail_checksum(self.tail(mark.end))
        if found != mark.checksum:
            raise ConfigurationError(
                f"{self.what} is not what was read to {place}: the "
                f"checksum of the {tail_bytes(mark.end)} bytes before byte {mark.end} was "
                f"{mark.checksum} and is {found} now; restore it, and write new rows to a new "
                "file: what was read may not change"
            )
        return replace(before, version=str(replace(mark, listed_as=listing_of(file))))

    def found(self, piece: Slice, *, trusts_clock: bool = True) -> Listed:
        """The file that *piece* was cut from.

        With *trusts_clock* a file on a disk with the same times is the same file: a change within
        one tick of the clock is not found.

        Raises:
            ConfigurationError: it is gone, or was replaced.
        """
        file = self.files.find(self.name)
        if file is None:
            raise ConfigurationError(f"{self.what} is gone; put it back")
        if not piece.version:
            return file
        mark = ContentMark.parse(piece.version)
        is_trusted = trusts_clock or self.files.local_path(self.name) is None
        if is_trusted and mark.listed_as == listing_of(file):
            return file
        is_size_kept = file.size_bytes >= mark.end if self.may_grow else file.size_bytes == mark.end
        replaced = f"{self.what} was replaced after this epoch was planned"
        remedy = "put it back, and write new rows to a new file"
        if not is_size_kept:
            raise ConfigurationError(
                f"{replaced}: it had {mark.end} bytes and has {file.size_bytes}; {remedy}"
            )
        if tail_checksum(self.tail(mark.end)) != mark.checksum:
            raise ConfigurationError(
                f"{replaced}: the {tail_bytes(mark.end)} bytes before byte {mark.end} are others; "
                f"{remedy}"
            )
        return file

    @contextmanager
    def unchanged(self, piece: Slice) -> Iterator[None]:
        """Read *piece* within the block: its rows are valid if the block is left without an error.

        Raises:
            ConfigurationError: the file is no longer the planned one.  It replaces any error that
                the changed bytes have caused.
        """
        import pyarrow as pa

        try:
            yield
        except (SluiceError, OSError, ValueError, LookupError, EOFError, pa.ArrowException):
            self.found(piece, trusts_clock=False)
            raise
        self.found(piece, trusts_clock=False)

    def marked(self, file: Listed) -> str:
        """The version of a complete file; the file is read for it at most once per process."""
        return _mark_of_whole(self, file)

    def tail(self, end: int) -> bytes:
        """The last ``tail_bytes(end)`` bytes before *end*."""
        length = tail_bytes(end)
        store = self.files.store_of(self.name)
        body = store.get_range(self.name, end - length, end) if length else b""
        if body is None or len(body) < length:
            raise StoreUnavailable(
                f"{self.what} became shorter than {end} bytes while it was looked at"
            )
        return body

    @property
    def what(self) -> str:
        return f"{self.name} of {self.files.location}"

    def _check_growth(self, before: PartitionOffset, mark: ContentMark, file: Listed) -> None:
        if file.size_bytes < mark.end:
            raise ConfigurationError(
                f"{self.what} was read to byte {mark.end} and has shrunk to "
                f"{file.size_bytes} bytes; restore it, for a source file may only grow"
            )
        if before.sealed and file.size_bytes > mark.end:
            log.warning(
                "file grew after it was read to its end, the rest is not read file=%s "
                "read_bytes=%d size_bytes=%d location=%s",
                file.key,
                mark.end,
                file.size_bytes,
                self.files.location,
            )


@lru_cache(maxsize=MARKS_KEPT)
def _mark_of_whole(identity: FileIdentity, file: Listed) -> str:
    return str(mark_of(file.size_bytes, identity.tail(file.size_bytes), file))


@dataclass(frozen=True, slots=True)
class ContentMark:
    """The first ``end`` bytes of a file; ``listed_as`` is a digest of ``Listed.version``."""

    end: int
    checksum: str
    listed_as: str

    @classmethod
    def parse(cls, text: str) -> ContentMark:
        end, checksum, listed_as = text.split("-")
        return cls(int(end), checksum, listed_as)

    def __str__(self) -> str:
        return f"{self.end}-{self.checksum}-{self.listed_as}"


def mark_of(end: int, tail: bytes, file: Listed) -> ContentMark:
    """The mark of a file up to *end*; *tail* are the ``tail_bytes(end)`` bytes before that."""
    assert len(tail) == tail_bytes(end)
    return ContentMark(end, tail_checksum(tail), listing_of(file))


def tail_bytes(end: int) -> int:
    return min(end, TAIL_BYTES)


def tail_checksum(tail: bytes) -> str:
    return hashlib.blake2b(tail, digest_size=8).hexdigest()


def is_listed_as(version: str, file: Listed) -> bool:
    """Whether a listing shows *file* as it did when the mark *version* was made."""
    return version.rpartition("-")[2] == listing_of(file)


def listing_of(file: Listed) -> str:
    return hashlib.blake2b(file.version.encode(), digest_size=6).hexdigest()
