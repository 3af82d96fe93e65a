"""Every button of the pages in a real browser: it asks first, and what was asked for happens."""

from __future__ import annotations

import pytest

from harness.chromium import Tab
from harness.pages import PLACE
from sluice.core.configuration import Timing
from sluice.core.ids import CheckpointId
from sluice.job.job import Job
from tests.airflow.database import set_paused
from tests.browser.conftest import Served, says, show

pytestmark = pytest.mark.filterwarnings("ignore")  # Airflow's whole API is built in this process.

DIALOG = f"{PLACE}.querySelector('dialog[open]')"
CONFIRM = f"{DIALOG}.querySelector('button[type=submit]')"
TOLD = f"{DIALOG}.querySelector('[role=status]')"

# Each that starts a run: its page, its title, what is filled in, where it goes, the DAG's suffix.
RUNS = [
    ("overview", "Take a checkpoint now", {}, "checkpoints", ""),
    ("overview", "Take a savepoint", {"savepoint-name": "mine"}, "savepoints", "__savepoint"),
    ("journal", "Stop with a savepoint", {"drain": True}, "stop", "__savepoint"),
    ("graph", "Cancel the job", {}, "cancel", "__cancel"),
    ("snapshots", "Restore", {"dry-run": True}, "restore", "__restore"),
]


def button(title: str) -> str:
    return f"[...{PLACE}.querySelectorAll('button')].find((one) => one.textContent === {title!r})"


def ask(tab: Tab, title: str) -> None:
    tab.until(f"({button(title)}.click(), {DIALOG} !== null)")
    tab.until(f"!{CONFIRM}.disabled")  # What may be said of the act is there.


def confirm(tab: Tab) -> None:
    tab.evaluate(f"{CONFIRM}.click()")


def close(tab: Tab) -> None:
    tab.press("Escape")
    tab.until(f"!{PLACE}.querySelector('dialog')")


def posts(tab: Tab) -> list[str]:
    return [url.partition("/pipelines/auctions/")[2] for url in tab.posts if "/sluice/" in url]


def test_who_may_not_act_is_offered_nothing_and_told_why(tab: Tab, served: Served) -> None:
    def sign_in(token: str) -> None:
        tab.send("Network.setCookie", name="_token", value=token, url=served.url)

    sign_in(served.viewer)
    try:
        for page, titles in (
            ("overview", ("Take a checkpoint now", "Take a savepoint", "Cancel the job")),
            ("snapshots", ("Restore", "Dispose")),
        ):
            show(tab, served, f"p/auctions/{page}", page.capitalize())
            for title in titles:
                tab.until(f"{button(title)}?.disabled")
                assert "You may not" in tab.evaluate(f"{button(title)}.title")
        show(tab, served, "p/auctions/configuration", "Configuration")
        tab.until(f"{PLACE}.querySelector('tbody tr') !== null && !{button('Change')}")
    finally:
        sign_in(served.token)


@pytest.mark.parametrize(("page", "title", "fields", "place", "suffix"), RUNS)
def test_it_asks_first_and_links_to_the_run_it_started(
    tab: Tab,
    served: Served,
    page: str,
    title: str,
    fields: dict[str, object],
    place: str,
    suffix: str,
) -> None:
    set_paused("auctions", paused=False)
    show(tab, served, f"p/auctions/{page}", page.capitalize())
    ask(tab, title)
    close(tab)
    assert posts(tab) == []

    ask(tab, title)
    for name, value in fields.items():
        field = f"{DIALOG}.querySelector('[name={name}]')"
        tab.evaluate(f"{field}.click()" if value is True else f"{field}.value = {value!r}")
    tab.evaluate(f"{DIALOG}.querySelectorAll('[required]').forEach((one) => one.click())")
    confirm(tab)
    started = tab.until(f"{TOLD}.querySelector('a').pathname")

    assert started.startswith(f"/dags/auctions{suffix}/runs/")
    tab.until(f"{TOLD}.querySelector('strong').textContent === 'pending'")
    assert posts(tab) == [place]
    assert tab.errors == []


def test_an_act_that_would_be_refused_is_not_offered_and_says_why(tab: Tab, served: Served) -> None:
    set_paused("auctions__savepoint", paused=True)
    try:
        show(tab, served, "p/auctions/overview", "Overview")
        for title, why in (
            ("Backfill", "no source of 'auctions' declares input that is replaced"),
            ("Take a savepoint", "DAG 'auctions__savepoint' is paused"),
        ):
            tab.until(f"{button(title)}?.disabled")
            assert why in tab.evaluate(f"{button(title)}.title")
        tab.until(f"!{button('Cancel the job')}.disabled")
    finally:
        set_paused("auctions__savepoint", paused=False)


