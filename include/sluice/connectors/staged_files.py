"""Staged files: rows below a root that readers do not look at until a commit names them.

    data/{checkpoint}-{token}-{subtask}-{attempt}.parquet       rows
    data/...-{attempt}-deletes.parquet                          rows to delete
    data/...-{attempt}-{schema}.json                            rows as JSON lines
    data/...-{attempt}/day=.../part.parquet                     rows of one partition
    data/...-{attempt}.parts.json                               written last; names them all
    _schemas/{schema}.arrow                                     the types of JSON lines' columns

``{token}`` is the checkpoint's: ids begin anew with each journal, and several jobs may stage here.

A table of files keeps them, and its root has further ones:

    compacted/{version}-{number}-{token}...                     rows of many files, merged
    _manifests/..., _compacted/...                              see ``files_table/log.py``
    _columns/{schema}.arrow                                     see ``files_table/columns.py``

``StagedFiles`` writes and reads rows; the functions behind it make and parse the names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from sluice.connectors.json_rows import check_json_types, decode_lines, encode_lines
from sluice.connectors.row_files import (
    PARQUET,
    check_parquet_types,
    decode_parquet,
    decode_schema,
    encode_parquet,
    encode_schema,
    has_nulls,
    split_by_partition,
)
from sluice.core.answers import Attempt, Committable
from sluice.declaration.places import DELETED, Staged, Unpublished
from sluice.errors import ConfigurationError, ProtocolViolation
from sluice.protocol.records import checksum
from sluice.store.object_store import Listed, ObjectStore, RangeReader, in_parallel

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

CHECKPOINT_TOKEN = re.compile(r"[A-Za-z0-9_]+")
ATTEMPT_TOKEN = re.compile(r"[A-Za-z0-9-]+")
WRITE_THREADS = 16  # Parallel writes: a partition is a small object, mostly latency.

DATA = "data/"
COMPACTED = "compacted/"
PARTS = ".parts.json"
MANIFESTS = "_manifests/"
RECORDS = "_compacted/"
COLUMNS = "_columns/"
_LOGGED = re.compile(r"_manifests/([0-9]{20})(?:_([0-9]{10,})_([0-9]{10,}))?\.json")
_RECORD = re.compile(r"_compacted/([0-9]{20})\.json")

_SEPARATORS = re.compile(r"[-./]")  # Behind its first part an attempt's token numbers the files.
_STEM = r"[0-9]{5,}-[A-Za-z0-9-]+"
_ENDS = r"(?:\.parquet|\.json|\.parts\.json|/.+/part\.(?:parquet|json))"
_DATA_FILE = re.compile(DATA + r"([0-9]{20})-([A-Za-z0-9_]+)-" + _STEM + _ENDS)
_COMPACTED_FILE = re.compile(COMPACTED + r"([0-9]{20})-" + _STEM + _ENDS)
_TOP = re.compile(r"([^/]+/[^/.]+)(?:\..*|/.*)?", re.DOTALL)


class RowFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file relative to the table's root; a reader verifies its size and its rows."""

    file: str
    rows: int
    size_bytes: int


