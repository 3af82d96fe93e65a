"""Sources and sinks: ``SourceSpec`` and ``SinkSpec`` are declared, ``Source`` and ``Sink`` opened.

A source is a set of partitions (files, a Kafka partition, one generator), each an ordered sequence
of records that never change once they can be read.  A sink has two phases: its readers see whole
checkpoints or nothing.  The page "A connector of one's own" describes both.

Dataclasses that a checkpoint stores become JSON, so their fields are of plain types.

``NamedPlaceSpec`` has the names that others have for a place: OpenLineage's namespace and name of a
dataset.  The rules are those of https://openlineage.io/docs/spec/naming, by which a table that
Sluice writes and another tool reads is one dataset in a catalog of lineage.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Literal, Protocol, Self, TypeAlias, cast, runtime_checkable

from sluice.core.answers import Attempt, Committable
from sluice.core.plan import PartitionOffset, Slice, Unread
from sluice.core.timeline import Recovery, TimelineComparison, Writer
from sluice.declaration.params import Env, Param, value_of
from sluice.errors import ConfigurationError, require

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from sluice.declaration.results import Result
    from sluice.store.object_store import ObjectStore
    from sluice.store.open import StoreLocation


# Reserved columns that a source's rows may have; stages do not see them.
RECORD = "_record"  # The row's number in its partition, if it is not the number of rows before.
MALFORMED_COLUMN = "_malformed"  # Why a row is malformed; null in a good row.
RAW = "_raw"  # The text of a malformed row, if its columns do not hold it.
WEIGHT = "_weight"  # 1 in a row, -1 in one that is taken back.
# True in a row that deletes the row of its key from a table with an upsert key.
DELETED = "_deleted"

# The column of a source that says when Spark code reads, and that code's parameter.
DUE = "due"

# From the number of the first row in the source, and the number of rows, to a column of them.
Filler: TypeAlias = Callable[[int, int], "pa.Array"]

# The extra field, and its value, that is appended to each text that Spark decodes.  A text that
# contains it could fake it, and is malformed.
END = "sluice_end_9b1fd3c5a7"

_ESCAPES = {"t": "\t", "r": "\r", "b": "\b", "f": "\f"}  # Of Spark's CSV reader in a delimiter.

SourcePosition: TypeAlias = tuple[PartitionOffset, ...]  # One per partition, sorted by it.


class UndecidedError(Exception):
    """Only Spark can read the rows; or none of the tasks that would send rows has started."""


class SourceSpec(Protocol):
    """A light, frozen and picklable descriptor of a source.

    ``open`` returns the connector that cuts and reads, and imports it only then, because Airflow
    parses declarations every few seconds.
    """

    @property
    def params(self) -> tuple[Param, ...]: ...

    def open(self, params: Mapping[str, str], endpoint_url: str | None) -> Source:
        """*endpoint_url* is that of the job's S3 server, if it has one of its own.

        Raises:
            ConfigurationError: a parameter is missing or wrong.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceMeaning:
    """The meaning of a source's positions and rows; a checkpoint records it.

    ``places`` are what positions refer to: a folder, topics, a table.  Servers and credentials are
    no part of a place, so it may move.  ``decoding`` is how a record becomes a row.  ``columns``
    has the origin of each column that is not the record's field of the same name.  Types are no
    part of the meaning.
    """

    places: tuple[str, ...]
    decoding: str = ""
    columns: Mapping[str, str] = field(default_factory=dict[str, str])


@runtime_checkable
class DescribedSourceSpec(Protocol):
    """A descriptor of a source whose meaning is part of a checkpoint; of others it is not known."""

    def meaning(self, params: Mapping[str, str]) -> SourceMeaning: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenForm:
    """The form in which a test may give rows in the place of a source's.

    ``schema`` is that of what the source reads: texts, where it has a ``decoding``.  ``fills`` are
    the columns that the place adds to rows without them.  With a column ``text``, rows may be given
    as texts.
    """

    schema: pa.Schema
    decoding: TextDecoding | None = None
    fills: Mapping[str, Filler] = field(default_factory=dict[str, "Filler"])
    text: str = ""


