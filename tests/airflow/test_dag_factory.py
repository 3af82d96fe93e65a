"""The DAGs of a declaration are as drawn, survive serialization, and are cheap to parse."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta

import pytest
from airflow.sdk import DAG

from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing, fixed_delay
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError
from sluice.sinks import FilesTable
from sluice.sources import Nexmark
from sluice_airflow.dag_factory import build_dags, describe_pipeline, draw_pipeline
from sluice_airflow.watchdog import build_watchdog
from tests.airflow.conftest import REPOSITORY, run_python
from tests.airflow.releases import DagSerialization
from tests.airflow.stand_in import a_pipeline


def edges(dag: DAG) -> dict[str, set[str]]:
    return {task_id: set(task.downstream_task_ids) for task_id, task in dag.task_dict.items()}


def the_dags(*pipelines: Pipeline) -> Mapping[str, DAG]:
    declared = pipelines or (a_pipeline(),)
    return build_dags({pipeline.uid: pipeline for pipeline in declared})


def test_one_declaration_yields_all_its_dags() -> None:
    assert list(the_dags(a_pipeline("one"), a_pipeline("two"))) == [
        "one", "one__savepoint", "one__restore", "one__cancel",
        "two", "two__savepoint", "two__restore", "two__cancel",
    ]  # fmt: skip


@pytest.mark.parametrize("dag_id", ["demo", "demo__savepoint"])
def test_a_checkpoint_is_drawn_as_in_the_module(dag_id: str) -> None:
    assert edges(the_dags()[dag_id]) == {
        "trigger": {"bids.snapshot", "bids.await_acks", "by_auction.await_acks", "abort"},
        "bids.snapshot": {"by_auction.snapshot", "abort"},
        "bids.await_acks": {"by_auction.snapshot", "abort"},
        "by_auction.snapshot": {"finalize", "abort"},
        "by_auction.await_acks": {"finalize", "abort"},
        "finalize": {"commit", "abort"},
        "commit": {"export"} if dag_id == "demo__savepoint" else set(),
        **({"export": set()} if dag_id == "demo__savepoint" else {}),
        "abort": {"restart", "cancel_stages"},
        "restart": set(),
        "cancel_stages": set(),
    }


def test_in_unaligned_checkpoints_no_stage_waits_for_another() -> None:
    aligned_first = a_pipeline(unaligned=True, aligned_checkpoint_timeout=timedelta(seconds=1))

    assert edges(the_dags(a_pipeline(unaligned=True))["demo"])["trigger"] == {
        *("bids.snapshot", "bids.await_acks", "by_auction.snapshot", "by_auction.await_acks"),
        "abort",
    }
    assert edges(the_dags(aligned_first)["demo"])["bids.await_acks"] == {
        "by_auction.snapshot", "finalize", "abort",
    }  # fmt: skip


def test_as_many_runs_are_active_as_checkpoints_may_be_pending() -> None:
    dags = the_dags(a_pipeline(max_concurrent_checkpoints=3))

    assert (dags["demo"].max_active_runs, dags["demo__savepoint"].max_active_runs) == (3, 1)


def test_stages_that_read_the_same_stream_run_side_by_side() -> None:
    pipeline = a_pipeline()
    bids = pipeline.source("more", Nexmark()).transform("split", lambda rows: rows)
    bids.key_by("auction").aggregate("left", n=agg.count()).sink(
        "left_table", FilesTable(upsert_key=("auction",))
    )
    bids.key_by("bidder").aggregate("right", n=agg.count()).sink(
        "right_table", FilesTable(upsert_key=("bidder",))
    )

    drawn = edges(the_dags(pipeline)["demo"])

    assert drawn["split.await_acks"] == {"left.snapshot", "right.snapshot", "finalize", "abort"}
    assert "finalize" in drawn["left.await_acks"] & drawn["right.await_acks"]


def test_a_run_is_judged_by_its_commit() -> None:
    dag = the_dags()["demo"]

    assert sorted(task.task_id for task in dag.leaves) == ["cancel_stages", "commit", "restart"]
    assert dag.get_task("abort").trigger_rule == "one_failed"
    for task_id in ("by_auction.snapshot", "finalize"):  # Of a snapshot and its sensor, the first.
        assert dag.get_task(task_id).trigger_rule == "one_success"


def test_only_what_is_idempotent_is_retried() -> None:
    dag = the_dags()["demo"]

    retried = {task_id for task_id, task in dag.task_dict.items() if task.retries}

    assert retried == {"trigger", "finalize", "commit", "abort", "restart"}


def test_no_task_of_any_dag_may_hang_for_ever() -> None:
    strategy = fixed_delay(delay=timedelta(minutes=20))
    pipeline = a_pipeline(timeout=timedelta(minutes=5), restart_strategy=strategy)
    dags = [*the_dags(pipeline).values(), build_watchdog(dict)]

    limits = {
        f"{dag.dag_id}.{task_id}": task.execution_timeout
        for dag in dags
        for task_id, task in dag.task_dict.items()
        if not task_id.endswith("await_acks")  # It has no process; its trigger has a limit.
    }

    checkpoints = {"trigger", "finalize", "abort", "restart", "snapshot"}
    for task, limit in limits.items():
        if task.rpartition(".")[2] in checkpoints:
            assert limit == timedelta(minutes=5), task
    assert {task for task, limit in limits.items() if limit is None} == set()
    assert limits["demo.commit"] == limits["demo__savepoint.export"] == timedelta(hours=1)
    assert limits["demo__restore.verify"] == limits["demo__cancel.cancel"] == timedelta(hours=1)
    assert limits["demo__restore.restore"] >= timedelta(hours=1, minutes=20)
    assert limits["sluice__watchdog.watch"] < build_watchdog(dict).dagrun_timeout


def test_a_short_checkpoint_timeout_leaves_a_task_time_to_start() -> None:
    dag = the_dags(a_pipeline(timeout=timedelta(milliseconds=10)))["demo"]

    assert dag.get_task("trigger").execution_timeout == timedelta(minutes=1)


def test_the_restore_and_savepoint_dags_run_without_being_switched_on() -> None:
    dags = the_dags()

    assert dags["demo__restore"].is_paused_upon_creation is False
    assert dags["demo__savepoint"].is_paused_upon_creation is False
    assert dags["demo"].is_paused_upon_creation is None
    assert dags["demo"].max_active_runs == 1


def test_the_sensor_starts_in_the_triggerer_and_names_no_checkpoint() -> None:
    sensor = the_dags()["demo"].get_task("bids.await_acks")

    assert sensor.start_from_trigger
    assert sensor.start_trigger_args.trigger_cls == "sluice_airflow.answers.AwaitAcksTrigger"
    assert sensor.start_trigger_args.trigger_kwargs == {"pipeline": "demo", "stage": "bids"}
    assert sensor.start_trigger_args.timeout == timedelta(minutes=11)


def test_every_dag_survives_serialization() -> None:
    dags = [*the_dags().values(), build_watchdog(dict)]

    for dag in dags:
        written = json.dumps(DagSerialization.to_dict(dag))
        read = DagSerialization.from_dict(json.loads(written))
        assert edges(read) == edges(dag)


def test_a_stage_that_is_called_like_a_task_is_refused() -> None:
    pipeline = Pipeline("demo")
    pipeline.source("events", Nexmark()).transform("commit", lambda rows: rows)

    with pytest.raises(ConfigurationError, match="'commit' of pipeline 'demo' is called like a ta"):
        the_dags(pipeline)


def test_every_form_can_be_sent_as_it_is_and_explains_itself() -> None:
    """Airflow's page asks for a value where a field is a plain string and empty."""
    for dag in the_dags().values():
        for name, param in dag.params.items():
            param_object = dag.params.get_param(name)
            kinds = param_object.schema["type"]
            assert param_object.description, (dag.dag_id, name)
            assert param_object.schema["title"], (dag.dag_id, name)
            assert param not in ("", None) or "null" in kinds, (dag.dag_id, name)
        dag.params.validate()


