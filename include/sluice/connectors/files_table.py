"""A table of Parquet files: what a commit manifest names is in it, and nothing else.

    data/{checkpoint}-{subtask}-{attempt}.parquet    staged; nobody sees it
    _manifests/{checkpoint}.json                     create-only; names the files it adds
    _manifests/{checkpoint}_{version}.json           a restore: up to here, it is as of version

A manifest names the checkpoint it continues, so the table is a chain.  A reader follows it from the
newest manifest; after a restore to an older checkpoint the next commit continues that one, and
what was committed in between is no longer in the chain: the table rolls back with the job.  A
restore's own manifest sorts behind all that it left behind, so no late commit is seen.

With an upsert key the newest row per key wins.  The stage's output holds each key at most once per
checkpoint; a file that does not is refused when it is staged.  A file of deletes takes rows away:
within a checkpoint deletes come first, so that a row which is replaced stays.  Names are
relative to the root, so a table can be copied.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from sluice.connectors.sink import DELETED, RollBack, Unpublished
from sluice.connectors.staged_files import StagedFiles, deletes_first, newest_rows, staged_in
from sluice.core.acks import Committable
from sluice.errors import ConfigurationError, ProtocolViolation
from sluice.storage.object_store import AlreadyExists, ObjectStore

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT_VERSION = 1
READ_THREADS = 16  # Reading is many small requests; a reader waits for most of each.
MANIFESTS = "_manifests/"
MANIFEST = re.compile(r"_manifests/([0-9]{20})(?:_([0-9]{10}))?\.json")


class ManifestFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file relative to the table's root; a reader verifies its size and its rows."""

    file: str
    rows: int
    size_bytes: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one checkpoint added, and which one it continues."""

    version: int
    checkpoint_id: int
    parent: int | None
    files: tuple[ManifestFile, ...]
    upsert_key: tuple[str, ...] | None


_MANIFEST = msgspec.json.Decoder(Manifest)  # Built once: many threads decode with it.


@dataclass(frozen=True, slots=True)
class FilesTable:
    """The table at *store*'s root, written by the sink *sink*.  See ``Sink`` for the two phases."""

    sink: str
    store: ObjectStore
    upsert_key: tuple[str, ...] = ()

    def stage(
        self, table: pa.Table, *, checkpoint_id: int, subtask: int, attempt_token: str
    ) -> Committable | None:
        return self._staged.stage(
            table, checkpoint_id=checkpoint_id, subtask=subtask, attempt_token=attempt_token
        )

    def commit(
        self, checkpoint_id: int, parent: int | None, committables: Sequence[Committable]
    ) -> None:
        """Raises ProtocolViolation when the checkpoint was committed with other files."""
        assert parent is None or parent < checkpoint_id
        assert all(committable.sink == self.sink for committable in committables)
        manifest = Manifest(
            version=FORMAT_VERSION,
            checkpoint_id=checkpoint_id,
            parent=parent,
            files=tuple(
                ManifestFile(file=staged.file, rows=staged.rows, size_bytes=staged.size_bytes)
                for staged in sorted(committables, key=deletes_first)
            ),
            upsert_key=self.upsert_key or None,
        )
        body = msgspec.json.encode(manifest)
        match self.store.create(_manifest_key(checkpoint_id), body):
            case AlreadyExists(existing) if existing != body:
                raise ProtocolViolation(
                    f"checkpoint {checkpoint_id} of the table at {self.store.root} was committed "
                    "with other files; two pipelines, or two lives of one, share it: give each a "
                    "location of its own"
                )
            case _:
                pass  # Created now, or by a call whose answer was lost.

    def is_published(self, checkpoint_id: int) -> bool:
        return self._manifest(checkpoint_id) is not None

    @property
    def rolls_back(self) -> RollBack:
        return RollBack.BY_NEXT_COMMIT

    def published_after(self, version: int | None) -> tuple[int, ...]:
        return tuple(
            manifest.checkpoint_id
            for manifest in self.chain()
            if version is None or manifest.checkpoint_id > version
        )

    def recover(self, version: int | None, *, through: int, roll_back: bool) -> None:
        """Write the manifest behind which late commits are not seen."""
        if not roll_back:
            seen = self.chain()
            version = seen[-1].checkpoint_id if seen else None
        if version is not None and version > through:
            return  # The job went on since; somebody repeats an old restore.
        manifest = Manifest(
            version=FORMAT_VERSION,
            checkpoint_id=through,
            parent=version,
            files=(),
            upsert_key=self.upsert_key or None,
        )
        self.store.create(_restore_key(through, version), msgspec.json.encode(manifest))

    def describe(self, version: int) -> str:
        return _manifest_key(version)

    def abort(self, checkpoint_id: int) -> None:
        manifest = self._manifest(checkpoint_id)
        named = {file.file for file in manifest.files} if manifest is not None else set()
        staged = self._staged.of_checkpoint(checkpoint_id)
        self.store.delete(key for key in staged if key not in named)

    def unpublished(self) -> Unpublished:
        """See ``Sink``.  Data files are listed before the manifests, so one that is committed in
        between is named by the time we look.  Costs a GET for each version that added files.
        """
        listed = self._staged.listed()
        with_files = {staged.checkpoint_id for staged in staged_in(listed)}
        manifests = self._manifests(one for one in self.versions() if one in with_files)
        named: set[str] = set()
        for version, manifest in manifests.items():
            if manifest is None:
                place = f"{self.store.root}/{_manifest_key(version)}"
                raise ProtocolViolation(f"{place} was listed and is gone; nothing may delete it")
            named |= {file.file for file in manifest.files}
        return self._staged.unpublished(listed, named)

    def discard(self, files: Iterable[str]) -> None:
        self._staged.discard(files)

    def versions(self) -> tuple[int, ...]:
        """Every checkpoint that committed, oldest first, rolled back ones included."""
        return self._listed()[0]

    def chain(self, version: int | None = None) -> tuple[Manifest, ...]:
        """The manifests that make up the table as of *version*, by default the newest one.

        Raises:
            ConfigurationError: there is no such version.
            ProtocolViolation: a manifest is missing or unreadable.
        """
        versions, newest = self._listed()
        if version is not None and version not in versions:
            raise ConfigurationError(
                f"the table at {self.store.root} has no version {version}; it has "
                f"{', '.join(map(str, versions)) or 'none'}"
            )
        newest = newest if version is None else version
        if newest is None:
            return ()
        manifests = self._manifests(one for one in versions if one <= newest)
        return tuple(reversed([*self._parents(manifests, newest)]))

    def read(self, version: int | None = None) -> pa.Table:
        """Return the committed rows, in the order of their checkpoints and files.

        A table without a file has no columns.

        Raises:
            ProtocolViolation: a manifest or a file is missing or not what was committed.
        """
        import pyarrow as pa

        manifests = self.chain(version)
        files = [file for manifest in manifests for file in manifest.files]
        if not files:
            return pa.table({})
        with ThreadPoolExecutor(READ_THREADS) as pool:
            tables = list(pool.map(self._read_file, files))
        table = pa.concat_tables(tables, promote_options="permissive")
        key = manifests[-1].upsert_key
        return table if key is None else _without_deleted(table.take(newest_rows(table, key)))

    def row_count(self) -> int:
        """How many rows were committed in the table's chain; an upserted one counts each time."""
        return sum(file.rows for manifest in self.chain() for file in manifest.files)

    @property
    def _staged(self) -> StagedFiles:
        return StagedFiles(self.sink, self.store, self.upsert_key)

    def _listed(self) -> tuple[tuple[int, ...], int | None]:
        """Every checkpoint that committed, and the one from which readers follow the chain."""
        versions: list[int] = []
        newest: int | None = None
        for listed in self.store.list(MANIFESTS):
            name = MANIFEST.fullmatch(listed.key)
            if name is None:
                continue
            if name[2] is None:
                newest = int(name[1])
                versions.append(newest)
            else:
                newest = int(name[2]) or None
        return tuple(versions), newest

    def _parents(self, manifests: dict[int, Manifest | None], newest: int) -> Iterator[Manifest]:
        checkpoint_id: int | None = newest
        while checkpoint_id is not None:
            manifest = manifests.get(checkpoint_id)
            if manifest is None:
                raise ProtocolViolation(
                    f"{self.store.root}/{_manifest_key(checkpoint_id)} is missing, and version "
                    f"{newest} continues it"
                )
            yield manifest
            checkpoint_id = manifest.parent

    def _manifests(self, versions: Iterable[int]) -> dict[int, Manifest | None]:
        wanted = [*versions]
        with ThreadPoolExecutor(READ_THREADS) as pool:
            return dict(zip(wanted, pool.map(self._manifest, wanted), strict=True))

    def _manifest(self, checkpoint_id: int) -> Manifest | None:
        key = _manifest_key(checkpoint_id)
        body = self.store.get(key)
        if body is None:
            return None
        try:
            manifest = _MANIFEST.decode(body)
        except msgspec.DecodeError as error:
            raise ProtocolViolation(f"{self.store.root}/{key} is no manifest: {error}") from error
        if manifest.version != FORMAT_VERSION or manifest.checkpoint_id != checkpoint_id:
            raise ProtocolViolation(
                f"{self.store.root}/{key} is of format {manifest.version} and checkpoint "
                f"{manifest.checkpoint_id}; this sluice reads format {FORMAT_VERSION}"
            )
        return manifest

    def _read_file(self, file: ManifestFile) -> pa.Table:
        return self._staged.read(file.file, rows=file.rows, size_bytes=file.size_bytes)


def _without_deleted(table: pa.Table) -> pa.Table:
    """Files of one table may have the column or not: a file without it deletes nothing."""
    import pyarrow.compute as pc

    if DELETED not in table.column_names:
        return table
    is_deleted = pc.fill_null(table.column(DELETED), False)  # noqa: FBT003 - a value
    return table.filter(pc.invert(is_deleted)).drop_columns([DELETED])


def _manifest_key(checkpoint_id: int) -> str:
    """Zero-padded, so that listing order is checkpoint order."""
    return f"{MANIFESTS}{checkpoint_id:020d}.json"


def _restore_key(through: int, version: int | None) -> str:
    """Sorts behind the manifest of *through* itself; version 0 is the empty table."""
    return f"{MANIFESTS}{through:020d}_{version or 0:010d}.json"
