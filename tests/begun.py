"""What the tests of one kind begin with is played once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps

from harness.jobs import a_job, keys_of
from sluice.job.job import Job
from sluice.protocol.records import decode_entry, encode_entry


def begun(make: Callable[..., Job]) -> Callable[..., Job]:
    """*make*, whose job each call opens in a new root, with the objects that one run of it left."""
    made: dict[object, Job] = {}

    @wraps(make)
    def begin(**given: object) -> Job:
        key = tuple(sorted(given.items()))
        if key not in made:
            made[key] = make(**given)
        return at_home(copied(made[key]))

    return begin


def at_home(copy: Job) -> Job:
    """The job as if it had begun in the root that it was copied to."""
    for key in keys_of(copy, copy.paths.journal()):
        entry = decode_entry(copy.store.get(key) or b"", key)
        here = replace(entry.state, place=copy.location.name)
        copy.store.put(key, encode_entry(replace(entry, state=here)))
    return copy


def copied(job: Job, folder: str = "") -> Job:
    """A job of a new root with what lies below *folder*."""
    other = a_job(job.pipeline)
    for key in keys_of(job, folder):
        other.store.put(key, job.store.get(key) or b"")
    return other
