"""Compaction of a table: few files replace many small ones, in a record that is created once.

An appended table is merged in runs of small files, one target file's rows in memory at a time;
files that are large enough are kept, so that repeated compactions do not rewrite the table.
Partitions are merged separately.  A table with an upsert key is read as a whole, and only its
newest rows are written: it must fit into memory.

No version changes: the chain is the same, and its files stay until ``vacuum``.  Two compactions of
one version race for the record, and the loser's files are deleted.  A crash leaves files that
``unpublished`` lists.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from sluice.connectors.files_table.table_manifest import FORMAT_VERSION, Chain, Compaction, TableLog
from sluice.connectors.files_table.table_rows import read_chain
from sluice.connectors.staging.file_names import compacted_stem, partition_of, record_key
from sluice.connectors.staging.staged_files import RowFile, StagedFiles
from sluice.errors import ConfigurationError
from sluice.storage.object_store import Created

log = logging.getLogger(__name__)

TARGET_BYTES = 128_000_000  # Parquet's and Iceberg's usual size: few requests, and splits of Spark.
SMALL = 0.5  # Of the target: a larger file is not worth writing again.


@dataclass(frozen=True, slots=True)
class Compactor:
    """The compactor of the table of *files*, which has its location and format."""

    files: StagedFiles
    target_bytes: int = TARGET_BYTES
    token: str = field(default_factory=lambda: secrets.token_hex(8))

    def __post_init__(self) -> None:
        if self.target_bytes <= 0:
            raise ConfigurationError(f"a target of {self.target_bytes} bytes cannot be; write 1 MB")

    def compact(self, version: int | None = None) -> Compaction | None:
        """Merge the table as of *version*, by default the newest.

        None when there is nothing to merge, or another process has merged it.

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
        from sluice.connectors.staging.partitions import split

        table = read_chain(self.files, chain.files, chain.upsert_key)
        if table.num_rows == 0:
            return
        size_bytes = sum(one.size_bytes for one in chain.files)
        rows = sum(one.rows for one in chain.files)
        at_once = max(1, self.target_bytes * rows // max(1, size_bytes))
        by = self.files.partition_by
        # Over time there are far more partitions than one subtask may write.
        parts = split(table, by, self.files.sink, limit=None) if by else iter([("", table)])
        number = 0
        for partition, part in parts:
            for start in range(0, part.num_rows, at_once):
                stem = compacted_stem(chain.version or 0, number, self.token)
                yield self.files.write(stem, part.slice(start, at_once), partition=partition)
                number += 1


def _runs(files: Iterable[RowFile], target_bytes: int) -> Iterator[list[RowFile]]:
    """Neighbouring files that together reach the target size; a large file stays alone."""
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