def nulls_of(dtype: pa.DataType) -> Filler:
    """A column of nulls, where rows that are given have none."""
    import pyarrow as pa

    return lambda _, count: pa.nulls(count, dtype)


@runtime_checkable
class GivenSourceSpec(Protocol):
    """A descriptor of a source that tells its columns without a connection.

    Rows that a test gives are compared with these; of others the rows themselves say them.
    """

    def given_form(self, params: Mapping[str, str]) -> GivenForm | None:
        """The form in which rows arrive; None where the place alone knows the columns."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """The cut of an epoch: ``slices`` lead from the previous position to ``position``.

    ``exhausted``: the source is bounded, and has no records after this cut.  ``is_backlog``: there
    are more records to read, which exceed the cap of this epoch.  ``waiting`` are the partitions
    with records after the cut, which hold the watermark back.

    Of a ``KeepingSource``, ``begun`` are the partitions whose content the root has to keep from
    this epoch on: each has slices, or will.

    Two figures for people, None where the source does not know them: ``unread`` counts the records
    after the cut, ``size_bytes`` the bytes of the slices.
    """

    position: SourcePosition
    slices: tuple[Slice, ...]
    exhausted: bool
    is_backlog: bool = False
    waiting: tuple[str, ...] = ()
    begun: tuple[str, ...] = ()
    unread: Unread | None = None
    size_bytes: int | None = None

    def __post_init__(self) -> None:
        partitions = [offset.partition for offset in self.position]
        require(partitions == sorted(set(partitions)), "a position is sorted, one entry each")
        require(
            set(partitions).issuperset(self.waiting),
            "a waiting partition has an entry in the position, at 0 if nothing is read of it",
        )

    @property
    def records(self) -> int:
        return sum(piece.records for piece in self.slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDecoding:
    """The decoding of a column of text by Spark's ``from_json`` or ``from_csv``.

    ``schema`` is that of the decoded columns, in Spark's DDL.  The rows also keep the columns in
    ``keeps``.  With ``has_header`` record 0 of each partition is no row.
    """

    format: Literal["json", "csv"]
    schema: str
    column: str = "line"
    keeps: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    has_header: bool = False

    @property
    def delimiter(self) -> str:
        """The delimiter of CSV's fields: the option as Spark reads it, with ``\\t`` for a tab."""
        sep = self.options.get("sep", ",")
        return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", _unescaped, sep)


def _unescaped(found: re.Match[str]) -> str:
    code = found.group(1)
    if len(code) > 1:
        return chr(int(code[1:], 16))
    return _ESCAPES.get(code, code)


