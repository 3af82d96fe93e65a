"""What sluice asks of a source: to cut its input at a barrier, and to replay any slice of it.

A source is a set of partitions (files, a Kafka partition, one generator), each an ordered sequence
of records that never change once they can be read.  ``plan`` runs on the coordinator's side and
decides what the next epoch reads; its ``Barrier`` is stored in the checkpoint.  ``read`` runs in a
subtask and yields exactly the records of one slice, however often it is asked.

The dataclasses travel as JSON: plain types only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from sluice.core.plan import PartitionOffset, Slice
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa


SourcePosition: TypeAlias = tuple[PartitionOffset, ...]  # Sorted by partition, one each.


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """The cut: ``slices`` lead from the previous position to ``position``.

    ``exhausted`` means that the source is bounded and has nothing after this cut; ``is_backlog``
    that more can be read already, and only the cap of the epoch left it out.
    """

    position: SourcePosition
    slices: tuple[Slice, ...]
    exhausted: bool
    is_backlog: bool = False

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
        An epoch without records is an answer, not an error.

        Raises:
            ConfigurationError: the input is missing, or lost records that were counted before.
            StoreUnavailable: try again.
        """
        ...

    def read(self, piece: Slice) -> Iterator[pa.RecordBatch]:
        """Yield the slice's records in order, the same ones each time."""
        ...


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
