"""The log of a table: the files that each checkpoint added, its parent, and merged files.

    _manifests/{checkpoint}.json      create-only; names the files it adds
    _manifests/{through}_{generation}_{version}.json
                                      a fence: up to through, readers see what version shows
    _compacted/{version}.json         create-only; other files that show the same rows

A manifest names the checkpoint it continues, so the table is a chain, and a chain never changes.
Fences sort behind all versions that they undo, and those of later generations behind earlier ones.
So a record of merged files is valid for ever: readers use it as a shortcut for the chain before it,
until ``vacuum`` deletes that.

The time line of a table is read from the names of its manifests and fences.  To the rules of
``core/timeline.py`` a version counts as shown as long as its manifest is there: the table goes back
and forward by what the next manifest or fence continues.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import msgspec

from sluice.connectors.staged_files import (
    MANIFESTS,
    RECORDS,
    LogEntryName,
    RowFile,
    fence_key,
    manifest_key,
    parsed_log_key,
    record_key,
    version_of_record,
)
from sluice.core.timeline import (
    Recovery,
    Timeline,
    TimelineComparison,
    Writer,
    spans_of,
    writer_named,
)
from sluice.errors import ConfigurationError, ProtocolViolation, TableMismatch
from sluice.store.object_store import AlreadyExists, ObjectStore, in_parallel

MANIFEST_FORMAT_VERSION = 4
READ_THREADS = 16  # Parallel reads: many small requests, of which most is latency.


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The files that a checkpoint added, the version it continues, and who published it.

    ``sink`` is as in ``timeline.Writer``.
    """

    version: int
    checkpoint_id: int
    parent: int | None
    files: tuple[RowFile, ...]
    upsert_key: tuple[str, ...] | None
    life: str
    sink: str
    generation: int

    def is_same_checkpoint(self, other: Manifest) -> bool:
        """Whether both add the same files to the same version.

        Manifests without files are of the same checkpoint only if they are of the same writer.
        """
        added = (self.checkpoint_id, self.parent, self.files, self.upsert_key)
        added_by_other = (other.checkpoint_id, other.parent, other.files, other.upsert_key)
        is_of_one = (self.life, self.sink) == (other.life, other.sink)
        return added == added_by_other and (bool(self.files) or is_of_one)


class Fence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fence of a restore: readers see the version ``shown``, or nothing if it is None.

    Of the ids up to ``checkpoint_id`` only ``continues`` may still be published.
    """

    version: int
    checkpoint_id: int
    shown: int | None
    continues: int | None
    life: str
    sink: str
    generation: int


class MergeRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A record of merged files, which have the rows of the chain up to ``checkpoint_id``."""

    version: int
    checkpoint_id: int
    files: tuple[RowFile, ...]
    upsert_key: tuple[str, ...] | None


class _Format(msgspec.Struct, frozen=True):
    version: int


# Built once, and shared by many threads.
_FORMAT = msgspec.json.Decoder(_Format)
_MANIFEST = msgspec.json.Decoder(Manifest)
_FENCE = msgspec.json.Decoder(Fence)
_MERGED_FILES = msgspec.json.Decoder(MergeRecord)
_Entry = TypeVar("_Entry", Manifest, Fence, MergeRecord)


@dataclass(frozen=True, slots=True)
class Chain:
    """The table as of its last manifest.  With ``base`` it begins with merged files."""

    base: MergeRecord | None
    manifests: tuple[Manifest, ...]

    @property
    def version(self) -> int | None:
        if self.manifests:
            return self.manifests[-1].checkpoint_id
        return None if self.base is None else self.base.checkpoint_id

    @property
    def upsert_key(self) -> tuple[str, ...] | None:
        newest = self.manifests[-1] if self.manifests else self.base
        return None if newest is None else newest.upsert_key

    @property
    def files(self) -> tuple[RowFile, ...]:
        """The files, in the order in which they apply."""
        merged = () if self.base is None else self.base.files
        return (*merged, *(file for manifest in self.manifests for file in manifest.files))