class Source(Protocol):
    """A replayable input: it can be cut at a barrier, and any slice of it be read again.

    ``plan`` runs on the coordinator's side and decides the slices of the next epoch; its
    ``Barrier`` is stored in the checkpoint.  ``read`` runs in a subtask and yields exactly the
    records of one slice, however often it is called.  Building a source opens nothing and imports
    nothing heavy.  A source of partitions of numbered records derives from
    ``offsets.OffsetSource``: it has only to find where each partition begins and ends, and to read.
    """

    @property
    def bounded(self) -> bool:
        """Whether the input ends; then some barrier is ``exhausted``."""
        ...

    @property
    def decoding(self) -> TextDecoding | None:
        """The column that Spark has to decode; None if ``read`` yields decoded columns."""
        ...

    def schema(self) -> pa.Schema:
        """The schema of every batch that ``read`` yields, with reserved columns."""
        ...

    def plan(
        self,
        position: SourcePosition,
        *,
        max_records: int | None,
        parallelism: int,
        until: Mapping[str, int] | None = None,
    ) -> Barrier:
        """Cut the next epoch: at most *max_records* after *position*, or all with None.

        *until* is a barrier that was decided elsewhere, an end offset per partition; partitions
        it does not name are not read (Flink's ExternallyInducedSource).

        A slice holds at most about a *parallelism*-th of the epoch, so that subtasks share it.
        An epoch without records is no error.  A restore calls it, too, to check that the records
        after its position still exist.

        Raises:
            ConfigurationError: the input is missing, or records are gone that were read before, or
                that follow *position*; the message names them.
            StoreUnavailable: try again.
        """
        ...

    def read(self, piece: Slice, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the slice's records in order, the same ones each time.

        Only *columns* are needed, if they are given: ``a.b`` is the field b of the column a.  A
        source that finds others cheaper to read yields them, too; who reads it leaves them out.
        """
        ...

    def decoded(self) -> Source | None:
        """The same records, with text decoded to the columns that Spark would make of it.

        Its slices are those of this source.  It may raise UndecidedError as it reads: then Spark
        decodes the epoch's text.  None if only Spark can decode it.
        """
        ...

    def settled(self, partitions: Iterable[str] | None = None) -> Source:
        """The source whose columns are those that it has with these *partitions*.

        Where columns follow from partitions, an epoch that is repeated has those of its first
        attempt: *partitions* are all of its position, by then.  None: those that are there now.
        """
        ...

    def partition_values(self, partitions: Sequence[str]) -> pa.Table | None:
        """The columns that have one value in all of a partition, a row for each of *partitions*.

        None if there are none.  Of a partition that a filter on these leaves out, no row is read.
        """
        ...

    def check_place(self) -> None:
        """Check that there is something to read from, as ``sluice check`` does.

        Raises:
            ConfigurationError: there is not; the message names the place and the fix.
        """
        ...

    def whole(self, max_bytes: int) -> Iterator[tuple[str, pa.RecordBatch]] | None:
        """All records that are there now, with their partitions, in the order of each.

        Of a table source, at every barrier.  None where ``plan`` and ``read`` are the way to them.

        Raises:
            ConfigurationError: these are more than *max_bytes*, or not what is declared.
        """
        ...

    @property
    def partitions_end(self) -> bool:
        """Whether a partition read to its end counts as complete until it grows, as a file does."""
        ...

    def heads(self, partitions: Sequence[str]) -> tuple[Slice, ...]:
        """A few first records of each of *partitions*, of which none is read yet.

        Their event time is needed before the partition is read.  Empty where they are expensive:
        the watermark then waits until the partition is read.
        """
        ...

    def hold(self, name: str, position: SourcePosition) -> None:
        """Have the place, if it can, keep the records after *position* until ``release``.

        Called before a checkpoint is pending, with a *name* that no other checkpoint of any job
        has.  Idempotent.
        """
        ...

    def release(self, name: str) -> None:
        """Release the hold *name*.  Idempotent."""
        ...

    def held(self, prefix: str) -> tuple[str, ...]:
        """The names of existing holds that begin with *prefix*."""
        ...

    def notify_complete(self, group: str, position: SourcePosition) -> None:
        """Notify the place that a checkpoint with *position* is published.

        For monitoring, such as a consumer group's lag; correctness must not depend on it (Flink's
        CheckpointListener).
        """
        ...


@dataclass(frozen=True, slots=True)
class InputCopy:
    """The copy of a partition's content: the object ``key`` in the store at ``place``.

    ``checksum`` is that of its bytes, as a ``SegmentHandle`` has it.
    """

    place: StoreLocation
    key: str
    size_bytes: int
    checksum: str


@runtime_checkable
class ChangingSourceSpec(Protocol):
    """A descriptor of a source that may take rows back: they have a column ``_weight``.

    It is 1 in a row, and -1 in one that is taken back exactly as it was read before.
    """

    @property
    def takes_rows_back(self) -> bool: ...


def takes_rows_back(spec: SourceSpec) -> bool:
    return isinstance(spec, ChangingSourceSpec) and spec.takes_rows_back


@runtime_checkable
class StartingSource(Protocol):
    """A source that may begin at its end, wherever that is when it is first planned."""

    @property
    def starts_at_end(self) -> bool: ...


@runtime_checkable
class KeepingSource(Protocol):
    """A source whose input may be replaced, so that the root keeps what was read of it.

    A slice is read from the copy of its partition, whatever there is in the input by then.
    """

    @property
    def keeps_copies(self) -> bool: ...

    def with_copies(
        self, copies: Mapping[str, InputCopy], taken_back: Mapping[str, InputCopy]
    ) -> Source:
        """The source that reads slices from these, by partition: *taken_back* of those that are."""
        ...

    def named_by(self, position: SourcePosition, words: Sequence[str]) -> tuple[str, ...]:
        """The *words* that may name partitions of this source; others are of another one."""
        ...

    def plan_again(
        self, position: SourcePosition, words: Sequence[str], *, parallelism: int
    ) -> Barrier:
        """The epoch that takes back what was read of the partitions that *words* choose, and reads
        what they are now; of others nothing is read.

        Raises:
            ConfigurationError: a word has no such form.
        """
        ...

    def content(self, entry: PartitionOffset) -> bytes:
        """The content of a partition in the input.

        Raises:
            ConfigurationError: it is too large to be kept.
            StoreUnavailable: it is not what it was when *entry* was planned; plan again.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkReading:
    """The Spark code that reads a place: see ``SparkCode``.  Its only input is called ``due``."""

    function: Callable[..., DataFrame]
    schema: str
    result: Result
    takes_previous: bool
    version: str | None = None


