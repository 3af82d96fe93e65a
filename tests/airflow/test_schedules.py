"""When a checkpoint DAG runs, and the barriers that its asset events decide."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pendulum
import pytest
from airflow.timetables.base import DataInterval, TimeRestriction
from hypothesis import given
from hypothesis import strategies as st

from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.schedules import Continuous, Cron, OnAsset, Orchestration, Watcher
from sluice.errors import ConfigurationError
from sluice.job.places import open_source
from sluice.sinks import FilesTable
from sluice.sources import Nexmark
from sluice_airflow.compat import AirflowFailException
from sluice_airflow.dag_factory import dags_of
from sluice_airflow.due import NewFilesTrigger
from sluice_airflow.timetable import CheckpointTimetable
from sluice_airflow.trigger_task import TriggerOperator
from tests.airflow.acts import a_context
from tests.airflow.releases import DagSerialization
from tests.airflow.stand_in import StandInSpark, a_job, a_pipeline

ANY_TIME = TimeRestriction(earliest=None, latest=None, catchup=False)


def first_run(timetable: CheckpointTimetable) -> datetime:
    info = timetable.next_dagrun_info(last_automated_data_interval=None, restriction=ANY_TIME)
    assert info is not None
    run_after: datetime = info.run_after
    return run_after


@given(uid=st.text("abcdefgh_", min_size=1), milliseconds=st.integers(10, 10**8))
def test_the_first_run_comes_within_one_interval_and_always_at_the_same_phase(
    uid: str, milliseconds: int
) -> None:
    interval = timedelta(milliseconds=milliseconds)
    timetable = CheckpointTimetable.of(uid, interval)

    before = datetime.now(UTC)
    runs = [first_run(timetable) for _ in range(2)]
    after = datetime.now(UTC)

    assert before <= runs[0]
    assert runs[1] <= after + interval
    phases = {
        timedelta(seconds=0, microseconds=round(run.timestamp() * 1e6)) % interval for run in runs
    }
    assert len(phases) == 1


def test_pipelines_that_start_together_do_not_run_together() -> None:
    interval = timedelta(minutes=1)

    runs = [first_run(CheckpointTimetable.of(f"pipeline_{n}", interval)) for n in range(60)]

    per_ten_seconds = [sum(run.second // 10 == part for run in runs) for part in range(6)]
    assert all(3 <= count <= 25 for count in per_ten_seconds), per_ten_seconds


def test_the_clock_starts_the_first_run_only() -> None:
    last = DataInterval.exact(pendulum.now("UTC").subtract(hours=3))

    info = CheckpointTimetable(timedelta(seconds=10)).next_dagrun_info(
        last_automated_data_interval=last, restriction=ANY_TIME
    )

    assert info is None


def test_nothing_runs_after_the_end_of_the_dag() -> None:
    over = TimeRestriction(earliest=None, latest=pendulum.now("UTC").subtract(days=1), catchup=True)

    timetable = CheckpointTimetable(timedelta(seconds=10))

    assert timetable.next_dagrun_info(last_automated_data_interval=None, restriction=over) is None


@pytest.mark.parametrize(
    ("schedule", "summary"),
    [
        (None, "Asset or 0:00:01"),
        (Continuous(), "Asset or 0:00:01"),
        (Cron("*/5 * * * *"), "Asset or */5 * * * *"),
        (OnAsset(uri="sluice://up/tables/orders"), "Asset"),
    ],
)
def test_every_schedule_survives_the_database(schedule: object, summary: str) -> None:
    pipeline = a_pipeline(interval=timedelta(milliseconds=500), schedule=schedule)
    dag = dags_of(pipeline)[0]

    written = json.loads(json.dumps(DagSerialization.to_dict(dag)))
    read = DagSerialization.from_dict(written)

    assert read.timetable.summary == summary
    assert DagSerialization.to_dict(dag) == DagSerialization.to_dict(dags_of(pipeline)[0])


def test_an_interval_is_an_event_that_a_trigger_watches_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sluice_airflow.dag_factory.loaded_package", lambda: None)
    asked = []
    for schedule in (None, Continuous()):
        dag = dags_of(a_pipeline(interval=timedelta(seconds=7), schedule=schedule))[0]
        written = DagSerialization.to_dict(dag)["dag"]["timetable"]["__var"]["asset_condition"]
        watcher = written["objects"][0]["watchers"][0]
        asked.append((written["objects"][0]["uri"], watcher["name"], watcher["trigger"]["kwargs"]))

    once = {"pipeline": "demo", "max_concurrent": 1, "pipelines": None}
    assert asked == [
        ("sluice://demo/due", "demo_due", once | {"interval_s": 7.0}),
        ("sluice://demo/due", "demo_due", once | {"interval_s": 0.0}),
    ]


def test_a_watcher_is_part_of_the_asset() -> None:
    watcher = Watcher(trigger="sluice_airflow.due.NewFilesTrigger", arguments={"uri": "file:///in"})
    dag = dags_of(a_pipeline(schedule=OnAsset(uri="file:///in", watcher=watcher)))[0]

    written = json.dumps(DagSerialization.to_dict(dag))

    assert "sluice_airflow.due.NewFilesTrigger" in written
    assert "demo_barriers" in written


@pytest.mark.parametrize("path", ["sluice_airflow.due.NoSuch", "no_such_module.Trigger"])
def test_a_watcher_that_cannot_be_built_is_named(path: str) -> None:
    schedule = OnAsset(uri="file:///in", watcher=Watcher(trigger=path))

    with pytest.raises(ConfigurationError, match=f"the watcher '{path}' cannot be built"):
        dags_of(a_pipeline(schedule=schedule))


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: Cron(" "), "empty expression"),
        (lambda: Cron("every day"), "'every day', which is no cron expression; write minute"),
        (lambda: Cron("0 24 * * *"), "'0 24 \\* \\* \\*', which is no cron expression"),
        (
            lambda: Cron("@daily", timezone="Europe/Berln"),
            "timezone 'Europe/Berln', which is none; write one as 'Europe/Berlin'",
        ),
        (lambda: Cron("@daily", timezone="Europe"), "timezone 'Europe', which is none"),
        (lambda: Cron("@daily", timezone=""), "timezone '', which is none"),
        (lambda: OnAsset(uri=""), "empty uri"),
        (lambda: Watcher(trigger="not a path"), "write the class path"),
        (lambda: Orchestration(pool=""), "pool is empty"),
        (lambda: Orchestration(priority_weight=0), "use 1 to"),
        (
            lambda: Checkpointing(schedule=Continuous(), max_concurrent_checkpoints=2),
            "Airflow runs one continuous run at a time",
        ),
        (lambda: Checkpointing(schedule="@daily"), "schedule is '@daily'.*; use Continuous"),  # type: ignore[arg-type]  # on purpose
    ],
)  # fmt: skip
def test_a_bad_declaration_is_refused_with_the_fix(
    build: Callable[[], object], sentence: str
) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        build()


def test_pool_priority_queue_and_tags_reach_the_tasks() -> None:
    pipeline = a_pipeline()
    pipeline.orchestration = Orchestration(
        pool="spark", priority_weight=7, queue="big", tags=("team-a",)
    )

    dags = dags_of(pipeline)

    pools = {task.task_id: task.pool for task in dags[0].tasks}
    assert pools["bids.snapshot"] == pools["by_auction.snapshot"] == "spark"
    assert pools["trigger"] == pools["finalize"] == "default_pool"
    assert {task.priority_weight for dag in dags for task in dag.tasks} == {7}
    assert {task.queue for dag in dags for task in dag.tasks} == {"big"}
    assert all("team-a" in dag.tags for dag in dags)


def an_event(**extra: object) -> dict[str, list[SimpleNamespace]]:
    return {"sluice://up/tables/orders": [SimpleNamespace(extra=extra)]}


def an_induced_pipeline() -> Pipeline:
    pipeline = Pipeline(
        "demo", checkpointing=Checkpointing(schedule=OnAsset(uri="sluice://up/tables/orders"))
    )
    events = pipeline.source("events", Nexmark(events=5_000), induced=True)
    events.key_by("auction").aggregate("counts", n=agg.count()).sink(
        "out", FilesTable(upsert_key=("auction",))
    )
    return pipeline


@pytest.mark.parametrize("wrapped", [False, True])
def test_an_asset_event_decides_the_barrier(root: str, spark: StandInSpark, wrapped: bool) -> None:
    pipeline = an_induced_pipeline()
    task = TriggerOperator(task_id="trigger", pipeline=pipeline)
    source = open_source(a_job(root, pipeline), "events", {})
    partition = source.plan((), max_records=1, parallelism=1).position[0].partition
    barriers = {"barriers": {"events": {partition: 300}}}
    event = an_event(payload=barriers) if wrapped else an_event(**barriers)

    result = task.execute(a_context(run_type="asset_triggered", events=event))

    assert result["records"] == 300


@pytest.mark.parametrize("extra", [{"rows": 3}, {"payload": True}, {"payload": "a message"}])
def test_an_event_without_a_barrier_leaves_an_induced_source_where_it_stands(
    root: str, extra: dict[str, object]
) -> None:
    """It is a request all the same, so there is a checkpoint, of no records.

    A watcher's payload is whatever its trigger yields: True of Airflow's ``FileDeleteTrigger``.
    """
    task = TriggerOperator(task_id="trigger", pipeline=an_induced_pipeline())
    context = a_context(run_type="asset_triggered", events=an_event(**extra))

    result = task.execute(context)

    assert (result["checkpoint_id"], result["records"]) == (1, 0)
    assert context["ti"].notes[-1].startswith("checkpoint 1 triggered at ")
    assert context["ti"].notes[-1].endswith(" UTC, 0 records")


def test_a_cron_starts_its_first_run_only_and_a_trigger_watches_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sluice_airflow.dag_factory.loaded_package", lambda: None)
    dag = dags_of(a_pipeline(schedule=Cron("0 2 * * *", timezone="Europe/Berlin")))[0]

    read = DagSerialization.from_dict(json.loads(json.dumps(DagSerialization.to_dict(dag))))
    written = DagSerialization.to_dict(dag)["dag"]["timetable"]["__var"]["asset_condition"]
    first = read.timetable.next_dagrun_info(last_automated_data_interval=None, restriction=ANY_TIME)
    later = read.timetable.next_dagrun_info(
        last_automated_data_interval=first.data_interval, restriction=ANY_TIME
    )

    asked = written["objects"][0]["watchers"][0]["trigger"]["kwargs"]
    assert asked["cron"] == ["0 2 * * *", "Europe/Berlin"]
    assert asked["interval_s"] == 0.0
    assert first.run_after.in_timezone("Europe/Berlin").hour == 2
    assert later is None


def test_barriers_of_another_form_are_refused_with_the_right_one(root: str) -> None:
    task = TriggerOperator(task_id="trigger", pipeline=an_induced_pipeline())

    with pytest.raises(AirflowFailException, match="write an end offset per source and partition"):
        task.execute(a_context(events=an_event(barriers={"events": 300})))


def test_new_files_are_events(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("1")

    async def look() -> list[object]:
        running = NewFilesTrigger(uri=f"file://{tmp_path}", poll_s=0.01).run()
        first = await asyncio.wait_for(anext(running), 10)
        (tmp_path / "two").write_text("22")
        second = await asyncio.wait_for(anext(running), 10)
        (tmp_path / "one").write_text("longer")
        third = await asyncio.wait_for(anext(running), 10)
        return [first.payload, second.payload, third.payload]

    assert asyncio.run(look()) == [
        {"files": 1, "changed": 1}, {"files": 2, "changed": 1}, {"files": 2, "changed": 1},
    ]  # fmt: skip


def test_the_wire_format_of_new_files_does_not_change() -> None:
    before = NewFilesTrigger(uri="s3://bucket/in", poll_s=2.0)

    path, kwargs = before.serialize()

    assert path == "sluice_airflow.due.NewFilesTrigger"
    assert kwargs == {"uri": "s3://bucket/in", "poll_s": 2.0, "endpoint_url": None}
    assert NewFilesTrigger(**kwargs).serialize() == before.serialize()
