"""Which files a position has to name, and from where on they have to be listed.

Without an order every file that was ever seen stays in the position: a new one may have any name.
Where names only grow, the last files that are read stay, so that one of them that changed, or one
that came late by a few names, is still found.  The first of these is the floor: files up to it are
neither listed nor remembered.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from sluice.connectors.source import SourcePosition
from sluice.core.plan import PartitionOffset

log = logging.getLogger(__name__)

# One page of a listing holds 1000 names; a position is read with every checkpoint.
SEALED_KEPT = 16


def floor_of(position: SourcePosition) -> str:
    """The name up to which nothing has to be listed; empty when everything has.

    Once a file was forgotten there is one for ever, whatever comes late behind it.
    """
    is_full = len(position) >= SEALED_KEPT and position[0].sealed
    return position[0].partition if is_full else ""


def warn_of_late(name: str, read: Mapping[str, PartitionOffset], location: str) -> None:
    """A file that is new, and not the last by its name, was not written in order."""
    later = max((one.partition for one in read.values() if one.sealed), default="")
    if name < later:
        log.warning(
            "file came out of order, others like it may have been missed file=%s after=%s "
            "location=%s",
            name,
            later,
            location,
        )


def without_forgotten(
    read: Mapping[str, PartitionOffset], now: Mapping[str, PartitionOffset], looked_to: str | None
) -> dict[str, PartitionOffset]:
    """The entries *now* that an ordered source has to keep, after a position that *read* was.

    What this epoch sealed stays, for its readers ask; so does the floor.  *looked_to* is the last
    file that it looked at, None for all: those up to it that are not there *now* have vanished,
    and are taken as read; those behind it are as they were.
    """
    gone = {
        name: replace(one, sealed=True)
        for name, one in read.items()
        if looked_to is None or name <= looked_to
    }
    kept = {**read, **gone, **now}
    names = sorted(kept)
    sealed = 0
    while sealed < len(names) and names[sealed] in read and kept[names[sealed]].sealed:
        sealed += 1
    return {name: kept[name] for name in names[max(sealed - SEALED_KEPT, 0) :]}