@runtime_checkable
class ReadBySparkSpec(Protocol):
    """A descriptor of a place that Spark code reads; the source's records say when."""

    def reading(self) -> SparkReading: ...


class SourceDefaults:
    """The defaults of a source that decodes its rows itself, and cannot hold records."""

    __slots__ = ()

    @property
    def decoding(self) -> TextDecoding | None:
        return None

    def decoded(self) -> Source | None:
        return cast("Source", self) if self.decoding is None else None

    def settled(self, partitions: Iterable[str] | None = None) -> Self:  # noqa: ARG002
        return self

    def partition_values(self, partitions: Sequence[str]) -> pa.Table | None:  # noqa: ARG002
        return None

    def check_place(self) -> None:
        pass

    def whole(self, max_bytes: int) -> Iterator[tuple[str, pa.RecordBatch]] | None:  # noqa: ARG002
        return None

    @property
    def partitions_end(self) -> bool:
        return False

    def heads(self, partitions: Sequence[str]) -> tuple[Slice, ...]:  # noqa: ARG002
        return ()

    def hold(self, name: str, position: SourcePosition) -> None:
        pass

    def release(self, name: str) -> None:
        pass

    def held(self, prefix: str) -> tuple[str, ...]:  # noqa: ARG002
        return ()

    def notify_complete(self, group: str, position: SourcePosition) -> None:
        pass


class SinkSpec(Protocol):
    """A light, frozen and picklable descriptor of a sink; ``open`` returns the connector."""

    @property
    def params(self) -> tuple[Param, ...]: ...

    @property
    def upsert_key(self) -> tuple[str, ...]:
        """The columns of which the newest row of equal values counts; empty: rows are appended.

        A row with a true ``_deleted`` deletes the row of its key.
        """
        ...

    @property
    def changelog(self) -> bool:
        """Whether every change is appended, with its row kind in the column ``kind``."""
        ...

    def open(self, uid: str, params: Mapping[str, str], default: StoreLocation) -> Sink:
        """*default* is the place under the job's root for a spec that names none."""
        ...


@runtime_checkable
class TypedSinkSpec(Protocol):
    """A descriptor of a sink whose format cannot hold values of every type."""

    def check_types(self, uid: str, schema: pa.Schema) -> None:
        """Check the types of its rows, before any is read; the place is not asked.

        Raises:
            ConfigurationError: the sink *uid* cannot write a column; the message names it.
        """
        ...


@runtime_checkable
class PlacedSinkSpec(Protocol):
    """A descriptor of a sink whose table has one time line, so that no other sink may write it."""

    def table_of(self, params: Mapping[str, str], default: StoreLocation) -> tuple[str, ...]:
        """The table that it writes, in one spelling for people, and then what else tells it apart.

        *default* is where the sink may have a table of its own.  The place is not asked.
        """
        ...


@runtime_checkable
class MovableSinkSpec(Protocol):
    """A descriptor of a sink that may lie in any store, so that a test has it in its folder."""

    def below_root(self) -> SinkSpec:
        """The same below the job's root, without what other readers of its place need."""
        ...


class RowChecks(Protocol):
    """The rows that a place refuses, as far as that is known without a connection."""

    def check_columns(self, schema: pa.Schema) -> None:
        """Raises ConfigurationError if rows of *schema* cannot be written."""
        ...

    def check_rows(self, rows: pa.Table) -> None:
        """Raises ConfigurationError if the place can never hold one of *rows*."""
        ...


