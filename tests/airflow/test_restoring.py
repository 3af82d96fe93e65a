"""Restore, savepoints and the watchdog, on a real job in a folder."""

from __future__ import annotations

import pytest

from harness.noted_target import NotedTable
from sluice.coordinator.restore import stop
from sluice.core.configuration import JobStatus
from sluice.core.failures import CheckpointFailureReason
from sluice.core.timeline import Timeline, Writer
from sluice.core.transitions import Consent
from sluice.surface.acts import STAY_SUSPENDED
from sluice_airflow.acts import RestoreOperator, VerifyOperator, request_of
from sluice_airflow.compat import AirflowFailException, AirflowSkipException
from sluice_airflow.dag_factory import dags_of
from sluice_airflow.forms import checkpoint_form, restore_form
from sluice_airflow.trigger_task import TriggerOperator
from tests.airflow.acts import (
    PIPELINE,
    RESTORE,
    a_checkpoint,
    a_savepoint,
    abort,
    execute,
    finalize,
    restore,
    trigger,
    trigger_savepoint,
    verify,
    watch,
)
from tests.airflow.stand_in import StandInSpark, a_job, a_pipeline, acknowledge, decline
from tests.patching import replace_in


def test_restore_continues_the_job_once(root: str, spark: StandInSpark) -> None:
    a_checkpoint("run-1")
    trigger(run_id="run-2")
    abort(run_id="run-2", states={"bids.snapshot": "failed"})

    verified = verify(only_generation=1)
    restored, said = restore("run-1", only_generation=1)
    again, _ = restore("run-1", only_generation=1)  # It was killed before it could say so.
    with pytest.raises(AirflowSkipException, match="generation 2 already"):
        restore("another", only_generation=1)

    assert verified == {"checkpoint_id": 1, "bytes": 0}
    assert restored == again == {
        "checkpoint_id": 1, "savepoint": None, "generation": 2, "status": "RUNNING"
    }  # fmt: skip
    assert said == "restored checkpoint 1, generation 2; RUNNING"
    assert a_job(root).state().status is JobStatus.RUNNING


def test_a_try_that_comes_back_late_restores_nothing_and_stops_nothing(
    root: str, spark: StandInSpark
) -> None:
    for run in ("run-1", "run-2"):
        a_checkpoint(run)
    form = {"target": "checkpoint", "checkpoint_id": 1, "then": STAY_SUSPENDED}
    restore("mine", **form)
    restore("another", target="latest")
    a_checkpoint("run-3")
    before = a_job(root).state()

    result, said = restore("mine", **form)

    assert a_job(root).state() == before
    assert (result["checkpoint_id"], result["generation"]) == (1, 3)
    assert "this run had restored it before, and the job went on since" in said


def test_the_jobs_own_root_is_not_another_one(root: str, spark: StandInSpark) -> None:
    """As on the command line: its checkpoint is continued, not copied as a stranger's."""
    a_checkpoint("run-1")

    restore("run-2", target="latest", root=f"{root}/")

    state = a_job(root).state()
    assert (state.base, state.origin, state.generation) == (1, None, 2)


def test_a_path_names_the_snapshot_in_the_form(root: str, spark: StandInSpark) -> None:
    a_checkpoint("run-1")
    path = f"{root}/{PIPELINE.uid}/checkpoints/0000000001/_metadata"

    restore("run-2", target="path", path=path)

    state = a_job(root).state()
    assert (state.base, state.origin, state.generation) == (1, None, 2)


def test_the_form_says_what_begins_anew_and_what_is_kept(root: str, spark: StandInSpark) -> None:
    a_checkpoint("run-1")

    with pytest.raises(AirflowFailException, match="'missing' cannot begin anew or be kept"):
        restore("run-2", begin="rank_bids, count_bids", keep="missing")
    request = request_of(RESTORE | {"begin": "a, b.c", "keep": "d e"}, PIPELINE)

    assert request.options.consent == Consent(begun=("a", "b.c"), kept=("d", "e"))


