"""The files that a source reads, and the identity of each: its name, its size, and a content mark.

``FileSet`` is one file, or all below a folder, in any kind of store.  As Spark does, it ignores a
folder's files and folders whose names start with ``.`` or ``_``, where committers write (but not
``_day=1``, a folder of a column), what ``hdfs dfs -put`` has not renamed yet, and marks of folders
in a bucket.  Names are relative to the folder, and sorted; in a bucket they are any text, and two
slashes are two.

A plan stores a ``ContentMark`` in every offset and every slice, as their ``version``: what was read
of the file.  The next plan, and the reader of a slice, find the same file by ``FileIdentity``, or
raise an error that names it: gone, shrunk, or replaced.

A mark has the number of bytes, checksums of the first and the last of them, and the file's size,
version and id in the store's listing.  While the listing shows the same version, nothing is read.
When it shows another one, ranged reads decide: a file that was touched, copied or appended to has
the same bytes.  A change in between that keeps the size is not found; the ends of gzip, Parquet and
Avro files depend on all bytes before them, so of these the last ones are enough.

A file that is not under its name any more may have been renamed, as logs are when they are rotated.
``moved_to`` finds it by the same mark.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, takewhile
from pathlib import Path

from sluice.core.plan import PartitionOffset, Slice
from sluice.errors import (
    ConfigurationError,
    ProtocolViolation,
    SluiceError,
    StoreUnavailable,
)
from sluice.store.folder import listed_file
from sluice.store.object_store import Listed, ObjectStore
from sluice.store.open import StoreLocation, open_store

# Python's substitute for a byte of a file's name that is not UTF-8; JSON cannot hold it.
SURROGATE = re.compile("[\ud800-\udfff]")
# What says which files are the rows of a table, and which were.
_LOGS = {
    "Delta": re.compile(r"(?:^|/)_delta_log/\d{20}\.json$"),
    "Iceberg": re.compile(r"(?:^|/)metadata/[^/]+\.metadata\.json$"),
}
HIDDEN = re.compile(r"(?:^|/)(?:\.|_(?![^/]*=))|\._COPYING_$|_\$folder\$$")

# What rotation appends to the name of a log, and a compressor to that.
ROTATED = re.compile(r"[.-]\d[\d._T-]*?(\.(?:gz|bz2|xz|zst))?")

# Two slashes in the middle of a path are no scheme.
URI = re.compile("[A-Za-z][A-Za-z0-9+.-]*://")

# One small request to a bucket; a disk reads at least as much.
HEAD_BYTES = TAIL_BYTES = 4096
# The first and the last bytes of a mark are read at once up to here: in a bucket the transfer takes
# as long as the latency of a second request.
AT_ONCE_BYTES = 1024 * 1024

MARKS_KEPT = 4096

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FileSet:
    """The files at a location.

    ``location`` is a path of this machine, resolved when the set is built, or a ``file:///``,
    ``s3://`` or ``memory://`` URI.  A bucket has no empty folders: end the URI of a folder that may
    have no files yet with a slash.  With ``is_parquet``, a table that has a log is refused.
    """

    location: str
    endpoint_url: str | None = None
    is_parquet: bool = False

    def __post_init__(self) -> None:
        if not URI.match(self.location):
            local = f"file://{Path(self.location).expanduser().resolve()}"
            object.__setattr__(self, "location", local)
        self._store_location(self.location)  # Raises for a misspelt URI.

    @property
    def is_local(self) -> bool:
        return self.location.startswith("file://")

    def listed(self, *, start_after: str = "", known: Collection[str] = ()) -> Iterator[Listed]:
        """The files in the order of their names, after *start_after*; listed lazily.

        Where the location is a single file, those of *known* are among them that are beside it.

        Raises:
            ConfigurationError: there is nothing at the location, a name that is not UTF-8, or, with
                ``is_parquet``, the log of a table.
        """
        parent, name = self._as_file()
        if parent is not None:
            beside = parent.list(name)
            first = next(beside, None)
            is_single = first is not None and first.key == name
            # It was renamed, and its writer has not made it anew yet.
            is_renamed = name in known and self.is_local and not self._path.exists()
            if is_single or is_renamed:
                found = chain([first] if first is not None else [], beside)
                wanted = {name, *known}
                yield from (one for one in found if one.key in wanted and one.key > start_after)
                return
        # A bucket has no folders: one whose files are all before *start_after* looks like none.
        is_empty = not start_after or self.is_local
        for file in self._as_folder().list("", start_after=start_after):
            is_empty = False
            if self.is_parquet:
                self._check_no_log(file.key)
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

    def _check_no_log(self, name: str) -> None:
        for kind, log in _LOGS.items():
            if name.endswith(".json") and log.search(name):
                raise ConfigurationError(
                    f"{self.location} has {name}, so files in it are a table of {kind}, and may "
                    f"have rows that were removed from it; read them with {kind}Table, not Files"
                )

    def beside(self) -> list[Listed]:
        """The files beside a single one whose names begin with its own; none where it is a folder.

        Rotation renames a log so: ``auth.log`` to ``auth.log.1``.
        """
        parent, name = self._as_file()
        if parent is None or (self.is_local and self._path.is_dir()):
            return []
        found = list(takewhile(lambda one: "/" not in one.key, parent.list(name)))
        return found if found and (found[0].key == name or self.is_local) else []

    def rotated_since(self, known: Collection[str], files: Collection[Listed]) -> list[Listed]:
        """The files that were the single one after all of those *known* beside it, and before those
        of *files*: it was rotated several times since the plan before.

        Their names are its own but for numbers, and they were written later; what rotation had left
        before the first plan was not.
        """
        _, own_name = self._as_file()
        was_rotated = self.is_local and any(name != own_name for name in known)
        beside = self.beside() if was_rotated else []
        read = [file.modified_ms for file in beside if file.key in known and file.key != own_name]
        if not read:
            return []
        ids, there = {file.file_id for file in files}, {file.key for file in beside}
        return [
            file
            for file in beside
            if file.file_id not in ids
            and file.key not in known
            and (rotated := ROTATED.fullmatch(file.key.removeprefix(own_name)))
            and (not rotated[1] or file.key.removesuffix(rotated[1]) not in there)
            and file.modified_ms > max(read)
        ]

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
        is_beside = bool(own_name) and name.startswith(own_name)
        if parent is not None and is_beside and store.get_range(name, 0, 0) is None:
            return parent
        return store

    def local_path(self, name: str) -> Path | None:
        """The path of a file on this machine; None when it is in a bucket or in memory."""
        if not self.is_local:
            return None
        root = self._path
        is_beside = name.startswith(root.name) and not root.is_dir()
        return root.parent / name if is_beside else root / name

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
        return open_store(self._store_location(f"{root}/")), name

    def _store_location(self, root: str) -> StoreLocation:
        return StoreLocation(root=root, endpoint_url=self.endpoint_url, foreign=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileIdentity:
    """The identity of the file *name* of *files*; with ``may_grow``, appending keeps it."""

    files: FileSet
    name: str
    may_grow: bool

    def as_listed(self, before: PartitionOffset, file: Listed) -> PartitionOffset:
        """The offset *before*, with how *file*, which is the same one, is listed now."""
        mark = ContentMark.parse(before.version)
        if self.may_grow and before.sealed and file.size_bytes > mark.end:
            log.warning(
                "file grew after it was read to its end, the rest is not read file=%s "
                "read_bytes=%d size_bytes=%d location=%s",
                file.key,
                mark.end,
                file.size_bytes,
                self.files.location,
            )
        return replace(before, version=str(mark.listed(file)))

    def problem(self, mark: ContentMark, file: Listed, place: str) -> str | None:
        """The reason why *file* does not continue *mark*; None if it does."""
        if mark.end == 0:
            return None  # Nothing was read of it.
        if self.may_grow and file.size_bytes < mark.end:
            return (
                f"{self.what} was read to byte {mark.end} and has shrunk to {file.size_bytes} "
                "bytes; restore it, for a source file may only grow"
            )
        if not self.may_grow and file.size_bytes != mark.end:
            return (
                f"{self.what} had {mark.end} bytes when its first rows "
                f"were read, and has {file.size_bytes} now; restore it, and write new rows to "
                "a new file: a file of this kind may not change"
            )
        found = self.mark_at(mark.end, file)
        if found.same_bytes(mark):
            return None
        where, then, now = found.difference(mark)
        return (
            f"{self.what} is not what was read to {place}: the checksum of the {where} was {then} "
            f"and is {now} now; restore it, and write new rows to a new file: what was read may "
            "not change"
        )

    def mark_at(self, end: int, file: Listed) -> ContentMark:
        """The mark of the file's first *end* bytes, which are read for it."""
        head = b""
        if self.may_grow and HEAD_BYTES < end <= AT_ONCE_BYTES and not self.files.is_local:
            body = self._bytes(0, end)
            return mark_of(end, body[-TAIL_BYTES:], file, head=body[:HEAD_BYTES])
        if self.may_grow and end > HEAD_BYTES:
            head = self._bytes(0, HEAD_BYTES)
        return mark_of(end, self.tail(end), file, head=head)

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
        found = self.mark_at(mark.end, file)
        if not found.same_bytes(mark):
            where, _, _ = found.difference(mark)
            raise ConfigurationError(f"{replaced}: the {where} are others; {remedy}")
        return file

    def name_now(self, piece: Slice) -> str:
        """The name of the file that *piece* was cut from, which rotation may have changed since.

        The reader of the slice still has to look whether it is that file.
        """
        if not (piece.version and self.files.is_local):
            return self.name
        mark, file = ContentMark.parse(piece.version), self.files.find(self.name)
        if file is not None and file.file_id == mark.file_id:
            return self.name
        for other in (*self.files.listed(known=[self.name]), *self.files.beside()):
            if other.key != self.name and replace(self, name=other.key).is_renamed(mark, other):
                return other.key
        return self.name

    def is_renamed(self, mark: ContentMark, file: Listed) -> bool:
        """Whether *file* is the one of *mark* under another name, by its id on the disk.

        Files get ids of others that are gone.  So it is not enough that it has the same bytes: it
        was not written since, or has grown.
        """
        if not mark.file_id or mark.file_id != file.file_id:
            return False
        if mark.listed_as == listing_of(file):
            return True
        return (
            self.may_grow and file.size_bytes > mark.size and self.problem(mark, file, "") is None
        )

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
        return self._bytes(end - tail_bytes(end), end)

    def _bytes(self, start: int, end: int) -> bytes:
        store = self.files.store_of(self.name)
        body = store.get_range(self.name, start, end) if end > start else b""
        if body is None or len(body) < end - start:
            raise StoreUnavailable(
                f"{self.what} became shorter than {end} bytes while it was looked at"
            )
        return body

    @property
    def what(self) -> str:
        return f"{self.name} of {self.files.location}"


