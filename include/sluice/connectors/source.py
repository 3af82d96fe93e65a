"""What sluice asks of a source: to cut its input at a barrier, and to replay any slice of it.

Who writes one for partitions of numbered records derives it from ``offsets.OffsetSource``, and has
to say where each partition begins and ends, and to read (docs/connectors.md).

A source is a set of partitions (files, a Kafka partition, one generator), each an ordered sequence
of records that never change once they can be read.  ``plan`` runs on the coordinator's side and
decides what the next epoch reads; its ``Barrier`` is stored in the checkpoint.  ``read`` runs in a
subtask and yields exactly the records of one slice, however often it is asked.

The dataclasses travel as JSON: plain types only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from sluice.core.invariants import require
from sluice.core.plan import PartitionOffset, Slice
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa


# Columns of ours that a source's rows may carry, and no stage sees.
RECORD = "_record"  # The row's number in its partition, where that is not how many came before.
MALFORMED_COLUMN = "_malformed"  # Why a row could not be read; null when it could.
RAW = "_raw"  # What such a row was, where its columns cannot say.

SourcePosition: TypeAlias = tuple[PartitionOffset, ...]  # Sorted by partition, one each.


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """The cut: ``slices`` lead from the previous position to ``position``.

    ``exhausted`` means that the source is bounded and has nothing after this cut; ``is_backlog``
    that more can be read already, and only the cap of the epoch left it out.  ``waiting`` are the
    partitions that can be read further than the cut: event time waits for what is in them.
    """

    position: SourcePosition
    slices: tuple[Slice, ...]
    exhausted: bool
    is_backlog: bool = False
    waiting: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        partitions = [offset.partition for offset in self.position]
        require(partitions == sorted(set(partitions)), "a position is sorted, one entry each")

    @property
    def records(self) -> int:
        return sum(piece.records for piece in self.slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDecoding:
    """A column of text that Spark's own functions decode, as they decode files: ``from_json`` and
    ``from_csv``.  ``schema`` is what it holds, as Spark writes a schema.

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
        """How Spark is to decode a column; None when ``read`` yields what the stages see."""
        ...

    def schema(self) -> pa.Schema:
        """The schema of every batch that ``read`` yields, columns of ours included."""
        ...

    def plan(
        self,
        position: SourcePosition,
        *,
        max_records: int | None,
        parallelism: int,
        until: Mapping[str, int] | None = None,
    ) -> Barrier:
        """Cut the next epoch: at most *max_records* after *position*, None meaning all there are.

        With *until* somebody else has decided the barrier, an end offset per partition; partitions
        it does not name stay where they are (Flink's ExternallyInducedSource).

        A slice holds about a *parallelism*-th of the epoch or less, so that subtasks share it.
        An epoch without records is an answer, not an error.  A restore asks for the plan after its
        position, too, to learn whether everything is still there.

        Raises:
            ConfigurationError: the input is missing, or lost records that were counted before, or
                that *position* still needs; the message names them.
            StoreUnavailable: try again.
        """
        ...

    def read(self, piece: Slice) -> Iterator[pa.RecordBatch]:
        """Yield the slice's records in order, the same ones each time."""
        ...

    @property
    def partitions_end(self) -> bool:
        """Whether a partition at its end is taken as complete until it grows, as a file is."""
        ...

    def heads(self, partitions: Sequence[str]) -> tuple[Slice, ...]:
        """The first records of *partitions* of which nothing is read yet, a few of each; none where
        that is not to be had cheaply: event time then waits until a partition is read.
        """
        ...

    def hold(self, name: str, position: SourcePosition) -> None:
        """Keep what has to be read after *position*, where the place can, until it is released.

        Called before a checkpoint is pending, under a *name* that is its own; repeated at will.
        """
        ...

    def release(self, name: str) -> None:
        """Let go what ``hold`` kept under *name*.  Idempotent."""
        ...

    def held(self, prefix: str) -> tuple[str, ...]:
        """The names under which something is kept, of those that begin with *prefix*."""
        ...

    def notify_complete(self, group: str, position: SourcePosition) -> None:
        """A checkpoint with *position* is true and published (Flink's CheckpointListener): for
        people who watch the input from outside.  Nothing may depend on it.
        """
        ...


class SourceDefaults:
    """What a source answers that decodes by itself, and whose place keeps nothing for anybody."""

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
    """Refuse a barrier outside of what can be read.  *known*: first and last offset by partition.

    Raises:
        ConfigurationError: it names a partition that is not there, or an offset outside.
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
