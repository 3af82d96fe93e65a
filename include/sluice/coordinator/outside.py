"""Places outside that a person may have written to: anywhere but inside a job.

A job's prefix, ``{root}/{uid}``, is the job's: its journal, its checkpoints, its tables.  A form,
an option and a caller all come through here before the first byte is written, whatever root they
name and however they spell it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from sluice.errors import ConfigurationError
from sluice.job.job import Job
from sluice.protocol.names import is_uid
from sluice.protocol.paths import PipelinePaths
from sluice.storage.object_store import ObjectStore
from sluice.storage.open import StoreLocation, open_store

log = logging.getLogger(__name__)


def require_outside(job: Job, root: str) -> ObjectStore:
    """The store of *root*, another one than the job's and not inside any job.

    Raises:
        ConfigurationError: it is no root, it is the job's own, or it lies inside a job; the message
            names that one.
    """
    location = job.location.elsewhere(root)
    place, own = location.place, job.location.place
    if place == own:
        raise ConfigurationError(
            f"{root} is the job's own root, where it lies already; name another one, or none"
        )
    for prefix in _prefixes(place):
        is_own = prefix == (*own, job.pipeline.uid)
        if is_own or _holds_a_job(prefix, location):
            raise ConfigurationError(
                f"{root} lies inside job {prefix[-1]!r}, whose prefix is {_uri(prefix)}: nothing "
                "but that job writes there; name a root outside of it"
            )
    return job.store_at(root)


def _prefixes(place: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Every place that *place* is in, itself included, that a pipeline's uid may end."""
    return (place[:n] for n in range(2, len(place) + 1) if is_uid(place[n - 1]))


def _holds_a_job(prefix: tuple[str, ...], location: StoreLocation) -> bool:
    """Whether a journal was begun there.  No, where we may not look."""
    paths = PipelinePaths(prefix[-1])
    store = open_store(location.elsewhere(_uri(prefix[:-1])))
    try:
        return any(paths.is_journal_entry(one.key) for one in store.list(paths.journal()))
    except ConfigurationError as error:
        log.warning("cannot tell whether a job lives there place=%s: %s", _uri(prefix), error)
        return False


def _uri(place: tuple[str, ...]) -> str:
    if len(place) == 1:
        return place[0]
    return "/".join((place[0].removesuffix("/"), *place[1:]))
