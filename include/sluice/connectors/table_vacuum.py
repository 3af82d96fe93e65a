"""What no version that is kept needs any more is deleted; the versions before it are gone then.

The rows of the oldest version kept are merged first, so that its chain ends there.  Everything at
or after that version stays, of whatever branch, and what its chains name; so does what readers see
now.  Manifests go first: a crash in between leaves files that ``unpublished`` lists.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from sluice.connectors.staged_files import StagedFiles
from sluice.connectors.table_compaction import Compactor
from sluice.connectors.table_manifest import Compaction, Manifest, TableLog
from sluice.connectors.table_names import (
    COMPACTED,
    MANIFESTS,
    PARTS,
    manifest_key,
    record_key,
    unit_of,
)
from sluice.errors import ConfigurationError, ProtocolViolation

log = logging.getLogger(__name__)

# The collector deletes merged files that no record names at the moment it looks.  A record younger
# than this may be of files that it is about to delete, so nothing is deleted for its sake.
GRACE_MS = 600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacuumed:
    """``versions`` are no longer to be read; ``files`` and ``size_bytes`` are of rows."""

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
    """Delete what only versions below *before_version* need.

    Records of merged files younger than *grace_ms*, on the store's clock, are not relied upon: the
    first vacuum of a table writes one, and the next one, that much later, uses it.

    Raises:
        ConfigurationError: the table would be empty, as no version so new is seen.
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
    """Records that are old enough, and whose files are all there."""
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
    """Of published rows only: what nobody published is the collector's."""
    sources: list[Manifest | Compaction] = [
        *(one for one in table.manifests(gone).values() if one is not None),
        *(one for one in table.manifests(kept.records).values() if one is not None),
        *(one for version, one in usable.items() if version not in kept.manifests),
    ]
    sizes = {file.file: file.size_bytes for one in sources for file in one.files}
    # A record that is too young to be relied upon is read all the same.
    read = {
        file.file
        for one in table.compactions()
        if one.checkpoint_id in kept.manifests
        for file in one.files
    }
    doomed = {name: size for name, size in sizes.items() if name not in kept.files | read}
    return set(doomed), sum(doomed.values())


def _doomed_entries(table: TableLog, gone: list[int], kept: _Kept) -> Iterator[str]:
    """Manifests, records of versions that are gone, and fences that later entries outlive."""
    yield from (manifest_key(version) for version in reversed(gone))  # No gap in what is left.
    yield from (record_key(one) for one in table.compacted() if one not in kept.manifests)
    oldest = min(kept.manifests)
    names = [*table.names()]
    for name in names[:-1]:  # The last entry says what readers see.
        if name.is_fence and name.checkpoint_id < oldest:
            yield name.key
