"""Rows of a place, read on every way that there is, an epoch after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import polars as pl

from sluice.coordinator.restore import restore
from sluice.core.completed import CheckpointMetadata
from sluice.core.restoring import Choice
from sluice.sinks import FilesTable
from tests.spark.folder_job import FolderJob, completed_epochs
from tests.spark.ways.kinds import Choices, Kinds, exactly, expected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAYS = ("unkeyed", "selected", "through", "past", "stream_through", "stream_past")


class Place(Protocol):
    """Where rows are.  ``names`` are hostile ones that its columns may have."""

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def kinds(self) -> Kinds: ...

    def create(self, kinds: Kinds) -> Any:
        """Somewhere new, for rows with the column ``n``, their number, and these; its source."""
        ...

    def append(self, kinds: Kinds, choices: Choices, rows: range) -> None:
        """*rows* of those that *choices* stands for."""
        ...


@dataclass(frozen=True)
class Case:
    """``ends`` are the rows that are there at each epoch; ``most`` is the cap of an epoch."""

    kinds: Kinds
    choices: Choices
    ends: tuple[int, ...]
    most: int | None = None


def play(place: Place, case: Case, spark: SparkSession, folder: Path) -> FolderJob:
    """Read all, and once more from an older checkpoint on; each way has the rows as written."""
    job = a_job(place.create(case.kinds), tuple(case.kinds), spark, folder)
    if case.most is not None:
        job.limit(case.most)
    begin, checkpoints = 0, list[CheckpointMetadata]()
    for end in case.ends:
        place.append(case.kinds, case.choices, range(begin, end))
        begin = end
        checkpoints += completed_epochs(job.job, spark, drain=False)
    wanted = exactly(expected(case.kinds, case.choices))
    check(job, wanted)
    if len(checkpoints) > 1:
        oldest = checkpoints[-3:][0]  # Three are retained.
        restore(job.job, Choice(oldest.checkpoint_id))
        assert completed_epochs(job.job, spark, drain=False)
        check(job, wanted)
    return job


def a_job(spec: Any, names: Sequence[str], spark: SparkSession, folder: Path) -> FolderJob:
    job = FolderJob(spark, folder)
    rows = job.pipeline.source("rows", spec)
    whole = rows.select("n", *map(quoted, names)).transform("unkeyed", same)
    aliased = (f"{quoted(name)} AS c{number}" for number, name in enumerate(names))
    rows.select("n", *aliased).transform("selected", same).sink("selected_out", FilesTable())
    whole.sink("unkeyed_out", FilesTable())
    keyed = {
        "past": rows.where("n >= 0").key_by("n"),
        "through": rows.where("shiftleft(n, 0) >= 0").key_by("n"),
        "stream_past": whole.key_by("n"),
        "stream_through": whole.key_by(k_="shiftleft(n, 0)"),
    }
    for way, stream in keyed.items():
        stream.deduplicate(way).sink(f"{way}_out", FilesTable())
    return job


def same(rows: Any) -> Any:
    return rows


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def check(job: FolderJob, wanted: tuple[pl.Schema, dict[str, list[str]]]) -> None:
    schema, values = wanted
    differing = {}
    for way in WAYS:
        frame = job.table(f"{way}_out")
        if way == "selected":
            frame = frame.rename({f"c{number}": name for number, name in enumerate([*schema][1:])})
        types, found = exactly(pl.DataFrame([frame.get_column(name) for name in schema]))
        for name, column in values.items():
            if (types[name], found[name]) != (schema[name], column):
                differing[way, name] = (types[name], found[name]), (schema[name], column)
    assert differing == {}
