"""A Delta table at a place: its log, its files, and what its writers have to keep.

deltalake reads the state of the table, checkpoints of its log included.  A commit is written here:
one create-only object of the store, ``_delta_log/{version}.json``, of which exactly one of racing
writers becomes the version.  A writer whose answer was lost finds its own bytes there.

A table is refused whose protocol or properties ask something of its writers that is not kept here.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote, unquote

from sluice.errors import BEGIN_ANEW, ConfigurationError, ProtocolViolation, StoreUnavailable
from sluice.extras import require_installed
from sluice.store.object_store import Created, ObjectStore, RangeReader, machine_clock_ms
from sluice.store.open import StoreLocation, open_store

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from deltalake import DeltaTable

log = logging.getLogger(__name__)

Action: TypeAlias = dict[str, Any]  # One line of the log: an object with one member, by its kind.
LOG = "_delta_log/"

# What a writer of these features has to do is done here, or what uses them is refused below.
FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "identityColumns",
        "invariants",
        "timestampNtz",
        "vacuumProtocolCheck",
        "variantType",
    }
)
# Legacy protocols have no list of features, and these versions ask for some of the above.
LEGACY_VERSIONS = range(1, 7)
RULES_OF_COLUMNS = {
    "delta.invariants": "an invariant",
    "delta.generationExpression": "values that its writers generate",
    "delta.identity.start": "values that its writers number",
}
CHECKPOINT_EVERY = 10  # Versions; Spark's default.  Each read of a table reads those since.
TEXT_IN_STATISTICS = 32  # Characters: a longer least or greatest text is left out.
TIME_OUT = "30 seconds"  # Of deltalake's requests.
# What deltalake says of a store that did not answer; its exceptions do not tell.  The last two: a
# page that came for a file of the log, and for a listing, which then names no checkpoint.
_OUTAGE = (
    *("error sending request", "Generic S3 error", "timed out", "connection", "HTTP error"),
    *("unexpected '<'", "Had a _last_checkpoint hint"),
)

# What deltalake puts behind its errors, and between the causes of one.
_BACKTRACE = re.compile(r"\n +0: .*", re.DOTALL)
_CAUSE = re.compile(r"\s*(\x1b\[\d+m)?\u21b3(\x1b\[0m)?\s*")


def _said(error: Exception) -> str:
    return " ".join(_CAUSE.sub(": ", _BACKTRACE.sub("", str(error))).split())


@dataclass(frozen=True, slots=True)
class DeltaPlace:
    """A place of a table, in a folder or on S3."""

    location: StoreLocation

    def __post_init__(self) -> None:
        if not self.location.root.startswith(("s3://", "file://")):
            raise ConfigurationError(
                f"the Delta table {self.location.root!r} is neither in a folder nor on S3; write "
                "s3://bucket/folder or file:///folder"
            )

    @property
    def name(self) -> str:
        return f"the Delta table {self.location.root}"

    def store(self) -> ObjectStore:
        return open_store(replace(self.location, foreign=True))

    def load(self, version: int | None = None) -> Snapshot | None:
        """The table as it is now, or was at *version*; None where there is none.

        Raises:
            ConfigurationError: deltalake cannot read it, or the version does not exist any more.
            StoreUnavailable: try again.
        """
        require_installed("deltalake", who=self.name)
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        root = self.location.root
        uri = root.removeprefix("file://")
        if uri != root and not Path(uri).is_dir():
            return None
        with self.failures():
            try:
                return Snapshot(self, DeltaTable(uri, version, storage_options=self._options()))
            except TableNotFoundError:
                return None

    def current(self) -> Snapshot | None:
        """The table as it is now, as ``load``; if it is as this process saw it last, it is not read
        again, which two requests tell.
        """
        store = self.store()
        if (known := _LAST_SEEN.get(self)) is not None:
            is_last = store.get(entry_key(known[0].version + 1)) is None
            # A table that was made anew has other bytes there.
            if is_last and store.get(entry_key(known[0].version)) == known[1]:
                return known[0]
        found = self.load()
        body = None if found is None else store.get(entry_key(found.version))
        if found is not None and body is not None:
            if len(_LAST_SEEN) >= TABLES_KEPT:
                _LAST_SEEN.clear()
            _LAST_SEEN[self] = (found, body)
        return found

    def entry(self, version: int) -> list[Action] | None:
        """The actions of a version; None where its entry of the log was cleaned up."""
        body = self.store().get(entry_key(version))
        if body is None:
            return None
        try:
            return [json.loads(line) for line in body.splitlines() if line.strip()]
        except ValueError as error:
            raise ProtocolViolation(
                f"{entry_key(version)} of {self.name} is no entry of a log: {error}"
            ) from error

    def write(self, version: int, actions: Sequence[Action]) -> bool:
        """Make *actions* the *version*; False: another writer's are.  Safe to repeat.

        Raises:
            StoreUnavailable: it may be in the log, now or later; the table knows.
        """
        body = "\n".join(json.dumps(action, ensure_ascii=False) for action in actions).encode()
        result = self.store().create(entry_key(version), body)
        return isinstance(result, Created) or result.body == body

    def tidy(self, version: int, configuration: Mapping[str, str]) -> None:
        """Have deltalake sum the log up, and clean it up, every few versions; it may fail."""
        every = configuration.get("delta.checkpointInterval", "")
        if version % (int(every) if every.isdecimal() and int(every) else CHECKPOINT_EVERY):
            return
        try:
            snapshot = self.load()
            if snapshot is not None:
                snapshot.table.create_checkpoint()
                if configuration.get("delta.enableExpiredLogCleanup", "").lower() != "false":
                    snapshot.table.cleanup_metadata()
        except Exception as error:  # noqa: BLE001 - the commit is there; the next one tries again
            log.warning("the log of %s was not summed up: %s", self.name, error)

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Translate the errors of deltalake into those of sluice."""
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            yield
        except TableNotFoundError:
            raise
        except OSError as error:
            raise StoreUnavailable(f"{self.name} did not answer: {_said(error)}") from None
        except DeltaError as error:
            said = _said(error)
            if any(words in said for words in _OUTAGE):
                raise StoreUnavailable(f"{self.name} did not answer: {said}") from None
            raise ConfigurationError(f"{self.name} cannot be read by deltalake: {said}") from None

    def _options(self) -> dict[str, str] | None:
        if not self.location.root.startswith("s3://"):
            return None
        options = {"timeout": TIME_OUT}
        if (endpoint := self.location.endpoint_url) is not None:
            options |= {"aws_endpoint": endpoint, "aws_allow_http": "true"}
        return options


