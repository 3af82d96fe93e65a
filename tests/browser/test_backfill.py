"""The dialog of a backfill in a real browser, of a pipeline whose input may be replaced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.chromium import Tab
from harness.jobs import a_pipeline
from sluice.declaration import aggregates as agg
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.project import Declarations
from sluice.job.job import Job
from sluice.sources import Files
from sluice_airflow.rest.jobs import DECLARED
from tests.airflow.rest import auctions_in
from tests.browser.conftest import Served, check_everybody_can_use_it, show
from tests.browser.test_buttons import CONFIRM, DIALOG, ask, confirm, posts

pytestmark = pytest.mark.filterwarnings("ignore")  # Airflow's whole API is built in this process.


@pytest.fixture(scope="module", name="job")
def _job(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """``auctions``, over a partition that may be replaced."""
    folder = tmp_path_factory.mktemp("input")
    (folder / "day=1").mkdir()
    (folder / "day=1" / "a.json").write_text('{"k": 1}\n{"k": 2}\n')
    pipeline = a_replaceable(folder)
    with pytest.MonkeyPatch.context() as patch:
        declared = Declarations(pipelines={pipeline.uid: pipeline}, problems={})
        patch.setattr(DECLARED, "load", lambda: declared)
        yield auctions_in(served.root, pipeline)


def a_replaceable(folder: Path) -> Pipeline:
    pipeline = Pipeline(a_pipeline().uid)
    files = Files(
        str(folder), format="json", schema="k int", bounded=False, replaced="by partition"
    )
    pipeline.source("rows", files).key_by("k").aggregate("counts", n=agg.count())
    return pipeline


def test_a_backfill_says_first_what_would_be_read_again(tab: Tab, served: Served) -> None:
    show(tab, served, "p/auctions/overview", "Overview")
    ask(tab, "Backfill")
    tab.evaluate(f"{DIALOG}.querySelector('[name=input]').value = 'day=1'")
    tab.evaluate(f"{DIALOG}.querySelector('[name=dry-run]').click()")
    tab.until(f"{CONFIRM}.textContent === 'Say what would be read again'")
    check_everybody_can_use_it(tab)

    confirm(tab)

    tab.until(f"{DIALOG}.textContent.includes('Nothing is asked for yet.')")
    told = tab.evaluate(f"{DIALOG}.textContent")
    assert "0 rows of 0 files are taken back" in told
    assert "of 1 files are read. These go to counts." in told
    assert posts(tab) == ["backfill"]
    assert tab.errors == []


def test_a_backfill_that_names_nothing_is_refused_in_its_dialog(tab: Tab, served: Served) -> None:
    show(tab, served, "p/auctions/overview", "Overview")
    ask(tab, "Backfill")
    tab.evaluate(f"{DIALOG}.querySelector('[name=input]').value = 'day=7'")

    confirm(tab)

    tab.until(f"{DIALOG}.textContent.includes('no file that was read, or is there, is in day=7')")
