"""The files that a position has to name, and the name from which files are listed.

Without an order every file that was ever seen stays in the position: a new one may have any name.
Where names only grow, only the last files that were read stay, so that changes of these, and files
that are a few names late, are still found.  The first of them is the floor: files up to it are
neither listed nor remembered.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from sluice.connectors.contracts.source import SourcePosition
from sluice.core.plan import PartitionOffset

log = logging.getLogger(__name__)

# Fewer than a listing's page of 1000 names, as a position is read with every checkpoint.
SEALED_KEPT = 16


def floor_of(position: SourcePosition) -> str:
    """The name up to which no file has to be listed; empty when all have to be.

    Once a file was forgotten there is always a floor.
    """
    is_full = len(position) >= SEALED_KEPT and position[0].sealed
    return position[0].partition if is_full else ""


def warn_of_late(name: str, read: Mapping[str, PartitionOffset], location: str) -> None:
    """Log a new file that sorts before files that were read: files are not written in order."""
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
    """The entries of *now* that an ordered source has to keep; *read* is the position before.

    Files that this epoch completed stay, as the readers need them, and so does the floor.
    *looked_to* is the last file that was listed, None for all: files up to it that are not in
    *now* have vanished, and count as read; files behind it are unchanged.
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
