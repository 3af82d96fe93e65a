"""Pages over a thousand checkpoints and a thousand subtasks open, and show what is asked for."""

from __future__ import annotations

import pytest

from harness.chromium import Tab
from harness.pages import PLACE, TEXT
from sluice.job.job import Job
from tests.browser.conftest import Served, says, show
from tests.browser.many import COMPLETED, PENDING, SUBTASKS, a_long_job

pytestmark = pytest.mark.filterwarnings("ignore")  # Airflow's whole API is built in this process.

ROWS = f"{PLACE}.querySelectorAll('.scroll:last-of-type tbody tr').length"


@pytest.fixture(scope="module", name="job")
def _job(served: Served) -> Job:
    return a_long_job(served.root)


def test_a_thousand_checkpoints_are_looked_through(tab: Tab, served: Served) -> None:
    show(tab, served, "p/auctions/overview", "Overview")
    says(tab, f"Checkpoint {PENDING} is in progress")
    says(tab, "996 checkpoints")
    tab.until(f"/from checkpoint 1, [0-9]/.test({TEXT})")
    show(tab, served, "p/auctions/history", "History")
    tab.until(f"{ROWS} === 50")
    show(tab, served, "p/auctions/summary", "Summary")

    assert (tab.errors, tab.failed) == ([], [])


def test_a_thousand_subtasks_are_shown_a_hundred_first(tab: Tab, served: Served) -> None:
    show(tab, served, f"p/auctions/checkpoints/{COMPLETED}", f"Checkpoint {COMPLETED}")
    says(tab, "Subtasks of")
    tab.until(f"{ROWS} === 100")
    more = f"[...{PLACE}.querySelectorAll('button')].find((one) => one.textContent.trim() === "
    tab.evaluate(f"{more} 'Show all 1,000').click()")
    tab.until(f"{ROWS} === {SUBTASKS}")

    assert (tab.errors, tab.failed) == ([], [])


def test_the_stage_that_is_waited_for_is_named(tab: Tab, served: Served) -> None:
    show(tab, served, f"p/auctions/checkpoints/{PENDING}", f"Checkpoint {PENDING}")

    says(tab, "rank_bids (1,000 subtasks, which acknowledge at once)")