@lru_cache(maxsize=MARKS_KEPT)
def _mark_of_whole(identity: FileIdentity, file: Listed) -> str:
    return str(mark_of(file.size_bytes, identity.tail(file.size_bytes), file))


@dataclass(frozen=True, slots=True)
class ContentMark:
    """The part of a file that was read: its first ``end`` bytes; all of one that may not grow.

    ``checksum`` is of the last of them, and ``head`` of the first, empty where the last include
    these, or depend on them.  ``size``, ``listed_as``, a digest of ``Listed.version``, and
    ``file_id`` are those of the listing.
    """

    end: int
    size: int
    head: str
    checksum: str
    listed_as: str
    file_id: str

    @classmethod
    def parse(cls, text: str) -> ContentMark:
        """Raises ProtocolViolation for a text of another format."""
        try:
            end, size, head, checksum, listed_as, file_id = text.split(":")
            return cls(int(end), int(size), head, checksum, listed_as, file_id)
        except ValueError:
            raise ProtocolViolation(f"{text!r} does not say what was read of a file") from None

    def same_bytes(self, other: ContentMark) -> bool:
        return (self.end, self.head, self.checksum) == (other.end, other.head, other.checksum)

    def difference(self, before: ContentMark) -> tuple[str, str, str]:
        """The bytes that are other ones than *before*, up to the same end, and both checksums."""
        if self.checksum != before.checksum:
            where = f"{tail_bytes(before.end)} bytes before byte {before.end}"
            return where, before.checksum, self.checksum
        return f"first {HEAD_BYTES} bytes", before.head, self.head

    def listed(self, file: Listed) -> ContentMark:
        """The mark with how *file* is listed now."""
        return replace(self, size=file.size_bytes, listed_as=listing_of(file), file_id=file.file_id)

    def __str__(self) -> str:
        read = f"{self.end}:{self.size}:{self.head}:{self.checksum}"
        return f"{read}:{self.listed_as}:{self.file_id}"


