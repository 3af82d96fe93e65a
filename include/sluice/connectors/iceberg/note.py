"""The note of published checkpoints: a property of the table, changed in the commit of the data.

It outlives the snapshots, which expire.  ``sluice.{identity}`` holds the sink's time line
(``timeline_note.py``).
"""

from __future__ import annotations

from collections.abc import Mapping

from sluice.connectors.contracts import timeline_note
from sluice.core.timeline import Timeline

# Room for 600 spans of ids of five digits in each metadata file; an aborted checkpoint begins one.
MAX_BYTES = 8_000


def property_of(identity: str) -> str:
    return f"sluice.{identity}"


def encoded(timeline: Timeline) -> str:
    """The note of *timeline*; spans that do not fit are dropped, oldest first."""
    return timeline_note.encoded(timeline, MAX_BYTES)


def noted(properties: Mapping[str, str], identity: str) -> Timeline:
    """The time line in a table's properties; ProtocolViolation for a note of another format."""
    name = property_of(identity)
    text = properties.get(name)
    if text is None:
        return Timeline()
    fix = (
        "put it back from an older metadata file of the table, or remove it and restore the job "
        "with --accept-tables"
    )
    return timeline_note.decoded(text, f"the table's property {name}", fix)
