"""A source of partitions whose records are numbered: a Kafka topic, a table by a growing column.

What is left to whoever derives from ``OffsetSource`` is to say where each partition begins and ends
now, and to read.  Offsets are 64-bit and grow; not every number needs to have a record.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from sluice.connectors.source import (
    Barrier,
    SourceDefaults,
    SourcePosition,
    check_induced,
    offsets_by_partition,
)
from sluice.core.plan import PartitionOffset, Slice
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Readable:
    """What can be read of a partition now: offsets from ``first`` to ``end`` (exclusive)."""

    first: int
    end: int


class OffsetSource(SourceDefaults, ABC):
    """See ``Source``.  ``skips_gaps``: what expired before it was read is left out, and logged,
    where it would be an error.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def bounded(self) -> bool: ...

    @property
    @abstractmethod
    def name(self) -> str:
        """What messages call it."""

    @property
    def skips_gaps(self) -> bool:
        return False

    @abstractmethod
    def schema(self) -> pa.Schema: ...

    @abstractmethod
    def readable(self) -> Mapping[str, Readable]:
        """Every partition that there is now.  Raises StoreUnavailable when nobody answers."""

    @abstractmethod
    def read(self, piece: Slice) -> Iterator[pa.RecordBatch]: ...

    def first_offset(self, partition: str, now: Readable, *, is_new: bool) -> int:  # noqa: ARG002
        """Where a partition is read from that was never read; *is_new*: others were before."""
        return now.first

    def plan(
        self,
        position: SourcePosition,
        *,
        max_records: int | None,
        parallelism: int,
        until: Mapping[str, int] | None = None,
    ) -> Barrier:
        """See ``Source.plan``.  A cap is shared out evenly: no partition waits for another."""
        assert max_records is None or max_records > 0
        assert parallelism > 0

        now = self.readable()
        before = self._before(position, now)
        ends = {name: now[name].end for name in before}
        if until is not None:
            known = {name: (before[name].offset, end) for name, end in ends.items()}
            check_induced(self.name, until, known)
            ends = {name: until.get(name, before[name].offset) for name in ends}
        waiting = {name: ends[name] - before[name].offset for name in before}
        taken = waiting if max_records is None else _fair_shares(waiting, max_records)
        after = {
            name: replace(one, offset=one.offset + taken[name], records=one.records + taken[name])
            for name, one in before.items()
        }
        rest = tuple(name for name in sorted(after) if after[name].offset < now[name].end)
        return Barrier(
            position=tuple(after[name] for name in sorted(after)),
            slices=tuple(_slices(before, taken, parallelism)),
            exhausted=self.bounded and not rest,
            is_backlog=bool(rest) and until is None,
            waiting=rest,
        )

    def _before(
        self, position: SourcePosition, now: Mapping[str, Readable]
    ) -> dict[str, PartitionOffset]:
        read = offsets_by_partition(position)
        if gone := sorted(set(read) - set(now)):
            raise ConfigurationError(
                f"partition {gone[0]!r} of {self.name} was read to offset {read[gone[0]].offset} "
                "and is gone; put it back, or begin anew without this state"
            )
        found = {}
        for name, there in sorted(now.items()):
            if name not in read:
                first = self.first_offset(name, there, is_new=bool(position))
                found[name] = PartitionOffset(partition=name, offset=first, records=0)
            else:
                found[name] = self._checked(read[name], there)
        return found

    def _checked(self, read: PartitionOffset, there: Readable) -> PartitionOffset:
        if read.offset > there.end:
            raise ConfigurationError(
                f"partition {read.partition!r} of {self.name} was read to offset {read.offset} and "
                f"ends at {there.end} now: it was truncated or made anew; begin anew, too"
            )
        if read.offset >= there.first:
            return read
        gap = (
            f"offsets {read.offset} to {there.first - 1} of partition {read.partition!r} of "
            f"{self.name} ({there.first - read.offset} of them) have expired before they were read"
        )
        if not self.skips_gaps:
            raise ConfigurationError(
                f"{gap}; restore a later checkpoint, or let the source skip them if they may be "
                "lost"
            )
        log.error("RECORDS ARE LOST: %s", gap)
        return replace(read, offset=there.first)


def _fair_shares(waiting: Mapping[str, int], most: int) -> dict[str, int]:
    """Of *most* records each partition gets an equal part, and what others leave."""
    shares: dict[str, int] = {}
    left = most
    by_size = sorted(waiting.items(), key=lambda item: (item[1], item[0]))
    for index, (name, count) in enumerate(by_size):
        shares[name] = min(count, left // (len(by_size) - index))
        left -= shares[name]
    return shares


def _slices(
    before: Mapping[str, PartitionOffset], taken: Mapping[str, int], parallelism: int
) -> Iterator[Slice]:
    longest = max(1, -(-sum(taken.values()) // parallelism))
    for name, count in taken.items():
        pieces = -(-count // longest)
        bounds = [count * piece // pieces for piece in range(pieces + 1)] if pieces else []
        for start, end in pairwise(bounds):
            yield Slice(
                partition=name,
                start=before[name].offset + start,
                end=before[name].offset + end,
                first_record=before[name].records + start,
                records=end - start,
            )
