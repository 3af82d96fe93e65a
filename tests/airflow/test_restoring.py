"""Restore, savepoints and the watchdog, on a real job in a folder."""

from __future__ import annotations

import pytest
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowSkipException,
)

from sluice.coordinator.restore import stop
from sluice.core.configuration import JobStatus
from sluice.core.failures import CheckpointFailureReason
from sluice.core.timeline import Timeline, Writer
from sluice_airflow.acts import RestoreOperator, VerifyOperator
from sluice_airflow.trigger_task import TriggerOperator, TriggerSavepointOperator
from sluice_airflow.watchdog import WatchOperator
from tests.airflow.acts import (
    PIPELINE,
    RESTORE,
    a_checkpoint,
    a_context,
    abort,
    commit,
    finalize,
    snapshot,
    trigger,
    verify,
)
from tests.airflow.stand_in import StandInSpark, a_job, a_pipeline, acknowledge, decline
from tests.noted_target import NotedTable
from tests.patching import replace_in


def test_restore_continues_the_job_once(root: str, spark: StandInSpark) -> None:
    a_checkpoint("run-1")
    trigger(run_id="run-2")
    abort(run_id="run-2", states={"bids.snapshot": "failed"})
    context = a_context(params=RESTORE | {"only_generation": 1})
    restore = RestoreOperator(task_id="restore", pipeline=PIPELINE)

    verified = verify(params=context["params"])
    restored = restore.execute(context)
    again = restore.execute(context)  # It was killed before it could say so.
    with pytest.raises(AirflowSkipException, match="generation 2 already"):
        restore.execute(a_context(run_id="another", params=context["params"]))

    assert verified == {"checkpoint_id": 1, "bytes": 0}
    assert restored == again == {
        "checkpoint_id": 1, "savepoint": None, "generation": 2, "status": "RUNNING"
    }  # fmt: skip
    assert context["ti"].said[0] == "restored checkpoint 1, generation 2; RUNNING"
    assert a_job(root).state().status is JobStatus.RUNNING


def test_the_jobs_own_root_is_not_another_one(root: str, spark: StandInSpark) -> None:
    """As on the command line: its checkpoint is continued, not copied as a stranger's."""
    a_checkpoint("run-1")
    context = a_context(params=RESTORE | {"target": "latest", "root": f"{root}/"})

    RestoreOperator(task_id="restore", pipeline=PIPELINE).execute(context)

    state = a_job(root).state()
    assert (state.base, state.origin, state.generation) == (1, None, 2)


def test_a_path_names_the_snapshot_in_the_form(root: str, spark: StandInSpark) -> None:
    a_checkpoint("run-1")
    form = {"target": "path", "path": f"{root}/{PIPELINE.uid}/checkpoints/0000000001/_metadata"}

    RestoreOperator(task_id="restore", pipeline=PIPELINE).execute(a_context(params=RESTORE | form))

    state = a_job(root).state()
    assert (state.base, state.origin, state.generation) == (1, None, 2)


def test_a_job_whose_table_another_life_wrote_begins_once_a_person_accepts_it(
    root: str, spark: StandInSpark
) -> None:
    """It was never submitted in this root; the trigger is refused until the form was used."""
    table = NotedTable()
    writer = Writer(life="theirs", generation=1)
    table.place.timeline = Timeline().publishing(writer, 7, None) or Timeline()
    table.place.rows = {7: [1]}
    pipeline = a_pipeline(sink=table)
    form = RESTORE | {"target": "latest"}

    for operator in (TriggerOperator, VerifyOperator, RestoreOperator):
        with pytest.raises(AirflowFailException, match="shows checkpoint 7, which life 'theirs'"):
            operator(task_id="act", pipeline=pipeline).execute(a_context(params=form))
    assert a_job(root, pipeline).state().status is JobStatus.CREATED
    accept = a_context(params=form | {"accept_tables": True})
    VerifyOperator(task_id="verify", pipeline=pipeline).execute(accept)
    restored = RestoreOperator(task_id="restore", pipeline=pipeline).execute(accept)

    assert restored["status"] == "RUNNING"
    triggered = TriggerOperator(task_id="trigger", pipeline=pipeline).execute(a_context())
    assert triggered["checkpoint_id"] == 8