@pytest.mark.parametrize("consent", [{"accept_tables": True}, {"take_over": "counts"}])
def test_a_job_whose_table_another_life_wrote_begins_once_a_person_accepts_it(
    root: str, spark: StandInSpark, consent: dict[str, object]
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
            execute(operator, pipeline=pipeline, params=form)
    assert a_job(root, pipeline).state().status is JobStatus.CREATED
    accepting = form | consent
    execute(VerifyOperator, pipeline=pipeline, params=accepting)
    restored = execute(RestoreOperator, pipeline=pipeline, params=accepting)

    assert restored["status"] == "RUNNING"
    assert execute(TriggerOperator, pipeline=pipeline)["checkpoint_id"] == 8


@pytest.mark.parametrize("only_generation", [None, 1])
def test_a_person_restores_only_what_can_be_computed_and_recovery_does_not_wait_for_it(
    root: str, spark: StandInSpark, only_generation: int | None
) -> None:
    a_checkpoint("run-1")
    spark.misspelt = "stage 'by_auction' has no column 'acution'"

    if only_generation is None:
        with pytest.raises(AirflowFailException, match="no column 'acution'"):
            verify(only_generation=None)
    else:
        assert verify(only_generation=only_generation)["checkpoint_id"] == 1


@pytest.mark.parametrize(
    ("form", "sentence"),
    [
        ({"target": "checkpoint", "checkpoint_id": 9}, "checkpoint 9 is not retained"),
        ({"target": "savepoint", "savepoint": "none-such"}, "there is no savepoint 'none-such'"),
        ({"target": "path"}, "path is empty"),
        ({"target": "path", "path": "mine"}, "is not the path of a snapshot"),
        (
            {"target": "latest", "path": "mine"},
            "but path is 'mine'; empty it, or choose the target",
        ),
        ({"target": "path", "path": "auctions/savepoints/none-such"}, "there is no savepoint"),
        ({"parallelism": "counts=2"}, "'counts', which is no stage"),
        ({"parallelism": "bids=many"}, "write a whole number"),
        ({"parallelism": "bids=0"}, "has parallelism 0"),
        ({"root": "ftp://nowhere"}, "ftp"),
    ],
)
def test_verify_names_what_is_wrong_with_the_form(
    root: str, spark: StandInSpark, form: dict[str, object], sentence: str
) -> None:
    """What contradicts itself is refused without a job, see test_notes."""
    a_checkpoint("run-1")

    with pytest.raises(AirflowFailException, match=sentence):
        verify(**form)


def test_a_savepoint_waits_for_the_pending_checkpoint(
    root: str, spark: StandInSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    trigger(run_id="run-1")
    job = a_job(root)

    def finish_the_pending_one(seconds: float) -> None:
        acknowledge(job, 1, "bids")
        acknowledge(job, 1, "by_auction")
        finalize(run_id="run-1")

    replace_in(monkeypatch, "sluice_airflow.trigger_task", "time", sleep=finish_the_pending_one)
    trigger_savepoint("manual__1:2+00", None, stop="suspend")

    pending = job.state().pending[0]
    assert (pending.checkpoint_id, pending.type.value) == (2, "SAVEPOINT_SUSPEND")
    assert pending.savepoint_name == "manual__1-2-00"


def test_a_savepoint_of_a_job_that_is_not_running_fails(root: str) -> None:
    trigger()
    stop(a_job(root), JobStatus.SUSPENDED)

    with pytest.raises(AirflowFailException, match="the job is SUSPENDED"):
        trigger_savepoint("run-2", "one")


def test_a_savepoint_is_never_overwritten(root: str, spark: StandInSpark) -> None:
    trigger(run_id="run-0")
    abort(run_id="run-0", states={"finalize": "failed"})
    restore("run-1")
    a_savepoint("one")

    with pytest.raises(AirflowFailException, match="'one' exists"):
        trigger_savepoint("run-2", "one")


def test_the_watchdog_looks_at_every_job_before_it_names_the_broken_one(root: str) -> None:
    broken, late = a_pipeline("broken"), a_pipeline("late")
    execute(TriggerOperator, pipeline=late, dag_id="late")
    decline(a_job(root, late), 1, "bids", 0)
    job = a_job(root, broken)
    job.store.put(job.names.begun(), b"not a pointer")

    with pytest.raises(AirflowFailException, match="cannot watch broken: "):
        watch(broken=broken, late=late, new=a_pipeline("new"))

    failed = a_job(root, late).state().failed
    assert [f.reason for f in failed] == [CheckpointFailureReason.CHECKPOINT_DECLINED]


def journaled(root: str) -> dict[str, str]:
    return dict(a_job(root).state().configuration.params)


def test_the_first_run_submits_the_job_with_the_parameters_of_its_form(root: str) -> None:
    trigger(run_type="manual", params={"param_events": "700"})

    assert journaled(root) == {"events": "700"}


def test_empty_fields_are_the_defaults(root: str) -> None:
    trigger(run_type="manual", params={"param_events": None})

    assert journaled(root) == {"events": "0"}


def test_a_later_run_that_asks_for_others_is_refused_with_the_way_to_change_them(
    root: str, spark: StandInSpark
) -> None:
    a_checkpoint("run-1")

    with pytest.raises(AirflowFailException, match=r"events is '0' and not '700'; .*demo__restore"):
        trigger(run_id="run-2", run_type="manual", params={"param_events": "700"})

    again = trigger(run_id="run-3", run_type="manual", params={"param_events": "0"})
    assert again["checkpoint_id"] == 2


def test_a_restore_changes_them_and_says_so(root: str, spark: StandInSpark) -> None:
    a_checkpoint("run-1")

    _, changed = restore("restore-1", param_events="9000")
    _, kept = restore("restore-2")

    assert changed == "restored checkpoint 1, generation 2; RUNNING; events=9000"
    assert kept == "restored checkpoint 1, generation 3; RUNNING"
    assert journaled(root) == {"events": "9000"}


def test_the_forms_name_each_parameter_and_what_an_empty_field_means() -> None:
    first, again = checkpoint_form(PIPELINE), restore_form(PIPELINE)

    assert first["param_events"].description == "how many; empty: 0"
    assert again["param_events"].description == "how many; empty: as before"
    forms = {dag.dag_id: "param_events" in dag.params for dag in dags_of(PIPELINE)}
    assert forms == {
        "demo": True, "demo__savepoint": False, "demo__restore": True, "demo__cancel": False,
    }  # fmt: skip
