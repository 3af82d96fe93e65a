"""What the REST API says of two snapshots, over state that real subtasks wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.jobs import a_pipeline, trigger_one
from sluice.job.job import Job
from tests.airflow.rest import Api, auctions_in, found, refused, take

STATE = "/pipelines/auctions/state/count_bids/difference"


@pytest.fixture(name="job", autouse=True)
def _job(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Two checkpoints of ``auctions``, of ten events each."""
    monkeypatch.setenv("SLUICE_CACHE_DIR", str(tmp_path))
    job = auctions_in(root, a_pipeline(num_retained=9))
    for _ in range(2):
        take(job, trigger_one(job))
    return job


def test_figures_of_two_snapshots_are_told_side_by_side(viewer: Api) -> None:
    shown = found(viewer.get("/pipelines/auctions/snapshots/difference", **{"from": "1"}))

    told = {
        (one["name"], one["what"]): (one["before"], one["after"]) for one in shown["differences"]
    }
    assert (shown["before"]["id"], shown["after"]["id"], shown["after"]["name"]) == (1, 2, "latest")
    assert told["events", "records"] == (10, 20)
    assert told["results", "version of the table"] == (1, 2)
    assert [(one["stage"], one["may_differ"]) for one in shown["tables"]] == [
        ("count_bids", True), ("rank_bids", True),
    ]  # fmt: skip


def test_keys_that_differ_come_page_by_page(viewer: Api) -> None:
    both = {"from": "1", "to": "2"}
    whole = found(viewer.get(STATE, **both))
    first = found(viewer.get(STATE, **both, limit="1"))
    second = found(viewer.get(STATE, **both, limit="1", after=first["next"]))
    counted = found(viewer.get(STATE, **both, limit="0"))
    backwards = found(viewer.get(STATE, **{"from": "2", "to": "1"}))

    assert len(whole["changes"]) > 2
    assert [whole["cut"], whole["next"], first["cut"]] == [None, None, "limit"]
    assert first["changes"] + second["changes"] == whole["changes"][:2]
    assert (counted["changes"], counted["counts"]) == ([], whole["counts"])
    assert backwards["counts"] == {
        "added": 0, "removed": whole["counts"]["added"], "changed": whole["counts"]["changed"],
    }  # fmt: skip


def test_a_kind_and_a_key_choose(viewer: Api) -> None:
    one = found(viewer.get(STATE, **{"from": "1", "kind": "added"}))["changes"][0]
    ((name, value),) = one["key"].items()

    chosen = found(viewer.get(STATE, **{"from": "1", "key": f"{name}={value}"}))

    assert (one["before"], one["changed"], chosen["changes"]) == (None, [], [one])


def test_a_key_is_shown_as_it_came_to_be(viewer: Api) -> None:
    one = found(viewer.get(STATE, **{"from": "1", "kind": "added"}))["changes"][0]
    ((name, value),) = one["key"].items()

    shown = found(viewer.get("/pipelines/auctions/state", key=f"{name}={value}"))

    [table] = [table for table in shown["tables"] if table["stage"] == "count_bids"]
    assert shown["checkpoints"] == [2, 1]
    assert [one["first"] for one in table["versions"]] == [2, 1]
    assert one["after"].items() <= table["versions"][0]["rows"][0].items()
    assert table["versions"][1]["rows"] == []
    unknown = viewer.get("/pipelines/auctions/state", key="x=1")
    assert "no state is kept by the key (x)" in refused(unknown, 404)


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        (STATE, 422, "query.from"),
        (f"{STATE}?from=9", 404, "checkpoint 9 is not retained; retained are: 1, 2"),
        (f"{STATE}?from=mine", 404, "no savepoint 'mine'"),
        (f"{STATE}?from=1&kind=other", 422, "query.kind"),
        (f"{STATE}?from=1&after=x", 422, "query.after"),
        (f"{STATE}?from=1&key=bids=1", 404, "'bids' is no column of the key"),
        (f"{STATE}?from=1&table=nope", 404, "has no table 'nope'"),
        ("/pipelines/auctions/state/nope/difference?from=1", 404, "in neither of the two"),
        ("/pipelines/auctions/snapshots/difference?from=../x", 422, "query.from"),
    ],
)
def test_a_problem_names_the_thing_and_the_fix(
    viewer: Api, path: str, status: int, words: str
) -> None:
    assert words in refused(viewer.get(path), status)
