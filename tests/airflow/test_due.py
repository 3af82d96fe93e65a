"""What starts the runs of a checkpoint DAG: once for a checkpoint, and again if none came of it."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from sluice.coordinator.restore import stop
from sluice.core.configuration import JobStatus
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError, StoreUnavailable
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice_airflow import due as sluice_airflow_due
from sluice_airflow.compat import AirflowSkipException
from sluice_airflow.declared import LatestDeclarations
from sluice_airflow.due import CheckpointDueTrigger
from sluice_airflow.operators import CommitOperator, FinalizeOperator
from sluice_airflow.polls import ERROR_S, FIRST_PATIENCE_S, OF_ALL, POLL_S, DueWatch
from sluice_airflow.stage import SnapshotOperator
from sluice_airflow.trigger_task import TriggerOperator
from tests.airflow.acts import a_checkpoint, a_context, execute, trigger
from tests.airflow.stand_in import StandInSpark, a_job, a_pipeline
from tests.patching import replace_in

INTERVAL_S = 15.0

DECLARATION = """
from sluice.declaration.pipeline import Pipeline
from sluice.sources import Nexmark
pipeline = Pipeline("drawn")
pipeline.source("events", Nexmark({events}))
"""


class Seconds:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class AWatch:
    """A watch of the job in *root*, whose runs and whose clock the test decides."""

    def __init__(self, pipeline: Pipeline | None = None, *, interval_s: float = 0.0) -> None:
        self.clock, self.active, self.problem = Seconds(), 0, ""
        self._pipeline = pipeline or a_pipeline()
        self.watch = DueWatch(
            declared=self._declared,
            interval_s=interval_s,
            max_concurrent=1,
            active_runs=lambda: self.active,
            clock=self.clock,
        )

    def _declared(self) -> Pipeline:
        if self.problem:
            raise StoreUnavailable(self.problem)
        return self._pipeline

    def event(self, *, after_s: float = 0.0) -> dict[str, str] | None:
        self.clock.now += after_s
        return self.watch.poll().event


def test_a_due_checkpoint_starts_one_run_and_another_if_none_came_of_it(
    root: str, spark: StandInSpark
) -> None:
    a_checkpoint("run-1")
    on = AWatch()

    told = [on.event(), on.event(after_s=10), on.event(after_s=10)]

    due = {"due": "new records in events"}
    assert told == [due, None, due]


def test_a_run_that_is_under_way_is_waited_for(root: str, spark: StandInSpark) -> None:
    a_checkpoint("run-1")
    on = AWatch()
    on.active = 1
    meanwhile = on.event()
    on.active = 0

    assert meanwhile is None
    assert on.event() is not None


def test_each_checkpoint_is_told_anew(root: str, spark: StandInSpark) -> None:
    a_checkpoint("run-1")
    on = AWatch()
    first = on.event()
    trigger(run_id="run-2")
    pending = on.event()

    assert first is not None
    assert pending is None
    assert on.watch.poll().message == "checkpoint 2 is still pending"


def test_the_first_run_is_left_to_the_timetable_for_a_minute(root: str) -> None:
    on = AWatch(interval_s=INTERVAL_S)

    assert [on.event(), on.event(after_s=FIRST_PATIENCE_S - 1)] == [None, None]
    assert on.event(after_s=1) == {"due": "the job was never submitted"}


@pytest.mark.parametrize("status", [JobStatus.SUSPENDED, JobStatus.CANCELED])
def test_a_job_that_ended_starts_no_run(root: str, spark: StandInSpark, status: JobStatus) -> None:
    a_checkpoint("run-1")
    stop(a_job(root), status)
    on = AWatch()

    assert [on.event(after_s=3600) for _ in range(3)] == [None] * 3


def test_an_error_that_lasts_starts_a_run_that_says_it(root: str, spark: StandInSpark) -> None:
    a_checkpoint("run-1")
    on = AWatch()
    on.problem = "no route to the store"

    told = [on.event(), on.event(after_s=ERROR_S - 1), on.event(after_s=1)]

    assert told == [None, None, {"due": "StoreUnavailable: no route to the store"}]
    on.problem = ""
    assert on.event() == {"due": "new records in events"}


def test_an_outage_starts_ever_fewer_runs_and_its_end_is_no_reason_to_wait(
    root: str, spark: StandInSpark
) -> None:
    a_checkpoint("run-1")
    on = AWatch()
    on.problem = "no route to the store"

    hour = [on.event(after_s=1) is not None for _ in range(3_600)]
    on.problem = ""

    assert [second for second, is_told in enumerate(hour) if is_told][:4] == [3, 33, 93, 213]
    assert sum(hour) < 12
    assert on.event() == {"due": "new records in events"}


def test_many_watches_of_one_process_share_a_part_of_one_core(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter([0.0, 3.0, *[0.0, 0.004] * 2])
    replace_in(monkeypatch, "sluice_airflow.polls", "time", thread_time=lambda: next(ticks))
    on = AWatch()

    first, alone, of_many = (on.watch.poll(watches=number) for number in (1, 1, 200))

    assert first.pause_s == alone.pause_s == POLL_S
    assert of_many.pause_s == pytest.approx(200 * 0.004 / OF_ALL)


def test_two_looks_that_import_are_not_rested_from_for_minutes(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter([0.0, 3.0] * 2)
    replace_in(monkeypatch, "sluice_airflow.polls", "time", thread_time=lambda: next(ticks))
    on = AWatch()

    on.watch.poll()

    assert on.watch.poll().pause_s == pytest.approx(3.0 / OF_ALL)  # Not 180 s.


def test_records_that_arrive_fire_the_trigger(
    root: str, spark: StandInSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_checkpoint("run-1")

    class Declared:
        def pipeline(self, uid: str) -> Pipeline:
            return {"demo": a_pipeline()}[uid]

    monkeypatch.setattr(sluice_airflow_due, "_declarations", lambda said: Declared())
    monkeypatch.setattr(CheckpointDueTrigger, "_active_runs", lambda self: 0)

    async def first_event() -> object:
        running = CheckpointDueTrigger(pipeline="demo", interval_s=0.0).run()
        fired = await asyncio.wait_for(anext(running), 10)
        await running.aclose()  # type: ignore[attr-defined]
        return fired.payload

    assert asyncio.run(first_event()) == {"due": "new records in events"}


def test_the_wire_format_of_the_trigger_does_not_change() -> None:
    before = CheckpointDueTrigger(pipeline="demo", interval_s=15.0, pipelines="/srv/pipelines")

    path, kwargs = before.serialize()

    assert path == "sluice_airflow.due.CheckpointDueTrigger"
    assert kwargs == {
        "pipeline": "demo", "interval_s": 15.0, "max_concurrent": 1, "pipelines": "/srv/pipelines",
    }  # fmt: skip
    assert CheckpointDueTrigger(**kwargs).serialize() == before.serialize()


def test_an_event_that_comes_too_early_waits_for_the_rest_of_the_interval(
    root: str, spark: StandInSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_checkpoint("run-1")
    slept: list[float] = []
    replace_in(monkeypatch, "sluice_airflow.trigger_task", "time", sleep=slept.append)
    soon = TriggerOperator(task_id="trigger", pipeline=a_pipeline(interval=timedelta(seconds=4)))
    late = TriggerOperator(task_id="trigger", pipeline=a_pipeline(interval=timedelta(hours=1)))

    with pytest.raises(AirflowSkipException, match="the interval lasts 3"):
        late.execute(a_context(run_id="run-2", run_type="asset_triggered"))
    done = soon.execute(a_context(run_id="run-3", run_type="asset_triggered"))

    assert done["checkpoint_id"] == 2
    assert 0 < slept[0] <= 4


def test_a_cron_is_part_of_the_wire_format_and_tells_its_latest_moment() -> None:
    cron = ["0 2 * * *", "Europe/Berlin"]
    _, kwargs = CheckpointDueTrigger(pipeline="demo", interval_s=0.0, cron=cron).serialize()

    latest_ms = sluice_airflow_due.latest_ticks(*CheckpointDueTrigger(**kwargs).cron or ())()

    latest = datetime.fromtimestamp(latest_ms / 1_000, ZoneInfo("Europe/Berlin"))
    assert kwargs["cron"] == cron
    assert (latest.hour, latest.minute) == (2, 0)
    assert timedelta(0) <= datetime.now(UTC) - latest <= timedelta(hours=25)


@pytest.fixture(name="package")
def _package(tmp_path: Path) -> Path:
    folder = tmp_path / f"drawn_{os.getpid()}_pipelines"
    folder.mkdir()
    (folder / "one.py").write_text(DECLARATION.format(events=1))
    return folder


def test_a_declaration_that_changed_is_imported_again(package: Path) -> None:
    latest = LatestDeclarations(str(package), stamp_s=0)
    before = latest.pipeline("drawn")
    again = latest.pipeline("drawn")
    (package / "one.py").write_text(DECLARATION.format(events=2_000))
    after = latest.pipeline("drawn")

    assert again is before
    assert before.sources["events"] != after.sources["events"]
    with pytest.raises(ConfigurationError, match="'nobody' cannot be loaded in this process"):
        latest.pipeline("nobody")


def a_folder_pipeline(folder: Path) -> Pipeline:
    pipeline = Pipeline("demo", checkpointing=Checkpointing(interval=timedelta(milliseconds=10)))
    lines = pipeline.source("lines", Files(f"{folder}/", bounded=False))
    lines.transform("copied", lambda rows: rows).sink("counts", FilesTable())
    return pipeline


def test_it_takes_checkpoint_1_of_no_records(
    root: str, spark: StandInSpark, tmp_path: Path
) -> None:
    pipeline = a_folder_pipeline(tmp_path)

    done = execute(TriggerOperator, pipeline=pipeline)

    assert done == {"checkpoint_id": 1, "records": 0, "parent": None, "type": "CHECKPOINT"}


def test_a_later_run_of_airflows_own_that_finds_nothing_is_skipped(
    root: str, spark: StandInSpark, tmp_path: Path
) -> None:
    pipeline = a_folder_pipeline(tmp_path)
    execute(TriggerOperator, pipeline=pipeline)
    for stage in pipeline.stages:
        SnapshotOperator(task_id="snapshot", pipeline=pipeline, stage=stage).execute(a_context())
    for operator in (FinalizeOperator, CommitOperator):
        execute(operator, pipeline=pipeline)

    with pytest.raises(AirflowSkipException, match="no new"):
        execute(TriggerOperator, pipeline=pipeline, run_id="run-2", run_type="asset_triggered")
