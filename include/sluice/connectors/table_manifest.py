"""The log of a table: what each checkpoint added, which one it continues, what was merged.

    _manifests/{checkpoint}.json             create-only; names the files it adds
    _manifests/{checkpoint}_{version}.json   a restore: up to here, it is as of version
    _compacted/{version}.json                create-only; other files that show the same rows

A manifest names the checkpoint it continues, so the table is a chain, and a chain never changes.
So a record of merged files holds for ever: who follows the chain may stop at it.  It is a
shortcut, never the truth, until ``vacuum`` deletes what lies behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from sluice.connectors.staged_files import RowFile
from sluice.errors import ConfigurationError, ProtocolViolation
from sluice.storage.object_store import ObjectStore

FORMAT_VERSION = 1
READ_THREADS = 16  # Reading is many small requests; a reader waits for most of each.
MANIFESTS = "_manifests/"
RECORDS = "_compacted/"
MANIFEST = re.compile(r"_manifests/([0-9]{20})(?:_([0-9]{10,}))?\.json")
RECORD = re.compile(r"_compacted/([0-9]{20})\.json")


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one checkpoint added, and which one it continues."""

    version: int
    checkpoint_id: int
    parent: int | None
    files: tuple[RowFile, ...]
    upsert_key: tuple[str, ...] | None


class Compaction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Files that show what the chain up to ``checkpoint_id`` shows."""

    version: int
    checkpoint_id: int
    files: tuple[RowFile, ...]
    upsert_key: tuple[str, ...] | None


_MANIFEST = msgspec.json.Decoder(Manifest)  # Built once: many threads decode with them.
_COMPACTION = msgspec.json.Decoder(Compaction)
_Entry = TypeVar("_Entry", Manifest, Compaction)


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
        """In the order in which they count."""
        merged = () if self.base is None else self.base.files
        return (*merged, *(file for manifest in self.manifests for file in manifest.files))


@dataclass(frozen=True, slots=True)
class TableLog:
    """The manifests and records at *store*'s root."""

    store: ObjectStore

    def versions(self) -> tuple[int, ...]:
        """Every checkpoint that committed, oldest first, rolled back ones included."""
        return tuple(int(name[1]) for name in self._names() if name[2] is None)

    def compacted(self) -> tuple[int, ...]:
        """The versions that have merged files, oldest first."""
        names = (RECORD.fullmatch(listed.key) for listed in self.store.list(RECORDS))
        return tuple(int(name[1]) for name in names if name is not None)

    def newest(self, known: int = 0) -> int | None:
        """The version from which readers follow the chain.  *known* is one that exists: only what
        sorts behind it is listed.
        """
        newest: int | None = known or None
        for name in self._names(known):
            newest = int(name[1]) if name[2] is None else int(name[2]) or None
        return newest

    def chain(
        self,
        version: int | None = None,
        *,
        without: frozenset[int] = frozenset(),
        known: int = 0,
    ) -> Chain:
        """The table as of *version*, by default the newest one; *without* the merged files of some.
        Ends at *known* without it, if that is a part of it.

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
        """The versions that the newest one continues and itself, oldest first, later than *after*;
        those that were vacuumed are left out.
        """
        newest = current = self.newest()
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

    def manifest(self, checkpoint_id: int) -> Manifest | None:
        return self._read(manifest_key(checkpoint_id), checkpoint_id, _MANIFEST)

    def manifests(self, versions: Iterable[int]) -> dict[int, Manifest | None]:
        wanted = [*versions]
        with ThreadPoolExecutor(READ_THREADS) as pool:
            return dict(zip(wanted, pool.map(self.manifest, wanted), strict=True))

    def compaction(self, version: int) -> Compaction | None:
        return self._read(record_key(version), version, _COMPACTION)

    def compactions(self) -> tuple[Compaction, ...]:
        found = (self.compaction(version) for version in self.compacted())
        return tuple(one for one in found if one is not None)

    def _names(self, after: int = 0) -> Iterator[re.Match[str]]:
        start = manifest_key(after) if after else ""
        for listed in self.store.list(MANIFESTS, start_after=start):
            name = MANIFEST.fullmatch(listed.key)
            if name is not None:
                yield name

    def _between(self, after: int, through: int) -> dict[int, Manifest | None]:
        wanted: list[int] = []
        for name in self._names(after):
            if int(name[1]) > through:
                break
            if name[2] is None and int(name[1]) > after:
                wanted.append(int(name[1]))
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
        try:
            entry = decoder.decode(body)
        except msgspec.DecodeError as error:
            raise ProtocolViolation(f"{self.store.root}/{key} is no manifest: {error}") from error
        if entry.version != FORMAT_VERSION or entry.checkpoint_id != checkpoint_id:
            raise ProtocolViolation(
                f"{self.store.root}/{key} is of format {entry.version} and checkpoint "
                f"{entry.checkpoint_id}; this sluice reads format {FORMAT_VERSION}"
            )
        return entry


def manifest_key(checkpoint_id: int) -> str:
    """Zero-padded, so that listing order is checkpoint order."""
    return f"{MANIFESTS}{checkpoint_id:020d}.json"


def restore_key(through: int, version: int | None) -> str:
    """Sorts behind the manifest of *through* itself; version 0 is the empty table."""
    return f"{MANIFESTS}{through:020d}_{version or 0:010d}.json"


def record_key(version: int) -> str:
    return f"{RECORDS}{version:020d}.json"
