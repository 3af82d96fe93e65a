"""The history of results: a line of JSON for each engine of each row that was recorded.

``bench/history/results.jsonl`` is in the repository and only grows: ``bench.run --record`` appends
to it, and ``bench.charts`` draws it.  A record names the commit that was measured, so a tree that
differs from its commit is not recorded; nor is a row that failed or did not agree.
Disturbed rows are, and marked.  There is nothing in it of where the machine has its files.

    {"commit":"31465ec7a2b1","date":"2026-11-24","source":"measured","form":"full","scale":1.0, ...}
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Literal

import msgspec

from bench.forms import Form, FormName
from bench.results import Row

HISTORY = Path(__file__).resolve().parent / "history" / "results.jsonl"
COMMIT_DIGITS = 12
# What may differ from the commit: no engine reads it.
NOT_MEASURED = (
    ":(exclude)bench/history",
    ":(exclude)bench/results",
    ":(exclude)docs",
    ":(exclude)*.md",
)


class CannotRecord(Exception):
    """The message says why, and what to do."""


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``model`` is the processor's; empty if it was not noted."""

    processors: int
    memory_gb: int
    model: str


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An engine's figures for a row: seconds, bytes of one checkpoint.

    ``source`` is ``page`` for figures that were taken over from docs/explanation/benchmarks.md:
    their commit is the first that has that table, what was measured is some tree before it, and
    what the page does not say is None.  ``other_share`` is the part of the machine that other
    processes had.  ``worker_peak_bytes`` is None in what was recorded before it was measured.
    """

    commit: str
    date: str
    source: Literal["measured", "page"]
    form: FormName
    scale: float
    machine: Machine
    row: str
    engine: str
    repetitions: int
    wall_min_s: float
    wall_median_s: float
    cpu_min_s: float
    cpu_median_s: float
    bytes_written: int | None
    bytes_changed: int | None
    disturbed: bool
    other_share: float | None
    worker_peak_bytes: int | None = None


def read_history(path: Path = HISTORY) -> list[Record]:
    """The records, oldest first."""
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            found.append(msgspec.json.decode(line, type=Record))
        except msgspec.DecodeError as error:
            raise CannotRecord(f"{path.name}, line {number}: {error}; mend or remove it") from error
    return found


def append_history(records: Iterable[Record], path: Path = HISTORY) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        for record in records:
            file.write(msgspec.json.encode(record) + b"\n")


def records_of(rows: Iterable[Row], form: Form, commit: str, today: date) -> list[Record]:
    """A record for each row that has figures which may be believed."""
    machine = this_machine()
    found = []
    for row in rows:
        wall, cpu = row.wall_s(), row.cpu_s()
        if wall is None or cpu is None or row.error or row.agrees is False:
            continue
        found.append(
            Record(
                commit=commit,
                date=today.isoformat(),
                source="measured",
                form=form.name,
                scale=form.scale,
                machine=machine,
                row=row.workload,
                engine=row.engine,
                repetitions=len(row.counted),
                wall_min_s=round(wall[0], 4),
                wall_median_s=round(wall[1], 4),
                cpu_min_s=round(cpu[0], 4),
                cpu_median_s=round(cpu[1], 4),
                bytes_written=row.bytes_uploaded(),
                bytes_changed=row.bytes_changed,
                disturbed=row.is_disturbed,
                other_share=round(row.other_share(), 4),
                worker_peak_bytes=row.worker_peak_bytes(),
            )
        )
    return found


def measured_commit(repository: Path) -> str:
    """The commit of the tree; it must be whole in it, or the figures would be of another.

    Raises:
        CannotRecord: something is changed, or this is no checkout.
    """
    command = ["git", "status", "--porcelain", "--", ".", *NOT_MEASURED]
    changed = _git(repository, command).splitlines()
    if changed:
        named = ", ".join(line[3:] for line in changed[:3])
        raise CannotRecord(
            f"{len(changed)} files differ from the commit, among them {named}; commit or stash them"
            " before --record"
        )
    head = _git(repository, ["git", "rev-parse", f"--short={COMMIT_DIGITS}", "HEAD"])
    return head.strip()


def this_machine() -> Machine:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return Machine(
        processors=os.cpu_count() or 1,
        memory_gb=round(pages / 2**30),
        model=models[0] if models else platform.machine(),
    )


def _git(repository: Path, command: list[str]) -> str:
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotRecord(f"{' '.join(command[:2])} failed: {done.stderr.strip()}")
    return done.stdout
