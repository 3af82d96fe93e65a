"""A table of Parquet files: what a commit manifest names is in it, and nothing else.

    data/{checkpoint}-{subtask}-{attempt}.parquet    staged; nobody sees it
    _manifests/{checkpoint}.json                     create-only; names the files it adds

A manifest names the checkpoint it continues, so the table is a chain.  A reader follows it from the
newest manifest; after a restore to an older checkpoint the next commit continues that one, and
what was committed in between is no longer in the chain: the table rolls back with the job.

With an upsert key the newest row per key wins.  The stage's output holds each key at most once per
checkpoint; a file that does not is refused when it is staged.  A file of deletes takes rows away:
within a checkpoint deletes come first, so that a row which is replaced stays.  Names are
relative to the root, so a table can be copied.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from sluice.connectors.sink import DELETED, Staged, Unpublished
from sluice.core.acks import Committable
from sluice.errors import ConfigurationError, ProtocolViolation
from sluice.storage.object_store import AlreadyExists, ObjectStore

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT_VERSION = 1
READ_THREADS = 16  # Reading is many small requests; a reader waits for most of each.
ATTEMPT_TOKEN = re.compile(r"[A-Za-z0-9-]+")
DATA = "data/"
DATA_FILE = re.compile(r"data/([0-9]{20})-[0-9]{5,}-[A-Za-z0-9-]+\.parquet")


_DELETES = "-deletes.parquet"


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
        import pyarrow.parquet as pq

        assert ATTEMPT_TOKEN.fullmatch(attempt_token), f"not a file name: {attempt_token!r}"
        if table.num_rows == 0:
            return None
        self._check_keys(table)
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        body = buffer.getvalue()
        kind = _DELETES if DELETED in table.column_names else ".parquet"
        file = f"{_data_prefix(checkpoint_id)}{subtask:05d}-{attempt_token}{kind}"
        self.store.put(file, body)
        return Committable(sink=self.sink, file=file, rows=table.num_rows, size_bytes=len(body))

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
                for staged in sorted(committables, key=_deletes_first)
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

    def abort(self, checkpoint_id: int) -> None:
        manifest = self._manifest(checkpoint_id)
        named = {file.file for file in manifest.files} if manifest is not None else set()
        staged = [listed.key for listed in self.store.list(_data_prefix(checkpoint_id))]
        self.store.delete(key for key in staged if key not in named)

    def unpublished(self) -> Unpublished:
        """See ``Sink``.  Data files are listed before the manifests, so one that is committed in
        between is named by the time we look.  Costs a GET for each version that added files.
        """
        listed = [*self.store.list(DATA)]
        found = [
            Staged(
                file=one.key,
                checkpoint_id=int(name[1]),
                size_bytes=one.size_bytes,
                modified_ms=one.modified_ms,
            )
            for one in listed
            if (name := DATA_FILE.fullmatch(one.key)) is not None
        ]
        with_files = {staged.checkpoint_id for staged in found}
        manifests = self._manifests(one for one in self.versions() if one in with_files)
        named: set[str] = set()
        for version, manifest in manifests.items():
            if manifest is None:
                place = f"{self.store.root}/{_manifest_key(version)}"
                raise ProtocolViolation(f"{place} was listed and is gone; nothing may delete it")
            named |= {file.file for file in manifest.files}
        return Unpublished(
            root=self.store.root,
            staged=tuple(staged for staged in found if staged.file not in named),
            newest_ms=max((one.modified_ms for one in listed), default=0),
        )

    def discard(self, files: Iterable[str]) -> None:
        self.store.delete(files)

    def versions(self) -> tuple[int, ...]:
        """Every checkpoint that committed, oldest first, rolled back ones included."""
        keys = [listed.key for listed in self.store.list("_manifests/")]
        return tuple(int(key.removeprefix("_manifests/").removesuffix(".json")) for key in keys)

    def chain(self, version: int | None = None) -> tuple[Manifest, ...]:
        """The manifests that make up the table as of *version*, by default the newest one.

        Raises:
            ConfigurationError: there is no such version.
            ProtocolViolation: a manifest is missing or unreadable.
        """
        versions = self.versions()
        if version is None and not versions:
            return ()
        if version is not None and version not in versions:
            raise ConfigurationError(
                f"the table at {self.store.root} has no version {version}; it has "
                f"{', '.join(map(str, versions)) or 'none'}"
            )
        newest = versions[-1] if version is None else version
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
        return table if key is None else _without_deleted(table.take(_newest_rows(table, key)))

    def row_count(self) -> int:
        """How many rows were committed in the table's chain; an upserted one counts each time."""
        return sum(file.rows for manifest in self.chain() for file in manifest.files)

    def _check_keys(self, table: pa.Table) -> None:
        if not self.upsert_key:
            return
        if missing := sorted(set(self.upsert_key) - set(table.column_names)):
            raise ConfigurationError(
                f"sink {self.sink!r} upserts by {', '.join(self.upsert_key)}, but its rows have no "
                f"{', '.join(missing)}; they have {', '.join(table.column_names)}"
            )
        if len(_newest_rows(table, self.upsert_key)) != table.num_rows:
            raise ConfigurationError(
                f"sink {self.sink!r} upserts by {', '.join(self.upsert_key)}, but a checkpoint has "
                "several rows of one key; key the stage before it by these columns, or append"
            )

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
        import pyarrow as pa
        import pyarrow.parquet as pq

        place = f"{self.store.root}/{file.file}"
        body = self.store.get(file.file)
        if body is None:
            raise ProtocolViolation(f"{place} was committed and is missing")
        if len(body) != file.size_bytes:
            raise ProtocolViolation(
                f"{place} has {len(body)} bytes where {file.size_bytes} were committed"
            )
        try:
            table = pq.read_table(pa.BufferReader(body))
        except pa.ArrowInvalid as error:
            raise ProtocolViolation(f"{place} is not the file that was committed") from error
        if table.num_rows != file.rows:
            raise ProtocolViolation(
                f"{place} has {table.num_rows} rows where {file.rows} were committed"
            )
        return table


def _newest_rows(table: pa.Table, key: tuple[str, ...]) -> pa.Array:
    """The number of each key's last row, in order.  Types stay Arrow's: Polars sees keys only."""
    import polars as pl
    import pyarrow as pa

    keys = pl.from_arrow(table.select(list(key)))
    assert isinstance(keys, pl.DataFrame)
    # By number, for a key column may have any name.
    keys.columns = [str(number) for number in range(len(key))]
    last = keys.with_row_index("row").unique(keys.columns, keep="last", maintain_order=True)
    return pa.array(last["row"].to_numpy())


def _deletes_first(staged: Committable) -> tuple[bool, str]:
    return not staged.file.endswith(_DELETES), staged.file


def _without_deleted(table: pa.Table) -> pa.Table:
    """Files of one table may have the column or not: a file without it deletes nothing."""
    import pyarrow.compute as pc

    if DELETED not in table.column_names:
        return table
    is_deleted = pc.fill_null(table.column(DELETED), False)  # noqa: FBT003 - a value
    return table.filter(pc.invert(is_deleted)).drop_columns([DELETED])


def _data_prefix(checkpoint_id: int) -> str:
    return f"{DATA}{checkpoint_id:020d}-"


def _manifest_key(checkpoint_id: int) -> str:
    """Zero-padded, so that listing order is checkpoint order."""
    return f"_manifests/{checkpoint_id:020d}.json"
