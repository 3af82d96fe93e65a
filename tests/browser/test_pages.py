"""The pages in a real browser, in Airflow's own UI and alone, over checkpoints that were taken."""

from __future__ import annotations

import pytest

from harness.chromium import Tab
from harness.pages import PLACE, TEXT
from sluice.core.ids import CheckpointId
from sluice.job.job import Job
from tests.airflow.rest import complete, run_stages
from tests.browser.conftest import Served, says, show

pytestmark = pytest.mark.filterwarnings("ignore")  # Airflow's whole API is built in this process.

SHOWN = {
    "": ("Pipelines", "auctions"),
    "p/auctions/overview": ("Overview", "Checkpoint 4 is in progress"),
    "p/auctions/history": ("History", "checkpoint expired"),
    "p/auctions/history?status=FAILED": ("History", "rank_bids did not acknowledge"),
    "p/auctions/checkpoints/1": ("Checkpoint 1", "Subtasks of rank_bids"),
    "p/auctions/checkpoints/4": ("Checkpoint 4", "late"),
    "p/auctions/exceptions": ("Exceptions", "rank_bids did not acknowledge"),
    "p/auctions/summary": ("Summary", "Finalization"),
    "p/auctions/skew": ("Skew", "Largest / median"),
    "p/auctions/configuration": ("Configuration", "max_records_per_epoch"),
    "p/auctions/journal": ("Journal", "Checkpoint 3 was aborted"),
    "p/auctions/graph": ("Graph", "KeyedAggregate"),
    "p/auctions/state": ("State", "bid_auction"),
    "p/auctions/state/compare": ("Compare", "Besides state"),
    "p/auctions/state/key?key=bid_auction%3D-1": ("Key", "not there"),
    "p/auctions/snapshots": ("Snapshots", "savepoint before"),
    "reasons/CHECKPOINT_EXPIRED": ("checkpoint expired", "What to do"),
}

NEXT_STEP = f"[...{PLACE}.querySelectorAll('.first .counts > div')].at(-1).innerText"


def test_every_page_shows_the_job_wide_and_narrow(tab: Tab, served: Served) -> None:
    for page, (heading, words) in SHOWN.items():
        show(tab, served, page, heading)
        says(tab, words)
        tab.look(width=400)
        tab.until("document.getElementById('pages').scrollWidth <= 400")  # Charts follow it.
        tab.look()

    assert (tab.errors, tab.failed) == ([], [])


def test_the_next_step_names_what_keeps_airflow_from_going_on(tab: Tab, served: Served) -> None:
    """No process of Airflow runs here but its API server."""
    show(tab, served, "p/auctions/overview", "Overview")

    for step in ("airflow scheduler", "airflow triggerer"):
        tab.until(f"{NEXT_STEP}.includes(\"see that '{step}' runs\")")


def test_pages_say_how_far_a_source_is_behind_and_how_fast_rows_flow(
    tab: Tab, served: Served
) -> None:
    """Twenty of a thousand are in completed checkpoints; the pending one and the rest are not."""
    tab.open(f"{served.url}/sluice/pages/")
    says(tab, "980 records")
    show(tab, served, "p/auctions/overview", "Overview")
    for words in ("980 records", "behind", "Rates are over", "Records pending in the sources"):
        says(tab, words)
    show(tab, served, "p/auctions/graph", "Graph")
    node = f"[...{PLACE}.querySelectorAll('.node.source.warn')].map((one) => one.innerText)[0]"
    said = tab.until(node)
    show(tab, served, "p/auctions/checkpoints/4", "Checkpoint 4")
    says(tab, "970 records")

    assert "· behind" in said
    assert "980 records" in said
    assert "/s out" in said
    assert (tab.errors, tab.failed) == ([], [])


def test_the_overview_tells_what_changed(tab: Tab, served: Served) -> None:
    show(tab, served, "p/auctions/overview", "Overview")
    for words in ("What changed", "savepoint before was taken", "checkpoint 3 failed"):
        says(tab, words)
    link = f"{PLACE}.querySelector('.story .bad a')"
    assert tab.until(f"{link}.hash").endswith("/p/auctions/checkpoints/3")
    assert tab.errors == []


def test_airflow_has_an_entry_and_a_tab_in_its_theme(tab: Tab, served: Served) -> None:
    tab.look(theme="dark")
    tab.open(f"{served.url}/dags/auctions/plugin/pipeline")
    says(tab, "Latest completed")
    entry = tab.until("[...document.querySelectorAll('nav a, a')].find((one) => "
                      "one.pathname === '/plugin/checkpoints')?.textContent")  # fmt: skip
    colours = f"""[getComputedStyle({PLACE}.querySelector('.sluice')).backgroundColor,
        getComputedStyle(document.documentElement).getPropertyValue('--chakra-colors-bg')]"""
    inside, around = tab.evaluate(colours)

    tab.open(f"{served.url}/plugin/checkpoints")
    says(tab, "Pipelines")

    assert entry == "Checkpoints"
    assert inside == around.strip()
    assert tab.errors == []


