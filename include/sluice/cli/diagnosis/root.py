"""Findings about a root: reachable, writable, truly conditional, consistent, and on time.

What is written to find that out lies outside of every job's prefix, and is deleted again.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress

from sluice.cli.diagnosis.finding import Finding, good, problem, warning
from sluice.core.pages import STORES
from sluice.errors import ConfigurationError, SluiceError
from sluice.job.job import wall_clock_ms
from sluice.protocol.paths import scratch, scratch_folder
from sluice.storage.object_store import Listed, ObjectStore, verify_conditional_writes
from sluice.storage.open import StoreLocation, open_store
from sluice.storage.racing import RACERS, verify_one_winner

CLOCK_TOLERANCE_MS = 5_000  # S3 tells whole seconds, and a slow request takes some.
_USE = f"use AWS S3, a local folder, or another store listed in {STORES}"
BODY = b"sluice doctor writes this, and deletes it again"


def root_findings(location: StoreLocation) -> Iterator[Finding]:
    if location.root.startswith("memory://"):
        yield problem(
            "root",
            f"{location.root} ends with its process, so there is nothing to check; name a folder "
            "or a bucket in --root",
        )
        return
    try:
        store = open_store(location)
    except ConfigurationError as error:
        yield problem("root", error)
        return
    yield from store_findings(store)


def store_findings(
    store: ObjectStore, clock: Callable[[], int] = wall_clock_ms
) -> Iterator[Finding]:
    """Check the *store*; what needs a check that failed is left out."""
    token = uuid.uuid4().hex
    try:
        began = time.monotonic()
        list(store.list(scratch_folder(token)))
        took_ms = (time.monotonic() - began) * 1000
    except SluiceError as error:
        yield problem("root", error)
        return
    yield good("root", f"{store.root} answers, in {took_ms:.0f} ms")
    begun_ms = clock()
    unwritable = _writing(store, token)
    if unwritable is not None:
        yield unwritable
        return
    yield good("write", "an object reads back as it was written")
    yield from _listing(store, token, begun_ms, clock)
    yield _conditional(store, token)
    yield _deleting(store, token)


def _writing(store: ObjectStore, token: str) -> Finding | None:
    """The problem, if there is one."""
    key = scratch(token, "object")
    try:
        store.put(key, BODY)
        found = store.get(key)
        if found == BODY:
            return None
        error = f"{store.root} gives back other bytes than were written; {_USE}"
    except SluiceError as refused:
        error = str(refused)
    with suppress(SluiceError):  # It may have been written, and only its answer was lost.
        store.delete([key])
    return problem("write", error)


def _listing(
    store: ObjectStore, token: str, begun_ms: int, clock: Callable[[], int]
) -> Iterator[Finding]:
    key = scratch(token, "object")
    try:
        listed = {one.key: one for one in store.list(scratch_folder(token))}
    except SluiceError as error:
        yield problem("list", error)
        return
    if key not in listed:
        yield problem("list", f"{store.root} does not list what was just written; {_USE}")
        return
    yield good("list", "a listing shows what was just written")
    yield clock_finding(listed[key], begun_ms, clock())


def clock_finding(written: Listed, begun_ms: int, ended_ms: int) -> Finding:
    """*written* between the two moments of this machine's clock."""
    early_ms, late_ms = begun_ms - written.modified_ms, written.modified_ms - ended_ms
    distance_ms = max(early_ms, late_ms)
    if distance_ms <= CLOCK_TOLERANCE_MS:
        return good("clock", "this machine's and the store's agree")
    which = "behind" if early_ms > late_ms else "ahead of"
    return warning(
        "clock",
        f"the store's is {distance_ms / 1000:,.0f} s {which} this machine's; no checkpoint depends "
        "on it, but ages and timeouts do, and AWS refuses more than 15 minutes: synchronize both "
        "with NTP",
    )


def _conditional(store: ObjectStore, token: str) -> Finding:
    """Two writers one after the other, then many at once."""
    try:
        verify_conditional_writes(store, scratch(token, "sequence"), token.encode())
        verify_one_winner(store, scratch(token, "race"))
    except SluiceError as error:
        return problem("conditional writes", error)
    return good(
        "conditional writes", f"a second writer is refused, and of {RACERS} at once one wins"
    )


def _deleting(store: ObjectStore, token: str) -> Finding:
    """Delete whatever the checks wrote, and look whether it is gone."""
    folder = scratch_folder(token)
    try:
        keys = [one.key for one in store.list(folder)]
        store.delete([*keys, scratch(token, "object")])
        left = [one.key for one in store.list(folder)]
    except SluiceError as error:
        return problem("delete", f"{error}; then delete {store.root}/{folder} by hand")
    if left:
        return problem(
            "delete",
            f"{store.root} still lists {left[0]} after it was deleted; {_USE}",
        )
    return good("delete", "what was written for these checks is gone")
