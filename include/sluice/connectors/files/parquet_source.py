"""Rows of Parquet files, in a folder, a bucket, or one by one: a source whose offsets are rows.

``plan`` reads footers only, and cuts at any row.  See ``whole_files``.
"""

from __future__ import annotations

from dataclasses import dataclass

from sluice.connectors.files.parquet_file import ParquetFile
from sluice.connectors.files.whole_files import WholeFileSource
from sluice.storage.object_store import Listed


@dataclass(frozen=True, slots=True)
class ParquetSource(WholeFileSource):
    """The rows of *location*: a file, or every file below a folder."""

    @property
    def _format_name(self) -> str:
        return "Parquet"

    def _file(self, listed: Listed) -> ParquetFile:
        return ParquetFile(self._files, listed.key, listed.size_bytes, listed.version)