@dataclass(frozen=True, slots=True)
class DataFile:
    """A live file: its *path* as the log has it, and statistics where there are any."""

    path: str
    size_bytes: int
    partition: Mapping[str, str | None]
    rows: int | None = None
    least: Mapping[str, Any] | None = None
    most: Mapping[str, Any] | None = None

    @property
    def key(self) -> str:
        """Its key below the table's root.

        Raises:
            ConfigurationError: it is not there, as after a shallow clone.
        """
        if "://" in self.path or self.path.startswith("/"):
            raise ConfigurationError(
                f"the data file {self.path} is not in its Delta table's own folder; a shallow "
                "clone is not read here: make a deep one"
            )
        return unquote(self.path)


@dataclass(frozen=True)
class Snapshot:
    """A version of a table, as deltalake has read it."""

    place: DeltaPlace
    table: DeltaTable

    @cached_property
    def version(self) -> int:
        return self.table.version()

    @cached_property
    def id(self) -> str:
        return str(self.table.metadata().id)

    @cached_property
    def configuration(self) -> dict[str, str]:
        return dict(self.table.metadata().configuration)

    @cached_property
    def partition_columns(self) -> tuple[str, ...]:
        return tuple(self.table.metadata().partition_columns)

    @cached_property
    def schema(self) -> pa.Schema:
        import pyarrow as pa

        return pa.schema(self.table.schema().to_arrow())

    @cached_property
    def schema_text(self) -> str:
        return str(self.table.schema().to_json())

    @property
    def feeds_changes(self) -> bool:
        return self.configuration.get("delta.enableChangeDataFeed", "").lower() == "true"

    @cached_property
    def has_vectors(self) -> bool:
        """Whether rows of a live file are deleted by a vector, which is not applied here."""
        import pyarrow as pa

        with self.place.failures():
            vectors = pa.RecordBatchReader.from_stream(self.table.deletion_vectors())
            return bool(vectors.read_all().num_rows)

    @cached_property
    def files(self) -> list[DataFile]:
        import pyarrow as pa

        with self.place.failures():
            found = pa.table(self.table.get_add_actions()).to_pylist()
        return [
            DataFile(
                path=one["path"],
                size_bytes=one["size_bytes"],
                partition={
                    name: partition_text((one.get("partition") or {}).get(name))
                    for name in self.partition_columns
                },
                rows=one.get("num_records"),
                least=one.get("min"),
                most=one.get("max"),
            )
            for one in found
        ]

    def check_writable(self, *, changes: bool) -> None:
        """Check what the table asks of its writers; *changes*: rows are also taken away.

        Raises:
            ConfigurationError: something is not kept here; it says what.
        """
        protocol, found = self.table.protocol(), self.configuration
        features = set(protocol.writer_features or ())
        is_legacy = protocol.min_writer_version in LEGACY_VERSIONS
        if unknown := sorted(features - FEATURES):
            raise self._refused(f"asks its writers for the feature {unknown[0]}")
        if not is_legacy and protocol.min_writer_version != 7:
            raise self._refused(f"is of writer version {protocol.min_writer_version}")
        if found.get("delta.columnMapping.mode", "none") != "none":
            raise self._refused("maps its columns to other names (delta.columnMapping.mode)")
        if constraint := next((key for key in found if key.startswith("delta.constraints.")), ""):
            raise self._refused(f"has a constraint ({constraint})")
        if "delta.setTransactionRetentionDuration" in found:
            raise self._refused(
                "forgets application transactions (delta.setTransactionRetentionDuration), by "
                "which a checkpoint is known to be published"
            )
        for rule, what in RULES_OF_COLUMNS.items():
            if f'"{rule}"' in self.schema_text:
                raise self._refused(f"has a column with {what} ({rule})")
        if changes and found.get("delta.appendOnly", "").lower() == "true":
            raise self._refused("only takes appended rows (delta.appendOnly)")
        if changes and self.has_vectors:
            raise ConfigurationError(
                f"{self.place.name} has deletion vectors, which are not applied here, so its files "
                "cannot be rewritten; purge them (REORG TABLE ... APPLY (PURGE)) and set "
                "delta.enableDeletionVectors to false"
            )

    def _refused(self, what: str) -> ConfigurationError:
        return ConfigurationError(
            f"{self.place.name} {what}, which this sink does not keep; write to another table, or "
            "take that away from this one"
        )