@pytest.mark.parametrize("only_generation", [None, 1])
def test_a_person_restores_only_what_can_be_computed_and_recovery_does_not_wait_for_it(
    root: str, spark: StandInSpark, only_generation: int | None
) -> None:
    a_checkpoint("run-1")
    spark.misspelt = "stage 'by_auction' has no column 'acution'"
    params = RESTORE | {"only_generation": only_generation}

    if only_generation is None:
        with pytest.raises(AirflowFailException, match="no column 'acution'"):
            verify(params=params)
    else:
        assert verify(params=params)["checkpoint_id"] == 1


@pytest.mark.parametrize(
    ("form", "sentence"),
    [
        ({"target": "checkpoint"}, "checkpoint_id is empty"),
        ({"target": "savepoint"}, "savepoint is empty"),
        ({"target": "checkpoint", "checkpoint_id": 9}, "checkpoint 9 is not retained"),
        ({"target": "savepoint", "savepoint": "none-such"}, "does not exist"),
        ({"target": "path"}, "path is empty"),
        ({"target": "path", "path": "mine"}, "is not the path of a snapshot"),
        (
            {"target": "latest", "path": "mine"},
            "but path is 'mine'; empty it, or choose the target",
        ),
        ({"target": "path", "path": "auctions/savepoints/none-such"}, "does not exist"),
        ({"target": "newest"}, "choose latest, checkpoint, savepoint, path"),
    ],
)
def test_verify_names_what_is_wrong_with_the_form(
    root: str, form: dict[str, object], sentence: str
) -> None:
    trigger()

    with pytest.raises(AirflowFailException, match=sentence):
        VerifyOperator(task_id="verify", pipeline=PIPELINE).execute(
            a_context(params=RESTORE | form)
        )


def test_a_savepoint_waits_for_the_pending_checkpoint(
    root: str, spark: StandInSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    trigger(run_id="run-1")
    job = a_job(root)

    def finish_the_pending_one(seconds: float) -> None:
        acknowledge(job, 1, "bids", 0, 1)
        acknowledge(job, 1, "by_auction", 0, 1)
        finalize(run_id="run-1")

    replace_in(monkeypatch, "sluice_airflow.trigger_task", "time", sleep=finish_the_pending_one)
    save = TriggerSavepointOperator(task_id="trigger", pipeline=PIPELINE)
    save.execute(a_context(run_id="manual__1:2+00", params={"name": None, "stop": "suspend"}))

    pending = job.state().pending[0]
    assert (pending.checkpoint_id, pending.type.value) == (2, "SAVEPOINT_SUSPEND")
    assert pending.savepoint_name == "manual__1-2-00"


def test_a_savepoint_of_a_job_that_is_not_running_fails(root: str) -> None:
    trigger()
    stop(a_job(root), JobStatus.SUSPENDED)
    save = TriggerSavepointOperator(task_id="trigger", pipeline=PIPELINE)

    with pytest.raises(AirflowFailException, match="the job is SUSPENDED"):
        save.execute(a_context(run_id="run-2", params={"name": "one", "stop": "none"}))


def test_a_savepoint_is_never_overwritten(root: str, spark: StandInSpark) -> None:
    trigger(run_id="run-0")
    abort(run_id="run-0", states={"finalize": "failed"})
    RestoreOperator(task_id="restore", pipeline=PIPELINE).execute(a_context(params=RESTORE))
    save = TriggerSavepointOperator(task_id="trigger", pipeline=PIPELINE)
    form = {"name": "one", "stop": "none"}
    save.execute(a_context(run_id="run-1", params=form))
    snapshot("bids", run_id="run-1")
    snapshot("by_auction", run_id="run-1")
    finalize(run_id="run-1")
    commit(run_id="run-1")

    with pytest.raises(AirflowFailException, match="'one' exists"):
        save.execute(a_context(run_id="run-2", params=form))


def test_the_watchdog_looks_at_every_job_before_it_names_the_broken_one(root: str) -> None:
    broken, late = a_pipeline("broken"), a_pipeline("late")
    TriggerOperator(task_id="trigger", pipeline=late).execute(a_context(dag_id="late"))
    decline(a_job(root, late), 1, "bids", 0)
    job = a_job(root, broken)
    job.store.put(job.paths.journal_entry(1), b"not an entry")
    watch = WatchOperator(
        task_id="watch", load=lambda: {"broken": broken, "late": late, "new": a_pipeline("new")}
    )

    with pytest.raises(AirflowFailException, match="cannot watch broken: "):
        watch.execute(a_context())

    failed = a_job(root, late).state().failed
    assert [f.reason for f in failed] == [CheckpointFailureReason.CHECKPOINT_DECLINED]
