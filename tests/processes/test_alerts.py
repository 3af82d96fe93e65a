"""Each alert that ships, provoked: a job in trouble, its metrics by the minute, and promtool.

The jobs are real, in memory and on a clock of their own; what a stage measured is given.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from harness.jobs import ManualClock, a_job, a_pipeline, trigger_one
from sluice.cli.show import count_orphans
from sluice.coordinator.completion import finalize
from sluice.coordinator.restore import stop
from sluice.coordinator.submission import configure, submit
from sluice.core.answers import SubtaskMetrics
from sluice.core.configuration import JobStatus
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.pipeline import Pipeline
from sluice.job.job import Job
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.surface.monitoring import metrics_text
from tests.subtasks import acknowledge, finish, measure, take_checkpoint, take_checkpoints

FOLDER = Path(__file__).parents[2] / "docs" / "monitoring"
RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule
    for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
}
BEGIN = 20  # Minutes on the clock of the job, and on promtool's, which begins at 0.
DAY = 24 * 60

# Minutes for which the job stays as it is, once the generator has gone on.
Story = Iterator[int]


def no_checkpoint_completed(job: Job, _: Path) -> Story:
    take_checkpoint(job)
    yield 2
    trigger_one(job)
    yield 10


def job_failed(job: Job, _: Path) -> Story:
    take_checkpoint(job)
    yield 2
    stop(job, JobStatus.FAILED)
    yield 2


def job_unreadable(job: Job, _: Path) -> Story:
    take_checkpoint(job)
    yield 2
    job.store.put(job.paths.journal_entry(9_999), b"no journal entry")
    yield 8


def state_grows(job: Job, _: Path) -> Story:
    measure(job, SubtaskMetrics(full_bytes=6 * 10**8), SubtaskMetrics(full_bytes=6 * 10**8))
    yield DAY
    measure(job, SubtaskMetrics(full_bytes=2 * 10**9), SubtaskMetrics(full_bytes=6 * 10**8))
    yield 90


def lag_grows(job: Job, folder: Path) -> Story:
    for minute in range(60):
        (folder / f"{minute:02}.json").write_text('{"k": 1}\n' * 40)
        plan = trigger_one(job)
        for task in plan.tasks:
            acknowledge(job, plan, task.uid)
        finish(job, plan.checkpoint_id)
        yield 1


def commits_fail(job: Job, _: Path) -> Story:
    take_checkpoint(job)
    yield 2
    plan = trigger_one(job)
    for task in plan.tasks:
        acknowledge(job, plan, task.uid)
    finalize(job, plan.checkpoint_id)
    yield 15


def orphans(job: Job, folder: Path) -> Story:
    subsumed, *_ = take_checkpoints(job, 8)
    yield 2
    left = folder / job.paths.checkpoint(subsumed) / "left"
    left.parent.mkdir(parents=True, exist_ok=True)
    with left.open("wb") as file:
        file.truncate(1_100_000_000)  # It takes no space.
    os.utime(left, (0, 0))
    yield DAY + 120


STORIES: dict[str, Callable[[Job, Path], Story]] = {
    "SluiceNoCheckpointCompleted": no_checkpoint_completed,
    "SluiceJobFailed": job_failed,
    "SluiceJobUnreadable": job_unreadable,
    "SluiceStateGrows": state_grows,
    "SluiceLagGrows": lag_grows,
    "SluiceCommitsFail": commits_fail,
    "SluiceOrphans": orphans,
}
LABELS = {
    "SluiceJobFailed": {"status": "FAILED"},
    "SluiceStateGrows": {"stage": "count_bids"},
    "SluiceLagGrows": {"source": "events"},
}


def of_files(folder: Path) -> Pipeline:
    """Ten lines an epoch."""
    pipeline = Pipeline("auctions", checkpointing=Checkpointing(max_records_per_epoch=10))
    events = pipeline.source("events", Files(f"file://{folder}", format="json", schema="k int",
                                             bounded=False))  # fmt: skip
    events.key_by("k").aggregate("count_bids", n=agg.count()).sink(
        "results", FilesTable(changelog=True)
    )
    return pipeline


def by_the_minute(job: Job, clock: ManualClock, story: Story) -> dict[str, list[str]]:
    """The values of each series, from promtool's first minute on; "_" is none."""
    series: dict[str, list[str]] = {}
    minute = BEGIN
    for minutes in story:
        page = metrics_text([job], count_orphans)
        for family in text_string_to_metric_families(page):
            for name, labels, value, *_ in family.samples:
                inner = ", ".join(f'{key}="{one}"' for key, one in labels.items())
                values = series.setdefault(f"{name}{{{inner}}}", [])
                values += ["_"] * (minute - len(values))
                values += [f"{value!r}"] * minutes
        minute += minutes
        clock.now_ms = minute * 60_000
    return series


def said(rule: dict[str, Any], labels: dict[str, str]) -> dict[str, str]:
    return {
        name: re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: labels[found[1]], text)
        for name, text in rule["annotations"].items()
    }


def test_each_alert_has_a_story() -> None:
    assert STORIES.keys() == RULES.keys()


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Debian's prometheus has promtool")
@pytest.mark.parametrize("alert", RULES)
def test_an_alert_fires_over_the_metrics_of_a_job_in_trouble(alert: str, tmp_path: Path) -> None:
    clock, files = ManualClock(BEGIN * 60_000), tmp_path / "files"
    files.mkdir()
    pipeline = of_files(files) if alert == "SluiceLagGrows" else a_pipeline(events=10_000)
    root = f"file://{files}" if alert == "SluiceOrphans" else None
    job = a_job(pipeline, root=root, clock=clock)
    submit(job, configure(job.pipeline, {}))
    series = by_the_minute(job, clock, STORIES[alert](job, files))
    last = max(map(len, series.values())) - 1
    labels = {"pipeline": "auctions", "severity": RULES[alert]["labels"]["severity"]}
    labels |= LABELS.get(alert, {})
    fired = {"exp_labels": labels, "exp_annotations": said(RULES[alert], labels)}
    case = {
        "rule_files": [str(FOLDER / "alerts.yml")],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": name, "values": " ".join(values)} for name, values in series.items()
                ],
                "alert_rule_test": [
                    {"eval_time": f"{BEGIN}m", "alertname": alert, "exp_alerts": []},
                    {"eval_time": f"{last}m", "alertname": alert, "exp_alerts": [fired]},
                ],
            }
        ],
    }
    (tmp_path / "case.yml").write_text(yaml.safe_dump(case))

    done = subprocess.run(
        ["promtool", "test", "rules", "case.yml"],
        cwd=tmp_path, check=False, capture_output=True, text=True, timeout=300,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
