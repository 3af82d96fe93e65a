"""Vacuum: delete old versions of a table, and the files that only these need.

The rows of the oldest version kept are merged first, so that its chain ends there.  Versions at or
after it stay, of every branch, with all files of their chains; so does the version that readers see
now.  Manifests are deleted first: a crash in between leaves files that ``unpublished`` lists.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from sluice.connectors.files_table.table_compaction import Compactor
from sluice.connectors.files_table.table_manifest import Compaction, Manifest, TableLog
from sluice.connectors.staging.file_names import (
    COMPACTED,
    MANIFESTS,
    PARTS,
    manifest_key,
    record_key,
    unit_of,
)
from sluice.connectors.staging.staged_files import StagedFiles
from sluice.errors import ConfigurationError, ProtocolViolation

log = logging.getLogger(__name__)

# The garbage collector deletes merged files that no record names at that moment.  A record younger
# than this may name files that are about to be deleted, so vacuum does not rely on it.
GRACE_MS = 600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacuumed:
    """The result of a vacuum: deleted ``versions``, and the number and size of deleted files."""

    versions: tuple[int, ...] = ()
    files: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Kept:
    manifests: frozenset[int]
    records: frozenset[int]
    files: frozenset[str]


def vacuum(
    files: StagedFiles, before_version: int, *, compactor: Compactor, grace_ms: int = GRACE_MS
) -> Vacuumed:
    """Delete the versions below *before_version*, and files that only they need.

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
    versions = table.versions()
    usable = _usable(table, grace_ms)
    kept = _kept(table, [one for one in versions if one >= before_version], lineage[-1], usable)
    gone = [version for version in versions if version not in kept.manifests]
    names, freed = _doomed_files(table, gone, usable, kept)
    files.store.delete([*_doomed_entries(table, gone, kept)])
    doomed = {*names, *(unit for name in names if (unit := unit_of(name)).endswith(PARTS))}
    files.store.delete(sorted(doomed))
    log.info(
        "table vacuumed root=%s versions=%d files=%d bytes=%d",
        files.store.root, len(gone), len(names), freed,
    )  # fmt: skip
    return Vacuumed(versions=tuple(gone), files=len(names), size_bytes=freed)


def _usable(table: TableLog, grace_ms: int) -> dict[int, Compaction]:
    """The records that are old enough, and whose files all exist."""
    listed = [*table.store.list(COMPACTED)]
    present = {one.key: one.size_bytes for one in listed}
    records = {record_key(one.checkpoint_id): one for one in table.compactions()}
    marks = [one for one in table.store.list("_compacted/") if one.key in records]
    others = [*listed, *marks, *table.store.list(MANIFESTS)]
    now_ms = max((one.modified_ms for one in others), default=0)
    return {
        records[mark.key].checkpoint_id: records[mark.key]
        for mark in marks
        if now_ms - mark.modified_ms >= grace_ms
        and all(
            present.get(file.file) == file.size_bytes
            for file in records[mark.key].files
            if file.file.startswith(COMPACTED)
        )
    }


def _kept(
    table: TableLog, versions: list[int], newest: int, usable: dict[int, Compaction]
) -> _Kept:
    manifests, records, files = set[int](), set[int](), set[str]()
    known = table.manifests(table.versions())
    for version in {*versions, newest}:
        current: int | None = version
        while current is not None and current not in manifests:
            manifest = known.get(current)
            if manifest is None:
                raise ProtocolViolation(
                    f"{table.store.root}/{manifest_key(current)} is missing, and version {version} "
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
    table: TableLog, gone: list[int], usable: dict[int, Compaction], kept: _Kept
) -> tuple[set[str], int]:
    """Published files to delete, and their size; unpublished ones are the garbage collector's."""
    sources: list[Manifest | Compaction] = [
        *(one for one in table.manifests(gone).values() if one is not None),
        *(one for one in table.manifests(kept.records).values() if one is not None),
        *(one for version, one in usable.items() if version not in kept.manifests),
    ]
    sizes = {file.file: file.size_bytes for one in sources for file in one.files}
    # Readers use a record that is too young for vacuum.
    read = {
        file.file
        for one in table.compactions()
        if one.checkpoint_id in kept.manifests
        for file in one.files
    }
    doomed = {name: size for name, size in sizes.items() if name not in kept.files | read}
    return set(doomed), sum(doomed.values())


def _doomed_entries(table: TableLog, gone: list[int], kept: _Kept) -> Iterator[str]:
    """The keys of manifests, records and fences to delete."""
    yield from (manifest_key(version) for version in reversed(gone))  # Newest first: no gap.
    yield from (record_key(one) for one in table.compacted() if one not in kept.manifests)
    oldest = min(kept.manifests)
    names = [*table.names()]
    for name in names[:-1]:  # The last entry decides which version readers see.
        if name.is_fence and name.checkpoint_id < oldest:
            yield name.key
