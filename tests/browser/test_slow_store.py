"""A page over a store that does not answer: what Airflow knows at once, the rest when it comes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.chromium import Tab
from harness.s3_server import S3Server, as_environment
from tests.airflow.rest import PACKAGE
from tests.browser.conftest import Served, says, show

pytestmark = pytest.mark.filterwarnings("ignore")  # Airflow's whole API is built in this process.
ROOT = "s3://slow/jobs"


@pytest.fixture(scope="module", name="store")
def _store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server(tmp_path_factory.mktemp("s3"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module", name="served")
def _served(store: S3Server, app: tuple[str, dict[str, str]]) -> Iterator[Served]:
    url, tokens = app
    with as_environment(store, "slow"), pytest.MonkeyPatch.context() as patch:
        patch.setattr("sluice.declaration.project._imported", {})
        patch.setenv("SLUICE_PIPELINES", str(PACKAGE))
        patch.setenv("SLUICE_ROOT", ROOT)
        yield Served(url, tokens["uwe"], ROOT, tokens["vera"])


@pytest.mark.timeout(600)
def test_a_page_shows_what_is_known_at_once_and_the_rest_when_it_comes(
    tab: Tab, served: Served, store: S3Server
) -> None:
    with store.frozen():
        show(tab, served, "p/auctions/overview", "Overview")
        says(tab, "Driven by Airflow")
        says(tab, "The store is slow")
        says(tab, f"the store {ROOT} has not answered all of what was asked")
        says(tab, "The rest is shown when it comes")
    says(tab, "Newest completed checkpoint")
    says(tab, "Latest completed")
    tab.evaluate("location.hash = '#/p/auctions/history'")
    says(tab, "rank_bids did not acknowledge")

    with store.frozen():
        tab.evaluate("location.hash = '#/p/auctions/overview'")
        says(tab, "Below is what was known before")
        says(tab, "Latest completed")