@pytest.mark.parametrize(
    ("title", "field", "value", "suffix", "asked"),
    [
        ("Take a checkpoint now", "checkpointType", "FULL", "", {"checkpoint_type": "FULL"}),
        ("Take a savepoint", "forced", True, "__savepoint", {"forced": True}),
        ("Stop with a savepoint", "forced", True, "__savepoint", {"forced": True}),
    ],
)
def test_what_was_chosen_is_in_the_form_of_the_run(
    tab: Tab,
    served: Served,
    title: str,
    field: str,
    value: object,
    suffix: str,
    asked: dict[str, object],
) -> None:
    set_paused("auctions", paused=False)
    show(tab, served, "p/auctions/overview", "Overview")
    ask(tab, title)
    named = f"{DIALOG}.querySelector('[name={field}]')"
    tab.evaluate(f"{named}.click()" if value is True else f"{named}.value = {value!r}")

    confirm(tab)
    run = tab.until(f"{TOLD}.querySelector('a').pathname").rpartition("/")[2]

    of_the_run = f"/api/v2/dags/auctions{suffix}/dagRuns/{run}"
    conf = tab.evaluate(f"fetch('{of_the_run}').then((one) => one.json()).then((one) => one.conf)")
    assert {**conf, **asked} == conf


def test_a_restore_says_what_it_does_and_its_button_too_and_keeps_what_was_ticked(
    tab: Tab, served: Served
) -> None:
    show(tab, served, "p/auctions/snapshots", "Snapshots")
    ask(tab, "Restore")
    verdict = tab.until(f"{DIALOG}.innerText.includes('Repeats')")
    tab.until(f"{DIALOG}.innerText.includes('records of ')")
    assert tab.evaluate(f"{CONFIRM}.textContent").startswith("Restore from ")
    tab.evaluate(f"{DIALOG}.querySelector('[name=dry-run]').click()")
    tab.until(f"{CONFIRM}.textContent === 'Verify every file, and change nothing'")
    tab.evaluate(f"{DIALOG}.querySelector('[name=dry-run]').click()")
    tab.until(f"{CONFIRM}.classList.contains('danger')")
    tab.evaluate(f"{DIALOG}.querySelector('[name=roll-back-tables]').click()")

    confirm(tab)  # The browser refuses: what it does is not read.
    tab.evaluate("new Promise((done) => setTimeout(done, 1500))")  # The page ticks each second.

    assert verdict
    assert tab.evaluate(f"{DIALOG}.querySelector('[name=roll-back-tables]').checked")
    assert posts(tab) == []


def test_a_pause_is_seen_on_every_page_until_it_is_resumed(
    tab: Tab, served: Served, job: Job
) -> None:
    show(tab, served, "p/auctions/overview", "Overview")
    ask(tab, "Pause")
    confirm(tab)
    tab.until(f"{TOLD}.textContent === 'Checkpointing is paused.'")
    close(tab)
    says(tab, "Its checkpointing is paused by airflow:uwe: it reads nothing.")
    says(tab, "sluice resume auctions")
    assert job.state().timing.is_paused
    tab.until(f"{PLACE}.querySelector('.title .badge.warn').textContent === 'paused'")
    assert not tab.evaluate(f"Boolean({button('Pause')})")

    show(tab, served, "p", "Pipelines")
    tab.until(f"{PLACE}.querySelector('table .badge.warn').textContent === 'paused'")
    show(tab, served, "p/auctions/configuration", "Configuration")
    says(tab, "Checkpointing is paused. No periodic checkpoint is taken")
    says(tab, "Changed last by airflow:uwe")
    ask(tab, "Resume")
    confirm(tab)
    tab.until(f"!{PLACE}.querySelector('.title .badge.warn')")

    assert not job.state().timing.is_paused
    assert posts(tab) == ["pause", "resume"]
    assert (tab.errors, tab.failed) == ([], [])


def change(tab: Tab, option: str, value: str, unit: str | None = None) -> None:
    opened = f"{PLACE}.querySelector('[aria-label=\"Change {option}\"]')"
    tab.until(f"({opened}.click(), {DIALOG} !== null)")
    tab.evaluate(f"{DIALOG}.querySelector('[name=value]').value = {value!r}")
    if unit is not None:
        tab.evaluate(f"{DIALOG}.querySelector('[name=unit]').value = {unit!r}")
    confirm(tab)


