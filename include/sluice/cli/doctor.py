"""``sluice doctor``: whether Sluice works on this machine, in this project and on this root.

A ``Finding`` is the outcome of one check: good, a warning or a problem, and what to do.  Nothing
heavy is imported before its check needs it: versions are read from what is installed.  What is
written to a root to try it out lies outside of every job's prefix, and is deleted again.
"""

from __future__ import annotations

import os
import platform
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, metadata, version
from itertools import groupby, islice
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sluice.cli.options import AsJson, EndpointUrl, Root, declared_uids, location, print_json
from sluice.coordinator.garbage import of_earlier_journals
from sluice.core.configuration import JobStatus
from sluice.core.failures import STORES
from sluice.core.ids import NO_GENERATION
from sluice.core.units import size
from sluice.declaration.project import load_declarations, load_pipeline
from sluice.errors import ConfigurationError, SluiceError
from sluice.extras import DISTRIBUTION, Requirement, is_within, requirements
from sluice.job.job import open_job
from sluice.protocol.keys import scratch, scratch_folder
from sluice.spark.jvm import find_java
from sluice.spark.session import check_listening
from sluice.store.object_store import (
    RACERS,
    Listed,
    ObjectStore,
    in_parallel,
    machine_clock_ms,
    verify_conditional_writes,
)
from sluice.store.open import StoreLocation, open_store
from sluice.store.redaction import redacted
from sluice.surface.journal import history_lines
from sluice.surface.snapshots import newest_checked

SPARK_VARIABLE = "SLUICE_SPARK_REMOTE"
CLOCK_TOLERANCE_MS = 5_000  # S3's times are whole seconds, and a slow request takes some.
# A server that numbers what is left, instead of going on behind a key, forgets at the second page.
LISTED_KEYS, LISTED_FILES = 1_100, 100
WRITERS = 16
BODY = b"sluice doctor writes this, and deletes it again"
_USE = f"use AWS S3, a local folder, or another store listed in {STORES}"


class Status(StrEnum):
    OK = "ok"
    WARNING = "warning"  # It works, but not all of it, or not as one would expect.
    PROBLEM = "problem"  # Sluice does not work here until it is mended.