@pytest.mark.parametrize("uid", ["demo__restore", "sluice__watchdog"])
def test_two_dags_of_one_name_are_refused(uid: str) -> None:
    with pytest.raises(ConfigurationError, match=f"two pipelines make a DAG '{uid}'"):
        the_dags(a_pipeline(), a_pipeline(uid))


def test_the_documentation_draws_the_pipeline() -> None:
    assert draw_pipeline(a_pipeline()) == [
        "events  source, Nexmark",
        "└─ bids  Transform x2",
        "   └─ by_auction  KeyedAggregate by auction x2",
        "      └─ counts  sink, FilesTable",
    ]


PARSE = """
import sys, time
begin = time.process_time()
import airflow.sdk, airflow.triggers.base  # What Airflow has imported before it parses a file.
importing = time.process_time() - begin
from runpy import run_path
begin = time.process_time()
found = run_path(sys.argv[1])
parsing = time.process_time() - begin
heavy = {"pyspark", "boto3", "botocore", "pyarrow", "polars", "pandas"} & set(sys.modules)
dags = sorted(value.dag_id for value in found.values() if isinstance(value, airflow.sdk.DAG))
print(parsing / importing, ",".join(heavy) or "none", ",".join(dags))
"""


def test_a_dag_file_costs_less_than_airflows_own_import_and_imports_nothing_heavy() -> None:
    printed = run_python(PARSE, REPOSITORY / "dags" / "sluice_dags.py")

    ratio, heavy, dags = printed.splitlines()[-1].split()
    assert heavy == "none"
    assert {"auctions__restore", "sluice__watchdog"} <= {*dags.split(",")}
    assert float(ratio) < 0.8


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        (
            timedelta(minutes=2),
            "A checkpoint every **2 min**, if there is anything new, given up after 10 min;",
        ),
        (None, "A checkpoint **by hand** only, given up after 10 min;"),
    ],
)
def test_the_page_of_a_pipeline_says_when_checkpoints_are_taken(
    interval: timedelta | None, words: str
) -> None:
    pipeline = Pipeline("auctions", checkpointing=Checkpointing(interval=interval))

    assert words in describe_pipeline(pipeline)
