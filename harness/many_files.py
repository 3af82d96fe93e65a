"""A job that reads a folder of many small text files, in memory; tests and a benchmark share it."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from harness.jobs import a_job
from sluice.coordinator.submission import configure, submit
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.pipeline import Pipeline
from sluice.job.job import Job
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.store.object_store import ObjectStore
from sluice.store.open import StoreLocation, open_store

STAGE = "keep"
LINE = b"2026-01-01 x\n"


class Folder:
    """``location`` is where the files are, in memory unless *root* is named; each has one line."""

    def __init__(self, files: int, *, root: str | None = None) -> None:
        root = root or f"memory://input-{secrets.token_hex(4)}"
        self.location = f"{root}/"
        self.store: ObjectStore = open_store(StoreLocation(root=root))
        self._files = 0
        self.add(files)

    def add(self, files: int = 1) -> list[str]:
        numbers = range(self._files, self._files + files)
        return [self.write(f"day=2026-01-01/part-{number:09d}.log") for number in numbers]

    def write(self, name: str, body: bytes = LINE) -> str:
        scheme, _, path = self.location.partition("://")
        if scheme == "file":  # As plain files: the store would sync each of them.
            file = Path(path) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(body)
        else:
            self.store.put(name, body)
        self._files += 1
        return name


def a_files_job(
    folder: Folder,
    *,
    root: str | None = None,
    idle_after: Any = None,
    event_time: str | None = None,
    **checkpointing: Any,
) -> Job:
    """One stage that hands on the lines of the folder, submitted."""
    usual = {"data_inline_threshold": 0}
    parallelism = checkpointing.pop("parallelism", None)
    pipeline = Pipeline("auctions", checkpointing=Checkpointing(**usual | checkpointing))
    pipeline.parallelism = parallelism or pipeline.parallelism
    source = Files(folder.location, format="text", bounded=False)
    has_event_time = event_time is not None or idle_after is not None
    given = {"event_time": event_time or "at", "idle_after": idle_after} if has_event_time else {}
    stream = pipeline.source("events", source, **given)
    stream.transform(STAGE, _same).sink("results", FilesTable(""))
    job = a_job(pipeline, root=root)
    submit(job, configure(pipeline, {}))
    return job


def _same(rows: Any) -> Any:
    return rows


def size_of(job: Job, key: str) -> int:
    (listed,) = [one for one in job.store.list(key) if one.key == key]
    return listed.size_bytes
