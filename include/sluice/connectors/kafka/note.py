"""The note of published checkpoints, kept in the broker as a consumer group's offset.

The group has the name of the transactional id, and commits one offset, for partition 0 of the
target topic: the newest checkpoint.  Its metadata is the topic's time line (``timeline_note.py``).
It is sent in the transaction of the rows, and so is committed with them.
"""

from __future__ import annotations

from sluice.connectors.contracts import timeline_note
from sluice.core.timeline import Timeline
from sluice.errors import ProtocolViolation

# A broker takes 4,096 bytes (offset.metadata.max.bytes): these leave room for 300 spans of ids of 5
# digits, and each aborted checkpoint begins another.
MAX_BYTES = 3_900
FIX = (
    "give the sink a transactional_id of its own, or delete the group's offset "
    "(kafka-consumer-groups.sh --delete-offsets) and restore the job with --accept-tables"
)


def encoded(timeline: Timeline) -> tuple[int, str]:
    """The offset and its metadata.  Spans that do not fit are dropped, oldest first."""
    return timeline.newest, timeline_note.encoded(timeline, MAX_BYTES)


def decoded(offset: int, metadata: str | None, place: str) -> Timeline:
    """The time line; ProtocolViolation when another client wrote it."""
    timeline = timeline_note.decoded(metadata, place, FIX)
    if timeline.newest != offset:
        raise ProtocolViolation(
            f"{place} is {offset}, and its note says {timeline.newest}: another client has moved "
            f"it; {FIX}"
        )
    return timeline
