"""Acts over REST: each starts the run that the form would start, for whoever may start it."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState
from sqlalchemy import delete

from harness.jobs import trigger_one
from sluice.coordinator.failure import fail_checkpoint
from sluice.coordinator.requests import UserRequest, request_checkpoint
from sluice.coordinator.restore import restore, savepoint_target
from sluice.coordinator.savepoints import savepoint_names
from sluice.core.failures import CheckpointFailureReason
from sluice.job.job import Job
from tests.airflow.database import set_paused
from tests.airflow.rest import BASE, Api, auctions_in, found, refused
from tests.subtasks import a_savepoint, take_checkpoint

ACTS = [
    ("checkpoints", "", {}, {}),
    (
        "checkpoints",
        "",
        {"checkpointType": "FULL", "forced": True},
        {"checkpoint_type": "FULL", "forced": True},
    ),
    ("savepoints", "__savepoint", {"savepoint-name": "mine"}, {"name": "mine"}),
    (
        "stop",
        "__savepoint",
        {"drain": True, "format-type": "canonical", "forced": True},
        {"stop": "drain", "format": "canonical", "forced": True},
    ),
    ("stop", "__savepoint", {}, {"stop": "suspend"}),
    ("cancel", "__cancel", {}, {}),
    (
        "restore",
        "__restore",
        {"target": "checkpoint", "checkpoint-id": 1, "dry-run": True},
        {"target": "checkpoint", "checkpoint_id": 1, "dry_run": True},
    ),
]


@pytest.fixture(autouse=True)
def _no_runs(everybody: Api) -> None:
    set_paused("auctions", paused=False)
    with create_session() as session:
        session.execute(delete(DagRun))


@pytest.fixture(name="job")
def _job(root: str) -> Job:
    job = auctions_in(root)
    take_checkpoint(job)
    return job


def runs(dag_id: str) -> list[DagRun]:
    return list(DagRun.find(dag_id=dag_id))


@pytest.mark.parametrize(
    ("act", "suffix", "body", "conf"), ACTS, ids=[f"{one[0]}{one[2]}" for one in ACTS]
)
def test_an_act_starts_the_run_of_its_dag(
    editor: Api, act: str, suffix: str, body: Any, conf: Any
) -> None:
    answer = editor.post(f"/pipelines/auctions/{act}", body)

    (run,) = runs(f"auctions{suffix}")
    assert (answer.status_code, answer.text) == (202, answer.text)
    started = answer.json()
    assert started.pop("run").startswith(f"/dags/auctions{suffix}/runs/manual__")
    assert started == {"request-id": run.run_id, "dag_id": run.dag_id}
    assert (run.conf, run.triggering_user_name) == (conf, "uwe")


def test_parameters_are_fields_of_the_form(editor: Api) -> None:
    set_paused("demo", paused=False)

    for act in ("checkpoints", "restore"):
        answer = editor.post(f"/pipelines/demo/{act}", {"params": {"events": "3"}})
        assert (answer.status_code, answer.text) == (202, answer.text)

    confs = [run.conf for dag in ("demo", "demo__restore") for run in runs(dag)]
    assert confs == [{"param_events": "3"}] * 2


# Acts that start no run.
AT_ONCE = (
    "backfill",
    "checkpoints/2/abort",
    "pause",
    "resume",
    "checkpoints/config",
    "savepoint-disposal",
)


@pytest.mark.parametrize("act", [*sorted({act[0] for act in ACTS}), *AT_ONCE])
def test_a_viewer_may_not_act(viewer: Api, act: str) -> None:
    answer = viewer.post(f"/pipelines/auctions/{act}", {})

    assert "an admin of Airflow can let you run the DAG" in refused(answer, 403)
    assert runs("auctions__savepoint") == runs("auctions") == []


def test_a_savepoint_is_asked_for_and_found_again(editor: Api, job: Job) -> None:
    asked = editor.post("/pipelines/auctions/savepoints", {"savepoint-name": "mine"})
    status = asked.headers["location"].removeprefix(BASE)
    before = editor.get(status).json()
    run_id = asked.json()["request-id"]
    a_savepoint(job, "mine", cause=f"airflow:auctions__savepoint/{run_id}")
    end(run_id, DagRunState.SUCCESS)

    after = editor.get(status).json()

    assert before == {"status": {"id": "IN_PROGRESS"}, "operation": None}
    assert after["status"] == {"id": "COMPLETED"}
    assert after["operation"]["location"].endswith("/auctions/savepoints/mine/")
    assert editor.get(status + "x").status_code == 404


def test_a_savepoint_that_failed_says_why(editor: Api, job: Job) -> None:
    run_id = editor.post("/pipelines/auctions/savepoints", {}).json()["request-id"]
    end(run_id, DagRunState.FAILED, note="savepoint 'mine': TRIGGER: password=hunter22")

    found = editor.get(f"/pipelines/auctions/savepoints/{run_id}").json()

    assert found == {
        "status": {"id": "COMPLETED"},
        "operation": {"failure-cause": {"message": "savepoint 'mine': TRIGGER: password=***"}},
    }


def test_a_savepoint_is_deleted_at_once_unless_the_job_needs_it(editor: Api, job: Job) -> None:
    a_savepoint(job, "mine")
    restore(job, savepoint_target(job, "mine"))
    body = {"savepoint-name": "mine"}

    needed = editor.post("/pipelines/auctions/savepoint-disposal", body)
    take_checkpoint(job)
    done = editor.post("/pipelines/auctions/savepoint-disposal", body)
    again = editor.post("/pipelines/auctions/savepoint-disposal", body)
    nameless = editor.post("/pipelines/auctions/savepoint-disposal", {})

    assert "cannot be disposed of: job 'auctions' was restored from it" in refused(needed, 409)
    assert nameless.status_code == 422
    assert (done.status_code, done.json()) == (200, {"savepoint": "mine", "disposed": True})
    assert again.json() == {"savepoint": "mine", "disposed": False}
    assert savepoint_names(job) == []


def test_one_pending_checkpoint_is_aborted_at_once(editor: Api, job: Job) -> None:
    pending = trigger_one(job).checkpoint_id

    done = editor.post(f"/pipelines/auctions/checkpoints/{pending}/abort")
    again = editor.post(f"/pipelines/auctions/checkpoints/{pending}/abort")

    assert done.json() == {"id": pending, "status": "RUNNING"}
    assert "airflow:uwe" in job.state().failed[-1].message
    assert "there is nothing to abort" in refused(again, 404)


def test_a_paused_dag_is_said_and_gets_no_run(editor: Api) -> None:
    set_paused("auctions", paused=True)

    answer = editor.post("/pipelines/auctions/checkpoints")

    assert "DAG 'auctions' is paused" in refused(answer, 409)
    assert runs("auctions") == []


@pytest.mark.parametrize(
    ("act", "body", "words"),
    [
        ("checkpoints", {"checkpointType": "HALF"}, "body.checkpointType"),
        ("savepoints", {"savepoint-name": "../up"}, "body.savepoint-name"),
        ("savepoints", {"target-directory": "s3://other/place"}, "body.target-directory"),
        ("savepoints", {"drain": True}, "body.drain"),
        ("restore", {"target": "savepoint"}, "target is 'savepoint', but savepoint is empty"),
        ("restore", {"target": "path"}, "should be 'latest', 'checkpoint' or 'savepoint'"),
        ("restore", {"root": "file:///etc"}, "body.root"),
        ("restore", {"parallelism": "many"}, "write a whole number"),
        ("restore", {"parallelism": "rank_bids=99999999"}, "its max_parallelism 32768"),
        ("restore", {"parallelism": "9" * 900}, "write a whole number"),
        ("restore", {"parallelism": "totals=2"}, "'totals', which is no stage"),
        ("restore", {"params": {"rats": "3"}}, "has no parameter 'rats'; it has"),
        ("checkpoints", {"params": {"rats": "3"}}, "has no parameter 'rats'; it has"),
    ],
)
def test_what_the_form_would_refuse_is_refused_here(
    editor: Api, act: str, body: Any, words: str
) -> None:
    answer = editor.post(f"/pipelines/auctions/{act}", body)

    assert words in refused(answer, 422)
    assert runs("auctions__savepoint") == runs("auctions__restore") == []


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_what_a_form_of_another_site_can_send_does_nothing(editor: Api, kind: str) -> None:
    editor.client.cookies.set("_token", editor.tokens["uwe"])
    url = f"{BASE}/pipelines/auctions/cancel"

    try:
        sent = editor.client.post(url, content="{}", headers={"content-type": kind})
        neighbour = editor.client.post(url, json={}, headers={"sec-fetch-site": "same-site"})
        without_tls = editor.client.post(url, json={}, headers={"origin": "http://evil.example"})
        own = editor.client.post(url, json={}, headers={"sec-fetch-site": "same-origin"})
    finally:
        editor.client.cookies.clear()

    assert [sent.status_code, neighbour.status_code, without_tls.status_code] == [415, 403, 403]
    assert own.status_code == 202
    assert len(runs("auctions__cancel")) == 1


def test_a_page_of_this_airflow_may_act_without_tls(editor: Api) -> None:
    editor.client.cookies.set("_token", editor.tokens["uwe"])
    own = str(editor.client.base_url)

    try:
        answer = editor.client.post(
            f"{BASE}/pipelines/auctions/cancel", json={}, headers={"origin": own}
        )
    finally:
        editor.client.cookies.clear()

    assert answer.status_code == 202


def test_a_body_beyond_the_limit_is_refused_unread(editor: Api) -> None:
    headers = {**editor.headers, "content-type": "application/json"}
    url = f"{BASE}/pipelines/auctions/cancel"
    piece = b" " * 65_536

    announced = editor.client.post(url, content=b" " * 50_000_000, headers=headers)
    streamed = editor.client.post(url, content=(piece for _ in range(800)), headers=headers)

    for answer in (announced, streamed):
        assert "the body has more than 1,048,576 bytes" in refused(answer, 413)
    assert runs("auctions__cancel") == []


def test_every_answer_says_what_a_browser_may_do_with_it(viewer: Api) -> None:
    for path in (f"{BASE}/pipelines", f"{BASE}/nothing", "/sluice/pages/"):
        headers = viewer.client.get(path, headers=viewer.headers).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert "script-src" not in headers["content-security-policy"]
        assert headers["content-security-policy"].startswith("default-src 'self'; ")
        assert "frame-ancestors 'self'" in headers["content-security-policy"]


def end(run_id: str, state: DagRunState, *, note: str | None = None) -> None:
    with create_session() as session:
        run = DagRun.find(run_id=run_id, session=session)[0]
        run.state = state
        run.note = note


def outcome(api: Api, request_id: str) -> dict[str, Any]:
    return dict(found(api.get(f"/pipelines/auctions/requests/{request_id}")))


def test_the_outcome_of_an_act_is_pending_then_done(everybody: Api, job: Job) -> None:
    api = everybody.by("uwe")
    started = api.post("/pipelines/auctions/checkpoints", {}).json()
    asked = started["request-id"]

    before = outcome(api, asked)
    taken = take_checkpoint(job, cause=f"airflow:auctions/{asked}", is_periodic=False)
    end(asked, DagRunState.SUCCESS)
    after = outcome(api, asked)

    assert [before["status"], before["checkpoint"]] == ["pending", None]
    assert before["run"] == started["run"]
    assert [after["status"], after["checkpoint"]] == ["done", taken]


def test_the_outcome_of_an_act_that_failed_says_why(everybody: Api, job: Job) -> None:
    api = everybody.by("uwe")
    asked = api.post("/pipelines/auctions/checkpoints", {}).json()["request-id"]
    other = api.post("/pipelines/auctions/cancel", {}).json()["request-id"]

    plan = trigger_one(job, cause=f"airflow:auctions/{asked}", is_periodic=False)
    expired = CheckpointFailureReason.CHECKPOINT_EXPIRED
    fail_checkpoint(job, plan.checkpoint_id, expired, "too slow")
    end(other, DagRunState.FAILED, note="cancel failed: the store does not answer")

    shown = outcome(api, asked)
    assert [shown["status"], shown["checkpoint"]] == ["refused", plan.checkpoint_id]
    assert "too slow" in shown["says"]
    assert outcome(api, other)["says"] == "cancel failed: the store does not answer"


def test_the_outcome_of_a_queued_request_and_of_none(everybody: Api, job: Job) -> None:
    api = everybody.by("uwe")
    queued = request_checkpoint(job, UserRequest(by="ann"))

    assert outcome(api, queued.request_id)["status"] == "pending"
    nothing = api.get("/pipelines/auctions/requests/manual__never")
    assert "it was never made" in refused(nothing, 404)


def test_a_restore_says_before_what_it_repeats_and_aborts(everybody: Api, job: Job) -> None:
    take_checkpoint(job)
    trigger_one(job)
    api = everybody.by("uwe")

    shown = found(api.get("/pipelines/auctions/restore", **{"from": "1"}))
    newest = found(api.get("/pipelines/auctions/restore", **{"from": "latest"}))

    assert shown == {"repeats": {"events": 10}, "aborts": [3], "pending_records": 10}
    assert newest["repeats"] == {"events": 0}
