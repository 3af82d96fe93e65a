"""What a sink has published to a table: a property of the table, changed with the data.

It outlives the snapshots, which expire.  ``sluice.{identity}`` holds the sink's time line
(``timeline_note.py``).
"""

from __future__ import annotations

from collections.abc import Mapping

from sluice.connectors import timeline_note
from sluice.core.timeline import Timeline

# Each aborted checkpoint begins another span: 600 of ids of five digits, in each metadata file.
MAX_BYTES = 8_000


def property_of(identity: str) -> str:
    return f"sluice.{identity}"


def encoded(timeline: Timeline) -> str:
    """What does not fit is forgotten, oldest first."""
    return timeline_note.encoded(timeline, MAX_BYTES)


def noted(properties: Mapping[str, str], identity: str) -> Timeline:
    """Raises ProtocolViolation when the property is not what a sink of this version wrote."""
    name = property_of(identity)
    text = properties.get(name)
    if text is None:
        return Timeline()
    fix = (
        "put it back from an older metadata file of the table, or remove it and restore the job "
        "with --accept-tables"
    )
    return timeline_note.decoded(text, f"the table's property {name}", fix)
