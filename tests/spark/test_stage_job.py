"""``spark_jobs/run_stage.py``: a stage of a pending checkpoint as an application of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.coordinator.trigger import Triggered, trigger
from sluice.job.job import Job

SCRIPT = Path(__file__).resolve().parents[2] / "spark_jobs" / "run_stage.py"


def test_the_submitted_job_acknowledges_every_subtask_of_its_chain(
    submitted: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a local master its workers run the Python of the application, which has sluice."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    job = submitted("auctions", parallelism=2, max_records=500, events=500)
    outcome = trigger(job)
    assert isinstance(outcome, Triggered)
    arguments = ["auctions", str(outcome.plan.checkpoint_id), "bid_statistics", "1"]

    subprocess.run(
        [sys.executable, str(SCRIPT), *arguments, "--root", job.store.root],
        check=True,
        capture_output=True,
        timeout=300,
    )

    answers = job.answers.observe(outcome.plan.checkpoint_id, outcome.plan.token)
    assert answers.answered == {("bid_statistics", 1), ("category_ranking", 1)}
