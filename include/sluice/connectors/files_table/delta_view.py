"""``_delta_log`` of a table of files: others read it as a Delta table, whole versions at a time.

The log names the table's own Parquet files, and never copies one.  It is a view: manifests stay the
truth, and each commit, restore, compaction and vacuum behind them has the log show what they say,
as one version, which exactly one of racing writers writes.  The log is read before the manifests,
and a restore writes a version in any case: so who was slow writes none that was left behind.

    what became of the table           the version of the log
    checkpoints were added             add
    it went back, or forward           add and remove
    files were merged                  add and remove, which change no row

Of merged files those alone are shown on which vacuum relies: the others may vanish.  Vacuum has the
log show what stays before it deletes anything.

Nobody else may write the log: OPTIMIZE would not be seen here, and VACUUM would delete versions to
which a job can go back, and rows that are staged.  So the protocol asks writers for a feature that
no other writer has; readers need none.

A file's partition is told by statistics, as its columns are in the file.  A table with an upsert
key has rows in its files that are replaced, which a log of whole files cannot say.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.connectors.delta_log import (
    Action,
    DataFile,
    DeltaPlace,
    Snapshot,
    added_action,
    as_path,
    created,
    info_of,
    open_parquet,
    removed,
)
from sluice.connectors.files_table.log import READ_THREADS, Chain, Manifest, TableLog
from sluice.connectors.files_table.maintenance import GRACE_MS, usable_records
from sluice.connectors.staged_files import RowFile, is_json
from sluice.connectors.staged_sink import attempts
from sluice.errors import ConfigurationError, ProtocolViolation
from sluice.store.object_store import ObjectStore, in_parallel, machine_clock_ms

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

FEATURE = "sluiceFilesTable"
VERSION, MERGED, LIFE = "sluice.checkpoint-id", "sluice.merged", "sluice.life"


@dataclass(frozen=True, slots=True)
class DeltaView:
    """The Delta log at the place of a table of files."""

    place: DeltaPlace
    store: ObjectStore

    @property
    def name(self) -> str:
        return f"the table at {self.place.location.root}"

    def show(self, *, grace_ms: int = GRACE_MS, fences: bool = False) -> None:
        """Have the log show the table's newest version; it does nothing if it does.

        Merged files are shown that are older than *grace_ms*, by the store's clock.  With *fences*
        a version is written in any case: the table went back, and who read it before that fails.

        Raises:
            ConfigurationError: the log is another table's, or a file cannot be in one.
            ProtocolViolation: a manifest or a file is missing.
            StoreUnavailable: try again.
        """
        is_owed = fences
        for _ in attempts(f"the Delta log of {self.name} could not be written"):
            while (step := self._step(grace_ms, is_owed=is_owed)) is not None:
                if not self.place.write(step.version, step.actions):
                    break  # Another writer was faster: what it shows is looked at again.
                self.place.tidy(step.version, {})
                is_owed = False
                if step.is_last:
                    return
            else:
                return

    def check(self, parent: int | None) -> None:
        """Check that a log can be kept of the table with the version *parent*.

        Raises:
            ConfigurationError: another table's log is there, or files of JSON lines are.
        """
        self._snapshot()
        for file in () if parent is None else TableLog(self.store).chain(parent).files:
            self._parquet(file)

    def united(self, schemas: Iterable[pa.Schema], table: str) -> pa.Schema:
        """The columns of all *schemas*, in the order of their first appearance.

        Raises:
            ConfigurationError: Delta does not have a column as the files have it, or two of them
                differ in its type or spelling, which not every reader reconciles.
        """
        import pyarrow as pa

        fields: dict[str, tuple[pa.Field, str]] = {}
        for schema in schemas:
            for field in schema:
                told = _told(field, table)
                known, before = fields.setdefault(field.name.lower(), (field, told))
                if (known.name, before) != (field.name, told):
                    raise ConfigurationError(
                        f"column {known.name!r} of {table} is {known.type}, and the rows to be "
                        f"added have {field.name!r} of {field.type}; with delta_log=True a column "
                        "keeps its name and type, as not every reader of Delta takes two: cast it "
                        "in the stage, or begin a table elsewhere"
                    )
        found = (field for field, _ in fields.values())
        return pa.schema([field.with_nullable(True).remove_metadata() for field in found])  # noqa: FBT003 - a value

    def _step(self, grace_ms: int, *, is_owed: bool) -> _Step | None:
        """The step to what the table shows; None if the log shows it."""
        snapshot = self._snapshot()
        log, shown = TableLog(self.store), self._shown(snapshot)
        records = log.compacted()
        added = self._added_since(log, shown, records)
        if added:
            newest = added[-1]
            now = _Shown(newest.checkpoint_id, newest.life, shown.merged)
            files = [file for manifest in added for file in manifest.files]
            is_last = max(records, default=None) == now.merged
            return self._written(snapshot, files, shown, now, is_added=True, is_last=is_last)
        if added is not None and (is_owed or max(records, default=None) == shown.merged):
            return self._written(snapshot, (), shown, shown, is_added=True) if is_owed else None
        usable = usable_records(log, grace_ms) if records else {}
        version = shown.version if added is not None else None
        young = frozenset(records) - usable.keys()
        try:
            chain = log.chain(version, without=young)
            return self._replaced(snapshot, chain, shown, is_owed=is_owed)
        except ProtocolViolation:  # What they replace was vacuumed, so they stay.
            return self._replaced(snapshot, log.chain(version), shown, is_owed=is_owed)

    def _replaced(
        self, snapshot: Snapshot | None, chain: Chain, shown: _Shown, *, is_owed: bool
    ) -> _Step | None:
        """The step to the files of *chain* alone; None if the log shows them.

        Raises:
            ProtocolViolation: one of them is gone.
        """
        version = chain.version
        newest = None if version is None else TableLog(self.store).manifest(version)
        life = None if newest is None else newest.life
        merged = None if chain.base is None else chain.base.checkpoint_id
        now = _Shown(version, life, merged)
        if now == shown and not is_owed:
            return None
        return self._written(snapshot, chain.files, shown, now)

    def _shown(self, snapshot: Snapshot | None) -> _Shown:
        info = {} if snapshot is None else info_of(self.place.entry(snapshot.version) or ())
        return _Shown(info.get(VERSION), info.get(LIFE), info.get(MERGED))

    def _added_since(
        self, log: TableLog, shown: _Shown, records: Iterable[int]
    ) -> Sequence[Manifest] | None:
        """The manifests behind the shown version; None if the table went on from another one."""
        known = shown.version
        manifest = None if known is None else log.manifest(known)
        if known is None or manifest is None or manifest.life != shown.life:
            return None
        if log.newest(known) == known:
            return ()
        try:
            added = log.chain(known=known, without=frozenset(records)).manifests
        except ProtocolViolation:
            return None  # It went back to a version of whose chain the beginning was vacuumed.
        return added if added and added[0].parent == known else None

    def _written(
        self,
        snapshot: Snapshot | None,
        rows: Sequence[RowFile],
        shown: _Shown,
        now: _Shown,
        *,
        is_added: bool = False,
        is_last: bool = False,
    ) -> _Step | None:
        """The step to the files of *rows*; *is_added*: others stay."""
        live = {} if snapshot is None else {one.path: one for one in snapshot.files}
        files = [DataFile(as_path(self._parquet(one)), one.size_bytes, {}) for one in rows]
        paths = {file.path for file in files}
        new = [file for file in files if file.path not in live]
        gone = [] if is_added else [file for path, file in live.items() if path not in paths]
        if snapshot is None and not new:
            return None  # No reader reads a table without columns.
        changes_rows = (shown.version, shown.life) != (now.version, now.life)
        info = {
            "timestamp": machine_clock_ms(),
            "operation": "WRITE" if changes_rows else "OPTIMIZE",
            "operationParameters": {"mode": "Append"} if changes_rows else {},
            "engineInfo": "sluice",
            "isBlindAppend": not gone,
            VERSION: now.version,
            LIFE: now.life,
            MERGED: now.merged,
        }
        kept = [file for file in live.values() if is_added or file.path in paths]
        actions = [*map(removed, gone), *self._adding(snapshot, new, kept)]
        for action in actions if not changes_rows else ():
            for kind in action.keys() & {"add", "remove"}:
                action[kind]["dataChange"] = False
        version = 0 if snapshot is None else snapshot.version + 1
        return _Step(version, [{"commitInfo": info}, *actions], is_last)

    def _adding(
        self, snapshot: Snapshot | None, new: Sequence[DataFile], kept: Sequence[DataFile]
    ) -> list[Action]:
        """The actions that add files, and before them those for other columns than the log has."""
        footers = [*zip(new, self._opened(new), strict=True)]
        schemas = [file.schema_arrow for _, file in footers]
        known = [snapshot.schema] if snapshot is not None and kept else []
        try:
            schema = self.united([*known, *schemas], self.name)
        except ConfigurationError:  # Perhaps a column that went back with its files.
            known = [file.schema_arrow for file in self._opened(kept)]
            schema = self.united([*known, *schemas], self.name)
        columns: list[Action] = []
        if snapshot is None or (new and not schema.equals(snapshot.schema)):
            table_id = str(uuid.uuid4()) if snapshot is None else snapshot.id
            columns = created(schema, table_id, writer_features=[FEATURE])
        return [*columns, *(added_action(one, file.metadata, schema) for one, file in footers)]

    def _opened(self, files: Sequence[DataFile]) -> list[pq.ParquetFile]:
        def opened(file: DataFile) -> pq.ParquetFile:
            try:
                return open_parquet(self.store, file)
            except ConfigurationError as error:
                raise ProtocolViolation(f"{file.key} of {self.name} is gone") from error

        return in_parallel(opened, files, READ_THREADS)

    def _snapshot(self) -> Snapshot | None:
        snapshot = self.place.load()
        if snapshot is not None and FEATURE not in (
            snapshot.table.protocol().writer_features or ()
        ):
            raise ConfigurationError(
                f"{self.place.location.root} has a Delta log that no FilesTable wrote; give the "
                "sink another location, or declare a DeltaTable"
            )
        return snapshot

    def _parquet(self, file: RowFile) -> str:
        if is_json(file.file):
            raise ConfigurationError(
                f"{self.name} has {file.file}, and a Delta log names Parquet alone; begin a table "
                "elsewhere, or leave delta_log=True out"
            )
        return file.file


@dataclass(frozen=True, slots=True)
class _Shown:
    """A version of the table, whose *life* wrote it, with the merged files of *merged*."""

    version: int | None
    life: str | None
    merged: int | None


@dataclass(frozen=True, slots=True)
class _Step:
    """A version of the log; *is_last*: it shows all that the table did when it was read."""

    version: int
    actions: list[Action]
    is_last: bool


def _told(field: pa.Field, table: str) -> str:
    """The type of a column in files, as Delta's log has it."""
    import pyarrow as pa
    from deltalake import Schema

    if other := next(_others(field.type), None):
        raise ConfigurationError(
            f"column {field.name!r} of {table} is {field.type}, and Delta has no {other}; with "
            "delta_log=True cast it in the stage"
        )
    told = json.loads(Schema.from_arrow(pa.schema([field])).to_json())
    return json.dumps(told["fields"][0]["type"])


def _others(kind: pa.DataType) -> Iterator[pa.DataType]:
    """The types within *kind* that files have in another form than those of a Delta table."""
    from pyarrow import types

    if types.is_nested(kind) and not types.is_fixed_size_list(kind):
        for number in range(kind.num_fields):
            yield from _others(kind.field(number).type)
        return
    is_time = types.is_timestamp(kind)
    is_same = (
        types.is_signed_integer(kind)
        or types.is_float32(kind)
        or types.is_float64(kind)
        or types.is_boolean(kind)
        or types.is_date32(kind)
        or types.is_decimal128(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or (is_time and kind.unit == "us" and kind.tz in (None, "UTC"))
    )
    if not is_same:
        yield kind
