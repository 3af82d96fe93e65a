"""Pause, resume and other times over REST: a journal entry each, by a user who may run the DAG."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.coordinator.restore import stop
from sluice.core.configuration import JobStatus, Timing
from sluice.declaration.checkpointing import OPTIONS
from sluice.job.job import Job
from tests.airflow.rest import BASE, Api, auctions_in, refused

TIMES = {
    "interval": 90_000,
    "min-pause": 0,
    "timeout": 300_000,
    "tolerable-failed-checkpoints": 3,
}
CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("pause", {}),
    ("resume", {}),
    ("checkpoints/config", TIMES),
]


@pytest.fixture(name="job")
def _job(root: str) -> Job:
    return auctions_in(root)


def setting(config: Any, name: str) -> Any:
    (found,) = [setting for setting in config["settings"] if setting["name"] == name]
    return found


def test_a_job_is_paused_and_resumed_at_once_by_the_user(editor: Api, job: Job) -> None:
    paused = editor.post("/pipelines/auctions/pause")
    listed = editor.get("/pipelines").json()["pipelines"]
    shown = editor.get("/pipelines/auctions").json()
    resumed = editor.post("/pipelines/auctions/resume")

    assert (paused.status_code, paused.json()["paused"]) == (200, True)
    assert paused.json()["changed_by"] == "airflow:uwe"
    assert {one["uid"]: one["paused"] for one in listed} == {"auctions": True, "demo": False}
    assert shown["paused"]
    assert (resumed.status_code, resumed.json()["paused"]) == (200, False)
    assert not job.state().timing.is_paused


def test_times_are_changed_and_reset(editor: Api, job: Job) -> None:
    changed = editor.post("/pipelines/auctions/checkpoints/config", TIMES).json()
    timing = job.state().timing
    mixed = editor.post("/pipelines/auctions/checkpoints/config", {"reset": True, "timeout": 5_000})
    reset = editor.post("/pipelines/auctions/checkpoints/config", {"reset": True}).json()

    assert (timing.interval_ms, timing.min_pause_ms, timing.timeout_ms) == (90_000, 0, 300_000)
    assert (timing.tolerable_failed_checkpoints, timing.changed_by) == (3, "airflow:uwe")
    assert setting(changed, "interval") == {
        "name": "interval", "declared": 60_000, "in_force": 90_000, "default": 60_000,
        "can_change": True, "changed": True, "awaits_restore": False, "least": 10, "most": None,
        "unit": "ms", "says": OPTIONS["interval"].says,
    }  # fmt: skip
    assert (changed["interval"], changed["changed_by"]) == (90_000, "airflow:uwe")
    assert setting(changed, "min_pause")["most"] == 365 * 86_400_000
    assert not setting(changed, "num_retained")["can_change"]
    kept = [one["name"] for one in mixed.json()["settings"] if one["changed"]]
    assert kept == ["timeout"]
    assert not any(one["changed"] for one in reset["settings"])
    assert job.state().timing == Timing(changed_at_ms=reset["changed_at"], changed_by="airflow:uwe")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "nothing is to change"),
        ({"timeout": 9}, "use 10 ms or more"),
        ({"min-pause": 366 * 86_400_000}, "min_pause is 366 d; use 365 d or less"),
        ({"interval": -1}, "body.interval"),
        ({"interval": 10**30}, "body.interval"),
        ({"interval": "1m"}, "body.interval"),
        ({"tolerable-failed-checkpoints": -1}, "body.tolerable-failed-checkpoints"),
        ({"num-retained": 1}, "body.num-retained"),
    ],
)
def test_what_a_declaration_could_not_say_is_refused(
    editor: Api, job: Job, body: Any, words: str
) -> None:
    before = job.state()

    answer = editor.post("/pipelines/auctions/checkpoints/config", body)

    assert words in refused(answer, 422)
    assert job.state() == before


@pytest.mark.parametrize(("act", "body"), CHANGES)
def test_a_job_that_has_ended_takes_no_change(editor: Api, job: Job, act: str, body: Any) -> None:
    stop(job, JobStatus.CANCELED)

    answer = editor.post(f"/pipelines/auctions/{act}", body)

    assert "is CANCELED: it takes no checkpoints any more" in refused(answer, 409)


@pytest.mark.parametrize(("act", "body"), CHANGES)
def test_neither_a_viewer_nor_another_site_changes_anything(
    everybody: Api, editor: Api, job: Job, act: str, body: Any
) -> None:
    url, before = f"{BASE}/pipelines/auctions/{act}", job.state()
    editor.client.cookies.set("_token", editor.tokens["uwe"])

    try:
        form = editor.client.post(url, content="{}", headers={"content-type": "text/plain"})
        neighbour = editor.client.post(url, json=body, headers={"sec-fetch-site": "same-site"})
    finally:
        editor.client.cookies.clear()
    nobody = everybody.post(f"/pipelines/auctions/{act}", body)
    viewer = everybody.by("vera").post(f"/pipelines/auctions/{act}", body)
    by_hand = everybody.by("uwe").post(f"/pipelines/auctions/{act}", body)

    assert [form.status_code, neighbour.status_code] == [415, 403]
    assert [nobody.status_code, viewer.status_code, by_hand.status_code] == [401, 403, 200]
    assert before.timing == Timing()
    assert (act == "resume") == (job.state().timing == Timing())
