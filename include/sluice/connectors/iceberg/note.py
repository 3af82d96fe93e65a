"""What a sink has published to a table: a property of the table, changed with the data.

It outlives the snapshots, which expire.  ``sluice.{identity}`` holds, as JSON, the published
checkpoints as ranges and the floor: no checkpoint up to there will be published any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from sluice.errors import ProtocolViolation

# Each aborted checkpoint ends a range: some kilobytes of the table's metadata at most.
RANGES_KEPT = 256


class Note(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Checkpoints from ``first`` to ``last`` of each range are published, in order.

    Of those before the first range that is kept, all are taken as published.
    """

    ranges: tuple[tuple[int, int], ...] = ()
    floor: int = 0
    is_cut: bool = False

    @property
    def newest(self) -> int:
        return self.ranges[-1][1] if self.ranges else 0

    def __contains__(self, checkpoint_id: int) -> bool:
        if self.is_cut and checkpoint_id < self.ranges[0][0]:
            return True
        return any(first <= checkpoint_id <= last for first, last in self.ranges)

    def after(self, version: int | None) -> Iterator[int]:
        """The published checkpoints after *version*, oldest first."""
        least = (version or 0) + 1
        for first, last in self.ranges:
            yield from range(max(first, least), last + 1)

    def and_published(self, checkpoint_id: int) -> Note:
        assert checkpoint_id > max(self.newest, self.floor)
        if self.ranges and self.newest == checkpoint_id - 1:
            ranges = (*self.ranges[:-1], (self.ranges[-1][0], checkpoint_id))
        else:
            ranges = (*self.ranges, (checkpoint_id, checkpoint_id))
        is_cut = self.is_cut or len(ranges) > RANGES_KEPT
        return Note(ranges=ranges[-RANGES_KEPT:], floor=self.floor, is_cut=is_cut)

    def back_to(self, version: int | None) -> Note:
        newest = version or 0
        kept = tuple((first, min(last, newest)) for first, last in self.ranges if first <= newest)
        return Note(ranges=kept, floor=self.floor, is_cut=self.is_cut and bool(kept))

    def fenced(self, through: int) -> Note:
        return Note(ranges=self.ranges, floor=max(self.floor, through), is_cut=self.is_cut)

    def encoded(self) -> str:
        return msgspec.json.encode(self).decode()


def property_of(identity: str) -> str:
    return f"sluice.{identity}"


def noted(properties: Mapping[str, str], identity: str) -> Note:
    """Raises ProtocolViolation when the property is not what a sink wrote."""
    text = properties.get(property_of(identity))
    if text is None:
        return Note()
    try:
        return msgspec.json.decode(text, type=Note)
    except msgspec.DecodeError as error:
        raise ProtocolViolation(
            f"the table's property {property_of(identity)} is {text!r}, which no sink wrote; put "
            "it back from an older metadata file of the table"
        ) from error