@dataclass(frozen=True, slots=True)
class TableLog:
    """The manifests and records at *store*'s root."""

    store: ObjectStore

    def versions(self) -> tuple[int, ...]:
        """Every checkpoint that committed, oldest first, rolled back ones included."""
        return tuple(name.checkpoint_id for name in self.names() if not name.is_fence)

    def sizes(self) -> dict[int, int]:
        """The sizes of the manifests, by version, in bytes."""
        found = ((parsed_log_key(one.key), one.size_bytes) for one in self.store.list(MANIFESTS))
        return {name.checkpoint_id: size for name, size in found if name and not name.is_fence}

    def compacted(self) -> tuple[int, ...]:
        """The versions that have merged files, oldest first."""
        found = (version_of_record(listed.key) for listed in self.store.list(RECORDS))
        return tuple(version for version in found if version is not None)

    def newest(self, known: int = 0) -> int | None:
        """The version from which readers follow the chain.

        Only names behind the existing version *known* are listed.  Fences alone show nothing: a
        recovery slept while the table was deleted, and wrote them into what was empty.
        """
        newest, is_there = known or None, bool(known)
        for name in self.names(behind=known):
            newest = name.shown
            is_there = is_there or not name.is_fence
        return newest if is_there else None

    def chain(
        self,
        version: int | None = None,
        *,
        without: frozenset[int] = frozenset(),
        known: int = 0,
    ) -> Chain:
        """The table as of *version*, by default the newest.

        Merged files of the versions *without* are ignored.  Only what follows the version *known*
        is read, if that is a part of the chain.

        Raises:
            ConfigurationError: there is no such version.
            ProtocolViolation: a manifest is missing or unreadable.
        """
        records = [record for record in self.compacted() if record not in without]
        if version is not None and self.manifest(version) is None:
            raise ConfigurationError(
                f"the table at {self.store.root} has no version {version}; it has "
                f"{', '.join(map(str, self.versions())) or 'none'}"
            )
        current = version or self.newest(max((*records, known), default=0))
        newest, found = current, list[Manifest]()
        while current is not None and current != known:
            stop = max((stop for stop in (*records, known) if stop <= current), default=0)
            if stop == current:
                base = self.compaction(current)
                if base is not None:
                    return Chain(base, tuple(reversed(found)))
                records.remove(current)
                continue
            manifests = self._between(stop, current)
            while current is not None and current > stop:
                manifest = manifests.get(current)
                if manifest is None:
                    raise self._gap(current, newest)
                found.append(manifest)
                current = manifest.parent
        return Chain(None, tuple(reversed(found)))

    def lineage(self, after: int = 0) -> tuple[int, ...]:
        """The newest version and those that it continues, oldest first, later than *after*.

        Versions that were vacuumed are left out.
        """
        newest = current = self.newest(after)
        if current is None or current <= after:
            return ()
        manifests = self._between(after, current)
        found: list[int] = []
        while current is not None and current > after:
            manifest = manifests.get(current)
            if manifest is None:
                merged = [version for version in self.compacted() if version in found]
                if not merged:
                    raise self._gap(current, newest)
                found = [version for version in found if version >= merged[0]]
                break
            found.append(current)
            current = manifest.parent
        return tuple(reversed(found))

    def add(self, manifest: Manifest) -> None:
        """Create a manifest.  Idempotent: an earlier call may have lost its answer.

        Raises:
            TableMismatch: another life of a job took the id.
            ProtocolViolation: the checkpoint was committed with other files.
        """
        key = manifest_key(manifest.checkpoint_id)
        answer = self.store.create(key, msgspec.json.encode(manifest))
        existing = (
            self.manifest(manifest.checkpoint_id) if isinstance(answer, AlreadyExists) else None
        )
        if existing is None or existing.is_same_checkpoint(manifest):
            return
        what = f"checkpoint {manifest.checkpoint_id} of the table at {self.store.root}"
        if (existing.life, existing.sink) != (manifest.life, manifest.sink):
            raise TableMismatch(
                f"{what} was committed by {writer_named(existing.life, existing.sink)}, not by "
                f"{writer_named(manifest.life, manifest.sink)}: give each sink a table of its own"
            )
        raise ProtocolViolation(
            f"{what} was committed with other files; two copies of one job share it: give each a "
            "location of its own"
        )

    def manifest(self, checkpoint_id: int) -> Manifest | None:
        return self._read(manifest_key(checkpoint_id), checkpoint_id, _MANIFEST)

    def manifests(self, versions: Iterable[int]) -> dict[int, Manifest | None]:
        wanted = [*versions]
        return dict(zip(wanted, in_parallel(self.manifest, wanted, READ_THREADS), strict=True))

    def fence(self, name: LogEntryName) -> Fence:
        """Raises ProtocolViolation when it is gone."""
        fence = self._read(name.key, name.checkpoint_id, _FENCE)
        if fence is None:
            raise ProtocolViolation(f"{self.store.root}/{name.key} was listed and is gone")
        return fence

    def compaction(self, version: int) -> MergeRecord | None:
        return self._read(record_key(version), version, _MERGED_FILES)

    def compactions(self) -> tuple[MergeRecord, ...]:
        found = (self.compaction(version) for version in self.compacted())
        return tuple(record for record in found if record is not None)

    def names(self, *, since: int = 0, behind: int = 0) -> Iterator[LogEntryName]:
        """The names of the log in order, from the manifest of *since* on, or after *behind*."""
        start = manifest_key(behind) if behind else ""
        start = manifest_key(since).removesuffix(".json") if since else start
        for listed in self.store.list(MANIFESTS, start_after=start):
            name = parsed_log_key(listed.key)
            if name is not None:
                yield name

    def _between(self, after: int, through: int) -> dict[int, Manifest | None]:
        """The manifests of versions later than *after*, up to *through*, of every branch."""
        wanted: list[int] = []
        for name in self.names(behind=after):
            if name.checkpoint_id > through:
                break
            if not name.is_fence and name.checkpoint_id > after:
                wanted.append(name.checkpoint_id)
        return self.manifests(wanted)

    def _gap(self, missing: int, newest: int | None) -> ProtocolViolation:
        return ProtocolViolation(
            f"{self.store.root}/{manifest_key(missing)} is missing, and version {newest} "
            "continues it"
        )

    def _read(
        self, key: str, checkpoint_id: int, decoder: msgspec.json.Decoder[_Entry]
    ) -> _Entry | None:
        body = self.store.get(key)
        if body is None:
            return None
        place = f"{self.store.root}/{key}"
        try:
            found = _FORMAT.decode(body).version
            if found != MANIFEST_FORMAT_VERSION:
                raise ProtocolViolation(
                    f"{place} is of format {found}; "
                    f"this sluice reads format {MANIFEST_FORMAT_VERSION}: "
                    "read it with the version that wrote it, and begin the table anew elsewhere"
                )
            entry = decoder.decode(body)
        except msgspec.DecodeError as error:
            raise ProtocolViolation(f"{place} is no manifest: {error}") from error
        if entry.checkpoint_id != checkpoint_id:
            raise ProtocolViolation(f"{place} is of checkpoint {entry.checkpoint_id}")
        return entry


