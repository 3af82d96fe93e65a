"""What a sink has published, kept in the broker as a consumer group's offset.

The group is called as the transactional id, and commits one offset, of partition 0 of the target
topic: the newest checkpoint.  Its metadata is the time line of the topic (``timeline_note.py``).
Sent in a transaction, it is true when the rows are.
"""

from __future__ import annotations

from sluice.connectors import timeline_note
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
    """The offset and its metadata.  What no longer fits is forgotten, oldest first."""
    return timeline.newest, timeline_note.encoded(timeline, MAX_BYTES)


def decoded(offset: int, metadata: str | None, place: str) -> Timeline:
    """Raises ProtocolViolation when somebody else, or an older sluice, wrote it."""
    timeline = timeline_note.decoded(metadata, place, FIX)
    if timeline.newest != offset:
        raise ProtocolViolation(
            f"{place} is {offset}, and its note says {timeline.newest}: somebody else has moved "
            f"it; {FIX}"
        )
    return timeline