def test_a_checkpoint_that_completes_is_seen_without_reloading(
    tab: Tab, served: Served, job: Job
) -> None:
    show(tab, served, "p/auctions/checkpoints/4", "Checkpoint 4")
    says(tab, "Waiting, for")
    plan = job.plan(CheckpointId(4))
    assert plan is not None

    run_stages(job, plan, "rank_bids")
    complete(job, plan)

    tab.until(f"{PLACE}.querySelector('main .badge').textContent === 'completed'")
    tab.until(f"!{TEXT}.includes('Waiting, for')")


def test_the_keyboard_opens_a_page_and_its_heading_takes_the_focus(
    tab: Tab, served: Served
) -> None:
    show(tab, served, "p/auctions/overview", "Overview")
    focused = f"{PLACE}.activeElement?.textContent"

    while tab.evaluate(focused) != "Journal":
        tab.press("Tab")
    tab.press("Enter")

    tab.until(f"{focused} === 'Journal' && {PLACE}.activeElement.tagName === 'H2'")


def test_what_is_not_there_is_said_with_what_to_do(tab: Tab, served: Served) -> None:
    tab.open(f"{served.url}/sluice/pages/?dag=some_other_dag")
    says(tab, "This DAG is not a pipeline of Sluice")
    tab.open(f"{served.url}/sluice/pages/#/p/auctions/checkpoints/999")
    says(tab, "It may be gone")
    tab.open(f"{served.url}/sluice/pages/#/p/nobody/overview")
    says(tab, "no pipeline 'nobody' is declared here")


def test_who_has_no_token_is_told_to_sign_in(tab: Tab, served: Served) -> None:
    tab.send("Network.clearBrowserCookies")

    tab.open(f"{served.url}/sluice/pages/")
    says(tab, "Sign in to Airflow again")

    tab.send("Network.setCookie", name="_token", value=served.token, url=served.url)


def test_snapshots_are_listed_before_they_are_checked(tab: Tab, served: Served) -> None:
    tab.send("Network.setBlockedURLs", urls=["*checks=true*"])
    try:
        show(tab, served, "p/auctions/snapshots", "Snapshots")
        says(tab, "savepoint before")
        says(tab, "not checked yet")
    finally:
        tab.send("Network.setBlockedURLs", urls=[])
    tab.errors.clear()  # The blocked request is one.

    show(tab, served, "p/auctions/snapshots", "Snapshots")
    tab.until(f"!{TEXT}.includes('not checked yet')")
    says(tab, "yes")


def test_two_snapshots_are_compared_from_their_list_on(tab: Tab, served: Served) -> None:
    show(tab, served, "p/auctions/snapshots", "Snapshots")
    link = f"{PLACE}.querySelector('a[aria-label=\"Compare checkpoint 1\"]')"
    tab.until(f"({link}.focus(), true)")
    tab.press("Enter")
    tab.until(f"{PLACE}.querySelector('h2').textContent === 'Compare'")
    says(tab, "Besides state")

    show(tab, served, "p/auctions/state/compare?from=1&to=before&stage=count_bids", "Compare")
    says(tab, "State of count_bids")
    says(tab, "0 removed")
    tab.until(f"{PLACE}.querySelector('caption + thead') !== null")
    says(tab, "records")
    tab.evaluate(f"{PLACE}.querySelector('[name=kind]').value = 'removed'")
    tab.evaluate(f"{PLACE}.querySelector('[name=kind]').form.requestSubmit()")
    says(tab, "No such key differs")
    tab.evaluate(f"{PLACE}.querySelector('[name=key]').value = 'nope=1'")
    tab.evaluate(f"{PLACE}.querySelector('[name=key]').form.requestSubmit()")
    says(tab, "is no column of the key; it has bid_auction")

    show(tab, served, "p/auctions/state/compare?from=1&to=1", "Compare")
    says(tab, "Choose two different ones")
    show(tab, served, "p/auctions/state/compare?from=999&to=1", "Compare")
    says(tab, "checkpoint 999 is not retained")
    assert tab.errors == []


def test_an_exception_has_its_stage_and_on_demand_its_stack(tab: Tab, served: Served) -> None:
    show(tab, served, "p/auctions/exceptions", "Exceptions")
    says(tab, "bids.py line 7: KeyError: 'price'")
    says(tab, "count_bids, attempt 1")
    assert "in price" not in tab.evaluate(TEXT)
    tab.evaluate(f"{PLACE}.querySelector('details summary').click()")
    says(tab, "line 7, in price")
    assert tab.errors == []