def mark_of(end: int, tail: bytes, file: Listed, *, head: bytes = b"") -> ContentMark:
    """The mark of a file up to *end*; *tail* are the ``tail_bytes(end)`` bytes before that.

    *head* are its first ``HEAD_BYTES``, of a file that may grow and is longer.
    """
    assert len(tail) == tail_bytes(end)
    first = part_checksum(head) if head and end > HEAD_BYTES else ""
    return ContentMark(
        end, file.size_bytes, first, part_checksum(tail), listing_of(file), file.file_id
    )


def tail_bytes(end: int) -> int:
    return min(end, TAIL_BYTES)


def part_checksum(part: bytes) -> str:
    return hashlib.blake2b(part, digest_size=8).hexdigest()


def is_listed_as(version: str, file: Listed) -> bool:
    """Whether a listing shows *file* as it did when the mark *version* was made."""
    listed_as = version.rsplit(":", 2)[1:2]  # As each plan asks it of each file.
    if not listed_as:
        ContentMark.parse(version)  # Raises.
    return listed_as == [listing_of(file)]


def file_id_in(version: str) -> str:
    return version.rpartition(":")[2]


def unread_mark(file: Listed) -> str:
    """The version of a file of which nothing was read yet."""
    return str(mark_of(0, b"", file))


def has_unread(offset: PartitionOffset, *, may_grow: bool) -> bool:
    """Whether the file had more than was read of it, when it was listed last."""
    if offset.sealed or not offset.version:
        return False
    mark = ContentMark.parse(offset.version)
    return not may_grow or mark.size > mark.end


def listing_of(file: Listed) -> str:
    return hashlib.blake2b(file.version.encode(), digest_size=6).hexdigest()
