"""Data files of an Iceberg table, staged in its own location before a snapshot names them.

    {data path}/sluice-{identity}/
      {checkpoint}-{token}-{subtask}-{attempt}.parquet          rows, as they stay
      {checkpoint}-{token}-{subtask}-{attempt}-deletes.parquet  keys of deleted rows
      {checkpoint}-{token}-99999-rewrite-{random}.parquet       what a commit kept of an older file

``{token}`` is the checkpoint's: its number alone may be that of another life of the job.
Readers of a table open what its snapshots name, so publishing writes no row a second time.

Rows are cast to the table's schema, and written with its field ids, so that a file is read
correctly when columns are renamed or dropped later.  Files for ``Table.add_files`` have no ids and
depend on names, so that is not used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from sluice.connectors.columns import fitted_rows
from sluice.core.answers import Committable
from sluice.declaration.places import Staged
from sluice.errors import ConfigurationError, ProtocolViolation, StoreUnavailable
from sluice.protocol.records import ChecksumStream, checksum_of
from sluice.store.object_store import in_parallel

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.typedef import Record

NEWEST_WRITTEN = 2  # The newest format version that pyiceberg 0.12 writes.
DELETES = "-deletes.parquet"
REWRITE = "99999-rewrite-"
STAGED_FILE = re.compile(r"([0-9]{20})-([A-Za-z0-9_]+)-[0-9]{5,}-[A-Za-z0-9-]+\.parquet")
THREADS = 16  # A footer or manifest is a request or two, mostly latency.
PIECE_BYTES = 4 << 20  # Of a file that is compared, by each of the threads.
TABLE_ID = b"sluice.table"  # A key of a staged file's metadata.


def fitted(rows: pa.Table, schema: Schema, name: str) -> pa.Table:
    """See ``columns.fitted_rows``; *name* is the table's in its catalog."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    wanted = schema_to_pyarrow(schema, include_field_ids=True)
    table = f"the Iceberg table {name}"
    return fitted_rows(rows, wanted, table, truncates_times=False, optional="optional")


def partitioned(table: Table, rows: pa.Table) -> Iterator[tuple[Record, pa.Table]]:
    """*rows*, cut by the present partitions of *table*: each is in one.

    pyiceberg compares the values of partitions, so it loses NaN, which is equal to nothing, and has
    the rows of 0.0 and -0.0 in both partitions.
    """
    import numpy as np
    import pyarrow as pa
    from pyiceberg.io.pyarrow import _get_field_from_arrow_table
    from pyiceberg.partitioning import PartitionFieldValue, PartitionKey

    schema, spec = table.schema(), table.spec()
    values = []
    for field in spec.fields:
        name = schema.find_column_name(field.source_id)
        assert name is not None, "a partition is of a column of the table"
        transform = field.transform.pyarrow_transform(schema.find_type(field.source_id))
        values.append(transform(_get_field_from_arrow_table(rows, name)))
    names = [str(number) for number in range(len(values))]
    numbered = pa.table([*values, pa.array(np.arange(rows.num_rows))], [*names, "row"])
    groups = numbered.group_by(names, use_threads=False).aggregate([("row", "list")])
    for group, places in zip(groups.select(names).to_pylist(), groups["row_list"], strict=True):
        found = [
            PartitionFieldValue(field=field, value=group[name])
            for field, name in zip(spec.fields, names, strict=True)
        ]
        key = PartitionKey(field_values=found, partition_spec=spec, schema=schema)
        yield key.partition, rows.take(places.values)


def check_writable(table: Table, *, is_upserted: bool) -> None:
    """Check, before a checkpoint is committed, that pyiceberg can write the table.

    Raises:
        ConfigurationError: the table is of a format that pyiceberg only reads, or rows are to be
            replaced in partitions that may be of NaN.
        NotInstalledError: rows cannot be put into partitions of this kind without pyiceberg-core.
    """
    from pyiceberg.transforms import VoidTransform
    from pyiceberg.types import DoubleType, FloatType

    if table.metadata.format_version > NEWEST_WRITTEN:
        raise ConfigurationError(
            f"the Iceberg table {'.'.join(table.name())} is of format version "
            f"{table.metadata.format_version}, which pyiceberg reads and cannot write; use a table "
            f"of version {NEWEST_WRITTEN}"
        )
    schema = table.schema()
    for field in table.spec().fields:
        of = schema.find_type(field.source_id)
        is_float = isinstance(of, FloatType | DoubleType)
        if is_upserted and is_float and not isinstance(field.transform, VoidTransform):
            raise ConfigurationError(
                f"the Iceberg table {'.'.join(table.name())} is partitioned by "
                f"{schema.find_column_name(field.source_id)!r}, a {of}, where pyiceberg cannot "
                "replace rows; partition it by another column, or leave upsert_key out"
            )
        field.transform.pyarrow_transform(of)


