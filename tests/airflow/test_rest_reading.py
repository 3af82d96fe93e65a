"""What the REST API says of a job, read by a viewer over checkpoints that were really taken."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler

import pytest

from harness.jobs import a_pipeline, trigger_one
from harness.s3_server import variables
from sluice.coordinator.failure import fail_checkpoint
from sluice.core.failures import CheckpointFailureReason
from sluice.declaration.checkpointing import OPTIONS
from sluice.job.job import Job
from tests.airflow.rest import Api, auctions_in, found, refused
from tests.contract.s3_stub import error_body, served
from tests.subtasks import take_checkpoint


@pytest.fixture(name="job")
def _job(root: str) -> Job:
    """Three checkpoints of ``auctions``: two completed, the third failed."""
    job = auctions_in(root, a_pipeline(events=1_000, tolerable_failed_checkpoints=9))
    take_checkpoint(job)
    take_checkpoint(job)
    expired = CheckpointFailureReason.CHECKPOINT_EXPIRED
    fail_checkpoint(job, trigger_one(job).checkpoint_id, expired, "too slow, password=hunter22")
    return job


def test_the_list_has_a_line_for_every_pipeline(viewer: Api, job: Job) -> None:
    shown = found(viewer.get("/pipelines"))

    auctions, demo = shown["pipelines"]
    last = auctions.pop("last_completed")
    assert [last["id"], last["is_savepoint"], last["age_ms"] >= 0] == [2, False, True]
    assert [one["id"] for one in auctions.pop("lag")] == ["events"]
    health = auctions.pop("health")
    assert [health["tone"], health["is_late"], health["target_age_ms"]] == ["warn", False, 180_000]
    assert health["next_step"]["page"] == ["reasons", "CHECKPOINT_EXPIRED"]
    assert auctions == {
        "uid": "auctions", "description": "", "sources": 1, "stages": 2, "sinks": 1,
        "status": "RUNNING", "generation": 1, "failing": True, "paused": False,
        "in_progress": 0, "watermark": None, "watermark_lag": None,
        "problem": "checkpoint 3 was aborted, CHECKPOINT_EXPIRED: too slow, password=***",
        "error": None, "dag": "/dags/auctions",
    }  # fmt: skip
    assert [demo["uid"], demo["status"], demo["last_completed"]] == ["demo", "CREATED", None]
    assert [one["module"] for one in shown["broken"]] == ["rest_pipelines/broken.py"]


def test_one_bad_bucket_does_not_break_the_list(viewer: Api, job: Job) -> None:
    entry = job.paths.journal_entry(9_999)
    job.store.put(entry, b"no journal entry")

    listed = found(viewer.get("/pipelines"))["pipelines"]
    one = viewer.get("/pipelines/auctions")

    assert entry in listed[0]["error"]
    assert [listed[0]["status"], listed[1]["error"]] == [None, None]
    assert entry in refused(one, 500)


def test_a_pipeline_is_shown_with_its_graph(viewer: Api, job: Job) -> None:
    shown = found(viewer.get("/pipelines/auctions"))

    nodes = {node["uid"]: node for node in shown["nodes"]}
    assert [(one["producer"], one["consumer"]) for one in shown["edges"]] == [
        ("events", "count_bids"), ("count_bids", "rank_bids"), ("rank_bids", "results"),
    ]  # fmt: skip
    assert [node["kind"] for node in shown["nodes"]] == ["source", "stage", "stage", "sink"]
    assert [node["epoch"] for node in shown["nodes"]] == [2, 2, 2, 2]
    assert nodes["events"]["rows_out"] == 10
    assert nodes["count_bids"]["state_size"] > 0
    assert nodes["rank_bids"]["parallelism"] == 2


def test_a_pipeline_says_how_far_its_sources_are_behind_and_how_fast_rows_flow(
    viewer: Api, job: Job
) -> None:
    shown = found(viewer.get("/pipelines/auctions"))

    failed = found(viewer.get("/pipelines/auctions/checkpoints/3"))
    nodes = {node["uid"]: node for node in shown["nodes"]}
    (lag,) = shown["lag"]
    assert lag == nodes["events"]["lag"]
    assert (lag["pending_records"], lag["pending_bytes"], lag["is_behind"]) == (980, None, True)
    assert lag["as_of"] == failed["trigger_timestamp"]
    assert failed["sources"]["events"] == {
        "id": "events", "records": 10, "pending_records": 970, "pending_splits": 1,
    }  # fmt: skip
    assert (shown["rates_checkpoints"], shown["rates_window"] > 0) == (1, True)
    assert nodes["events"]["rates"]["rows_out_per_second"] > 0
    assert nodes["count_bids"]["rates"]["bytes_out_per_second"] > 0
    assert [node["is_behind"] for node in shown["nodes"]] == [True, False, False, False]


def test_the_history_has_flinks_fields_and_comes_in_pages(viewer: Api, job: Job) -> None:
    newest = found(viewer.get("/pipelines/auctions/checkpoints", limit=2))
    older = found(viewer.get("/pipelines/auctions/checkpoints", limit=2, before=newest["next"]))
    failed = found(viewer.get("/pipelines/auctions/checkpoints", status="FAILED"))

    assert newest["counts"] == {
        "restored": 0, "total": 3, "in_progress": 0, "completed": 2, "failed": 1,
        "unsuccessful_triggers": 0,
    }  # fmt: skip
    assert newest["summary"]["state_size"].keys() == {
        "min", "max", "avg", "p50", "p90", "p95", "p99", "p999",
    }  # fmt: skip
    assert newest["latest"]["completed"]["id"] == 2
    assert [one["id"] for one in newest["history"]] == [3, 2]
    assert [one["id"] for one in older["history"]] == [1]
    assert (newest["next"], older["next"]) == (2, None)
    assert [one["failure_message"] for one in failed["history"]] == ["too slow, password=***"]


def test_a_checkpoint_has_its_tasks_and_a_task_its_subtasks(viewer: Api, job: Job) -> None:
    shown = found(viewer.get("/pipelines/auctions/checkpoints/2"))
    task = found(viewer.get("/pipelines/auctions/checkpoints/2/subtasks/count_bids"))

    assert [shown["id"], shown["status"], shown["discarded"]] == [2, "COMPLETED", False]
    assert shown["external_path"].endswith(f"/{job.paths.checkpoint(2)}")
    assert shown["tasks"]["count_bids"]["num_acknowledged_subtasks"] == 2
    assert [task["id"], task["checkpoint_id"], task["status"]] == ["count_bids", 2, "COMPLETED"]
    assert [one["index"] for one in task["subtasks"]] == [0, 1]
    assert task["summary"].keys() >= {"checkpoint_duration", "start_delay", "state_size"}


def test_a_checkpoint_names_the_run_that_took_it(viewer: Api, job: Job) -> None:
    plan = trigger_one(job, cause="airflow:auctions/manual__2026-11-27T00:00:00+00:00")

    by_hand = found(viewer.get("/pipelines/auctions/checkpoints/2"))
    of_run = found(viewer.get(f"/pipelines/auctions/checkpoints/{plan.checkpoint_id}"))

    assert by_hand["run"] is None
    assert of_run["run"] == "/dags/auctions/runs/manual__2026-11-27T00%3A00%3A00%2B00%3A00"


def test_the_configuration_has_flinks_fields_and_three_columns(viewer: Api, job: Job) -> None:
    shown = found(viewer.get("/pipelines/auctions/checkpoints/config"))

    assert [shown["mode"], shown["interval"], shown["timeout"]] == ["exactly_once", 60_000, 600_000]
    assert shown["externalization"] == {"enabled": True, "delete_on_cancellation": False}
    settings = {one["name"]: one for one in shown["settings"]}
    assert settings["tolerable_failed_checkpoints"] == {  # The test's job was given another one.
        "name": "tolerable_failed_checkpoints", "declared": 0, "in_force": 9, "default": 0,
        "can_change": True, "changed": False, "awaits_restore": True, "least": 0, "most": None,
        "unit": "", "says": OPTIONS["tolerable_failed_checkpoints"].says,
    }  # fmt: skip
    assert settings["restart_strategy.type"]["default"] == "exponential-delay"


def test_the_journal_is_read_from_its_end_page_by_page(viewer: Api, job: Job) -> None:
    newest = found(viewer.get("/pipelines/auctions/journal", limit=2))
    rest = found(viewer.get("/pipelines/auctions/journal", before=newest["next"]))

    assert newest["entries"][0] == {
        "seq": 9, "event": "CheckpointFailed", "generation": 1, "status": "RUNNING",
        "checkpoint": 3, "at_ms": newest["entries"][0]["at_ms"], "cause": None,
        "reason": "CHECKPOINT_EXPIRED", "message": "too slow, password=***",
    }  # fmt: skip
    assert [one["seq"] for one in newest["entries"] + rest["entries"]] == [*range(9, 0, -1)]
    assert rest["next"] is None


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/pipelines/nothing", 404, "no pipeline 'nothing' is declared here"),
        ("/pipelines/..%2Fauctions", 404, "nothing is at"),
        ("/pipelines/Auctions", 422, "path.uid"),
        ("/pipelines/auctions/checkpoints/9", 404, "checkpoint 9 is not retained; retained are"),
        ("/pipelines/auctions/checkpoints/0", 422, "greater than or equal to 1"),
        ("/pipelines/auctions/checkpoints/2/subtasks/nope", 404, "it has count_bids, rank_bids"),
        ("/pipelines/auctions/checkpoints?limit=0", 422, "query.limit"),
        ("/pipelines/auctions/state/count_bids?checkpoint=../../x", 422, "query.checkpoint"),
        ("/pipelines/auctions/state/nope", 404, "has no stage 'nope'"),
        ("/pipelines/auctions/state", 422, "query.key"),
        ("/pipelines/auctions/state/count_bids?checkpoint=mine", 404, "there is no savepoint"),
    ],
)
def test_a_problem_names_the_thing_and_the_fix(
    viewer: Api, job: Job, path: str, status: int, words: str
) -> None:
    assert words in refused(viewer.get(path), status)


def test_a_root_that_is_not_set_is_said(viewer: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLUICE_ROOT")

    assert "SLUICE_ROOT is not set" in refused(viewer.get("/pipelines/auctions"), 503)


class Refusing(BaseHTTPRequestHandler):
    """An S3 server at which these credentials may do nothing."""

    def do_GET(self) -> None:
        body = error_body("AccessDenied")
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


def test_a_store_that_refuses_is_not_taken_for_a_checkpoint_that_is_gone(
    viewer: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_ROOT", "s3://slow/jobs")
    with served(Refusing) as url:
        for name, value in variables(url).items():
            monkeypatch.setenv(name, value)

        for path in ("", "/checkpoints", "/checkpoints/1", "/journal"):
            problem = refused(viewer.get(f"/pipelines/auctions{path}"), 503)
            assert "answered 403 AccessDenied to" in problem, path


def test_no_answer_has_a_secret_of_this_process(
    viewer: Api, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SERVICE_TOKEN", "rank_bids")  # As if a stage were called like it.

    shown = viewer.get("/pipelines/auctions")
    problem = viewer.get("/pipelines/auctions/checkpoints/2/subtasks/rank_bidz")

    assert "rank_bids" not in shown.text + problem.text
    assert [node["uid"] for node in shown.json()["nodes"]] == [
        "events", "count_bids", "***", "results",
    ]  # fmt: skip


def test_exceptions_are_grouped_by_their_root_cause(viewer: Api, job: Job) -> None:
    expired = CheckpointFailureReason.CHECKPOINT_EXPIRED
    fail_checkpoint(job, trigger_one(job).checkpoint_id, expired, "too slow, password=other22")

    shown = found(viewer.get("/pipelines/auctions/exceptions"))

    assert shown["failures"] == 2
    (group,) = shown["groups"]
    assert [group["root_cause"], group["count"], group["checkpoints"]] == [
        "too slow, password=***", 2, [4, 3],
    ]  # fmt: skip
    assert group["reason"] == "CHECKPOINT_EXPIRED"


def test_what_changed_is_told_with_its_time(viewer: Api, job: Job) -> None:
    shown = found(viewer.get("/pipelines/auctions/changes"))

    first, last = shown["changes"]
    assert [first["kind"], first["says"], first["checkpoint"]] == [
        "failure", "checkpoint 3 failed: too slow, password=***", 3,
    ]  # fmt: skip
    assert [last["kind"], last["says"]] == ["act", "it was submitted"]
    assert last["timestamp"] <= shown["since"] <= first["timestamp"]


def test_the_skew_of_each_stage_is_shown(viewer: Api, job: Job) -> None:
    shown = found(viewer.get("/pipelines/auctions/skew"))

    assert shown["checkpoints"] == 2
    assert [one["id"] for one in shown["stages"]] == ["count_bids", "rank_bids"]
    assert [one["checkpoint"] for one in shown["stages"][0]["figures"]["state_size"]["points"]] == [
        1, 2,
    ]  # fmt: skip