def row(option: str) -> str:
    rows = f"[...{PLACE}.querySelectorAll('tr')]"
    return f"{rows}.find((one) => one.innerText.startsWith({option!r}))"


def test_the_column_in_force_is_edited_and_reset(tab: Tab, served: Served, job: Job) -> None:
    show(tab, served, "p/auctions/configuration", "Configuration")
    change(tab, "timeout", "5", "min")
    tab.until(f"{TOLD}.textContent === 'timeout is changed.'")
    close(tab)
    tab.until(f"{row('timeout')}.cells[2].innerText.startsWith('5 min')")
    change(tab, "tolerable_failed_checkpoints", "3")
    tab.until(f"{TOLD} !== null")
    close(tab)
    assert tab.evaluate(f"{row('restart_strategy.max_failures')}.cells[1].innerText") == "1"
    says(tab, "2 were changed by a person while the job ran.")
    says(tab, "Changed last by airflow:uwe, ")
    timing = job.state().timing
    assert (timing.timeout_ms, timing.tolerable_failed_checkpoints) == (300_000, 3)

    ask(tab, "Reset")
    confirm(tab)
    tab.until(f"{row('timeout')}.cells[2].innerText.startsWith('10 min')")

    timing = job.state().timing
    assert timing == Timing(changed_at_ms=timing.changed_at_ms, changed_by="airflow:uwe")
    assert tab.errors == []


def test_a_value_out_of_its_limits_is_refused_in_the_dialog(
    tab: Tab, served: Served, job: Job
) -> None:
    before = job.state().timing
    show(tab, served, "p/auctions/configuration", "Configuration")

    change(tab, "timeout", "5", "ms")

    says(tab, "10 ms or more; declared is 10 min")
    tab.until(f"{DIALOG}.querySelector('[role=alert]').innerText.includes('use 10 ms or more')")
    assert job.state().timing == before
    assert tab.evaluate(f"{DIALOG}.querySelector('[name=value]').value") == "5"


def test_the_keyboard_asks_and_goes_back_to_the_button(tab: Tab, served: Served) -> None:
    show(tab, served, "p/auctions/overview", "Overview")
    tab.until(button("Pause"))
    focused = f"{PLACE}.activeElement?.textContent"

    while tab.evaluate(focused) != "Pause":
        tab.press("Tab")
    tab.press("Enter")
    tab.until(f"{DIALOG}.contains({PLACE}.activeElement)")
    close(tab)

    assert tab.evaluate(focused) == "Pause"
    assert posts(tab) == []


def test_a_job_that_was_never_submitted_can_be_asked_for_nothing(tab: Tab, served: Served) -> None:
    show(tab, served, "p/demo/overview", "Overview")
    says(tab, "No checkpoint yet")

    enabled = tab.until(f"{button('Pause')} && [...{PLACE}.querySelectorAll('.actions button')]"
                        ".map((one) => one.disabled)")  # fmt: skip

    assert enabled == [True] * 6


def test_a_pending_checkpoint_is_aborted_on_its_page(tab: Tab, served: Served, job: Job) -> None:
    show(tab, served, "p/auctions/checkpoints/4", "Checkpoint 4")
    ask(tab, "Abort")
    close(tab)
    assert job.state().pending_checkpoint(CheckpointId(4)) is not None

    ask(tab, "Abort")
    confirm(tab)
    tab.until(f"{PLACE}.querySelector('main .badge').textContent === 'failed'")

    assert "aborted by airflow:uwe" in job.state().failed[-1].message
    assert job.state().status.value == "RUNNING"
    assert posts(tab) == ["checkpoints/4/abort"]


def test_a_savepoint_is_deleted_only_once_a_person_has_said_twice_that_it_may(
    tab: Tab, served: Served, job: Job
) -> None:
    files = job.paths.savepoint("before")
    show(tab, served, "p/auctions/snapshots", "Snapshots")
    ask(tab, "Dispose")
    close(tab)
    ask(tab, "Dispose")
    confirm(tab)  # The browser refuses: the box is not ticked.
    tab.evaluate("new Promise((done) => setTimeout(done, 500))")
    assert posts(tab) == []
    assert list(job.store.list(files))

    tab.evaluate(f"{DIALOG}.querySelector('[required]').click()")
    confirm(tab)
    tab.until(f"{TOLD}.textContent === 'Savepoint before is deleted.'")
    close(tab)
    tab.until(f"!{button('Dispose')}")

    assert all("/pointers/" in left.key for left in job.store.list(files))  # They say: it is gone.
    assert posts(tab) == ["savepoint-disposal"]
    assert (tab.errors, tab.failed) == ([], [])
