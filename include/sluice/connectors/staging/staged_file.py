"""``RowFile`` and ``StagedFile``: one file of rows, in a table or staged for it."""

from __future__ import annotations

import msgspec

from sluice.errors import ProtocolViolation


class RowFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file relative to the table's root; a reader verifies its size and its rows."""

    file: str
    rows: int
    size_bytes: int


class StagedFile(RowFile, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file that no commit names yet, with its checksum."""

    checksum: str

    @property
    def published(self) -> RowFile:
        return RowFile(file=self.file, rows=self.rows, size_bytes=self.size_bytes)


_PARTS = msgspec.json.Decoder(tuple[StagedFile, ...])


def decode_parts(body: bytes, place: str) -> tuple[StagedFile, ...]:
    """The files of a list of partitions.

    Raises:
        ProtocolViolation: the object at *place* is no such list.
    """
    try:
        return _PARTS.decode(body)
    except msgspec.DecodeError as error:
        raise ProtocolViolation(f"{place} is no list of files: {error}") from error