# What this process saw of tables last: each slice of a source asks for the table as it is.
_LAST_SEEN: dict[DeltaPlace, tuple[Snapshot, bytes]] = {}
TABLES_KEPT = 8


def entry_key(version: int) -> str:
    return f"{LOG}{version:020d}.json"


def info_of(entry: Sequence[Action]) -> dict[str, Any]:
    return next((dict(one["commitInfo"]) for one in entry if "commitInfo" in one), {})


def new_path(folder: str, checkpoint_id: int) -> str:
    """The key of a new data file in a partition's *folder*, which no other file ever has."""
    name = f"sluice-{checkpoint_id}-{secrets.token_hex(8)}.parquet"
    return f"{folder}/{name}" if folder else name


def as_path(key: str) -> str:
    """The path in the log of the file *key*."""
    return quote(key, safe="/=-_.~!$&'()*+,;@:")


def partition_text(value: object) -> str | None:
    """A partition's value as the log has it; the empty text is null there."""
    if value is None or value == "":
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def created(
    schema: pa.Schema,
    table_id: str,
    partitions: Sequence[str] = (),
    configuration: Mapping[str, str] | None = None,
    writer_features: Sequence[str] = (),
) -> list[Action]:
    """The actions that make a table have these columns; they come before its files."""
    from deltalake import Schema

    text = Schema.from_arrow(schema).to_json()
    features = ["timestampNtz"] if '"timestamp_ntz"' in text else []
    protocol: Action = {"minReaderVersion": 3 if features else 1, "minWriterVersion": 2}
    if features:
        protocol["readerFeatures"] = features
    if features or writer_features:
        protocol |= {"minWriterVersion": 7, "writerFeatures": [*features, *writer_features]}
    metadata = {
        "id": table_id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": text,
        "partitionColumns": [*partitions],
        "configuration": dict(configuration or {}),
        "createdTime": machine_clock_ms(),
    }
    return [{"protocol": protocol}, {"metaData": metadata}]


