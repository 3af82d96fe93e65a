"""The log of a table: the files that each checkpoint added, its parent, and merged files.

    _manifests/{checkpoint}.json      create-only; names the files it adds
    _manifests/{through}_{generation}_{version}.json
                                      a fence: up to through, readers see what version shows
    _compacted/{version}.json         create-only; other files that show the same rows

A manifest names the checkpoint it continues, so the table is a chain, and a chain never changes.
Fences sort behind all versions that they undo, and those of later generations behind earlier ones.
So a record of merged files is valid for ever: readers use it as a shortcut for the chain before it,
until ``vacuum`` deletes that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from sluice.connectors.staging.file_names import (
    MANIFESTS,
    RECORDS,
    Name,
    manifest_key,
    name_of,
    of_record,
    record_key,
)
from sluice.connectors.staging.staged_files import RowFile
from sluice.errors import ConfigurationError, ProtocolViolation, TableMismatch
from sluice.storage.object_store import AlreadyExists, ObjectStore
from sluice.storage.parallel import in_parallel

FORMAT_VERSION = 2
READ_THREADS = 16  # Parallel reads: many small requests, of which most is latency.


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The files that a checkpoint added, the version it continues, and its publisher's life."""

    version: int
    checkpoint_id: int
    parent: int | None
    files: tuple[RowFile, ...]
    upsert_key: tuple[str, ...] | None
    life: str
    generation: int

    def is_same_checkpoint(self, other: Manifest) -> bool:
        """Whether both add the same files to the same version.

        Manifests without files are of the same checkpoint only within one life.
        """
        mine = (self.checkpoint_id, self.parent, self.files, self.upsert_key)
        theirs = (other.checkpoint_id, other.parent, other.files, other.upsert_key)
        return mine == theirs and (bool(self.files) or self.life == other.life)


class Fence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fence of a restore: readers see the version ``shown``, or nothing if it is None.

    Of the ids up to ``checkpoint_id`` only ``continues`` may still be published.
    """

    version: int
    checkpoint_id: int
    shown: int | None
    continues: int | None
    life: str
    generation: int


class Compaction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Merged files, with the same rows as the chain up to ``checkpoint_id``."""

    version: int
    checkpoint_id: int
    files: tuple[RowFile, ...]
    upsert_key: tuple[str, ...] | None


class _Format(msgspec.Struct, frozen=True):
    version: int


_FORMAT = msgspec.json.Decoder(_Format)  # Built once, and shared by many threads.
_MANIFEST = msgspec.json.Decoder(Manifest)
_FENCE = msgspec.json.Decoder(Fence)
_COMPACTION = msgspec.json.Decoder(Compaction)
_Entry = TypeVar("_Entry", Manifest, Fence, Compaction)


@dataclass(frozen=True, slots=True)
class Chain:
    """The table as of its last manifest.  With ``base`` it begins with merged files."""

    base: Compaction | None
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

    def compacted(self) -> tuple[int, ...]:
        """The versions that have merged files, oldest first."""
        found = (of_record(listed.key) for listed in self.store.list(RECORDS))
        return tuple(version for version in found if version is not None)

    def newest(self, known: int = 0) -> int | None:
        """The version from which readers follow the chain.

        Only names behind the existing version *known* are listed.
        """
        newest: int | None = known or None
        for name in self.names(behind=known):
            newest = name.shown
        return newest

    def chain(
        self,
        version: int | None = None,
        *,
        without: frozenset[int] = frozenset(),
        known: int = 0,
    ) -> Chain:
        """The table as of *version*, by default the newest; ignores merged files of *without*.

        It ends behind *known*, if that is a part of the chain.

        Raises:
            ConfigurationError: there is no such version.
            ProtocolViolation: a manifest is missing or unreadable.
        """
        records = tuple(one for one in self.compacted() if one not in without)
        if version is not None and self.manifest(version) is None:
            raise ConfigurationError(
                f"the table at {self.store.root} has no version {version}; it has "
                f"{', '.join(map(str, self.versions())) or 'none'}"
            )
        current = version or self.newest(max((*records, known), default=0))
        newest, found = current, list[Manifest]()
        while current is not None and current != known:
            stop = max((one for one in (*records, known) if one <= current), default=0)
            if stop == current:
                base = self.compaction(current)
                if base is not None:
                    return Chain(base, tuple(reversed(found)))
                records = tuple(one for one in records if one != current)
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
                merged = [one for one in self.compacted() if one in found]
                if not merged:
                    raise self._gap(current, newest)
                found = [one for one in found if one >= merged[0]]
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
        if existing.life != manifest.life:
            raise TableMismatch(
                f"{what} was committed by life {existing.life!r} of a job, not by "
                f"{manifest.life!r}: give each job a table of its own"
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

    def fence(self, name: Name) -> Fence:
        """Raises ProtocolViolation when it is gone."""
        fence = self._read(name.key, name.checkpoint_id, _FENCE)
        if fence is None:
            raise ProtocolViolation(f"{self.store.root}/{name.key} was listed and is gone")
        return fence

    def compaction(self, version: int) -> Compaction | None:
        return self._read(record_key(version), version, _COMPACTION)

    def compactions(self) -> tuple[Compaction, ...]:
        found = (self.compaction(version) for version in self.compacted())
        return tuple(one for one in found if one is not None)

    def names(self, *, since: int = 0, behind: int = 0) -> Iterator[Name]:
        """The names of the log in order, from the manifest of *since* on, or after *behind*."""
        start = manifest_key(behind) if behind else ""
        start = manifest_key(since).removesuffix(".json") if since else start
        for listed in self.store.list(MANIFESTS, start_after=start):
            name = name_of(listed.key)
            if name is not None:
                yield name

    def _between(self, after: int, through: int) -> dict[int, Manifest | None]:
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
            if found != FORMAT_VERSION:
                raise ProtocolViolation(
                    f"{place} is of format {found}; this sluice reads format {FORMAT_VERSION}: "
                    "read it with the version that wrote it, and begin the table anew elsewhere"
                )
            entry = decoder.decode(body)
        except msgspec.DecodeError as error:
            raise ProtocolViolation(f"{place} is no manifest: {error}") from error
        if entry.checkpoint_id != checkpoint_id:
            raise ProtocolViolation(f"{place} is of checkpoint {entry.checkpoint_id}")
        return entry
