"""What the REST API says of two snapshots, over state that real subtasks wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.jobs import a_pipeline, trigger_one
from harness.no_spark import stages_without_spark
from sluice.coordinator.completion import finalize
from sluice.coordinator.publication import commit
from sluice.coordinator.submission import configure, submit
from sluice.job.job import Job, open_job
from sluice.spark.stage import run_stage
from sluice.store.open import StoreLocation
from tests.airflow.rest import Api

pytestmark = pytest.mark.filterwarnings("ignore")  # Airflow's whole API is built in this process.

STATE = "/pipelines/auctions/state/count_bids/difference"


@pytest.fixture(name="api")
def _api(everybody: Api) -> Api:
    return everybody.by("vera")


@pytest.fixture(name="job", autouse=True)
def _job(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Two checkpoints of ``auctions``, of ten events each."""
    monkeypatch.setenv("SLUICE_CACHE_DIR", str(tmp_path))
    job = open_job(a_pipeline(num_retained=9), StoreLocation(root=root))
    submit(job, configure(job.pipeline, {}))
    with stages_without_spark():
        for _ in range(2):
            plan = trigger_one(job)
            for stage in job.pipeline.stages:
                run_stage(job, None, plan.checkpoint_id, stage, attempt=1)  # type: ignore[arg-type]
            finalize(job, plan.checkpoint_id)
            commit(job, plan.checkpoint_id)
    return job


def found(answer: Any) -> Any:
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return answer.json()


def test_figures_of_two_snapshots_are_told_side_by_side(api: Api) -> None:
    shown = found(api.get("/pipelines/auctions/snapshots/difference", **{"from": "1"}))

    told = {
        (one["name"], one["what"]): (one["before"], one["after"]) for one in shown["differences"]
    }
    assert (shown["before"]["id"], shown["after"]["id"], shown["after"]["name"]) == (1, 2, "latest")
    assert told["events", "records"] == (10, 20)
    assert told["results", "version of the table"] == (1, 2)
    assert [(one["stage"], one["may_differ"]) for one in shown["tables"]] == [
        ("count_bids", True), ("rank_bids", True),
    ]  # fmt: skip


def test_keys_that_differ_come_page_by_page(api: Api) -> None:
    whole = found(api.get(STATE, **{"from": "1", "to": "2"}))
    first = found(api.get(STATE, **{"from": "1", "to": "2", "limit": "1"}))
    second = found(api.get(STATE, **{"from": "1", "to": "2", "limit": "1", "after": first["next"]}))
    counted = found(api.get(STATE, **{"from": "1", "to": "2", "limit": "0"}))
    backwards = found(api.get(STATE, **{"from": "2", "to": "1"}))

    assert len(whole["changes"]) > 2
    assert [whole["cut"], whole["next"], first["cut"]] == [None, None, "limit"]
    assert first["changes"] + second["changes"] == whole["changes"][:2]
    assert (counted["changes"], counted["counts"]) == ([], whole["counts"])
    assert backwards["counts"] == {
        "added": 0, "removed": whole["counts"]["added"], "changed": whole["counts"]["changed"],
    }  # fmt: skip


def test_a_kind_and_a_key_choose(api: Api) -> None:
    one = found(api.get(STATE, **{"from": "1", "kind": "added"}))["changes"][0]
    ((name, value),) = one["key"].items()

    chosen = found(api.get(STATE, **{"from": "1", "key": f"{name}={value}"}))

    assert (one["before"], one["changed"], chosen["changes"]) == (None, [], [one])


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        (STATE, 422, "query.from"),
        (f"{STATE}?from=9", 404, "checkpoint 9 is not retained; retained are: 1, 2"),
        (f"{STATE}?from=mine", 404, "does not exist"),
        (f"{STATE}?from=1&kind=other", 422, "query.kind"),
        (f"{STATE}?from=1&after=x", 422, "query.after"),
        (f"{STATE}?from=1&key=bids=1", 404, "'bids' is no column of the key"),
        (f"{STATE}?from=1&table=nope", 404, "has no table 'nope'"),
        ("/pipelines/auctions/state/nope/difference?from=1", 404, "in neither of the two"),
        ("/pipelines/auctions/snapshots/difference?from=../x", 422, "query.from"),
    ],
)
def test_a_problem_names_the_thing_and_the_fix(
    api: Api, path: str, status: int, words: str
) -> None:
    answer = api.get(path)

    assert (answer.status_code, answer.headers["content-type"]) == (
        status, "application/problem+json",
    )  # fmt: skip
    assert words in answer.json()["detail"]
