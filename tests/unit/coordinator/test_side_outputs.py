"""A side output's table is asked like a sink's, before its checkpoint completes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import tests.subtasks
from harness.jobs import STAGES, a_pipeline, a_running_job, trigger_one
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint
from sluice.coordinator.publication import commit
from sluice.core.answers import Committable
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from sluice.job.places import open_side_table
from tests.subtasks import acknowledge

LATE = f"{STAGES[0]}.late"


def with_late(job: Job, patch: pytest.MonkeyPatch, *late: pa.Table) -> CheckpointId:
    """The next checkpoint, whose first subtask has *late* rows, in a file for each table."""
    plan = trigger_one(job)
    table = open_side_table(job, LATE)
    staged = [
        table.stage(rows, checkpoint_id=plan.checkpoint_id, subtask=0, attempt_token=f"1-{number}")
        for number, rows in enumerate(late)
    ]
    of_sinks = tests.subtasks.staged_for_sinks

    def files(told: Any, index: int, rows: pa.Table) -> tuple[Committable, ...]:
        beside = [one for one in staged if one is not None] if index == 0 else []
        is_first = told.task.uid == STAGES[0]
        return (*of_sinks(told, index, rows), *(beside if is_first else []))

    with patch.context() as within:
        within.setattr(tests.subtasks, "staged_for_sinks", files)
        acknowledge(job, plan)
    return plan.checkpoint_id


def rows_of(job: Job) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = open_side_table(job, LATE).read().to_pylist()
    return found


def test_late_rows_of_another_type_than_the_table_has_abort_their_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = a_running_job(a_pipeline(tolerable_failed_checkpoints=9))
    first = with_late(job, monkeypatch, pa.table({"n": [1]}), pa.table({"n": [2], "m": ["x"]}))
    finalize(job, first)
    commit(job, first)
    second = with_late(job, monkeypatch, pa.table({"n": ["three"]}))

    with pytest.raises(
        ConfigurationError,
        match=rf"^side output '{LATE}' cannot be published: column 'n' of the table at "
        r".*/side/.* is int64, and the rows to be added have string",
    ):
        finalize(job, second)

    fail_checkpoint(job, second, Reason.FINALIZE_CHECKPOINT_FAILURE, "told")
    third = with_late(job, monkeypatch, pa.table({"n": [4]}))
    finalize(job, third)
    commit(job, third)
    found = sorted(rows_of(job), key=str)
    assert found == [{"n": 1, "m": None}, {"n": 2, "m": "x"}, {"n": 4, "m": None}]


def test_late_rows_of_two_types_in_one_checkpoint_abort_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = a_running_job()
    first = with_late(job, monkeypatch, pa.table({"n": [1]}), pa.table({"n": ["two"]}))

    with pytest.raises(ConfigurationError, match=f"^side output '{LATE}' cannot be published"):
        finalize(job, first)
