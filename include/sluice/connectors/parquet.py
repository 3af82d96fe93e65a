"""Rows of Parquet files, in a folder, a bucket, or one by one: a source whose offsets are rows.

``plan`` reads footers only, and cuts at any row.  See ``whole_files``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from sluice.connectors.parquet_file import FOOTERS_KEPT, ParquetFile
from sluice.connectors.parquet_types import is_read_alike
from sluice.connectors.whole_files import WholeFileSource
from sluice.core.plan import Slice
from sluice.storage.object_store import Listed


@dataclass(frozen=True, slots=True)
class ParquetSource(WholeFileSource):
    """The rows of *location*: a file, or every file below a folder."""

    @property
    def _format_name(self) -> str:
        return "Parquet"

    def paths_for_spark(self, slices: Sequence[Slice]) -> list[str] | None:
        """The files of *slices*; None when Spark's own reader cannot read them all: one is not on a
        disk here, or has a type that it does not know.
        """
        paths = self.local_paths(slices)
        return paths if paths is not None and all(map(_is_read_alike, paths)) else None

    def _file(self, listed: Listed) -> ParquetFile:
        return ParquetFile(self._files, listed.key, listed.size_bytes, listed.version)


@lru_cache(maxsize=FOOTERS_KEPT)  # A file that was read does not change.
def _is_read_alike(path: str) -> bool:
    import pyarrow.parquet as pq

    return is_read_alike(pq.read_schema(path))
