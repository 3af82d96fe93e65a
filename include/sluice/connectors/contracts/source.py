"""``Source``: the interface of a replayable source: cut the input at a barrier, read any slice.

A source of partitions of numbered records derives from ``offsets.OffsetSource``: it tells where
each partition begins and ends, and reads.  The page "A connector of one's own" describes it.

A source is a set of partitions (files, a Kafka partition, one generator), each an ordered sequence
of records that never change once they can be read.  ``plan`` runs on the coordinator's side and
decides the slices of the next epoch; its ``Barrier`` is stored in the checkpoint.  ``read`` runs in
a subtask and yields exactly the records of one slice, however often it is called.

The dataclasses are stored as JSON, so their fields are of plain types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from sluice.core.invariants import require
from sluice.core.plan import PartitionOffset, Slice, Unread
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa


# Reserved columns that a source's rows may have; stages do not see them.
RECORD = "_record"  # The row's number in its partition, if it is not the number of rows before.
MALFORMED_COLUMN = "_malformed"  # Why a row is malformed; null in a good row.
RAW = "_raw"  # The text of a malformed row, if its columns do not hold it.

SourcePosition: TypeAlias = tuple[PartitionOffset, ...]  # One per partition, sorted by it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """The cut of an epoch: ``slices`` lead from the previous position to ``position``.

    ``exhausted``: the source is bounded, and has no records after this cut.  ``is_backlog``: there
    are more records to read, which exceed the cap of this epoch.  ``waiting`` are the partitions
    with records after the cut, which hold the watermark back.

    For people, and None where the source cannot say: ``unread`` is what lies behind the cut,
    ``size_bytes`` the bytes of the slices.
    """

    position: SourcePosition
    slices: tuple[Slice, ...]
    exhausted: bool
    is_backlog: bool = False
    waiting: tuple[str, ...] = ()
    unread: Unread | None = None
    size_bytes: int | None = None

    def __post_init__(self) -> None:
        partitions = [offset.partition for offset in self.position]
        require(partitions == sorted(set(partitions)), "a position is sorted, one entry each")

    @property
    def records(self) -> int:
        return sum(piece.records for piece in self.slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDecoding:
    """The decoding of a column of text by Spark's ``from_json`` or ``from_csv``.

    ``schema`` is that of the decoded columns, in Spark's DDL.

    Beside the decoded columns the rows keep those in ``keeps``.  With ``has_header`` record 0 of
    each partition is no row.
    """

    format: Literal["json", "csv"]
    schema: str
    column: str = "line"
    keeps: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    has_header: bool = False


class Source(Protocol):
    """A replayable input.  Building one opens nothing and imports nothing heavy."""

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
        An epoch without records is no error.  A restore also calls it, to learn whether the
        records after its position still exist.

        Raises:
            ConfigurationError: the input is missing, or records are gone that were read before, or
                that follow *position*; the message names them.
            StoreUnavailable: try again.
        """
        ...

    def read(self, piece: Slice) -> Iterator[pa.RecordBatch]:
        """Yield the slice's records in order, the same ones each time."""
        ...

    @property
    def partitions_end(self) -> bool:
        """Whether a partition read to its end counts as complete until it grows, as a file does."""
        ...

    def heads(self, partitions: Sequence[str]) -> tuple[Slice, ...]:
        """A few first records of each of *partitions*, of which none is read yet.

        They tell the event time before the partition is read.  Empty where that is expensive:
        the watermark then waits until the partition is read.
        """
        ...

    def hold(self, name: str, position: SourcePosition) -> None:
        """Hold the records after *position* in the place, if it can, until ``release``.

        Called before a checkpoint is pending, with a *name* of its own.  Idempotent.
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


class SourceDefaults:
    """The defaults of a source that decodes its rows itself, and cannot hold records."""

    __slots__ = ()

    @property
    def decoding(self) -> TextDecoding | None:
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

    def held(self, prefix: str) -> tuple[str, ...]:  # noqa: ARG002 - nothing is
        return ()

    def notify_complete(self, group: str, position: SourcePosition) -> None:
        pass


def check_induced(uid: str, until: Mapping[str, int], known: Mapping[str, tuple[int, int]]) -> None:
    """Refuse a barrier outside of *known*, the first and last readable offset by partition.

    Raises:
        ConfigurationError: it names an unknown partition, or an offset out of range.
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