@dataclass(frozen=True, slots=True)
class TableTimeline:
    """A table's time line; ``last`` is its newest name, and readers see the version ``shown``."""

    log: TableLog
    line: Timeline
    last: LogEntryName | None
    shown: int | None

    def compare(self, life: str, version: int | None, sink: str) -> TimelineComparison:
        newest = 0 if self.last is None else self.last.checkpoint_id
        ahead = self.log.lineage(version or 0)
        found = replace(self.line.compare(life, version, sink), ahead=ahead, newest=newest)
        if not found.other_life or version is None:
            return found
        manifest = self.log.manifest(version)
        is_own = manifest is not None and manifest.sink == sink
        return replace(found, past_lives=(manifest.life,) if manifest and is_own else ())

    def recover(self, writer: Writer, recovery: Recovery) -> None:
        """Write the fence behind which late commits are not seen.  See ``Sink``.

        Without ``roll_back`` readers lose no rows, except for those of the commit that is owed,
        which follows at once.
        """
        # Manifests stay, so to the rules of ``Timeline`` nothing is ever rolled back.
        after = self.line.recovered(writer, replace(recovery, roll_back=False))
        if after is None:
            return
        shown = recovery.version
        goes_back = recovery.roll_back or recovery.continues is not None
        if not goes_back and self.log.lineage(recovery.version or 0):
            shown = self.shown
        key = fence_key(after.through, writer.generation, shown)
        if self.last is not None and key < self.last.key:
            raise TableMismatch(
                f"the table at {self.log.store.root} was fenced by another life of a job "
                f"({self.last.key}) after this one looked at it; restore the job again"
            )
        self._fence(writer, after.through, shown, recovery.continues)

    def show(self, writer: Writer, checkpoint_id: int) -> None:
        """Make the checkpoint whose commit was owed visible, by a fence behind the others."""
        self._fence(writer, self.line.through, checkpoint_id, None)

    def _fence(
        self, writer: Writer, through: int, shown: int | None, continues: int | None
    ) -> None:
        fence = Fence(
            version=MANIFEST_FORMAT_VERSION,
            checkpoint_id=through,
            shown=shown,
            continues=continues,
            life=writer.life,
            sink=writer.sink,
            generation=writer.generation,
        )
        key = fence_key(through, writer.generation, shown)
        body = msgspec.json.encode(fence)
        answer = self.log.store.create(key, body)
        if isinstance(answer, AlreadyExists) and answer.body != body:
            raise TableMismatch(
                f"the table at {self.log.store.root} was fenced by another job ({key}) after this "
                "one looked at it; restore the job again"
            )


def timeline_of(log: TableLog, *, since: int | None = None) -> TableTimeline:
    """The time line of the table, or of what follows its version *since*: one LIST.

    Two GETs at most read the newest fence and its newest publisher.  Nothing is read if nothing
    follows *since*: then the life is that of this version's publisher.
    """
    names = [*log.names(since=since or 0)]
    if not names:
        return TableTimeline(log, Timeline(), None, None)
    if since is not None and [name.key for name in names] == [manifest_key(since)]:
        return TableTimeline(log, Timeline(published=((since, since),)), names[0], since)
    last = names[-1]
    published = spans_of(name.checkpoint_id for name in names if not name.is_fence)
    fences = [name for name in names if name.is_fence]
    fence = log.fence(fences[-1]) if fences else None
    owner = fence if last.is_fence else log.manifest(last.checkpoint_id)
    if owner is None:
        raise ProtocolViolation(f"{log.store.root}/{last.key} was listed and is gone")
    line = Timeline(
        life=owner.life, sink=owner.sink, generation=owner.generation, published=published
    )
    if fence is not None:
        is_of_owner = (fence.life, fence.sink) == (owner.life, owner.sink)
        fenced_by = fence.generation if is_of_owner else 0
        line = replace(
            line,
            generation=max(line.generation, fenced_by),
            fenced_by=fenced_by,
            through=fence.checkpoint_id,
            continues=fence.continues,
        )
    return TableTimeline(log, line, last, last.shown)