class StagedFile(RowFile, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file that no commit names yet, with its checksum."""

    checksum: str

    @property
    def published(self) -> RowFile:
        return RowFile(file=self.file, rows=self.rows, size_bytes=self.size_bytes)


_PARTS = msgspec.json.Decoder(tuple[StagedFile, ...])


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """The files that the sink *sink* has staged at *store*'s root.

    *is_shared*: other jobs may stage there, too; see ``Unpublished``.
    """

    sink: str
    store: ObjectStore
    upsert_key: tuple[str, ...] = ()
    format: str = PARQUET
    partition_by: tuple[str, ...] = ()
    is_shared: bool = False

    def stage(self, table: pa.Table, by: Attempt) -> Committable | None:
        """See ``Sink.stage``.

        Raises:
            ConfigurationError: the rows have no upsert key, or one of them twice; or they cannot
                be written in this format, or split into partitions.
        """
        check_tokens(by)
        if table.num_rows == 0:
            return None
        check_keys(self.sink, self.upsert_key, table)
        folder = data_prefix(by.checkpoint_id, by.checkpoint_token)
        stem = f"{folder}{by.subtask:05d}-{by.attempt_token}"
        is_delete = DELETED in table.column_names
        if not self.partition_by:
            file = self._write(stem, table, is_delete=is_delete)
            return Committable(
                sink=self.sink,
                file=file.file,
                rows=file.rows,
                size_bytes=file.size_bytes,
                checksum=file.checksum,
            )
        split = [*split_by_partition(table, self.partition_by, self.sink)]

        def write_part(part: tuple[str, pa.Table]) -> StagedFile:
            return self._write(stem, part[1], is_delete=is_delete, partition=part[0])

        parts = tuple(in_parallel(write_part, split, WRITE_THREADS))
        unit = unit_of(parts[0].file)
        listed = msgspec.json.encode(parts)
        self.store.put(unit, listed)
        return Committable(
            sink=self.sink,
            file=unit,
            rows=table.num_rows,
            size_bytes=sum(part.size_bytes for part in parts),
            checksum=checksum(listed),
        )

    def check_types(self, schema: pa.Schema) -> None:
        """Raises ConfigurationError for a column that this format would change."""
        check_format_types(self.format, schema, self.sink)

    def write(self, stem: str, table: pa.Table, *, partition: str = "") -> RowFile:
        """Write one file whose name begins with *stem*, in *partition*'s folder if it has one."""
        return self._write(stem, table, partition=partition).published

    def _write(
        self, stem: str, table: pa.Table, *, is_delete: bool = False, partition: str = ""
    ) -> StagedFile:
        self.check_types(table.schema)
        if self.format == PARQUET:
            body = encode_parquet(table)
        else:
            name, schema = encode_schema(table.schema)
            self.store.put(schema_key(name), schema)
            body = encode_lines(table)
            stem = f"{stem}-{name}"
        kind = "-deletes" if is_delete else ""
        folder = f"/{partition}/part" if partition else ""
        file = f"{stem}{kind}{folder}.{self.format}"
        self.store.put(file, body)
        return StagedFile(
            file=file, rows=table.num_rows, size_bytes=len(body), checksum=checksum(body)
        )

    def files_of(self, staged: Committable) -> tuple[RowFile, ...]:
        """The files of a committable: itself, or those of its partitions.

        Raises:
            ProtocolViolation: the list of partitions is missing or damaged.
        """
        if not staged.file.endswith(PARTS):
            return (RowFile(file=staged.file, rows=staged.rows, size_bytes=staged.size_bytes),)
        return tuple(part.published for part in self._parts(staged))

    def _parts(self, staged: Committable) -> tuple[StagedFile, ...]:
        place = f"{self.store.root}/{staged.file}"
        body = self.store.get(staged.file)
        if body is None:
            raise ProtocolViolation(f"{place} was staged and is missing")
        try:
            parts = _PARTS.decode(body)
        except msgspec.DecodeError as error:
            raise ProtocolViolation(f"{place} is no list of files: {error}") from error
        if sum(part.rows for part in parts) != staged.rows:
            raise ProtocolViolation(f"{place} does not list the {staged.rows} rows of its ack")
        return parts

    def damage_of(self, committables: Iterable[Committable]) -> list[str]:
        """A sentence for each staged file that is missing or changed; every file is read."""
        return [problem for staged in committables for problem in self._damage(staged)]

    def _damage(self, staged: Committable) -> list[str]:
        files = {staged.file: staged.checksum}
        if staged.file.endswith(PARTS):
            try:
                files |= {part.file: part.checksum for part in self._parts(staged)}
            except ProtocolViolation as error:
                return [str(error)]
        bodies = ((file, expected, self.store.get(file)) for file, expected in files.items())
        return [
            f"{self.store.root}/{file}, staged for sink {self.sink!r}, is "
            + ("missing" if body is None else "damaged")
            for file, expected, body in bodies
            if body is None or expected not in ("", checksum(body))
        ]

    def read(self, file: str, *, rows: int, size_bytes: int, expected: str = "") -> pa.Table:
        """The rows of a file; ProtocolViolation when it is missing or changed."""
        import pyarrow as pa

        place = f"{self.store.root}/{file}"
        body = self.body(file, size_bytes=size_bytes, expected=expected)
        try:
            if is_json(file):
                key = schema_key(file)
                schema = decode_schema(self.store.get(key), f"{self.store.root}/{key}")
                table = decode_lines(body, schema)
            else:
                table = decode_parquet(body)
        except pa.ArrowInvalid as error:
            raise ProtocolViolation(f"{place} is not the file that was committed") from error
        if table.num_rows != rows:
            raise ProtocolViolation(
                f"{place} has {table.num_rows} rows where {rows} were committed"
            )
        return table

    def body(self, file: str, *, size_bytes: int, expected: str = "") -> bytes:
        """The bytes of a file; ProtocolViolation when it is missing or changed."""
        place = f"{self.store.root}/{file}"
        body = self.store.get(file)
        if body is None:
            raise ProtocolViolation(f"{place} was committed and is missing")
        if len(body) != size_bytes:
            raise ProtocolViolation(
                f"{place} has {len(body)} bytes where {size_bytes} were committed"
            )
        if expected not in ("", checksum(body)):
            raise ProtocolViolation(
                f"{place} is damaged: checksum {expected} was recorded, its {len(body)} bytes have "
                f"{checksum(body)}"
            )
        return body

    def has_nulls(self, file: str, size_bytes: int, columns: Sequence[str]) -> bool:
        """Whether a row of a Parquet file may be null in one of *columns*; see ``has_nulls``."""
        reader = RangeReader(self.store, file, size_bytes)
        return has_nulls(reader, columns, f"{self.store.root}/{file}")

    def of_checkpoint(self, checkpoint_id: int, checkpoint_token: str) -> list[str]:
        """The staged units of a checkpoint, by the names of their committables."""
        prefix = data_prefix(checkpoint_id, checkpoint_token)
        return [*dict.fromkeys(unit_of(listed.key) for listed in self.store.list(prefix))]

    def discard(self, files: Iterable[str]) -> None:
        """Delete *files*; partitions before their list, so that a crash leaves them listed."""
        doomed: list[str] = []
        for file in files:
            if file.endswith(PARTS):
                doomed += [listed.key for listed in self.store.list(file.removesuffix(PARTS) + "/")]
            doomed.append(file)
        self.store.delete(doomed)

    def listed(self) -> list[Listed]:
        return [*self.store.list(DATA)]

    def unpublished(self, listed: Sequence[Listed], named: Iterable[str]) -> Unpublished:
        """The files of *listed* that no commit has *named*."""
        published = {unit_of(file) for file in named}
        return Unpublished(
            root=self.store.root,
            is_shared=self.is_shared,
            staged=tuple(unit for unit in staged_in(listed) if unit.file not in published),
            newest_ms=max((file.modified_ms for file in listed), default=0),
        )


def check_format_types(format_: str, schema: pa.Schema, sink: str) -> None:
    """Raises ConfigurationError for a column of which a file of this format would change values."""
    check = check_json_types if format_ != PARQUET else check_parquet_types
    check(schema, f"sink {sink!r}")


def staged_in(listed: Iterable[Listed]) -> list[Staged]:
    """The staged units among *listed*; the partitions of one call are one unit."""
    units: dict[str, list[Listed]] = {}
    for file in listed:
        if _DATA_FILE.fullmatch(file.key):
            units.setdefault(unit_of(file.key), []).append(file)
    return [
        Staged(
            file=unit,
            checkpoint_id=int(name[1]),
            checkpoint_token=name[2],
            size_bytes=sum(file.size_bytes for file in files),
            modified_ms=max(file.modified_ms for file in files),
        )
        for unit, files in units.items()
        if (name := _DATA_FILE.fullmatch(unit)) is not None
    ]


def check_tokens(by: Attempt) -> None:
    """Check both tokens, which are parts of a file's name; only the second may have a hyphen."""
    assert CHECKPOINT_TOKEN.fullmatch(by.checkpoint_token), f"no part of a name: {by}"
    assert ATTEMPT_TOKEN.fullmatch(by.attempt_token), f"no part of a name: {by}"


def check_keys(sink: str, upsert_key: Sequence[str], table: pa.Table) -> None:
    """Raises ConfigurationError when rows to be staged lack the key, or have a key twice."""
    if not upsert_key:
        return
    by = f"sink {sink!r} upserts by {', '.join(upsert_key)}, but"
    if missing := sorted(set(upsert_key) - set(table.column_names)):
        raise ConfigurationError(
            f"{by} its rows have no {', '.join(missing)}; they have {', '.join(table.column_names)}"
        )
    if len(newest_rows(table, upsert_key)) != table.num_rows:
        raise ConfigurationError(
            f"{by} a checkpoint has several rows of one key; key the stage before it by these "
            "columns, or append"
        )


def keys_of(table: pa.Table, key: Sequence[str]) -> pl.DataFrame:
    """The columns of *key*, which are named by number, as a key column may have any name."""
    import polars as pl

    keys = pl.from_arrow(table.select(list(key)))
    assert isinstance(keys, pl.DataFrame)
    keys.columns = [str(number) for number in range(len(key))]
    return keys


def newest_rows(table: pa.Table, key: Sequence[str]) -> pa.Array:
    """The numbers of the last rows of all keys, in order; only keys are converted to Polars."""
    import pyarrow as pa

    keys = keys_of(table, key)
    last = keys.with_row_index("row").unique(keys.columns, keep="last", maintain_order=True)
    return pa.array(last["row"].to_numpy())


@dataclass(frozen=True, slots=True)
class LogEntryName:
    """The key of a manifest, or of a fence, parsed.

    ``shown`` is the version that readers see if this is the last name; only a fence has a
    ``generation``.
    """

    key: str
    checkpoint_id: int
    shown: int | None
    generation: int | None = None

    @property
    def is_fence(self) -> bool:
        return self.generation is not None


def parsed_log_key(key: str) -> LogEntryName | None:
    """The parsed *key*; None when it has another form."""
    name = _LOGGED.fullmatch(key)
    if name is None:
        return None
    checkpoint_id, generation, shown = name.groups()
    if generation is None:
        return LogEntryName(key, int(checkpoint_id), int(checkpoint_id))
    return LogEntryName(key, int(checkpoint_id), int(shown) or None, int(generation))


def manifest_key(checkpoint_id: int) -> str:
    """The key of a manifest, zero-padded, so that listing order is checkpoint order."""
    return f"{MANIFESTS}{checkpoint_id:020d}.json"


def fence_key(through: int, generation: int, shown: int | None) -> str:
    """The key of a fence, which sorts behind the manifest of *through*; 0 is the empty table."""
    return f"{MANIFESTS}{through:020d}_{generation:010d}_{shown or 0:010d}.json"


def record_key(version: int) -> str:
    return f"{RECORDS}{version:020d}.json"


def version_of_record(key: str) -> int | None:
    """The version of a record of merged files; None when the name has another form."""
    name = _RECORD.fullmatch(key)
    return None if name is None else int(name[1])


def data_prefix(checkpoint_id: int, checkpoint_token: str) -> str:
    """The beginning of the names of a checkpoint's files, which those of no other one have."""
    return f"{DATA}{checkpoint_id:020d}-{checkpoint_token}-"


def behind_data_of(checkpoint_id: int) -> str:
    """A key that sorts behind all files that the checkpoint staged."""
    return f"{DATA}{checkpoint_id:020d}~"


def staged_by(key: str) -> int | None:
    """The checkpoint that staged a file; None when the name has another form."""
    name = _DATA_FILE.fullmatch(key)
    return None if name is None else int(name[1])


def has_one_writer(files: Iterable[Listed]) -> bool:
    """Whether each subtask of a checkpoint staged its *files* in one attempt, under one token."""
    names = {tuple(_SEPARATORS.split(file.key.removeprefix(DATA))[1:4]) for file in files}
    tokens, subtasks = {name[:1] for name in names}, {name[1:2] for name in names}
    return len(tokens) <= 1 and len(names) == len(subtasks)


def compacted_stem(version: int, number: int, token: str) -> str:
    return f"{COMPACTED}{version:020d}-{number:05d}-{token}"


def version_of_compacted(key: str) -> int | None:
    """The version whose rows a merged file has; None when the name has another form."""
    name = _COMPACTED_FILE.fullmatch(key)
    return None if name is None else int(name[1])


def schema_key(name: str) -> str:
    """The key of a schema, from its hash, or from the file that has the hash in its name."""
    if "/" in name:
        name = _stem(name).removesuffix("-deletes").rpartition("-")[2]
    return f"_schemas/{name}.arrow"


def columns_key(name: str) -> str:
    """The key of recorded columns, from a schema's hash."""
    return f"{COLUMNS}{name}.arrow"


def unit_of(file: str) -> str:
    """The name of the committable that a file belongs to: the file itself, or a list."""
    is_partitioned = file.count("/") > 1 or file.endswith(PARTS)
    return _stem(file) + PARTS if is_partitioned else file


def partition_folder(file: str) -> str:
    """The partition of a file, such as ``day=2026-01-01``, or empty."""
    return "/".join(file.split("/")[2:-1])


def is_json(file: str) -> bool:
    return file.endswith(".json")


def is_deletes(file: str) -> bool:
    return file.startswith(DATA) and _stem(file).endswith("-deletes")


def deletes_first(staged: RowFile | Committable) -> tuple[bool, str]:
    """The sort key of a checkpoint's files: deletes apply first."""
    return not is_deletes(staged.file), staged.file


def _stem(file: str) -> str:
    name = _TOP.fullmatch(file)
    if name is None:
        raise ProtocolViolation(f"{file!r} is not the name of a table's file")
    return name[1]
