"""A job with a table of files, or with one in a place outside that is as strict as a database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.jobs import a_pipeline, a_running_job, published_records
from harness.noted_target import NotedTable
from sluice.core.ids import CheckpointId
from sluice.core.restoring import Choice, RestoreOptions
from sluice.job.job import Job
from tests.subtasks import complete_one, state_records

PLAIN = RestoreOptions()
ROLL_BACK = RestoreOptions(roll_back_tables=True)
ACCEPT = RestoreOptions(accept_tables=True)


@dataclass(frozen=True)
class Case:
    """A job, and the records that readers of its table see."""

    job: Job
    seen: Callable[[], list[int]]
    noted: NotedTable | None


def a_case(kind: str, **given: Any) -> Case:
    noted = NotedTable() if kind == "noted" else None
    usual: dict[str, Any] = {"num_retained": 9, "sink": noted}
    job = a_running_job(a_pipeline(**usual | given))
    if noted is not None:
        return Case(job, lambda: noted.place.records, noted)
    return Case(job, lambda: published_records(job), None)


def to(checkpoint_id: int) -> Choice:
    return Choice(CheckpointId(checkpoint_id))


def complete(job: Job) -> CheckpointId:
    """Complete a checkpoint without committing it."""
    return complete_one(job).checkpoint_id


def absorbed(job: Job) -> list[int]:
    """Every record that the job's state stands for."""
    base = job.base_metadata(job.state())
    return [] if base is None else state_records(job, base, "rank_bids")
