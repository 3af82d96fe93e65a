"""Many small files become few: other files that show the same rows, recorded create-only.

An appended table is merged in runs of small files, one target file's rows in memory at a time;
files that are large enough stay as they are, so a table that is merged again and again is not
written again and again.  Of partitions each is merged for itself.  A table with an upsert key is
read as a whole, and only its newest rows are written: it must fit into memory.

No version changes: the chain is what it was, and its files stay until ``vacuum``.  Two who merge
the same version race for the record, and the loser's files are deleted.  A crash leaves files that
``unpublished`` lists.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from sluice.connectors.staged_files import RowFile, StagedFiles
from sluice.connectors.table_manifest import FORMAT_VERSION, Chain, Compaction, TableLog
from sluice.connectors.table_names import compacted_stem, partition_of, record_key
from sluice.connectors.table_rows import read_chain
from sluice.errors import ConfigurationError
from sluice.storage.object_store import Created

log = logging.getLogger(__name__)

TARGET_BYTES = 128_000_000  # Parquet's and Iceberg's usual size: few requests, and splits of Spark.
SMALL = 0.5  # Of the target: what is larger is not worth writing again.


@dataclass(frozen=True, slots=True)
class Compactor:
    """Merges the table of *files*, which says where and in what format."""

    files: StagedFiles
    target_bytes: int = TARGET_BYTES
    token: str = field(default_factory=lambda: secrets.token_hex(8))

    def __post_init__(self) -> None:
        if self.target_bytes <= 0:
            raise ConfigurationError(f"a target of {self.target_bytes} bytes is none; write 1 MB")

    def compact(self, version: int | None = None) -> Compaction | None:
        """Merge the table as of *version*, by default the newest; None when there is nothing, or
        somebody has done it.

        Raises:
            ConfigurationError: there is no such version.
        """
        chain = TableLog(self.files.store).chain(version)
        if chain.version is None or not chain.manifests:
            return None
        merged = self._upserted(chain) if chain.upsert_key else self._appended(chain)
        record = Compaction(
            version=FORMAT_VERSION,
            checkpoint_id=chain.version,
            files=tuple(merged),
            upsert_key=chain.upsert_key,
        )
        key = record_key(chain.version)
        answer = self.files.store.create(key, msgspec.json.encode(record))
        if not isinstance(answer, Created) and answer.body != msgspec.json.encode(record):
            kept = {one.file for one in chain.files}
            self.files.store.delete(one.file for one in record.files if one.file not in kept)
            return None
        log.info(
            "table compacted root=%s version=%d files_before=%d files=%d",
            self.files.store.root, chain.version, len(chain.files), len(record.files),
        )  # fmt: skip
        return record

    def _appended(self, chain: Chain) -> Iterator[RowFile]:
        by_partition: dict[str, list[RowFile]] = {}
        for file in chain.files:
            by_partition.setdefault(partition_of(file.file), []).append(file)
        number = 0
        for partition, files in by_partition.items():
            for run in _runs(files, self.target_bytes):
                if len(run) == 1:
                    yield run[0]
                    continue
                rows = read_chain(self.files, run, None)
                yield self.files.write(
                    compacted_stem(chain.version or 0, number, self.token),
                    rows,
                    partition=partition,
                )
                number += 1

    def _upserted(self, chain: Chain) -> Iterator[RowFile]:
        from sluice.connectors.partitions import split

        table = read_chain(self.files, chain.files, chain.upsert_key)
        if table.num_rows == 0:
            return
        size_bytes = sum(one.size_bytes for one in chain.files)
        rows = sum(one.rows for one in chain.files)
        at_once = max(1, self.target_bytes * rows // max(1, size_bytes))
        by = self.files.partition_by
        # Far more partitions than a subtask may write come together over time.
        parts = split(table, by, self.files.sink, limit=None) if by else iter([("", table)])
        number = 0
        for partition, part in parts:
            for start in range(0, part.num_rows, at_once):
                stem = compacted_stem(chain.version or 0, number, self.token)
                yield self.files.write(stem, part.slice(start, at_once), partition=partition)
                number += 1


def _runs(files: Iterable[RowFile], target_bytes: int) -> Iterator[list[RowFile]]:
    """Neighbours that together reach the target; a large file alone."""
    run: list[RowFile] = []
    run_bytes = 0
    for file in files:
        is_large = file.size_bytes >= target_bytes * SMALL
        if run and (is_large or run_bytes + file.size_bytes > target_bytes):
            yield run
            run, run_bytes = [], 0
        run.append(file)
        run_bytes += file.size_bytes
        if is_large:
            yield run
            run, run_bytes = [], 0
    if run:
        yield run