_STYLES = {Status.OK: "green", Status.WARNING: "yellow", Status.PROBLEM: "red"}
_WIDTHS = (7, 18)  # Of a status and of a check's name; the sentence has the rest.


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """``message`` is one sentence: what was found, and unless that is good, what to do."""

    check: str
    status: Status
    message: str


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The output of ``--json``; ``healthy`` when no finding is a problem."""

    healthy: bool
    root: str
    findings: list[Finding]


def doctor(
    pipeline: Annotated[
        str | None,
        typer.Argument(
            help="Read the journal of this pipeline's job, too.", autocompletion=declared_uids
        ),
    ] = None,
    root: Root = None,
    endpoint_url: EndpointUrl = None,
    as_json: AsJson = False,
) -> None:
    """Check Python, libraries, Java, pipelines, the root and its writes; say what to do.

    The root is tried out with objects outside of every job, which are deleted again.  Exit code 1
    when there is a problem; a warning is none.
    """
    place = location(root, endpoint_url)
    console = Console()
    findings = []
    for found in _findings(pipeline, place):  # Without any secret that an error quotes.
        finding = msgspec.structs.replace(found, message=redacted(found.message))
        findings.append(finding)
        if not as_json:
            _print(console, finding)
    problems = sum(one.status is Status.PROBLEM for one in findings)
    if as_json:
        print_json(Diagnosis(healthy=not problems, root=place.root, findings=findings))
        raise typer.Exit(1 if problems else 0)
    if problems:
        count = "one problem" if problems == 1 else f"{problems} problems"
        raise ConfigurationError(f"sluice does not work here for the {count} above")


def _findings(pipeline: str | None, place: StoreLocation) -> Iterator[Finding]:
    """Yield each as soon as it is found."""
    yield from machine_findings()
    yield from pipeline_findings()
    is_root_sound = True
    for finding in root_findings(place):
        is_root_sound = is_root_sound and finding.status is not Status.PROBLEM
        yield finding
    if pipeline is not None and is_root_sound:
        yield job_finding(pipeline, place)


def _print(console: Console, finding: Finding) -> None:
    line = Table.grid(padding=(0, 1))
    for width in _WIDTHS:
        line.add_column(width=width, no_wrap=True)
    line.add_column()
    status = Text(finding.status.value, style=_STYLES[finding.status])
    line.add_row(status, Text(finding.check), Text(finding.message))
    console.print(line)


def good(check: str, message: str) -> Finding:
    return Finding(check=check, status=Status.OK, message=message)


def warning(check: str, message: str) -> Finding:
    return Finding(check=check, status=Status.WARNING, message=message)


def problem(check: str, message: str | SluiceError) -> Finding:
    return Finding(check=check, status=Status.PROBLEM, message=str(message))


def machine_findings(env: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    yield python_finding(platform.python_version(), metadata(DISTRIBUTION)["Requires-Python"])
    for extra, required in groupby(requirements(), lambda one: one.extra):
        yield libraries_finding(extra, {one: _installed(one.library) for one in required})
    yield java_finding(env)
    yield cache_finding()
    if env.get(SPARK_VARIABLE):
        yield spark_server_finding(env[SPARK_VARIABLE])


def python_finding(running: str, required: str) -> Finding:
    """*required* has the form of the distribution's metadata: ``>=3.11``."""
    first = required.removeprefix(">=")
    if is_within(running, first=first):
        return good("Python", f"{running}, and {DISTRIBUTION} {version(DISTRIBUTION)}")
    return problem("Python", f"{running} is too old; install Python {first} or newer")


def libraries_finding(extra: str, found: Mapping[Requirement, str | None]) -> Finding:
    """*found* has the installed version of each library that *extra* requires.

    Only what every pipeline needs has to be installed; without Spark there is a warning.
    """
    what = f"{DISTRIBUTION}[{extra}]" if extra else DISTRIBUTION
    check = what if extra else "libraries"
    misfits = [
        f"{one.library} {installed} is not {one.range}"
        for one, installed in found.items()
        if installed is not None and not is_within(installed, first=one.first, end=one.end)
    ]
    if misfits:
        return problem(check, f"{', '.join(misfits)}; run: pip install --upgrade '{what}'")
    missing = ", ".join(one.library for one, installed in found.items() if installed is None)
    install = f"run: pip install '{what}'"
    match extra:
        case _ if not missing:
            return good(check, ", ".join(f"{one.library} {is_}" for one, is_ in found.items()))
        case "":
            return problem(check, f"{missing} is not installed; {install}")
        case "spark":
            return warning(check, f"{missing} is not installed; for 'sluice run', {install}")
        case _:
            return good(check, f"{missing} is not installed; if a pipeline needs it, {install}")


