"""Objects below a job's prefix that sluice did not write: named, and passed by.

A person may have put them there by hand, or a copy went to the wrong place.  They must not stop a
job, so every listing of our folders checks the names.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

from sluice.storage.object_store import Listed

log = logging.getLogger(__name__)

NAMED_ONCE = 1_000  # So many names a process remembers to have warned of.


def ours(listed: Iterable[Listed], is_ours: Callable[[str], bool], root: str) -> Iterator[Listed]:
    """The objects of *listed* whose key *is_ours*; each other one below *root* is logged once."""
    for one in listed:
        if is_ours(one.key):
            yield one
        else:
            _warn(f"{root}/{one.key}")


@lru_cache(maxsize=NAMED_ONCE)
def _warn(place: str) -> None:
    log.warning(
        "foreign object passed by key=%s: sluice does not write such a name; delete it, or move it "
        "out of the job's prefix",
        place,
    )
