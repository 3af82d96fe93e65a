"""``make pictures``: the documentation's screenshots, by a headless Chromium over real checkpoints.

``python -m harness.pictures FOLDER`` takes every page, in all of LOOKS, into a folder of one's own;
without it those that the documentation shows go to docs/images.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.api_server import REPOSITORY, ApiServer, prepared_airflow
from harness.chromium import Tab, chromium, found_browser
from harness.long_job import COMPLETED, PENDING, SAVEPOINT, a_long_job, copy_to
from harness.pages import PLACE, Page, pages_of
from sluice.store.open import StoreLocation

IMAGES = REPOSITORY / "docs" / "images"
PIPELINES = """
from harness.long_job import a_long_pipeline

auctions = a_long_pipeline()
"""
DRAWN_S = 0.4  # Behind the last element: charts fade in.


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    name: str
    width: int
    height: int
    theme: str


LOOKS = (
    Look(name="wide", width=1280, height=860, theme="light"),
    Look(name="wide-dark", width=1280, height=860, theme="dark"),
    Look(name="narrow", width=400, height=860, theme="light"),
    Look(name="narrow-dark", width=400, height=860, theme="dark"),
)
_, DARK, NARROW, _ = LOOKS

# What the documentation shows: the file, the page, how it looks.  In Airflow's frame: the overview.
SHOWN = (
    ("pages-overview", "overview", Look(name="framed", width=1280, height=740, theme="light")),
    ("pages-late", "late checkpoint", Look(name="high", width=1280, height=1040, theme="light")),
    ("pages-graph-dark", "graph", DARK),
    ("pages-history-narrow", "history", NARROW),
)
FRAMED = "pages-overview"


def main() -> None:
    program = found_browser()
    assert program is not None, "no Chromium is installed: set SLUICE_BROWSER"
    with tempfile.TemporaryDirectory(prefix="sluice-pictures-") as name:
        folder = Path(name)
        root = f"file://{folder / 'root'}"
        airflow = prepared_airflow(folder, pipelines=PIPELINES)
        copy_to(StoreLocation(root=root), a_long_job())
        with (
            airflow.serving(SLUICE_ROOT=root) as server,
            chromium(program, folder / "chromium") as tab,
        ):
            tab.send("Network.setCookie", name="_token", value=server.token, url=server.url)
            for path, page, look in _wanted(sys.argv[1:]):
                _take(tab, server, page, look, path)


def _wanted(arguments: list[str]) -> Iterator[tuple[Path, Page, Look]]:
    pages = pages_of("auctions", completed=COMPLETED, pending=PENDING, savepoint=SAVEPOINT)
    if not arguments:
        named = {page.name: page for page in pages}
        yield from ((IMAGES / f"{file}.png", named[page], look) for file, page, look in SHOWN)
        return
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for page in pages:
        for look in LOOKS:
            yield folder / f"{page.name.replace(' ', '-')}-{look.name}.png", page, look


def _take(tab: Tab, server: ApiServer, page: Page, look: Look, path: Path) -> None:
    tab.look(width=look.width, height=look.height, theme=look.theme)
    if path.stem == FRAMED:
        tab.open(f"{server.url}/dags/auctions/plugin/pipeline")
    else:
        tab.open(f"{server.url}/sluice/pages/#/{page.address}")
    tab.until(page.is_open)
    tab.evaluate(f"{PLACE}.activeElement?.blur()")
    time.sleep(DRAWN_S)
    tab.screenshot(path)


if __name__ == "__main__":
    main()
