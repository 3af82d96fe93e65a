"""Findings about this machine: Python, libraries, Java, the segment cache, the Spark server.

Nothing heavy is imported before its check needs it: versions are read from what is installed.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, metadata, version
from itertools import groupby
from pathlib import Path

from sluice.cli.diagnosis.finding import Finding, good, problem, warning
from sluice.errors import ConfigurationError
from sluice.extras import DISTRIBUTION, Requirement, is_within, requirements
from sluice.spark.java import find_java
from sluice.spark.remote_session import check_listening
from sluice.views.units import size

SPARK_VARIABLE = "SLUICE_SPARK_REMOTE"


def machine_findings(env: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    yield python_finding(platform.python_version(), metadata(DISTRIBUTION)["Requires-Python"])
    for extra, required in groupby(requirements(), lambda one: one.extra):
        yield libraries_finding(extra, {one: _installed(one.library) for one in required})
    yield java_finding(env)
    yield cache_finding()
    if env.get(SPARK_VARIABLE):
        yield spark_server_finding(env[SPARK_VARIABLE])


def python_finding(running: str, required: str) -> Finding:
    """*required* as the distribution says it: ``>=3.11``."""
    first = required.removeprefix(">=")
    if is_within(running, first=first):
        return good("Python", f"{running}, and {DISTRIBUTION} {version(DISTRIBUTION)}")
    return problem("Python", f"{running} is too old; install Python {first} or newer")


def libraries_finding(extra: str, found: Mapping[Requirement, str | None]) -> Finding:
    """*found* holds what *extra* asks for, by the version that is installed.

    Only what every pipeline needs has to be there; Spark's absence is a warning.
    """
    what = f"{DISTRIBUTION}[{extra}]" if extra else DISTRIBUTION
    check = what if extra else "libraries"
    misfits = [
        f"{one.library} {installed} is not {one.said}"
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


def java_finding(env: Mapping[str, str]) -> Finding:
    """Where stages run on a Spark server, that one has a Java of its own."""
    try:
        java = find_java(env)
    except ConfigurationError as error:
        if env.get(SPARK_VARIABLE):
            return warning("Java", f"{error}; only {SPARK_VARIABLE} works without")
        return problem("Java", error)
    return good("Java", f"{java.version}, {java.executable}")


def cache_finding() -> Finding:
    """The folder that an executor on this machine would use."""
    from sluice.subtask.state.cache import (
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


def spark_server_finding(remote: str) -> Finding:
    try:
        check_listening(remote, said_by=SPARK_VARIABLE)
    except ConfigurationError as error:
        return problem("Spark server", error)
    except ModuleNotFoundError as error:  # grpc, of the Connect client.
        return problem(
            "Spark server",
            f"its client needs the library {error.name}, which is not installed; run: "
            f"pip install '{DISTRIBUTION}[spark]'",
        )
    return good("Spark server", f"{remote} answers")


def _installed(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def _bytes_in(folder: Path) -> int:
    """What is in *folder* now; a file that goes meanwhile counts nothing."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(path) / name).stat().st_size
            except OSError:
                continue
    return total
