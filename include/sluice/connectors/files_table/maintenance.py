"""Upkeep of a table of files: compaction, vacuum, and the list ``_latest`` for other tools.

``Compactor`` replaces many small files by few, in a record that is created once.  An appended table
is merged in runs of small files, one target file's rows in memory at a time; files that are large
enough are kept, so that repeated compactions do not rewrite the table.  Partitions are merged
separately.  Of a table with an upsert key only the newest rows are written; what is larger than two
target files is first divided by its keys, on this machine's disk.  No version changes: the chain is
the same, and its files stay until they are vacuumed.  Two compactions of one version race for the
record, and the loser's files are deleted.

``vacuum_versions`` deletes old versions, and the files that only these need.  The rows of the
oldest version kept are merged first, so that its chain ends there.  Versions at or after it stay,
of every branch, with all files of their chains; so does the version that readers see now.
Manifests are deleted before files.

A crash in either leaves files that ``unpublished`` lists.

``refresh_latest`` writes ``_latest``, one object at the table's root:

    # {"version": 1, "checkpoint_id": 7, "upsert_key": null, "files": 2, "rows": 10, ...}
    s3://bucket/table/data/00000000000000000006-01f4_9c2e-00000-1-a.parquet
    s3://bucket/table/data/00000000000000000007-01f4_b370-00000-1-a.parquet

A header of JSON, then an absolute URI per line, in the order in which files apply: in a table with
an upsert key the last row of a key wins, and a file of deletes removes rows.  It is derived from
the manifests, and written anew when it is lost or invalid.

It is the one object that is replaced, so a late writer may replace it with an older version.  Each
writer checks until its version is the newest; a process that pauses between check and write leaves
an older version, complete and committed, until the next commit.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from sluice.connectors.files_table.columns import newest_in_parts, read_chain
from sluice.connectors.files_table.log import (
    MANIFEST_FORMAT_VERSION,
    Chain,
    Manifest,
    MergeRecord,
    TableLog,
)
from sluice.connectors.row_files import split_by_partition
from sluice.connectors.staged_files import (
    COMPACTED,
    MANIFESTS,
    PARTS,
    RECORDS,
    RowFile,
    StagedFiles,
    compacted_stem,
    manifest_key,
    partition_folder,
    record_key,
    unit_of,
)
from sluice.declaration.places import Vacuumed
from sluice.errors import ConfigurationError, ProtocolViolation
from sluice.store.object_store import Created, ObjectStore

TARGET_BYTES = 128_000_000  # Parquet's and Iceberg's usual size: few requests, and splits of Spark.
SMALL = 0.5  # Of the target: a larger file is not worth writing again.

# The garbage collector deletes merged files that no record names at that moment.  A record younger
# than this may name files that are about to be deleted, so vacuum does not rely on it.
GRACE_MS = 600_000

LATEST_FORMAT_VERSION = 1
LATEST = "_latest"
# Another attempt means that another writer was faster, and that one checks again, too.
MAX_WRITE_ATTEMPTS = 10

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Compactor:
    """The compactor of the table of *files*, which has its location and format."""

    files: StagedFiles
    target_bytes: int = TARGET_BYTES
    token: str = field(default_factory=lambda: secrets.token_hex(8))

    def __post_init__(self) -> None:
        if self.target_bytes <= 0:
            raise ConfigurationError(f"a target of {self.target_bytes} bytes cannot be; write 1 MB")

    def compact(self, version: int | None = None) -> MergeRecord | None:
        """Merge the table as of *version*, by default the newest.

        None when there is nothing to merge, or another process has merged it.

        Raises:
            ConfigurationError: there is no such version.
        """
        chain = TableLog(self.files.store).chain(version)
        if chain.version is None or not chain.manifests:
            return None
        merged = self._upserted(chain) if chain.upsert_key else self._appended(chain)
        record = MergeRecord(
            version=MANIFEST_FORMAT_VERSION,
            checkpoint_id=chain.version,
            files=tuple(merged),
            upsert_key=chain.upsert_key,
        )
        body = msgspec.json.encode(record)
        answer = self.files.store.create(record_key(chain.version), body)
        if not isinstance(answer, Created) and answer.body != body:
            kept = {file.file for file in chain.files}
            self.files.store.delete(file.file for file in record.files if file.file not in kept)
            return None
        log.info(
            "table compacted root=%s version=%d files_before=%d files=%d",
            self.files.store.root, chain.version, len(chain.files), len(record.files),
        )  # fmt: skip
        return record

    def _appended(self, chain: Chain) -> Iterator[RowFile]:
        by_partition: dict[str, list[RowFile]] = {}
        for file in chain.files:
            by_partition.setdefault(partition_folder(file.file), []).append(file)
        number = 0
        for partition, files in by_partition.items():
            for run in _runs(files, self.target_bytes):
                if len(run) == 1:
                    yield run[0]
                    continue
                stem = compacted_stem(chain.version or 0, number, self.token)
                rows = read_chain(self.files, run, None)
                yield self.files.write(stem, rows, partition=partition)
                number += 1

    def _upserted(self, chain: Chain) -> Iterator[RowFile]:
        size_bytes = sum(file.size_bytes for file in chain.files)
        rows = sum(file.rows for file in chain.files)
        rows_per_file = max(1, self.target_bytes * rows // max(1, size_bytes))
        number, key = 0, chain.upsert_key or ()
        for table in newest_in_parts(self.files, chain.files, key, 2 * self.target_bytes):
            parts = iter([("", table)])
            if table.num_rows and (by := self.files.partition_by):
                # Over time there are far more partitions than one subtask may write.
                parts = split_by_partition(table, by, self.files.sink, limit=None)
            for partition, part in parts:
                for start in range(0, part.num_rows, rows_per_file):
                    stem = compacted_stem(chain.version or 0, number, self.token)
                    rows_of_file = part.slice(start, rows_per_file)
                    yield self.files.write(stem, rows_of_file, partition=partition)
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


def vacuum_versions(
    files: StagedFiles,
    before_version: int,
    *,
    compactor: Compactor,
    show: Callable[[], None],
    grace_ms: int = GRACE_MS,
) -> Vacuumed:
    """Delete the versions below *before_version*, and files that only they need.

    *show* has others read what stays, before anything is deleted.

    Records of merged files younger than *grace_ms*, by the store's clock, are not used: the first
    vacuum of a table writes a record, and a later one uses it.

    Raises:
        ConfigurationError: there is no version from *before_version* on, so no row would be left.
        ProtocolViolation: a manifest that is needed is missing; nothing was deleted.
    """
    table = TableLog(files.store)
    lineage = table.lineage()
    kept_lineage = [version for version in lineage if version >= before_version]
    if not lineage:
        return Vacuumed()
    if not kept_lineage:
        raise ConfigurationError(
            f"the table at {files.store.root} has no version {before_version} or later; the newest "
            f"is {lineage[-1]}: keep that one"
        )
    compactor.compact(kept_lineage[0])
    manifests = table.manifests(table.versions())
    records = table.compactions()
    usable = _usable(table, records, grace_ms)
    kept_versions = {version for version in manifests if version >= before_version}
    kept = _kept(table.store.root, manifests, kept_versions | {lineage[-1]}, usable)
    gone = [version for version in manifests if version not in kept.manifests]
    names, freed = _doomed_files(manifests, records, usable, kept)
    show()
    files.store.delete([*_doomed_entries(table, gone, kept)])
    doomed = {*names, *(unit for name in names if (unit := unit_of(name)).endswith(PARTS))}
    files.store.delete(sorted(doomed))
    log.info(
        "table vacuumed root=%s versions=%d files=%d bytes=%d",
        files.store.root, len(gone), len(names), freed,
    )  # fmt: skip
    return Vacuumed(versions=tuple(gone), files=len(names), size_bytes=freed)


def usable_records(table: TableLog, grace_ms: int) -> dict[int, MergeRecord]:
    """The records that are old enough, and whose files all exist."""
    return _usable(table, table.compactions(), grace_ms)


def _usable(
    table: TableLog, merged: Iterable[MergeRecord], grace_ms: int
) -> dict[int, MergeRecord]:
    listed = [*table.store.list(COMPACTED)]
    present = {file.key: file.size_bytes for file in listed}
    records = {record_key(record.checkpoint_id): record for record in merged}
    stored = [entry for entry in table.store.list(RECORDS) if entry.key in records]
    everything = [*listed, *stored, *table.store.list(MANIFESTS)]
    now_ms = max((entry.modified_ms for entry in everything), default=0)
    return {
        records[entry.key].checkpoint_id: records[entry.key]
        for entry in stored
        if now_ms - entry.modified_ms >= grace_ms
        and all(
            present.get(file.file) == file.size_bytes
            for file in records[entry.key].files
            if file.file.startswith(COMPACTED)
        )
    }


@dataclass(frozen=True, slots=True)
class _Kept:
    """Versions whose manifests stay, those whose record of merged files is used, and files."""

    manifests: frozenset[int]
    records: frozenset[int]
    files: frozenset[str]


def _kept(
    root: str,
    known: Mapping[int, Manifest | None],
    versions: set[int],
    usable: Mapping[int, MergeRecord],
) -> _Kept:
    manifests, records, files = set[int](), set[int](), set[str]()
    for version in versions:
        current: int | None = version
        while current is not None and current not in manifests:
            manifest = known.get(current)
            if manifest is None:
                raise ProtocolViolation(
                    f"{root}/{manifest_key(current)} is missing, and version {version} "
                    "continues it; nothing was deleted"
                )
            manifests.add(current)
            if current in usable:
                records.add(current)
                files |= {file.file for file in usable[current].files}
                break
            files |= {file.file for file in manifest.files}
            current = manifest.parent
    return _Kept(frozenset(manifests), frozenset(records), frozenset(files))


def _doomed_files(
    manifests: Mapping[int, Manifest | None],
    records: Iterable[MergeRecord],
    usable: Mapping[int, MergeRecord],
    kept: _Kept,
) -> tuple[set[str], int]:
    """Published files to delete, and their size; unpublished ones are the garbage collector's."""
    needed = kept.manifests - kept.records  # Where a record is used, its files are in place of all.
    sources: list[Manifest | MergeRecord] = [
        *(one for version, one in manifests.items() if one is not None and version not in needed),
        *(record for version, record in usable.items() if version not in kept.manifests),
    ]
    sizes = {file.file: file.size_bytes for source in sources for file in source.files}
    # Readers use a record that is too young for vacuum.
    read = {
        file.file
        for record in records
        if record.checkpoint_id in kept.manifests
        for file in record.files
    }
    doomed = {name: size for name, size in sizes.items() if name not in kept.files | read}
    return set(doomed), sum(doomed.values())