def added_action(file: DataFile, footer: pq.FileMetaData, schema: pa.Schema) -> Action:
    return {
        "add": {
            "path": file.path,
            "partitionValues": dict(file.partition),
            "size": file.size_bytes,
            "modificationTime": machine_clock_ms(),
            "dataChange": True,
            "stats": statistics_of(footer, schema),
        }
    }


def removed(file: DataFile) -> Action:
    return {
        "remove": {
            "path": file.path,
            "deletionTimestamp": machine_clock_ms(),
            "dataChange": True,
            "extendedFileMetadata": True,
            "partitionValues": dict(file.partition),
            "size": file.size_bytes,
        }
    }


def null_counts(footer: pq.FileMetaData) -> dict[str, int]:
    """The nulls of each column that is not nested, by the footer."""
    counts: dict[str, int] = {}
    for group in map(footer.row_group, range(footer.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            known = column.statistics
            if known is not None and known.has_null_count:
                name = column.path_in_schema
                counts[name] = counts.get(name, 0) + known.null_count
    return counts


def statistics_of(footer: pq.FileMetaData, schema: pa.Schema) -> str:
    """The log's statistics of a file: least and greatest of whole numbers, texts and dates."""
    from pyarrow import types

    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    unknown: set[str] = set()
    for group in map(footer.row_group, range(footer.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            name, known = column.path_in_schema, column.statistics
            if name not in schema.names:
                continue
            kind = schema.field(name).type
            is_ordered = types.is_integer(kind) or types.is_date(kind) or types.is_string(kind)
            if known is None or not is_ordered:
                unknown.add(name)
            elif known.has_min_max:
                low, high = known.min, known.max
                if isinstance(low, bytes) or (
                    isinstance(low, str) and max(len(low), len(high)) > TEXT_IN_STATISTICS
                ):
                    unknown.add(name)
                    continue
                least[name] = min(low, least.get(name, low))
                most[name] = max(high, most.get(name, high))
            elif not known.has_null_count or known.null_count < group.num_rows:
                unknown.add(name)
    counts = {name: count for name, count in null_counts(footer).items() if name in schema.names}

    def said(found: dict[str, Any]) -> dict[str, Any]:
        return {
            name: value if isinstance(value, int | str) else value.isoformat()
            for name, value in found.items()
            if name not in unknown
        }

    return json.dumps(
        {
            "numRecords": footer.num_rows,
            "minValues": said(least),
            "maxValues": said(most),
            "nullCount": counts,
        },
        ensure_ascii=False,
    )


def open_parquet(store: ObjectStore, file: DataFile) -> pq.ParquetFile:
    """The file, of which columns are read by ranged requests.

    Raises:
        ConfigurationError: it is gone.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(pa.PythonFile(RangeReader(store, file.key, file.size_bytes)))
    except (StoreUnavailable, pa.ArrowInvalid) as error:
        if store.get_range(file.key, 0, 1) is not None:
            raise
        raise ConfigurationError(
            f"{store.root}/{file.key} is in the log of its Delta table and is gone; put it back, "
            "or "
            f"{BEGIN_ANEW}, and keep removed files for longer (delta.deletedFileRetentionDuration)"
        ) from error


def with_partition(rows: pa.Table, file: DataFile, schema: pa.Schema) -> pa.Table:
    """*rows* of *file* with its partition's columns, whose values are in the log alone."""
    import pyarrow as pa

    for name, text in file.partition.items():
        if name in schema.names and name not in rows.column_names:
            value = _partition_value(text, schema.field(name).type)
            rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
    return rows


def _partition_value(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """The value that *text* in the log is; an instant without an offset is in UTC."""
    import pyarrow as pa

    if text is not None and pa.types.is_timestamp(kind) and kind.tz is not None:
        at = datetime.fromisoformat(text)
        return pa.scalar(at if at.tzinfo is not None else at.replace(tzinfo=UTC), kind)
    return pa.scalar(text, pa.string()).cast(kind)
