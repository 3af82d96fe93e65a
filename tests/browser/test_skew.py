"""Which subtask is slow, which keys are hot, and how late rows are, as a browser shows it."""

from __future__ import annotations

import pytest

from harness.chromium import Tab
from harness.jobs import a_pipeline
from sluice.core.answers import HotGroup, LateRows, SubtaskMetrics
from sluice.job.job import Job
from tests.airflow.rest import auctions_in
from tests.browser.conftest import Served, check_everybody_can_use_it, says, show
from tests.subtasks import measure

pytestmark = pytest.mark.filterwarnings("ignore")  # Airflow's whole API is built in this process.


@pytest.fixture(scope="module", name="job")
def _job(served: Served) -> Job:
    """``auctions``, with a completed checkpoint to which rows of ``bids`` came late."""
    job = auctions_in(served.root, a_pipeline())
    late = LateRows(rows=7, most_ms=90_000, within=(1, 2, 3, 7, 7, 7))
    hot = HotGroup(group=77, rows=8, keys=("auction=4711",))
    of_one = SubtaskMetrics(rows_in=9, late_rows=7, late={"bids": late}, hot_groups=(hot,))
    measure(job, of_one, of_one)
    return job


def test_hot_keys_are_shown_and_late_rows_by_what_they_are_of(tab: Tab, served: Served) -> None:
    show(tab, served, "p/auctions/skew", "Skew")

    for words in ("Late rows of", "1 min 30 s", "By 10 min at most", "14"):
        says(tab, words)
    for words in ("Hot key groups of", "auction=4711", "89 %"):
        says(tab, words)
    check_everybody_can_use_it(tab)
    assert (tab.errors, tab.failed) == ([], [])