@runtime_checkable
class CheckingSinkSpec(Protocol):
    """A descriptor of a sink whose checks are made where its place is not: in a test."""

    def row_checks(self, uid: str) -> RowChecks: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A staged file; ``file`` is its name in its ``Committable``.

    ``checkpoint_token`` is that of its ``stage``; empty for what no checkpoint has staged, such as
    a merged file.
    """

    file: str
    checkpoint_id: int
    checkpoint_token: str
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpublished:
    """The staged files at ``root`` that no commit names.

    ``newest_ms`` is the time of the newest write there, published or not, by the place's clock.
    ``is_shared``: others than this sink of this root may stage there.  What they staged is theirs,
    and what an earlier life of the job left looks the same, so it is reported, and stays.
    ``versions`` is how many a ``VersionedSink`` has, if it may ``expire`` some.
    """

    root: str
    is_shared: bool
    staged: tuple[Staged, ...]
    newest_ms: int
    versions: int = 0


class RollBack(Enum):
    """The way in which a table returns to the version of a restored checkpoint."""

    BY_NEXT_COMMIT = "by its next commit"  # Also when no person asked for it.
    ON_REQUEST = "on request"
    NEVER = "never"


class Sink(Protocol):
    """A two-phase output, of which readers see whole checkpoints or nothing.

    A subtask stages its rows where readers do not look, and puts a ``Committable`` into its ack.
    When the checkpoint is completed, the coordinator commits the committables of all subtasks at
    once; when it is aborted, the coordinator has the staged rows deleted.  Any process may repeat
    either.  Building a sink imports nothing heavy.  A sink for a place that has transactions is a
    ``staged_sink.Target``; ``StagedSink`` does the staging.
    """

    def stage(self, table: pa.Table, by: Attempt) -> Committable | None:
        """Make rows durable, but invisible to readers; None when there are no rows.

        In a subtask, objects put into a store that was opened at the place given to ``open`` are
        uploaded in the background, and are durable before the subtask acknowledges.
        Rows with a column ``_deleted``, which is then true in all of them, delete the rows of
        their keys, except for keys that the same checkpoint writes.
        """
        ...

    def check(
        self, parent: int | None, schema: pa.Schema, committables: Sequence[Committable]
    ) -> None:
        """Check that rows of *schema*, staged as *committables*, can follow the version *parent*.

        The coordinator calls it before a checkpoint is completed, for the place as it is now.
        Deletes have the same columns.  Nothing is published, and rows that were published before
        pass.  Idempotent.

        Raises:
            ConfigurationError: they cannot; it names the table, the column and the fix.
            ProtocolViolation: staged files are gone or damaged.
        """
        ...

    def commit(
        self,
        writer: Writer,
        checkpoint_id: int,
        parent: int | None,
        committables: Sequence[Committable],
    ) -> None:
        """Publish the checkpoint's rows: all *committables* of its subtasks.  Idempotent.

        *parent* is the version that this one continues.  So after a restore to an older
        checkpoint, later versions are left out, if the sink can; None starts the output anew.

        Raises:
            FencedError: a restore of the same life was to a checkpoint before this one.
            TableMismatch: readers do not see *parent*, or another life owns the table; see
                ``timeline.Timeline.publishing``.
            ConfigurationError: the place was changed since ``check``, and the rows no longer fit;
                it names the fix, and no row is lost.
        """
        ...

    def discard_copied(self, committables: Sequence[Committable]) -> None:
        """Delete the staged files whose rows ``commit`` has copied.  Idempotent.

        The coordinator calls it when the commit is journaled: before, the place may be restored
        from a backup, and the commit repeated.  Files that remain are ``unpublished``.
        """
        ...

    def damage_of(self, committables: Iterable[Committable]) -> Sequence[str]:
        """A sentence for each committable whose staged file is missing or changed.

        Files that are published may be gone.  Empty where the sink cannot check.
        """
        ...

    def is_published(self, checkpoint_id: int) -> bool:
        """Whether the checkpoint has been committed to this table."""
        ...

    @property
    def rolls_back(self) -> RollBack: ...

    def compare(self, life: str, version: int | None) -> TimelineComparison:
        """A comparison of the table with the *version* that a job of *life* would continue."""
        ...

    def is_empty(self) -> bool:
        """Whether readers see no rows at all; False where the sink cannot know."""
        ...

    def recover(self, writer: Writer, recovery: Recovery) -> None:
        """Recover the table, as *recovery* says, when the job is restored or begins a new life.

        Rows and time line change in one step.  Idempotent.  An empty table can always be rolled
        back.

        Raises:
            FencedError: a later restore has recovered the table.
            TableMismatch: the table lacks the version, and no person accepted that; or another
                life owns it.
            ConfigurationError: the recovery is a roll-back, and the sink cannot do it.
        """
        ...

    def describe(self, version: int) -> str:
        """The name of a published *version* in its place: "snapshot 8237", "ledger row 7"."""
        ...

    def abort(self, checkpoint_id: int, checkpoint_token: str) -> None:
        """Delete what was staged with this id and this token, and is not committed.  Idempotent.

        Nothing that has another token: whoever calls it may have slept while the root was emptied
        and the job began anew, and the number is that of the new job's checkpoint.
        """
        ...

    def unpublished(self) -> Unpublished:
        """The staged files of any checkpoint that no commit names.

        Files of pending checkpoints are among them; the caller knows which these are.

        Raises:
            ProtocolViolation: a commit's record cannot be read.
        """
        ...

    def discard(self, files: Iterable[str]) -> None:
        """Delete *files* of ``unpublished``.  Idempotent."""
        ...


class SinkDefaults:
    """The defaults of a sink that takes any rows, and leaves nothing staged behind."""

    __slots__ = ()

    def check(
        self, parent: int | None, schema: pa.Schema, committables: Sequence[Committable]
    ) -> None:
        pass

    def discard_copied(self, committables: Sequence[Committable]) -> None:
        pass

    def damage_of(self, committables: Iterable[Committable]) -> Sequence[str]:  # noqa: ARG002
        return ()

    @property
    def rolls_back(self) -> RollBack:
        return RollBack.NEVER

    def is_empty(self) -> bool:
        return False

    def describe(self, version: int) -> str:
        return f"version {version}"

    def unpublished(self) -> Unpublished:
        return Unpublished(root="", is_shared=False, staged=(), newest_ms=0)

    def discard(self, files: Iterable[str]) -> None:
        pass


@runtime_checkable
class ProbedSink(Protocol):
    """A sink whose place is a store of objects, which a job asks before it begins there."""

    def probe(self, own: ObjectStore) -> None:
        """Probe the place, unless it is in *own*, the job's store, which has been probed.

        Raises:
            ConfigurationError: it ignores conditional writes, or lets two writers win.
        """
        ...


@runtime_checkable
class ReadableSink(Protocol):
    """A sink whose table ``sluice run`` reads back, to show it or to write it to a file."""

    def read(self, version: int | None = None) -> pa.Table:
        """The rows that readers see, as of the checkpoint *version*, by default the newest."""
        ...

    def row_count(self) -> int:
        """The number of rows that were published; each version of an upserted row counts."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVersion:
    """The part of a table that a checkpoint added; with ``in_table`` readers see it."""

    version: int
    parent: int | None
    in_table: bool
    compacted: bool
    files: int
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSize:
    """The size of what readers see at ``root``, as of ``version``; None where there is none."""

    root: str
    version: int | None
    files: int
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacuumed:
    """The result of a vacuum: deleted ``versions``, and the number and size of deleted files."""

    versions: tuple[int, ...] = ()
    files: int = 0
    size_bytes: int = 0


