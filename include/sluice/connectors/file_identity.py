"""What makes a file the one that was planned: its exact name, its size, and its content's mark.

A plan notes it in every offset and every slice.  Who plans on, or reads a slice, finds that file
again or gets one error that names it: gone, shrunk, or replaced.  See ``content_mark`` for what is
compared, and what a comparison cannot see.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache

from sluice.connectors.content_mark import (
    ContentMark,
    checksum_of,
    listing_of,
    mark_of,
    tail_bytes,
)
from sluice.connectors.file_set import FileSet
from sluice.core.plan import PartitionOffset, Slice
from sluice.errors import ConfigurationError, SluiceError, StoreUnavailable
from sluice.storage.object_store import Listed

log = logging.getLogger(__name__)

MARKS_KEPT = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class FileIdentity:
    """The file *name* of *files*.  One that ``may_grow`` is the same with more behind its mark."""

    files: FileSet
    name: str
    may_grow: bool

    def continued(self, before: PartitionOffset, file: Listed, place: str) -> PartitionOffset:
        """*before*, whose mark names the file as the listing shows it now; *place* is where it is.

        Raises:
            ConfigurationError: what was read of the file is not what is there.
        """
        if not before.version:
            return before
        mark = ContentMark.parse(before.version)
        listing = listing_of(file)
        if mark.listed_as == listing:
            return before
        if self.may_grow:
            self._check_growth(before, mark, file)
        elif file.size_bytes != mark.end:
            raise ConfigurationError(
                f"{self.what} had {mark.end} bytes when its first rows "
                f"were read, and has {file.size_bytes} now; restore it, and write new rows to "
                "a new file: a file of this kind may not change"
            )
        found = checksum_of(self.tail(mark.end))
        if found != mark.checksum:
            raise ConfigurationError(
                f"{self.what} is not what was read to {place}: the "
                f"checksum of the {tail_bytes(mark.end)} bytes before byte {mark.end} was "
                f"{mark.checksum} and is {found} now; restore it, and write new rows to a new "
                "file: what was read may not change"
            )
        return replace(before, version=str(replace(mark, listed_as=listing)))

    def found(self, piece: Slice, *, trusts_clock: bool = True) -> Listed:
        """The file that *piece* was cut from.  Who *trusts_clock* of a disk takes a file for the
        same whose times are: within one tick it may be another.

        Raises:
            ConfigurationError: it is gone, or another one has its name.
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
        if checksum_of(self.tail(mark.end)) != mark.checksum:
            raise ConfigurationError(
                f"{replaced}: the {tail_bytes(mark.end)} bytes before byte {mark.end} are others; "
                f"{remedy}"
            )
        return file

    @contextmanager
    def unchanged(self, piece: Slice) -> Iterator[None]:
        """Read *piece* within the block: its rows are good only if the block is left in peace.

        Raises:
            ConfigurationError: the file is not the planned one any more.  It comes in the place of
                whatever other error its bytes have caused.
        """
        import pyarrow as pa

        try:
            yield
        except (SluiceError, OSError, ValueError, LookupError, EOFError, pa.ArrowException):
            self.found(piece, trusts_clock=False)
            raise
        self.found(piece, trusts_clock=False)

    def marked(self, file: Listed) -> str:
        """The version of a file that is whole; it is read at most once per process."""
        return _mark_of_whole(self.files, file)

    def tail(self, end: int) -> bytes:
        """The last ``tail_bytes(end)`` bytes before *end*."""
        return _tail(self.files, self.name, end)

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
def _mark_of_whole(files: FileSet, file: Listed) -> str:
    return str(mark_of(file.size_bytes, _tail(files, file.key, file.size_bytes), file))


def _tail(files: FileSet, name: str, end: int) -> bytes:
    length = tail_bytes(end)
    body = files.store_of(name).get_range(name, end - length, end) if length else b""
    if body is None or len(body) < length:
        raise StoreUnavailable(
            f"{name} of {files.location} became shorter than {end} bytes while it was looked at"
        )
    return body
