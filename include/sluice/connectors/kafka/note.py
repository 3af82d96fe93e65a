"""What a sink has published, kept in the broker as a consumer group's offset.

The group is called as the transactional id, and commits one offset, of partition 0 of the target
topic: the newest checkpoint.  Its metadata name those before it, as ranges, and the floor below
which a restore lets nobody publish.  Sent in a transaction, it is true when the rows are.

    offset 17, metadata {"v":1,"ids":"1-9,12,14-17","floor":13}
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import msgspec

from sluice.errors import ProtocolViolation

FORMAT_VERSION = 1
# A broker takes 4,096 bytes (offset.metadata.max.bytes): 3,500 are 300 ranges of ids of 5 digits,
# and each aborted checkpoint begins another.
MAX_RANGES_BYTES = 3_500

Range = tuple[int, int]  # Both inclusive.


class _Metadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    v: int
    ids: str
    floor: int


@dataclass(frozen=True, slots=True)
class Note:
    """``published``: ranges of checkpoint ids, oldest first, with a gap between any two."""

    published: tuple[Range, ...] = ()
    floor: int = 0  # No checkpoint up to it may be published any more.

    def __post_init__(self) -> None:
        assert all(first <= last for first, last in self.published)
        assert all(last + 1 < first for (_, last), (first, _) in pairwise(self.published))

    @property
    def newest(self) -> int:
        return self.published[-1][1] if self.published else 0

    def __contains__(self, checkpoint_id: int) -> bool:
        return any(first <= checkpoint_id <= last for first, last in self.published)

    def after(self, version: int | None) -> Iterator[int]:
        for first, last in self.published:
            yield from range(max(first, (version or 0) + 1), last + 1)

    def with_checkpoint(self, checkpoint_id: int) -> Note:
        assert checkpoint_id > max(self.newest, self.floor)
        first = checkpoint_id
        older = self.published
        if older and older[-1][1] + 1 == checkpoint_id:
            first = older[-1][0]
            older = older[:-1]
        return replace(self, published=(*older, (first, checkpoint_id)))

    def with_floor(self, floor: int) -> Note:
        return replace(self, floor=max(self.floor, floor))

    def encoded(self) -> tuple[int, str]:
        """The offset and its metadata.  What no longer fits is forgotten, oldest first."""
        metadata = _Metadata(v=FORMAT_VERSION, ids=_text(self.published), floor=self.floor)
        return self.newest, msgspec.json.encode(metadata).decode()


def decoded(offset: int, metadata: str | None, place: str) -> Note:
    """Raises ProtocolViolation when somebody else wrote it."""
    try:
        found = msgspec.json.decode(metadata or "", type=_Metadata)
        ranges = tuple(_range(one) for one in found.ids.split(",") if one)
        note = Note(ranges, found.floor)
    except (msgspec.DecodeError, ValueError, AssertionError) as error:
        raise ProtocolViolation(f"{place} is no note of sluice's: {metadata!r}") from error
    if found.v != FORMAT_VERSION or note.newest != offset:
        raise ProtocolViolation(
            f"{place} is of format {found.v} and at offset {offset}; this sluice reads format "
            f"{FORMAT_VERSION}, and expects offset {note.newest}"
        )
    return note


def _text(ranges: Sequence[Range]) -> str:
    texts: list[str] = []
    room = MAX_RANGES_BYTES
    for first, last in reversed(ranges):
        text = str(first) if first == last else f"{first}-{last}"
        room -= len(text) + 1
        if room < 0:
            break
        texts.append(text)
    return ",".join(reversed(texts))


def _range(text: str) -> Range:
    first, _, last = text.partition("-")
    return int(first), int(last or first)