def _doomed_entries(table: TableLog, gone: list[int], kept: _Kept) -> Iterator[str]:
    """The keys of manifests, records and fences to delete."""
    yield from (manifest_key(version) for version in reversed(gone))  # Newest first: no gap.
    yield from (
        record_key(version) for version in table.compacted() if version not in kept.manifests
    )
    oldest = min(kept.manifests)
    names = [*table.names()]
    for name in names[:-1]:  # The last entry decides which version readers see.
        if name.is_fence and name.checkpoint_id < oldest:
            yield name.key


class LatestHeader(msgspec.Struct, frozen=True, kw_only=True):
    """``compacted`` is the version whose merged files come first; ``digest`` is that of the lines.

    With an ``upsert_key`` the files still have rows that were replaced, unless all are merged.
    """

    version: int
    root: str
    checkpoint_id: int | None
    compacted: int | None
    upsert_key: tuple[str, ...] | None
    files: int
    rows: int
    size_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class LatestFile:
    """The parsed object.  ``lines`` are URIs."""

    header: LatestHeader
    lines: tuple[str, ...]

    def encode(self) -> bytes:
        header = msgspec.json.encode(self.header).decode()
        return "".join(f"{line}\n" for line in (f"# {header}", *self.lines)).encode()


def refresh_latest(store: ObjectStore) -> None:
    """Write the list of the newest version, unless it exists.  Raises StoreUnavailable: try again.

    It continues the existing list, so the number of requests does not grow with the versions.
    """
    table = TableLog(store)
    for _ in range(MAX_WRITE_ATTEMPTS):
        raw = store.get(LATEST)
        latest = _continued(table, None if raw is None else decoded_latest(raw, store.root))
        body = latest.encode()
        if body == raw:
            return
        store.put(LATEST, body)
        newest = table.newest(latest.header.checkpoint_id or 0)
        if newest == latest.header.checkpoint_id and store.get(LATEST) == body:
            return
    log.warning("others write what readers read, again and again root=%s", store.root)


