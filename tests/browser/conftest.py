"""Airflow's whole app on a free port of this process, and a headless Chromium that looks at it.

The environment that Airflow reads when it is imported is that of tests/airflow.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

import pytest

from harness.chromium import Tab, chromium, found_browser
from harness.jobs import a_pipeline, trigger_one
from harness.pages import PLACE, TEXT
from sluice.coordinator.failure import fail_checkpoint
from sluice.core.answers import TaskFailure
from sluice.core.configuration import CheckpointType
from sluice.core.failures import CheckpointFailureReason
from sluice.job.job import Job
from tests.airflow import conftest as airflow_home
from tests.airflow.rest import PACKAGE, an_api, auctions_in, run_stages, take

AXE = (files("axe_core_python") / "axe.min.js").read_text()
NEEDS = "no Chromium is installed: apt-get install chromium, or set SLUICE_BROWSER"


@dataclass(frozen=True)
class Served:
    """Airflow's whole app; ``token`` is that of a user who may read and run DAGs, ``viewer`` of
    one who may only read.
    """

    url: str
    token: str
    root: str
    viewer: str


@pytest.fixture(scope="session", name="app")
def _app() -> Iterator[tuple[str, dict[str, str]]]:
    """The address and the tokens; one app and one browser are enough for all files, in turn."""
    import uvicorn

    with an_api() as api:
        listening = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(api.client.app, log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", api.tokens
        server.should_exit = True
        thread.join(timeout=60)


@pytest.fixture(scope="module", name="served")
def _served(request: pytest.FixtureRequest, app: tuple[str, dict[str, str]]) -> Iterator[Served]:
    url, tokens = app
    root = f"file://{airflow_home.HOME / request.module.__name__}"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sluice.declaration.project._imported", {})  # What this process has loaded.
        patch.setenv("SLUICE_PIPELINES", str(PACKAGE))
        patch.setenv("SLUICE_ROOT", root)
        patch.setenv("SLUICE_CACHE_DIR", str(airflow_home.HOME / "browser-cache"))
        yield Served(url, tokens["uwe"], root, tokens["vera"])


@pytest.fixture(scope="module", name="job")
def _job(served: Served) -> Job:
    """``auctions``: 1 completed, 2 a savepoint, 3 failed, 4 waits for the stage rank_bids."""
    job = auctions_in(served.root, a_pipeline(events=1_000, tolerable_failed_checkpoints=9))
    take(job, trigger_one(job))
    savepoint = CheckpointType.SAVEPOINT
    take(job, trigger_one(job, type=savepoint, savepoint_name="before", is_periodic=False))
    expired = CheckpointFailureReason.CHECKPOINT_EXPIRED
    third = trigger_one(job).checkpoint_id
    job.answers.keep_failure(
        TaskFailure(
            checkpoint_id=third,
            task="count_bids.snapshot",
            attempt=1,
            message="bids.py line 7: KeyError: 'price'",
            stack="KeyError: 'price'\n  File \"bids.py\", line 7, in price",
        )
    )
    fail_checkpoint(job, third, expired, "rank_bids did not acknowledge")
    run_stages(job, trigger_one(job), "count_bids")
    return job


@pytest.fixture(scope="session", name="browser")
def _browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    program = found_browser()
    if program is None:
        pytest.skip(NEEDS)
    with chromium(program, tmp_path_factory.mktemp("chromium")) as tab:
        yield tab


@pytest.fixture(scope="module", name="tab")
def _tab(browser: Tab, served: Served, job: Job) -> Iterator[Tab]:
    """As if the browser were new; between files it shows nothing, and asks for nothing."""
    browser.send("Storage.clearDataForOrigin", origin=served.url, storageTypes="all")
    browser.send("Network.setCookie", name="_token", value=served.token, url=served.url)
    yield browser
    browser.send("Page.navigate", url="about:blank")


@pytest.fixture(autouse=True)
def _nothing_fails(tab: Tab) -> None:
    tab.errors.clear()
    tab.failed.clear()
    tab.posts.clear()
    tab.look()


def says(tab: Tab, words: str) -> None:
    tab.until(f"{TEXT}.includes({words!r})")


def show(tab: Tab, served: Served, page: str, heading: str) -> None:
    tab.open(f"{served.url}/sluice/pages/#/{page}")
    tab.until(f"{PLACE}.querySelector('h2').textContent === {heading!r}")


def check_everybody_can_use_it(tab: Tab) -> None:
    """What is shown has no violation of a rule of axe-core."""
    tab.until(f"!{PLACE}.querySelector('.loading')")
    if not tab.evaluate("'axe' in window"):
        tab.evaluate(f"{AXE}; 0")
    found = tab.evaluate(
        """axe.run().then(({ violations }) => violations.map(
            ({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).slice(0, 3).join(" ")}`))"""
    )
    assert found == []
