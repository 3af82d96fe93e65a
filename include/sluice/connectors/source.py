"""What sluice asks of a source: to cut its input at a barrier, and to replay any slice of it.

A source is a set of partitions (files, a Kafka partition, one generator), each an ordered sequence
of records that never change once they can be read.  ``plan`` runs on the coordinator's side and
decides what the next epoch reads; its ``Barrier`` is stored in the checkpoint.  ``read`` runs in a
subtask and yields exactly the records of one slice, however often it is asked.

The dataclasses travel as JSON: plain types only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from sluice.core.plan import PartitionOffset, Slice

if TYPE_CHECKING:
    import pyarrow as pa


SourcePosition: TypeAlias = tuple[PartitionOffset, ...]  # Sorted by partition, one each.


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """The cut: ``slices`` lead from the previous position to ``position``.

    ``exhausted`` means that the source is bounded and has nothing after this cut.
    """

    position: SourcePosition
    slices: tuple[Slice, ...]
    exhausted: bool

    def __post_init__(self) -> None:
        partitions = [offset.partition for offset in self.position]
        assert partitions == sorted(set(partitions)), "a position is sorted, one entry each"

    @property
    def records(self) -> int:
        return sum(piece.records for piece in self.slices)


class Source(Protocol):
    """A replayable input.  Building one opens nothing and imports nothing heavy."""

    @property
    def bounded(self) -> bool:
        """Whether the input ends; then some barrier is ``exhausted``."""
        ...

    def schema(self) -> pa.Schema:
        """The schema of every batch that ``read`` yields."""
        ...

    def plan(
        self, position: SourcePosition, *, max_records: int | None, parallelism: int
    ) -> Barrier:
        """Cut the next epoch: at most *max_records* after *position*, None meaning all there are.

        A slice holds about a *parallelism*-th of the epoch or less, so that subtasks share it.
        An epoch without records is an answer, not an error.

        Raises:
            ConfigurationError: the input is missing, or lost records that were counted before.
            StoreUnavailable: try again.
        """
        ...

    def read(self, piece: Slice) -> Iterator[pa.RecordBatch]:
        """Yield the slice's records in order, the same ones each time."""
        ...


def offsets_by_partition(position: SourcePosition) -> dict[str, PartitionOffset]:
    return {offset.partition: offset for offset in position}
