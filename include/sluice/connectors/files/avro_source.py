"""Rows of Avro container files, in a folder, a bucket, or one by one; offsets are rows.

``plan`` reads the headers of blocks only, and cuts at any row, preferably at a block's end.  See
``whole_files``; ``avro.file_columns`` lists the types.
"""

from __future__ import annotations

from dataclasses import dataclass

from sluice.connectors.files.avro_file import AvroFile
from sluice.connectors.files.whole_files import WholeFileSource
from sluice.storage.object_store import Listed


@dataclass(frozen=True, slots=True)
class AvroSource(WholeFileSource):
    """The rows of *location*: a file, or every file below a folder."""

    @property
    def _format_name(self) -> str:
        return "Avro"

    def _file(self, listed: Listed) -> AvroFile:
        return AvroFile(self._files, listed.key, listed.size_bytes, listed.version)
