"""A table of files: it consists of the files that its commit manifests name.

Readers follow the chain of manifests (``log``) from the newest one.  After a restore to an older
checkpoint the next commit continues that one, and commits in between are no longer in the chain: so
the table rolls back with the job, and can go forward again, as manifests stay.
``staged_files`` lists what lies at the root.

With an upsert key the newest row per key wins.  The stage's output holds each key at most once per
checkpoint, or is refused when it is staged.  Deletes of a checkpoint come before its rows.  Names
are relative to the root, so a table can be copied; ``_latest`` alone is made anew there.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from sluice.connectors.files_table.columns import TableSchemas, read_chain
from sluice.connectors.files_table.delta_view import DeltaView
from sluice.connectors.files_table.log import (
    MANIFEST_FORMAT_VERSION,
    READ_THREADS,
    Manifest,
    MergeRecord,
    TableLog,
    timeline_of,
)
from sluice.connectors.files_table.maintenance import (
    GRACE_MS,
    TARGET_BYTES,
    Compactor,
    refresh_latest,
    vacuum_versions,
)
from sluice.connectors.row_files import PARQUET
from sluice.connectors.staged_files import (
    COMPACTED,
    DATA,
    PARTS,
    RowFile,
    StagedFiles,
    behind_data_of,
    deletes_first,
    has_one_writer,
    manifest_key,
    staged_by,
    unit_of,
    version_of_compacted,
)
from sluice.core.answers import Attempt, Committable
from sluice.core.timeline import Recovery, TimelineComparison, Writer
from sluice.declaration.places import (
    RollBack,
    RowChecks,
    SinkDefaults,
    Staged,
    TableSize,
    TableVersion,
    Unpublished,
    Vacuumed,
)
from sluice.errors import ProtocolViolation, SluiceError
from sluice.store.object_store import Listed, ObjectStore, in_parallel
from sluice.store.open import is_below, verify_store

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

# Files are counted this often before the limit is reached, as a count costs two listings: with a
# limit of 1,000 every 16 checkpoints.
CHECKS_PER_COMPACTION = 62


@dataclass(frozen=True, slots=True)
class ManifestTable(SinkDefaults):
    """The table at *store*'s root, written by the sink *sink*.  See ``Sink`` for the two phases.

    *at* is where the sink is in its job's root, see ``Writer.sink``; empty for a table that lies
    there itself.  With *checks* it refuses what another place would, in whose place a test has it.
    """

    sink: str
    store: ObjectStore
    upsert_key: tuple[str, ...] = ()
    format: str = PARQUET
    partition_by: tuple[str, ...] = ()
    compact_when_files: int = 0
    latest: bool = False
    at: str = ""
    checks: RowChecks | None = None
    view: DeltaView | None = None

    def stage(self, table: pa.Table, by: Attempt) -> Committable | None:
        if self.checks is not None:
            self.checks.check_rows(table)
        return self._staged.stage(table, by)

    def check(
        self, parent: int | None, schema: pa.Schema | None, committables: Sequence[Committable]
    ) -> None:
        if self.checks is not None and schema is not None:
            self.checks.check_columns(schema)
        TableSchemas(self._staged, self.at, self.view).check(parent, schema, committables)

    def commit(
        self,
        writer: Writer,
        checkpoint_id: int,
        parent: int | None,
        committables: Sequence[Committable],
    ) -> None:
        """Raises ProtocolViolation when the checkpoint was committed with other files."""
        assert parent is None or parent < checkpoint_id
        assert all(committable.sink == self.sink for committable in committables)
        writer = replace(writer, sink=self.at)
        timeline = timeline_of(self._log, since=parent)
        # Commits ahead of the parent are replaced by this one.
        timeline.line.publishing(replace(writer, recovered_by=0), checkpoint_id, parent)
        staged = in_parallel(self._staged.files_of, committables, READ_THREADS)
        manifest = Manifest(
            version=MANIFEST_FORMAT_VERSION,
            checkpoint_id=checkpoint_id,
            parent=parent,
            files=tuple(sorted((file for files in staged for file in files), key=deletes_first)),
            upsert_key=self.upsert_key or None,
            life=writer.life,
            sink=writer.sink,
            generation=writer.generation,
        )
        self._log.add(manifest)
        if timeline.line.continues == checkpoint_id:
            timeline.show(writer, checkpoint_id)
        self._compact_if_due(checkpoint_id)
        self._show()

    def damage_of(self, committables: Iterable[Committable]) -> list[str]:
        return self._staged.damage_of(committables)

    def is_published(self, checkpoint_id: int) -> bool:
        return checkpoint_id in self._log.lineage(checkpoint_id - 1)

    @property
    def rolls_back(self) -> RollBack:
        return RollBack.BY_NEXT_COMMIT

    def compare(self, life: str, version: int | None) -> TimelineComparison:
        return timeline_of(self._log).compare(life, version, self.at)

    def is_empty(self) -> bool:
        return not self._log.chain().files

    def recover(self, writer: Writer, recovery: Recovery) -> None:
        TableSchemas(self._staged).forget()
        timeline_of(self._log).recover(replace(writer, sink=self.at), recovery)
        self._show(fences=True)

    def describe(self, version: int) -> str:
        return manifest_key(version)

    def probe(self, own: ObjectStore) -> None:
        """See ``ProbedSink``."""
        if not is_below(self.store, own):
            verify_store(self.store, f"_probes/{uuid.uuid4().hex}")

    def abort(self, checkpoint_id: int, checkpoint_token: str) -> None:
        staged = self._staged.of_checkpoint(checkpoint_id, checkpoint_token)
        if not staged:
            return
        manifest = self._log.manifest(checkpoint_id)
        named = {file.file for file in manifest.files} if manifest is not None else set()
        kept = {unit_of(file) for file in named | self._recorded()}
        self._staged.discard(unit for unit in staged if unit not in kept)

    def unpublished(self) -> Unpublished:
        """See ``Sink``.  A manifest is read only if its size, and the names of its checkpoint's
        files, leave open whether it names them all: an attempt was repeated, or one is left out.
        """
        merged = [*self.store.list(COMPACTED)]
        listed = self._staged.listed()
        by_checkpoint: dict[int, list[Listed]] = {}
        for file in listed:
            if (of := staged_by(file.key)) is not None:
                by_checkpoint.setdefault(of, []).append(file)
        named, unclear = set[str](), list[int]()
        sizes = self._log.sizes()
        for version, size_bytes in sizes.items():
            files = by_checkpoint.get(version, [])
            if has_one_writer(files) and size_bytes >= self._least_size(version, files):
                named |= {file.key for file in files}
            else:
                unclear.append(version)
        for version, manifest in self._log.manifests(unclear).items():
            if manifest is None:
                place = f"{self.store.root}/{manifest_key(version)}"
                raise ProtocolViolation(f"{place} was listed and is gone; nothing may delete it")
            named |= {file.file for file in manifest.files}
        found = self._staged.unpublished(listed, named)
        recorded = self._recorded() if merged or found.staged else frozenset[str]()
        found = self._staged.unpublished(listed, named | recorded) if recorded else found
        unrecorded = tuple(
            Staged(
                file=file.key,
                checkpoint_id=of,
                checkpoint_token="",
                size_bytes=file.size_bytes,
                modified_ms=file.modified_ms,
            )
            for file in merged
            if file.key not in recorded and (of := version_of_compacted(file.key)) is not None
        )
        newest_ms = max((file.modified_ms for file in merged), default=0)
        return Unpublished(
            root=found.root,
            is_shared=found.is_shared,
            staged=(*found.staged, *unrecorded),
            newest_ms=max(found.newest_ms, newest_ms),
            versions=len(sizes) if self.compact_when_files else 0,
        )

    def _least_size(self, version: int, files: Iterable[Listed]) -> int:
        """The least size of a manifest that names all of *files*: one that leaves one out is
        shorter, unless it is of a hundred files.  Then the file counts as named, and stays.
        """
        named = (RowFile(file=f.key, rows=0, size_bytes=f.size_bytes) for f in files)
        manifest = Manifest(
            version=MANIFEST_FORMAT_VERSION,
            checkpoint_id=version,
            parent=None if version == 1 else 1,
            files=tuple(file for file in named if not file.file.endswith(PARTS)),
            upsert_key=self.upsert_key or None,
            life="",
            sink=self.at,
            generation=0,
        )
        return len(msgspec.json.encode(manifest))

    def discard(self, files: Iterable[str]) -> None:
        """Delete *files*, except for merged files that were recorded since they were listed."""
        recorded = {unit_of(file) for file in self._recorded()}
        self._staged.discard(
            file for file in files if file not in recorded and unit_of(file) not in recorded
        )

    def versions(self) -> tuple[int, ...]:
        """Every checkpoint that committed, oldest first, rolled back ones included."""
        return self._log.versions()

    def chain(self, version: int | None = None) -> tuple[Manifest, ...]:
        """The manifests of the table as of *version*, by default the newest one.

        Where files were merged, the first one stands for all before it.

        Raises:
            ConfigurationError: there is no such version.
            ProtocolViolation: a manifest is missing or unreadable.
        """
        chain = self._log.chain(version)
        if chain.base is None:
            return chain.manifests
        merged = Manifest(
            version=MANIFEST_FORMAT_VERSION,
            checkpoint_id=chain.base.checkpoint_id,
            parent=None,
            files=chain.base.files,
            upsert_key=chain.base.upsert_key,
            life="",
            sink="",
            generation=0,
        )
        return (merged, *chain.manifests)

    def read(self, version: int | None = None) -> pa.Table:
        """The committed rows, in the order of checkpoints and files; merged ones by partition.

        A table without files has no columns.

        Raises:
            ConfigurationError: there is no such version, or a column has two types without a common
                one.
            ProtocolViolation: a manifest or a file is missing or not what was committed.
        """
        broken: frozenset[int] = frozenset()
        while True:
            chain = self._log.chain(version, without=broken)
            try:
                return read_chain(self._staged, chain.files, chain.upsert_key)
            except ProtocolViolation:
                if chain.base is None:
                    raise
                log.warning(
                    "merged files cannot be read, those they replace are root=%s version=%d",
                    self.store.root, chain.base.checkpoint_id,
                )  # fmt: skip
                broken |= {chain.base.checkpoint_id}

    def row_count(self) -> int:
        """The number of rows in the files of the chain; every version of an upserted row counts."""
        return sum(file.rows for file in self._log.chain().files)

    def added_by(self, version: int) -> pa.Table:
        """The rows that the checkpoint *version* added, and its deletes, with ``_deleted``."""
        return read_chain(self._staged, self.chain(version)[-1].files, None)

    def lineage(self) -> tuple[int, ...]:
        """See ``TableLog.lineage``."""
        return self._log.lineage()

    def size(self) -> TableSize:
        """See ``VersionedSink``."""
        chain = self._log.chain()
        return TableSize(
            root=self.store.root,
            version=chain.version,
            files=len(chain.files),
            rows=sum(one.rows for one in chain.files),
            size_bytes=sum(one.size_bytes for one in chain.files),
        )

    def described_versions(self) -> list[TableVersion]:
        """See ``VersionedSink``."""
        in_table, compacted = set(self._log.lineage()), set(self._log.compacted())
        manifests = self._log.manifests(self._log.versions())
        return [
            TableVersion(
                version=version,
                parent=manifest.parent,
                in_table=version in in_table,
                compacted=version in compacted,
                files=len(manifest.files),
                rows=sum(one.rows for one in manifest.files),
                size_bytes=sum(one.size_bytes for one in manifest.files),
            )
            for version, manifest in manifests.items()
            if manifest is not None
        ]

    def compact(
        self, version: int | None = None, *, target_bytes: int = TARGET_BYTES
    ) -> MergeRecord | None:
        """Merge the files of *version*, by default the newest; see ``Compactor``."""
        record = Compactor(self._staged, target_bytes).compact(version)
        self._show()
        return record

    def vacuum(self, before_version: int, *, grace_ms: int = GRACE_MS) -> Vacuumed:
        """Delete what only versions before that one need; see ``vacuum_versions``."""
        freed = vacuum_versions(
            self._staged,
            before_version,
            compactor=Compactor(self._staged),
            show=lambda: self._show(grace_ms),
            grace_ms=grace_ms,
        )
        self._show(grace_ms)
        return freed

    def expire(
        self, num_retained: int, pinned: Sequence[int], *, grace_ms: int = GRACE_MS
    ) -> Vacuumed:
        """See ``VersionedSink``.  A table that is merged only on request is vacuumed on request.

        What a commit has merged is not merged again for this, unless twice as many versions stay.
        """
        if not self.compact_when_files:
            return Vacuumed()
        versions = self.versions()
        newest = self._log.newest()
        if len(versions) <= num_retained or newest is None:
            return Vacuumed()
        if timeline_of(self._log).line.sink != self.at:  # Who took it over has snapshots, too.
            return Vacuumed()
        before = min(versions[-num_retained], newest, *pinned)
        merged = max((one for one in self._log.compacted() if one <= before), default=0)
        if merged > versions[0]:
            return self.vacuum(merged, grace_ms=grace_ms)
        is_due = len(versions) >= 2 * num_retained and before > versions[0]
        return self.vacuum(before, grace_ms=grace_ms) if is_due else Vacuumed()

    @property
    def _staged(self) -> StagedFiles:
        return StagedFiles(
            self.sink,
            self.store,
            self.upsert_key,
            self.format,
            self.partition_by,
            is_shared=self.at != "",
        )

    @property
    def _log(self) -> TableLog:
        return TableLog(self.store)

    def _recorded(self) -> frozenset[str]:
        return frozenset(file.file for record in self._log.compactions() for file in record.files)

    def _show(self, grace_ms: int = GRACE_MS, *, fences: bool = False) -> None:
        if self.latest:
            refresh_latest(self.store)
        if self.view is not None:
            self.view.show(grace_ms=grace_ms, fences=fences)

    def _compact_if_due(self, checkpoint_id: int) -> None:
        limit = self.compact_when_files
        if not limit or checkpoint_id % max(1, limit // CHECKS_PER_COMPACTION):
            return
        try:
            last = max(self._log.compacted(), default=0)
            start_after = behind_data_of(last) if last else ""
            listed = self.store.list(DATA, start_after=start_after)
            if sum(1 for _, _ in zip(range(limit), listed, strict=False)) == limit:
                Compactor(self._staged).compact()
        except (SluiceError, OSError, MemoryError, ValueError) as error:
            log.warning("table not compacted root=%s cause=%s", self.store.root, error)
