"""axe-core finds nothing on any page, nor in the dialogs that ask before an act."""

from __future__ import annotations

import pytest

from harness.chromium import Tab
from harness.pages import PLACE
from tests.browser.conftest import Served, check_everybody_can_use_it, says, show
from tests.browser.test_buttons import DIALOG, ask
from tests.browser.test_pages import SHOWN

pytestmark = pytest.mark.filterwarnings("ignore")  # Airflow's whole API is built in this process.


@pytest.mark.parametrize("page", SHOWN)
def test_everybody_can_use_each_page_light_and_dark(tab: Tab, served: Served, page: str) -> None:
    heading, words = SHOWN[page]
    show(tab, served, page, heading)
    says(tab, words)
    check_everybody_can_use_it(tab)

    tab.look(theme="dark")
    tab.until(f"{PLACE}.host.dataset.theme === 'dark'")

    check_everybody_can_use_it(tab)


def test_everybody_can_use_the_dialog_of_a_restore(tab: Tab, served: Served) -> None:
    show(tab, served, "p/auctions/snapshots", "Snapshots")
    ask(tab, "Restore")
    tab.until(f"{DIALOG}.innerText.includes('records of ')")

    check_everybody_can_use_it(tab)


def test_a_violation_is_seen(tab: Tab, served: Served) -> None:
    show(tab, served, "", "Pipelines")
    tab.evaluate("document.body.append(document.createElement('button'))")

    with pytest.raises(AssertionError, match="button-name"):
        check_everybody_can_use_it(tab)
