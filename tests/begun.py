"""What the tests of one kind begin with is played once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from harness.jobs import a_job, keys_of
from sluice.job.job import Job


def begun(make: Callable[..., Job]) -> Callable[..., Job]:
    """*make*, whose job each call opens in a new root, with the objects that one run of it left."""
    made: dict[object, Job] = {}

    @wraps(make)
    def begin(**given: object) -> Job:
        key = tuple(sorted(given.items()))
        if key not in made:
            made[key] = make(**given)
        return copied(made[key])

    return begin


def copied(job: Job, folder: str = "") -> Job:
    """A job of a new root with what lies below *folder*."""
    other = a_job(job.pipeline)
    for key in keys_of(job, folder):
        other.store.put(key, job.store.get(key) or b"")
    return other