class MergedFiles(Protocol):
    """The merged ``files`` of the version ``checkpoint_id``."""

    @property
    def checkpoint_id(self) -> int: ...

    @property
    def files(self) -> Sequence[object]: ...


@runtime_checkable
class VersionedSink(ReadableSink, Protocol):
    """A sink that keeps the versions of its table, which ``sluice tables`` shows and tidies up."""

    def added_by(self, version: int) -> pa.Table:
        """The rows that the checkpoint *version* added, and its deletes, with ``_deleted``."""
        ...

    def size(self) -> TableSize: ...

    def described_versions(self) -> list[TableVersion]:
        """Every version, oldest first."""
        ...

    def lineage(self) -> Sequence[int]:
        """The versions of which the table is made, oldest first."""
        ...

    def compact(self, version: int | None = None, *, target_bytes: int) -> MergedFiles | None:
        """Merge the files of *version*; None if nothing was to be merged."""
        ...

    def vacuum(self, before_version: int, *, grace_ms: int) -> Vacuumed:
        """Delete what only versions before that one need."""
        ...

    def expire(self, num_retained: int, pinned: Sequence[int], *, grace_ms: int) -> Vacuumed:
        """Vacuum all before the newest *num_retained* versions and before those *pinned*."""
        ...


class OwnTable(Sink, VersionedSink, Protocol):
    """The table of a side output."""