def check_required(table: Table, columns: Sequence[str], name: str) -> None:
    """Raises ConfigurationError when the table requires a column that rows do not have."""
    for field in table.schema().fields:
        if field.required and field.name not in columns and field.write_default is None:
            raise ConfigurationError(
                f"column {field.name!r} of the Iceberg table {name} is required, and the rows have "
                f"only {', '.join(columns)}; write it in the stage, or make the column optional"
            )


def footer(io: FileIO, location: str) -> pq.FileMetaData:
    """Raises FileNotFoundError when it is gone."""
    import pyarrow.parquet as pq

    with io.new_input(location).open() as stream:
        return pq.read_metadata(stream)


def described(
    metadata: TableMetadata,
    location: str,
    parquet: pq.FileMetaData,
    size_bytes: int,
    partition: Record | None = None,
) -> DataFile:
    """The manifest's entry of the file, with statistics of its columns."""
    from pyiceberg.io.pyarrow import (
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    schema = metadata.schema()
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=parquet,
        stats_columns=compute_statistics_plan(schema, metadata.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(schema),
    )
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=partition if partition is not None else Record(),
        file_size_in_bytes=size_bytes,
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


@dataclass(frozen=True, slots=True)
class Staging:
    """The staged files of the sink *identity* in *table*."""

    table: Table
    identity: str

    @property
    def folder(self) -> str:
        return f"{self.table.location_provider().data_path}/sluice-{self.identity}"

    def location(self, file: str) -> str:
        if not STAGED_FILE.fullmatch(file):
            raise ProtocolViolation(f"{file!r} is not the name of a staged file")
        return f"{self.folder}/{file}"

    def stage(self, sink: str, file: str, rows: pa.Table) -> Committable:
        """Write *rows*, whose sink calls itself *sink* in its acks."""
        written = self.write(file, rows)
        return Committable(
            sink=sink,
            file=file,
            rows=rows.num_rows,
            size_bytes=written.size_bytes,
            checksum=written.checksum,
        )

    def write(self, file: str, rows: pa.Table) -> ChecksumStream:
        """Write *rows*; the result knows the file's size and checksum.

        The table's own settings count as they do for pyiceberg.
        """
        import pyarrow.parquet as pq
        from pyiceberg.io.pyarrow import _get_parquet_writer_kwargs

        settings = _get_parquet_writer_kwargs(self.table.metadata.properties)
        with self.table.io.new_output(self.location(file)).create(overwrite=True) as stream:
            written = ChecksumStream(stream)
            pq.write_table(rows, written, **settings)
        return written

    def read(self, staged: Committable, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of a staged file, or only their *columns*.

        Raises ProtocolViolation when the file is missing or changed.
        """
        import pyarrow.parquet as pq

        self._checked(staged)
        place = self.location(staged.file)
        with self._as_it_was_written(staged), self.table.io.new_input(place).open() as stream:
            wanted = None if columns is None else [*columns]
            return pq.ParquetFile(stream).read(wanted, use_threads=False)  # See decode_parquet.

    def footers(self, staged: Iterable[Committable]) -> list[pq.FileMetaData]:
        """The footers of *staged*; ProtocolViolation when a file is missing or changed."""
        return in_parallel(self._checked, staged, THREADS)

    def damage_of(self, staged: Iterable[Committable]) -> list[str]:
        """A sentence for each file that is missing or changed; every file is read."""
        return [damage for damage in in_parallel(self._damage, staged, THREADS) if damage]

    def _damage(self, staged: Committable) -> str:
        """Raises StoreUnavailable where something in between answered, with a page."""
        place = self.location(staged.file)
        what = f"{place}, staged for sink {staged.sink!r}, is "
        try:
            with self.table.io.new_input(place).open() as stream:
                first = stream.read(PIECE_BYTES)
                others = iter(lambda: stream.read(PIECE_BYTES), b"")
                checksum = checksum_of(chain([first], others))
        except FileNotFoundError:
            return what + "missing"
        if checksum == staged.checksum:
            return ""
        if first.startswith(b"<"):
            raise StoreUnavailable(what + "answered for by a page of something in between")
        return what + "damaged"

    @contextmanager
    def _as_it_was_written(self, staged: Committable) -> Iterator[None]:
        import pyarrow as pa

        place = self.location(staged.file)
        try:
            yield
        except FileNotFoundError as error:
            raise ProtocolViolation(f"{place} was committed and is missing") from error
        except pa.ArrowInvalid as error:
            if self._damage(staged):
                raise ProtocolViolation(f"{place} is not what was committed: {error}") from error
            raise StoreUnavailable(f"{place} was answered with something else: {error}") from error

    def listed(self) -> list[Staged]:
        from pyarrow import fs

        filesystem, path = self._place()
        try:
            infos = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
        except OSError as error:
            raise StoreUnavailable(f"the files at {self.folder} cannot be listed") from error
        return [
            Staged(
                file=info.base_name,
                checkpoint_id=int(name[1]),
                checkpoint_token=name[2],
                size_bytes=info.size,
                modified_ms=info.mtime_ns // 1_000_000,
            )
            for info in infos
            if (name := STAGED_FILE.fullmatch(info.base_name)) is not None
        ]

    def discard(self, files: Iterable[str]) -> None:
        """Delete *files*; missing ones are no error."""
        in_parallel(self._delete, files, THREADS)

    def named(self) -> set[str]:
        """The files that some snapshot names, on any branch.

        Reads each manifest of the table's history once.
        """
        io, snapshots = self.table.io, self.table.metadata.snapshots
        lists = in_parallel(lambda snapshot: snapshot.manifests(io), snapshots, THREADS)
        manifests = {one.manifest_path: one for listed in lists for one in listed}
        names = in_parallel(self._names, manifests.values(), THREADS)
        return {name for found in names for name in found}

    def _names(self, manifest: Any) -> list[str]:  # noqa: ANN401 - pyiceberg's ManifestFile
        below = f"{self.folder}/"
        paths = (
            entry.data_file.file_path for entry in manifest.fetch_manifest_entry(self.table.io)
        )
        return [path.removeprefix(below) for path in paths if path.startswith(below)]

    def _checked(self, staged: Committable) -> pq.FileMetaData:
        place = self.location(staged.file)
        with self._as_it_was_written(staged):
            found = footer(self.table.io, place)
        if found.num_rows != staged.rows:
            raise ProtocolViolation(
                f"{place} has {found.num_rows} rows where {staged.rows} were committed"
            )
        return found

    def _delete(self, file: str) -> None:
        filesystem, folder = self._place()
        try:
            filesystem.delete_file(f"{folder}/{file}")
        except FileNotFoundError:
            pass
        except OSError as error:
            raise StoreUnavailable(f"{self.folder}/{file} cannot be deleted") from error

    def _place(self) -> tuple[Any, str]:
        """pyarrow's file system, and the folder's path in it."""
        from pyiceberg.io.pyarrow import PyArrowFileIO

        io = self.table.io
        assert isinstance(io, PyArrowFileIO)
        scheme, netloc, path = io.parse_location(self.folder, io.properties)
        return io.fs_by_scheme(scheme, netloc), path


def file_name(checkpoint_id: int, checkpoint_token: str, rest: str) -> str:
    return f"{checkpoint_id:020d}-{checkpoint_token}-{rest}"


def checkpoint_of_file(file: str) -> tuple[int, str]:
    """The number and the token of the checkpoint that staged it."""
    found = STAGED_FILE.fullmatch(file)
    assert found is not None, f"not a staged file's name: {file!r}"
    return int(found[1]), found[2]


@dataclass(frozen=True, slots=True)
class FieldMapping:
    """The mapping of a staged file's columns to those that *table* has at the commit.

    *staged* is the file's Arrow schema, with the ids of its fields and of its table:

        renamed, moved, widened     by the field's id
        dropped                     left out, as readers leave it out
        dropped and created again   by its name: the stage writes to the column of this name
        added                       null, or its initial default; refused where it is required
        table created again         by name, as its ids have changed

    A file that needs no change is published as it is.
    """

    table: Table
    staged: pa.Schema

    @property
    def is_of_table(self) -> bool:
        """Whether the file's ids are the table's: the table was not created again."""
        return (self.staged.metadata or {}).get(TABLE_ID) == table_id(self.table)

    @property
    def fits(self) -> bool:
        """Whether the file has exactly the table's present columns."""
        if not self.is_of_table:
            return False
        now = {field.field_id: field for field in self.table.schema().fields}
        then = {field.field_id: field for field in self._schema().fields}
        return now.keys() == then.keys() and all(
            (field.name, field.field_type) == (then[id_].name, then[id_].field_type)
            and (not field.required or then[id_].required)
            for id_, field in now.items()
        )

    def mapped(self, rows: pa.Table) -> pa.Table:
        """*rows* of the file in the table's columns.

        Raises:
            ConfigurationError: a column is required and has no value, or does not fit.
        """
        mapped = self._by_id(rows) if self.is_of_table else _plain(rows)
        return fitted(mapped, self.table.schema(), ".".join(self.table.name()))

    def names_now(self, columns: Sequence[str]) -> list[str]:
        """The names of the file's *columns* in the table.

        Raises:
            ConfigurationError: one was dropped.
        """
        found = []
        schema = self.table.schema()
        for column in columns:
            now = None
            if self.is_of_table:
                now = schema.find_column_name(self._schema().find_field(column).field_id)
            now = now or (column if column in schema.column_names else None)
            if now is None:
                raise ConfigurationError(
                    f"column {column!r}, by which a sink upserts, was dropped from the Iceberg "
                    f"table {'.'.join(self.table.name())}; add it again and fill it, or put the "
                    "table's schema back, and try again"
                )
            found.append(now)
        return found

    def _by_id(self, rows: pa.Table) -> pa.Table:
        import pyarrow as pa
        from pyiceberg.schema import Schema

        now, then = self.table.schema(), self._schema()
        # Optional: ``fitted`` checks required columns, with an error that names the fix.
        optional = Schema(*(one.model_copy(update={"required": False}) for one in now.fields))
        batches = [projected_batch(batch, then, optional) for batch in rows.to_batches()]
        mapped = _plain(pa.Table.from_batches(batches)) if batches else rows.select([])
        for column in then.fields:
            is_gone = now.find_column_name(column.field_id) is None
            if not is_gone or column.name not in now.column_names:
                continue
            if now.find_field(column.name).field_id not in then.field_ids:
                index = mapped.schema.get_field_index(column.name)
                mapped = mapped.set_column(index, column.name, rows.column(column.name))
        return mapped

    def _schema(self) -> Schema:
        from pyiceberg.io.pyarrow import pyarrow_to_schema

        return pyarrow_to_schema(self.staged)


def table_id(table: Table) -> bytes:
    return str(table.metadata.table_uuid).encode()


def of_table(rows: pa.Table, table: Table) -> pa.Table:
    """*rows* with the id of the *table* whose field ids they have."""
    return rows.replace_schema_metadata({TABLE_ID: table_id(table)})


def _plain(rows: pa.Table) -> pa.Table:
    """*rows* without field ids, which are those of another table."""
    import pyarrow as pa

    fields = [pa.field(one.name, one.type) for one in rows.schema]
    return pa.Table.from_arrays(rows.columns, schema=pa.schema(fields))


def projected_batch(batch: pa.RecordBatch, there: Schema, wanted: Schema) -> pa.RecordBatch:
    """The rows of *batch*, of schema *there*, in the columns of *wanted*, matched by field ids.

    Missing columns are null, or have their initial default.  pyiceberg's own visitor does it; it
    turns null lists and maps of structs into empty ones, so these are made null again.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyiceberg.io.pyarrow import ArrowAccessor, ArrowProjectionVisitor
    from pyiceberg.schema import visit_with_partner
    from pyiceberg.types import ListType, MapType

    def with_nulls_of(original: pa.Array | None, made: pa.Array | None) -> pa.Array | None:
        if original is None or made is None or made.null_count == original.null_count:
            return made
        return pc.if_else(original.is_valid(), made, pa.scalar(None, made.type))

    class Visitor(ArrowProjectionVisitor):
        def list(
            self, list_type: ListType, list_array: pa.Array | None, value_array: pa.Array | None
        ) -> pa.Array | None:
            return with_nulls_of(list_array, super().list(list_type, list_array, value_array))

        def map(
            self,
            map_type: MapType,
            map_array: pa.Array | None,
            key_result: pa.Array | None,
            value_result: pa.Array | None,
        ) -> pa.Array | None:
            made = super().map(map_type, map_array, key_result, value_result)
            return with_nulls_of(map_array, made)

    visitor = Visitor(there, downcast_ns_timestamp_to_us=True, allow_timestamp_tz_mismatch=True)
    rows = visit_with_partner(wanted, batch, visitor, ArrowAccessor(there))
    return pa.RecordBatch.from_struct_array(rows)
