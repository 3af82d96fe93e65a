"""The notes of failed runs, for the most frequent failures."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from sluice.coordinator.failure import fail_checkpoint
from sluice.core.configuration import JobStatus
from sluice.core.failures import CheckpointFailureReason
from sluice.core.ids import CheckpointId
from sluice.job.job import Job
from sluice.surface.acts import STAY_SUSPENDED
from sluice_airflow.acts import ExportOperator, RestoreOperator, VerifyOperator
from sluice_airflow.compat import AirflowFailException, AirflowSkipException
from sluice_airflow.forms import restore_form, savepoint_form
from sluice_airflow.operators import FinalizeOperator
from sluice_airflow.trigger_task import TriggerOperator, TriggerSavepointOperator
from sluice_airflow.watchdog import SHORT_PAUSE_MS, pause_to_wait_out
from tests.airflow.acts import (
    PIPELINE,
    RESTORE,
    a_checkpoint,
    a_context,
    a_savepoint,
    executed,
    snapshot,
    trigger,
)
from tests.airflow.stand_in import StandInSpark, a_job

SAVEPOINT = {"name": "mine", "stop": "none", "format": "native", "target": None}


def note_of(operator: type, **context: object) -> str:
    """The note of a run whose task fails."""
    made = a_context(**context)
    with pytest.raises(AirflowFailException):
        operator(task_id="a_task", pipeline=PIPELINE).execute(made)
    said: list[str] = made["ti"].notes
    return said[-1]


CONTRADICTIONS = [
    ({"savepoint": "mine"}, "target is 'latest', but savepoint is 'mine'"),
    ({"checkpoint_id": 3}, "target is 'latest', but checkpoint_id is 3"),
    (
        {"target": "checkpoint", "checkpoint_id": 3, "savepoint": "mine"},
        "target is 'checkpoint', but savepoint is 'mine'",
    ),
    (
        {"target": "savepoint", "checkpoint_id": 3, "savepoint": "mine"},
        "but checkpoint_id is 3; empty it, or choose the target 'checkpoint'",
    ),
    ({"target": "checkpoint"}, "target is 'checkpoint', but checkpoint_id is empty"),
    ({"target": "savepoint"}, "target is 'savepoint', but savepoint is empty"),
    ({"target": "newest"}, "target is 'newest'; choose latest, checkpoint, savepoint, path"),
    ({"root_pipeline": "other"}, "pipeline 'other' needs the root"),
    ({"claim_mode": "CLAIM"}, "only a savepoint can be claimed"),
    ({"dry_run": True, "then": STAY_SUSPENDED}, "a dry run changes nothing"),
]


@pytest.mark.parametrize(("form", "sentence"), CONTRADICTIONS)
def test_a_restore_form_that_contradicts_itself_is_refused_at_once(
    root: str, spark: StandInSpark, form: dict[str, object], sentence: str
) -> None:
    """There is not even a job to look at."""
    said = note_of(VerifyOperator, params=RESTORE | form)

    assert said.startswith("cannot restore: ")
    assert sentence in said
    assert a_job(root).state().status is JobStatus.CREATED


@pytest.mark.parametrize("name", ["../../x", "a/b", "ü", "a" * 129])
def test_a_form_value_that_becomes_a_path_is_refused_with_its_limits(
    root: str, spark: StandInSpark, name: str
) -> None:
    a_checkpoint("run-1")

    said = note_of(VerifyOperator, params=RESTORE | {"target": "savepoint", "savepoint": name})
    there = {"root": f"{root}-other", "root_pipeline": name}
    elsewhere = note_of(VerifyOperator, params=RESTORE | there)
    taken = note_of(TriggerSavepointOperator, params=SAVEPOINT | {"name": name})

    assert "use up to 128 of A-Z a-z 0-9 _ . -" in said
    assert f"pipeline {name!r} is not usable; use up to 63" in elsewhere
    assert "use up to 128 of A-Z a-z 0-9 _ . -" in taken


def test_the_forms_hold_the_limits_too() -> None:
    names = [restore_form(PIPELINE)["savepoint"], savepoint_form()["name"]]

    assert {one.schema["pattern"] for one in names} == {r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$"}
    uid = restore_form(PIPELINE)["root_pipeline"]
    assert uid.schema["pattern"] == r"^[a-z][a-z0-9_]{0,62}$"


def test_data_in_flight_of_another_checkpoint_is_not_ignored_in_silence(
    root: str, spark: StandInSpark
) -> None:
    a_checkpoint("run-1")

    said = note_of(VerifyOperator, params=RESTORE | {"ignore_in_flight_of": 7})

    assert said == (
        "cannot restore: the data in flight of checkpoint 7 cannot be ignored: checkpoint 1 is "
        "restored"
    )


def test_a_run_that_is_cleared_behind_its_checkpoint_takes_another_and_says_so(
    root: str, spark: StandInSpark
) -> None:
    a_checkpoint("run-1")
    cleared = a_context(run_id="run-1")

    TriggerOperator(task_id="trigger", pipeline=PIPELINE).execute(cleared)

    assert cleared["ti"].notes[-1].startswith("checkpoint 2 triggered at ")
    assert (
        cleared["ti"]
        .notes[-1]
        .endswith("; the run was cleared behind checkpoint 1, which completed")
    )


def test_a_taken_savepoint_name_and_a_copy_into_the_job_are_said(
    root: str, spark: StandInSpark
) -> None:
    a_savepoint("mine")
    journal = f"{root}/{PIPELINE.uid}/journal"
    before = [one.key for one in a_job(root).store.list("")]

    taken = note_of(TriggerSavepointOperator, run_id="run-2", params=SAVEPOINT)
    form = SAVEPOINT | {"name": "other", "target": journal}
    inside = note_of(TriggerSavepointOperator, run_id="run-3", params=form)

    assert "savepoint 'mine' exists in" in taken
    assert f"{journal} lies inside job 'demo'" in inside
    assert [one.key for one in a_job(root).store.list("")] == before


def test_a_failed_copy_does_not_leave_completed_on_a_red_run(
    root: str, spark: StandInSpark
) -> None:
    a_savepoint("mine")
    form = SAVEPOINT | {"target": f"{root}/{PIPELINE.uid}/tables"}

    said = note_of(ExportOperator, run_id="mine", params=form)

    assert said.startswith("the savepoint is complete in the job's own root, but was not copied: ")
    assert "lies inside job 'demo'" in said


def test_a_truncated_metadata_is_said_by_each_red_run(root: str, spark: StandInSpark) -> None:
    a_checkpoint("run-1")
    job = a_job(root)
    key = job.paths.metadata(1)
    job.store.put(key, (job.store.get(key) or b"")[:100])

    said = note_of(TriggerOperator, run_id="run-2")

    assert f"{key} cannot be read as" in said


def test_a_lost_plan_is_red_and_said(root: str, spark: StandInSpark) -> None:
    trigger()
    for stage in PIPELINE.stages:
        snapshot(stage)
    job = a_job(root)
    job.store.delete([job.paths.plan(1)])

    said = note_of(FinalizeOperator)

    assert said.startswith("a_task failed: checkpoint 1 is lost: it is pending, but its plan, ")
    assert "newer coordinator" not in said


def test_a_pause_that_is_over_is_no_reason_to_wait_for_the_next_look(
    root: str, spark: StandInSpark
) -> None:
    trigger()
    job = a_job(root)
    fail_checkpoint(
        job, CheckpointId(1), CheckpointFailureReason.TASK_FAILURE, "no disk", is_task_failure=True
    )
    state = job.state()
    due_ms = state.restart_at_ms or 0

    assert state.status is JobStatus.RESTARTING
    assert pause_to_wait_out(state, due_ms + 1) == 0
    assert pause_to_wait_out(state, due_ms) == 0
    assert pause_to_wait_out(state, due_ms - 700) == 0.7
    assert pause_to_wait_out(state, due_ms - SHORT_PAUSE_MS - 1) is None
    assert pause_to_wait_out(replace(state, status=JobStatus.RUNNING), due_ms) is None


def a_failover(job: Job) -> tuple[str, str]:
    """The notes of its two tasks; what the restore DAG is started with."""
    form = RESTORE | {"only_generation": job.state().generation}
    said = []
    for operator in (VerifyOperator, RestoreOperator):
        context = a_context(run_id="failover", params=form)
        with suppress(AirflowFailException):
            operator(task_id="a_task", pipeline=PIPELINE).execute(context)
        said.append(context["ti"].notes[-1])
    return said[0], said[1]


def test_a_failover_that_meets_a_damaged_checkpoint_stops_the_job_and_says_so(
    root: str, spark: StandInSpark
) -> None:
    a_checkpoint("run-1")
    a_checkpoint("run-2")
    job = a_job(root)
    key = job.paths.metadata(2)
    job.store.put(key, (job.store.get(key) or b"")[:100])
    with pytest.raises(AirflowFailException):
        trigger(run_id="run-3")
    assert job.state().status is JobStatus.RESTARTING

    verified, restored = a_failover(job)
    skipped = a_context(run_id="run-4")
    with pytest.raises(AirflowSkipException):
        TriggerOperator(task_id="trigger", pipeline=PIPELINE).execute(skipped)

    because = f"checkpoint 2 cannot be restored: {key} cannot be read as"
    advice = (
        "checkpoint 1 is whole: 'sluice restore demo --checkpoint 1 --roll-back-tables' goes back "
        "to it"
    )
    assert verified.startswith(f"stops the job: {because}")
    assert restored.startswith(f"a_task failed: the job is FAILED: {because}")
    assert restored.endswith(advice)
    assert skipped["ti"].notes[-1].endswith(advice)
    assert job.state().status is JobStatus.FAILED


def test_a_restore_form_may_leave_checksums_out_and_its_note_says_so(
    root: str, spark: StandInSpark
) -> None:
    a_checkpoint("run-1")
    notes = []

    for compares in (True, False):
        form = RESTORE | {"compare_checksums": compares}
        notes.append(executed(VerifyOperator, params=form)[1])

    left_out = ", not compared with their checksums"
    assert [left_out in said for said in notes] == [False, True]