def _installed(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def java_finding(env: Mapping[str, str]) -> Finding:
    """No Java is only a warning where stages run on a Spark server, which has its own."""
    try:
        java = find_java(env)
    except ConfigurationError as error:
        if env.get(SPARK_VARIABLE):
            return warning("Java", f"{error}; only {SPARK_VARIABLE} works without")
        return problem("Java", error)
    return good("Java", f"{java.version}, {java.executable}")


def cache_finding() -> Finding:
    """The folder that an executor on this machine would use."""
    from sluice.state.cache import (
        FOLDER_VARIABLE,
        MAX_BYTES_VARIABLE,
        default_folder,
        default_max_bytes,
    )

    folder = default_folder().absolute()
    try:
        limit = default_max_bytes()
    except ConfigurationError as error:
        return problem("segment cache", error)
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        return problem(
            "segment cache",
            f"{folder} cannot be written at {there}; name another folder in {FOLDER_VARIABLE}",
        )
    free = shutil.disk_usage(there).free
    if free + _bytes_in(folder) < limit:
        return warning(
            "segment cache",
            f"{folder} has {size(free)} free and may grow to {size(limit)}; lower "
            f"{MAX_BYTES_VARIABLE}, or name a larger disk in {FOLDER_VARIABLE}",
        )
    return good("segment cache", f"{folder}, {size(free)} free, may grow to {size(limit)}")


def _bytes_in(folder: Path) -> int:
    """The bytes in *folder* now; a file that is deleted meanwhile counts nothing."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(path) / name).stat().st_size
            except OSError:
                continue
    return total


def spark_server_finding(remote: str) -> Finding:
    try:
        check_listening(remote, named_by=SPARK_VARIABLE)
    except ConfigurationError as error:
        return problem("Spark server", error)
    except ModuleNotFoundError as error:  # grpc, of the Connect client.
        return problem(
            "Spark server",
            f"its client needs the library {error.name}, which is not installed; run: "
            f"pip install '{DISTRIBUTION}[spark]'",
        )
    return good("Spark server", f"{remote} answers")


def pipeline_findings() -> Iterator[Finding]:
    """One for all that can be loaded, and one for each module that cannot."""
    try:
        declared = load_declarations()
    except ConfigurationError as error:
        yield problem("pipelines", error)
        return
    for module, cause in declared.problems.items():
        yield problem("pipelines", f"{module} cannot be loaded: {cause}")
    if declared.pipelines:
        yield good("pipelines", f"{len(declared.pipelines)}: {', '.join(declared.pipelines)}")
    elif not declared.problems:
        yield warning("pipelines", "none is declared; assign a Pipeline to a name in a module")


def root_findings(location: StoreLocation) -> Iterator[Finding]:
    if location.root.startswith("memory://"):
        yield problem(
            "root",
            f"{location.root} ends with its process, so there is nothing to check; name a folder "
            "or a bucket in --root",
        )
        return
    try:
        store = open_store(replace(location, patience_s=0))
    except ConfigurationError as error:
        yield problem("root", error)
        return
    yield from store_findings(store)


def store_findings(
    store: ObjectStore, clock: Callable[[], int] = machine_clock_ms
) -> Iterator[Finding]:
    """Check the *store*; what needs a check that failed is left out."""
    token = uuid.uuid4().hex
    try:
        started = time.monotonic()
        list(store.list(scratch_folder(token)))
        took_ms = (time.monotonic() - started) * 1000
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
    others = [*_listing(store, token, begun_ms, clock), _conditional(store, token)]
    others.append(_deleting(store, token))
    yield from others
    if all(one.status is not Status.PROBLEM for one in others):
        yield _listing_under_deletes(store, token)


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
        f"the store's is {distance_ms / 1000:,.0f} s {which} this machine's; timeouts, restarts "
        "and processing time go by the job's clock, which whoever drives a job first draws from "
        "their machine's; AWS refuses more than 15 minutes: synchronize both with NTP",
    )


def _conditional(store: ObjectStore, token: str) -> Finding:
    """The probe of whatever begins in a store: two writers in a row, then many at once."""
    try:
        verify_conditional_writes(store, scratch(token, "probe"), token.encode())
    except SluiceError as error:
        return problem("conditional writes", error)
    return good(
        "conditional writes", f"a second writer is refused, and of {RACERS} at once one wins"
    )


def _listing_under_deletes(store: ObjectStore, token: str) -> Finding:
    """Whether listings have what is kept while other objects are deleted, in the midst of one, and
    by another writer.
    """
    check = "list under deletes"
    folder = scratch(token, "listed/")
    count = LISTED_KEYS if store.root.startswith("s3://") else LISTED_FILES
    keys = [f"{folder}{number:05d}" for number in range(count)]
    kept, doomed = keys[::2], keys[1::2]
    try:
        in_parallel(lambda key: store.put(key, BODY), keys, WRITERS)
        listing = store.list(folder)
        seen = {one.key for one in islice(listing, 10)}
        store.delete(doomed[: count // 4])
        seen |= {one.key for one in listing}
        listings = [seen]
        with ThreadPoolExecutor(1) as other:
            rest = doomed[count // 4 :]
            deletes = [
                other.submit(store.delete, rest[at : at + 10]) for at in range(0, len(rest), 10)
            ]
            while not all(delete.done() for delete in deletes):
                listings.append({one.key for one in store.list(folder)})
        for delete in deletes:
            delete.result()
        left = [one.key for one in store.list(folder)]
        store.delete(keys)
    except SluiceError as error:
        return problem(check, f"{error}; then delete {store.root}/{folder} by hand")
    lacking = sum(not listed.issuperset(kept) for listed in listings)
    if lacking or left != kept:
        return problem(
            check,
            f"{lacking or 'none'} of {len(listings)} listings of {store.root} lacked objects while "
            f"others were deleted, and at the end it was {'right' if left == kept else 'wrong'}; a "
            f"coordinator would miss acks and journal entries: {_USE}",
        )
    return good(check, f"{count} objects: each listing has those that are not deleted")


def _deleting(store: ObjectStore, token: str) -> Finding:
    """Delete all that the checks wrote, and list whether it is gone."""
    folder = scratch_folder(token)
    try:
        keys = [one.key for one in store.list(folder)]
        store.delete([*keys, scratch(token, "object")])
        left = [one.key for one in store.list(folder)]
    except SluiceError as error:
        return problem("delete", f"{error}; then delete {store.root}/{folder} by hand")
    if left:
        return problem("delete", f"{store.root} still lists {left[0]} after it was deleted; {_USE}")
    return good("delete", "what was written for these checks is gone")


def job_finding(uid: str, location: StoreLocation) -> Finding:
    """The journal of the job *uid* as a coordinator would read it, every entry of it, and whether
    the newest checkpoint can be restored, by names and sizes.
    """
    check = f"job {uid}"
    try:
        job = open_job(load_pipeline(uid), replace(location, patience_s=0))
        state = job.state()
        worn = history_lines(job.journal.inspect())
        left = [] if state.generation == NO_GENERATION else of_earlier_journals(job)
        newest = newest_checked(job, state)
        job.now_ms()
    except SluiceError as error:
        return problem(check, error)
    if state.generation == NO_GENERATION:
        return good(check, f"never submitted in {job.store.root}")
    latest = state.latest_completed
    done = "none" if latest is None else str(latest.checkpoint_id)
    summary = f"{state.status.value}, generation {state.generation}, latest checkpoint {done}"
    if newest is not None and newest.problems:
        return problem(
            check,
            f"{summary}, which cannot be restored: {'; '.join(newest.problems)}; "
            f"'sluice snapshots {uid}' says which can",
        )
    if state.status is JobStatus.FAILED:
        because = f" ({state.stopped_because})" if state.stopped_because else ""
        return warning(check, f"{summary}{because}; mend the cause, then run: sluice restore {uid}")
    ahead_s = job.time.ahead_ms / 1_000
    if ahead_s:
        which = "ahead of" if ahead_s > 0 else "behind"
        off = (
            f"this machine's clock is {abs(ahead_s):,.0f} s {which} the job's, which is used: "
            "timeouts, restarts and state TTL do not depend on it; synchronize it with NTP"
        )
        worn = [*worn, off]
    if left:
        line = (
            f"{len(left):,} files of earlier journals ({size(sum(f.size_bytes for f in left))}): "
            "the root was emptied while something of the job still ran; they harm nothing, and "
            f"'sluice gc {uid}' deletes them"
        )
        worn = [*worn, line]
    if worn:
        return warning(check, "; ".join((summary, *worn)))
    return good(check, summary)
