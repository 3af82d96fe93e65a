"""``OffsetSource``: a source whose partitions have numbered records, such as a Kafka topic.

A subclass lists where each partition begins and ends now, and reads.  Offsets are 64-bit and grow;
not every number needs to have a record.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from sluice.core.plan import PartitionOffset, Slice, Unread
from sluice.declaration.places import (
    Barrier,
    SourceDefaults,
    SourcePosition,
    check_induced,
    offsets_by_partition,
)
from sluice.errors import BEGIN_ANEW, ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Readable:
    """The readable part of a partition: offsets from ``first`` to ``end`` (exclusive).

    ``version`` is the place's own id of the partition and of its present records: it is another one
    when records at offsets below ``end`` may have become others.  Empty where the place has none.
    """

    first: int
    end: int
    version: str = ""


class OffsetSource(SourceDefaults, ABC):
    """A source of numbered records; see ``Source``.

    With ``skips_gaps`` records that expired before they were read are logged, and not an error.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def bounded(self) -> bool: ...

    @property
    @abstractmethod
    def name(self) -> str:
        """The source's name in messages."""

    @property
    def skips_gaps(self) -> bool:
        return False

    @abstractmethod
    def schema(self) -> pa.Schema: ...

    @abstractmethod
    def readable(self) -> Mapping[str, Readable]:
        """All partitions that exist now.  Raises StoreUnavailable when there is no answer."""

    @abstractmethod
    def read(
        self, piece: Slice, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]: ...

    def first_offset(self, partition: str, now: Readable, *, is_new: bool) -> int:  # noqa: ARG002
        """The first offset to read of a partition; *is_new*: it appeared after others were read."""
        return now.first

    def check_continued(self, read: Sequence[tuple[PartitionOffset, Readable]]) -> None:
        """Check that each partition still has what was *read* of it, whatever its end is now.

        It has by default if its version is the same.  A place whose versions also change without a
        change of records asks it here.

        Raises:
            ConfigurationError: it has not; the message names the partition and the way on.
        """
        for before, now in read:
            if before.version and now.version and before.version != now.version:
                raise self.made_anew(before, before.version, now.version)

    def made_anew(self, read: PartitionOffset, then: str, now: str) -> ConfigurationError:
        return ConfigurationError(
            f"partition {read.partition!r} of {self.name} was read to offset {read.offset} and was "
            f"made anew since then ({then} then, {now} now), so its offsets mean other records; "
            f"{BEGIN_ANEW}, too"
        )

    def plan(
        self,
        position: SourcePosition,
        *,
        max_records: int | None,
        parallelism: int,
        until: Mapping[str, int] | None = None,
    ) -> Barrier:
        """Cut the next epoch; see ``Source.plan``.  Partitions share *max_records* evenly."""
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
            name: replace(old, offset=old.offset + taken[name], records=old.records + taken[name])
            for name, old in before.items()
        }
        rest = tuple(name for name in sorted(after) if after[name].offset < now[name].end)
        return Barrier(
            position=tuple(after[name] for name in sorted(after)),
            slices=tuple(_slices(before, taken, parallelism)),
            exhausted=self.bounded and not rest,
            is_backlog=bool(rest) and until is None,
            waiting=rest,
            unread=Unread(
                partitions=len(rest),
                records=sum(now[name].end - after[name].offset for name in rest),
            ),
        )

    def _before(
        self, position: SourcePosition, now: Mapping[str, Readable]
    ) -> dict[str, PartitionOffset]:
        read = offsets_by_partition(position)
        if gone := sorted(set(read) - set(now)):
            raise ConfigurationError(
                f"partition {gone[0]!r} of {self.name} was read to offset {read[gone[0]].offset} "
                f"and is gone; put it back, or {BEGIN_ANEW} without this state"
            )
        for name, entry in read.items():
            self._check_end(entry, now[name])
        self.check_continued([(entry, now[name]) for name, entry in read.items()])
        before = {}
        for name, there in sorted(now.items()):
            if name in read:
                before[name] = self._begun(read[name], there)
                continue
            first = self.first_offset(name, there, is_new=bool(position))
            before[name] = PartitionOffset(
                partition=name, offset=first, records=0, version=there.version
            )
        return before

    def _check_end(self, read: PartitionOffset, there: Readable) -> None:
        if read.offset > there.end:
            raise ConfigurationError(
                f"partition {read.partition!r} of {self.name} was read to offset {read.offset} and "
                f"ends at {there.end} now: it was truncated or made anew; {BEGIN_ANEW}, too"
            )

    def _begun(self, read: PartitionOffset, there: Readable) -> PartitionOffset:
        """The offset to read on from, behind a gap of records that have expired."""
        read = replace(read, version=there.version or read.version)
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
    """The shares of *most* records: each partition gets an equal part, and what others leave."""
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
                version=before[name].version,
            )
