"""``make bench-pages``: how soon the pages open over a thousand checkpoints and subtasks.

A job's bucket (harness/long_job.py) in a folder and on an S3 server; Airflow's API server with the
plugin, in a process of its own; a headless Chromium.  Each page is opened REPETITIONS times with
the browser's cache emptied (cold), and as often with it (warm): milliseconds from the navigation to
the moment when nothing is loading and its content is drawn, by the browser's own clock.  Then every
route that a page asked is asked as often, alone.  CPU time is that of the API server's process.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from rich.console import Console
from rich.table import Table

from bench.cpu import tree_cpu_s
from harness.api_server import ApiServer, prepared_airflow
from harness.chromium import Tab, chromium, found_browser
from harness.long_job import COMPLETED, PENDING, SAVEPOINT, a_long_job, copy_to
from harness.pages import Page, pages_of
from harness.s3_server import running_s3_server
from sluice.job.job import Job
from sluice.store.open import StoreLocation

REPETITIONS = int(os.environ.get("REPETITIONS") or 10)
STORES = (os.environ.get("STORES") or "folder,s3").split(",")
BAR_MS = 1_000
BUCKET = "bench"
PIPELINES = """
from harness.long_job import a_long_pipeline

auctions = a_long_pipeline()
"""
ACCOUNT = {
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "bench",
    "AWS_DEFAULT_REGION": "us-east-1",
}

# Looks every 5 ms, so that neither this process nor the debugging protocol is in the figure.
_WATCH = """(() => {{
    const ask = window.fetch;
    window.asking = 0;
    window.fetch = (...given) => {{
        window.asking += 1;
        return ask(...given).finally(() => {{ window.asking -= 1; }});
    }};
    const look = () => {{
        if ({is_open}) window.openedAfter = performance.now();
        else setTimeout(look, 5);
    }};
    look();
}})()"""
_ASKED = """performance.getEntriesByType('resource').map((one) => one.name)
    .filter((name) => name.includes('/sluice/api/'))"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one page, or of one route, in one state of the caches."""

    what: str
    wall_ms: Sequence[float]
    cpu_ms: float
    size_bytes: int | None = None

    @property
    def cells(self) -> list[str]:
        ordered = sorted(self.wall_ms)
        p95 = ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))]
        median = statistics.median(ordered)
        size = "" if self.size_bytes is None else f"{self.size_bytes / 1e3:,.0f}"
        over = "[red]" if median > BAR_MS else ""
        return [f"{over}{median:,.0f}", f"{p95:,.0f}", f"{self.cpu_ms:,.0f}", size]


def main() -> None:
    program = found_browser()
    assert program is not None, "no Chromium is installed: set SLUICE_BROWSER"
    os.environ.update(ACCOUNT)
    console = Console(width=120)
    with tempfile.TemporaryDirectory(prefix="sluice-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        began = time.monotonic()
        job = a_long_job()
        airflow = prepared_airflow(folder, pipelines=PIPELINES)
        console.print(f"made within {time.monotonic() - began:.0f} s")
        for store in STORES:
            with (
                _placed(job, store, folder) as (root, endpoint),
                airflow.serving(SLUICE_ROOT=root, AWS_ENDPOINT_URL_S3=endpoint) as server,
                chromium(program, folder / f"chromium-{store}") as tab,
            ):
                tab.send("Network.setCookie", name="_token", value=server.token, url=server.url)
                tab.look()
                _measure(console, server, tab, store)


@contextmanager
def _placed(job: Job, store: str, folder: Path) -> Iterator[tuple[str, str]]:
    """The root and the endpoint of a copy of the job's bucket."""
    if store == "folder":
        root = f"file://{folder / 'root'}"
        copy_to(StoreLocation(root=root), job)
        yield root, ""
        return
    with running_s3_server(folder / "s3") as endpoint:
        import boto3

        boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=BUCKET)
        root = f"s3://{BUCKET}/root"
        copy_to(StoreLocation(root=root, endpoint_url=endpoint), job)
        yield root, endpoint


def _measure(console: Console, server: ApiServer, tab: Tab, store: str) -> None:
    pages = pages_of("auctions", completed=COMPLETED, pending=PENDING, savepoint=SAVEPOINT)
    first_ms, _ = _opened(tab, server, pages[0])
    console.print(f"{store}: the first page after a start {first_ms:,.0f} ms")
    asked: dict[str, None] = {}
    opened = [
        _openings(tab, server, page, asked, is_cold=is_cold)
        for page in pages
        for is_cold in (True, False)
    ]
    _show(console, f"{store}: pages, opened", opened)
    answered = [_answers(server, path) for path in asked]
    _show(console, f"{store}: routes, asked alone", answered)
    console.print(f"load {os.getloadavg()[1]:.1f}; errors {tab.errors}, failed {tab.failed}")


def _openings(
    tab: Tab, server: ApiServer, page: Page, asked: dict[str, None], *, is_cold: bool
) -> Figures:
    before, wall_ms = tree_cpu_s(server.pid), []
    for _ in range(REPETITIONS):
        if is_cold:
            tab.send("Network.clearBrowserCache")
        opened_ms, routes = _opened(tab, server, page)
        wall_ms.append(opened_ms)
        asked.update(dict.fromkeys(routes))
    cpu_ms = 1e3 * (tree_cpu_s(server.pid) - before) / REPETITIONS
    state = "cold" if is_cold else "warm"
    return Figures(what=f"{page.name}, {state}", wall_ms=wall_ms, cpu_ms=cpu_ms)


def _opened(tab: Tab, server: ApiServer, page: Page) -> tuple[float, list[str]]:
    """Milliseconds until it is open, and the routes that it asked."""
    watch = _WATCH.format(is_open=page.is_open)
    script = tab.send("Page.addScriptToEvaluateOnNewDocument", source=watch)["identifier"]
    try:
        tab.open(f"{server.url}/sluice/pages/#/{page.address}")
        opened_ms = float(tab.until("window.openedAfter"))
        tab.until("window.asking === 0")  # The server would go on, beside the next opening.
        routes = tab.evaluate(_ASKED)
    finally:
        tab.send("Page.removeScriptToEvaluateOnNewDocument", identifier=script)
        tab.open("about:blank")  # It asks no more.
    return opened_ms, routes


def _answers(server: ApiServer, url: str) -> Figures:
    headers = {"Authorization": f"Bearer {server.token}"}
    wall_ms, size = [], 0
    with httpx.Client(headers=headers, trust_env=False, timeout=60) as client:
        client.get(url)  # The connection.
        before = tree_cpu_s(server.pid)
        for _ in range(REPETITIONS):
            began = time.perf_counter()
            answer = client.get(url).raise_for_status()
            wall_ms.append(1e3 * (time.perf_counter() - began))
            size = len(answer.content)
        cpu_ms = 1e3 * (tree_cpu_s(server.pid) - before) / REPETITIONS
    place = urlsplit(url)
    path = place.path.partition("/api/v1/")[2] + (f"?{place.query}" if place.query else "")
    return Figures(what=path, wall_ms=wall_ms, cpu_ms=cpu_ms, size_bytes=size)


def _show(console: Console, title: str, found: Sequence[Figures]) -> None:
    table = Table("", "median ms", "p95 ms", "CPU ms of the API server", "kB", title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    for one in found:
        table.add_row(one.what, *one.cells)
    console.print(table)


if __name__ == "__main__":
    main()
