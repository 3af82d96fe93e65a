"""The identity of a planned file: its exact name, its size, and the mark of its content.

A plan stores it in every offset and every slice.  The next plan, and the reader of a slice, find
the same file or raise an error that names it: gone, shrunk, or replaced.  ``content_mark`` says
what is compared, and which changes are not found.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache

from sluice.connectors.files.content_mark import (
    ContentMark,
    checksum_of,
    listing_of,
    mark_of,
    tail_bytes,
)
from sluice.connectors.files.file_set import FileSet
from sluice.core.plan import PartitionOffset, Slice
from sluice.errors import ConfigurationError, SluiceError, StoreUnavailable
from sluice.storage.object_store import Listed

log = logging.getLogger(__name__)

MARKS_KEPT = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class FileIdentity:
    """The file *name* of *files*; with ``may_grow``, appending keeps its identity."""

    files: FileSet
    name: str
    may_grow: bool

    def continued(self, before: PartitionOffset, file: Listed, place: str) -> PartitionOffset:
        """The offset *before* of a file that is listed otherwise today; *place* is for messages.

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
        found = checksum_of(self.tail(mark.end))
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

        With *trusts_clock* a file on a disk is the same if its times are; a change within one tick
        of the clock is then not found.

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
        if checksum_of(self.tail(mark.end)) != mark.checksum:
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
