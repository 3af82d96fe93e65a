"""More keys differ than a page shows: all of them are counted when that is asked for."""

from __future__ import annotations

import pytest

from harness.chromium import Tab
from harness.jobs import a_pipeline, trigger_one
from harness.pages import PLACE, TEXT
from sluice.coordinator.submission import configure, submit
from sluice.job.job import Job, open_job
from sluice.store.open import StoreLocation
from sluice.surface.differences import ChangeCounts, ChangeKind, DifferenceQuery, table_difference
from sluice.surface.state import open_state
from tests.airflow.rest import take
from tests.browser.conftest import Served, says, show

pytestmark = pytest.mark.filterwarnings("ignore")  # Airflow's whole API is built in this process.

COUNT_ALL = (
    f"[...{PLACE}.querySelectorAll('button')].find((one) => one.textContent === 'Count all')"
)


@pytest.fixture(scope="module", name="job")
def _job(served: Served) -> Job:
    pipeline = a_pipeline(events=20_000, max_records_per_epoch=3_000, num_retained=2)
    job = open_job(pipeline, StoreLocation(root=served.root))
    submit(job, configure(job.pipeline, {}))
    take(job, trigger_one(job))
    take(job, trigger_one(job))
    return job


def counted(job: Job, *kinds: ChangeKind) -> ChangeCounts:
    before, after = (open_state(job, one, "count_bids") for one in ("1", "2"))
    return table_difference(before, after, DifferenceQuery(limit=0, kinds=frozenset(kinds))).counts


def test_all_keys_that_differ_are_counted_when_asked(tab: Tab, served: Served, job: Job) -> None:
    whole = counted(job, *ChangeKind)
    show(tab, served, "p/auctions/state/compare?from=1&to=2&stage=count_bids", "Compare")
    says(tab, "on this page, and there are more")
    before = tab.evaluate(f"{TEXT}.includes('In all')")

    tab.evaluate(f"({COUNT_ALL}).click()")

    says(tab, f"In all {whole.added:,} added, 0 removed, {whole.changed:,} changed.")
    assert not before
    assert whole.added + whole.changed > 100
    assert tab.evaluate(f"({COUNT_ALL}) === undefined")
    assert (tab.errors, tab.failed) == ([], [])


def test_what_is_counted_is_of_the_kind_that_is_shown(tab: Tab, served: Served, job: Job) -> None:
    whole = counted(job, ChangeKind.ADDED)
    show(tab, served, "p/auctions/state/compare?from=1&to=2&stage=count_bids&kind=added", "Compare")
    says(tab, "on this page, and there are more")

    tab.evaluate(f"({COUNT_ALL}).click()")

    says(tab, f"In all {whole.added:,} added, 0 removed, 0 changed.")
