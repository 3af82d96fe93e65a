"""``sluice metrics --listen`` answers each scrape with what the bucket says by then."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sluice.cli.options import declared_job
from sluice.coordinator.submission import configure, submit
from tests.contract.conftest import environment_with_sluice


@contextmanager
def server(root: str) -> Iterator[str]:
    """The address at which metrics of the pipeline *auctions* are served."""
    started = subprocess.Popen(
        [Path(sys.executable).with_name("sluice"), "metrics", "auctions", "--listen", "0"],
        env=environment_with_sluice() | {"SLUICE_ROOT": root},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert started.stdout is not None
        line = started.stdout.readline()
        yield re.findall(r"http://127\.0\.0\.1:\d+/metrics", line)[0]
    finally:
        started.terminate()
        started.communicate(timeout=60)


def scraped(address: str) -> str:
    with urllib.request.urlopen(address, timeout=60) as answer:  # noqa: S310 - what was printed
        return str(answer.read().decode())


def test_each_scrape_is_read_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = f"file://{tmp_path}"
    running = 'sluice_job_jobStatus{pipeline="auctions",status="RUNNING"}'

    with server(root) as address:
        before = scraped(address)
        job = declared_job("auctions", root, None)
        submit(job, configure(job.pipeline, {}))
        after = scraped(address)

    assert f"{running} 0.0" in before
    assert f"{running} 1.0" in after
