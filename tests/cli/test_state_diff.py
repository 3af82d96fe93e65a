"""``sluice state diff``: what changed between two snapshots, on a screen and as JSON."""

from __future__ import annotations

import pytest

from harness.jobs import a_running_job
from sluice.job.job import Job
from tests.cli.conftest import Sluice
from tests.unit.state_processor.jobs import a_pipeline, take

pytestmark = pytest.mark.usefixtures("without_spark")


@pytest.fixture
def job() -> Job:
    """Two checkpoints of real state."""
    job = a_running_job(a_pipeline("auctions"))
    take(job)
    take(job)
    return job


def test_what_differs_is_told_with_both_values_side_by_side(job: Job, sluice: Sluice) -> None:
    printed = sluice("state", "diff", "auctions", 1, "latest", "--limit", 3).out
    document = sluice("state", "diff", "auctions", 1, "latest", "--limit", 10, "--json").json

    assert "from checkpoint 1," in printed
    assert "to   checkpoint 2 (latest)," in printed
    assert "records" in printed
    assert "bid_auction" in printed
    assert "are shown, and there are more; --limit shows them, --limit 0 counts all" in printed
    assert max(map(len, printed.splitlines()[2:20])) <= 80
    (state,) = document["state"]
    assert len(state["changes"]) == 10
    assert (state["cut"], bool(state["next"])) == ("limit", True)
    assert [one["may_differ"] for one in document["snapshots"]["tables"]] == [True]


def test_a_key_a_kind_and_counts_are_asked_for(job: Job, sluice: Sluice) -> None:
    document = sluice("state", "diff", "auctions", 1, 2, "--kind", "changed", "--json").json
    first = document["state"][0]["changes"][0]
    auction = first["key"]["bid_auction"]

    one = sluice("state", "diff", "auctions", 1, 2, "--key", f"bid_auction={auction}").out
    counted = sluice("state", "diff", "auctions", 1, 2, "--limit", 0).out
    removed = sluice("state", "diff", "auctions", 1, 2, "--kind", "removed").out

    assert f"{first['before']['bids']} → {first['after']['bids']}" in one
    assert "0 added, 0 removed, 1 changed" in one
    assert "→" not in counted
    assert "0 added, 0 removed, 0 changed" in removed


def test_a_key_is_shown_as_it_came_to_be(job: Job, sluice: Sluice) -> None:
    document = sluice("state", "diff", "auctions", 1, 2, "--kind", "changed", "--json").json
    change = document["state"][0]["changes"][0]
    key = f"bid_auction={change['key']['bid_auction']}"

    printed = sluice("state", "find", "auctions", key).out
    found = sluice("state", "find", "auctions", key, "--json").json
    absent = sluice("state", "find", "auctions", "bid_auction=-1", "--checkpoint", 1).out
    unknown = sluice("state", "find", "auctions", "auction=1").error

    versions = found["tables"][0]["versions"]
    assert [one["last"] for one in versions] == [2, 1]
    for side, version in zip(("after", "before"), versions, strict=True):
        assert change[side].items() <= version["rows"][0].items()
    assert str(change["after"]["bids"]) in printed
    assert "not there" in absent
    assert "no state is kept by the key (auction)" in unknown
    assert "per_auction: bid_auction" in unknown


def test_a_snapshot_has_no_difference_to_itself(job: Job, sluice: Sluice) -> None:
    printed = sluice("state", "diff", "auctions", 2, "latest").out

    assert "nothing else differs" in printed
    assert "0 added, 0 removed, 0 changed" in printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("9", "2"), "checkpoint 9 is not retained; retained are: 1, 2"),
        (("1", "mine"), "there is no savepoint 'mine' of job"),
        (("1", "2", "--stage", "nope"), "stage 'nope' has keyed state in neither of the two"),
        (("1", "2", "--table", "nope"), "of stage 'per_auction' has no table 'nope'; it has "),
        (("1", "2", "--key", "bids=1"), "'bids' is no column of the key; it has bid_auction"),
    ],
)
def test_what_is_not_there_is_named(
    job: Job, sluice: Sluice, arguments: tuple[str, ...], words: str
) -> None:
    assert words in sluice("state", "diff", "auctions", *arguments).error