def _continued(table: TableLog, before: LatestFile | None) -> LatestFile:
    """The list of the newest version; continues *before* if that version does."""
    known = (before.header.checkpoint_id or 0) if before is not None else 0
    if known and table.newest(known) == known and before is not None:
        newest_record = max(
            (record for record in table.compacted() if record <= known), default=None
        )
        if newest_record == before.header.compacted:
            return before
        known = 0
    chain = table.chain(known=known)
    continues = chain.base is None and chain.manifests and chain.manifests[0].parent == known
    old = before if known and continues else None
    if known and old is None:
        chain = table.chain()
    root, compacted = table.store.root, None if chain.base is None else chain.base.checkpoint_id
    lines = (*(old.lines if old else ()), *(_uri(root, file.file) for file in chain.files))
    header = LatestHeader(
        version=LATEST_FORMAT_VERSION,
        root=root,
        checkpoint_id=chain.version,
        compacted=old.header.compacted if old else compacted,
        upsert_key=chain.upsert_key,
        files=len(lines),
        rows=(old.header.rows if old else 0) + sum(file.rows for file in chain.files),
        size_bytes=(old.header.size_bytes if old else 0)
        + sum(file.size_bytes for file in chain.files),
        digest=_digest(lines),
    )
    return LatestFile(header, lines)


def decoded_latest(raw: bytes, root: str) -> LatestFile | None:
    """The parsed *raw*; None if it is incomplete, of another format, or of another root."""
    try:
        first, *lines = raw.decode().removesuffix("\n").split("\n")
        header = msgspec.json.decode(first.removeprefix("# "), type=LatestHeader)
    except (UnicodeDecodeError, msgspec.DecodeError, ValueError):
        return None
    is_ours = (
        header.version == LATEST_FORMAT_VERSION
        and header.root == root
        and header.digest == _digest(lines)
        and header.files == len(lines)
    )
    return LatestFile(header, tuple(lines)) if is_ours else None


def _uri(root: str, file: str) -> str:
    """The absolute name of a file: a path if the root is a folder, else a URI."""
    return f"{root.removeprefix('file://')}/{file}"


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