class CheckpointListener:
    """A base of sources, sinks and targets of staged sinks that need to know how checkpoints end.

    The methods are called on the coordinator.  As with Flink's interface of this name, nothing
    correct may depend on it: an id may come twice, and ids are left out, so that the completion of
    *n* means that all before it have ended.  Exceptions are logged, and change nothing.
    """

    __slots__ = ()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """The checkpoint is completed, and every sink has published it."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """The checkpoint was aborted, and its staged rows are deleted.

        Not called if the coordinator dies at that moment.
        """

    def notify_checkpoint_subsumed(self, checkpoint_id: int) -> None:
        """The checkpoint left the store for a newer one: no restart and no person goes back to it.

        Its files are deleted, but for those that others share.  Savepoints are never subsumed.
        """


def params_of(*values: object) -> tuple[Param, ...]:
    return tuple(value for value in values if isinstance(value, Param))


def whole_number(spec: int | Param | Env, params: Mapping[str, str]) -> int:
    """Raises ConfigurationError unless it is 0 or more."""
    text = value_of(spec, params).replace("_", "")
    if not text.isdecimal():
        name = spec.name if isinstance(spec, Param | Env) else "value"
        raise ConfigurationError(f"parameter {name!r} is {text!r}; give a whole number, 0 or more")
    return int(text)


def check_changelog(what: str, spec: SinkSpec) -> None:
    """Raises ConfigurationError if *spec* asks for every change and for the newest rows alone."""
    if spec.changelog and spec.upsert_key:
        raise ConfigurationError(
            f"{what} keeps the newest row per {', '.join(spec.upsert_key)}, and changelog=True "
            "every change; write one of the two"
        )


def check_induced(uid: str, until: Mapping[str, int], known: Mapping[str, tuple[int, int]]) -> None:
    """Check the barrier *until* of the source *uid* against its first and last readable offsets.

    Raises:
        ConfigurationError: it names a partition that is not *known*, or an offset out of range.
    """
    for partition, offset in until.items():
        if partition not in known:
            names = ", ".join(sorted(known)) or "none"
            raise ConfigurationError(
                f"the barrier names partition {partition!r} of {uid}, which has {names}"
            )
        first, last = known[partition]
        if not first <= offset <= last:
            raise ConfigurationError(
                f"the barrier is at offset {offset} of {partition!r} of {uid}; it must be from "
                f"{first}, where the last one was, to {last}, what can be read"
            )


def offsets_by_partition(position: SourcePosition) -> dict[str, PartitionOffset]:
    return {offset.partition: offset for offset in position}


@dataclass(frozen=True, slots=True)
class Dataset:
    """A table, topic or folder, as OpenLineage names it."""

    namespace: str
    name: str


@runtime_checkable
class NamedPlaceSpec(Protocol):
    """A descriptor of a source or sink whose place has names that others know."""

    def datasets(self, params: Mapping[str, str]) -> tuple[Dataset, ...]:
        """The datasets that it reads or writes, without secrets; none for one below the job's root.

        The place is not asked.
        """
        ...


def dataset_at(location: str) -> Dataset:
    """A folder or file, as a path or a URI; ``s3a`` and ``s3`` are one store."""
    scheme, is_uri, rest = location.partition("://")
    if not is_uri:
        return Dataset("file", os.path.abspath(location))  # noqa: PTH100 - links are not followed
    if scheme == "file":
        return Dataset("file", "/" + rest.strip("/"))
    bucket, _, key = rest.partition("/")
    return Dataset(f"{scheme.replace('s3a', 's3')}://{bucket}", key.strip("/") or "/")
