"""What is submitted to which cluster, by what it is found there, and how it is ended."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from itertools import pairwise
from pathlib import Path
from threading import Timer
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from airflow.providers.apache.spark.hooks import spark_submit

from harness.jobs import a_pipeline, a_running_job, trigger_one
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint, start_attempt
from sluice.coordinator.publication import commit
from sluice.core.failures import CheckpointFailureReason
from sluice.declaration.schedules import Orchestration, Submit
from sluice.errors import ConfigurationError, FencedError, StageFailed
from sluice.job.applications import MAX_POD_NAME, ApplicationName, short_life
from sluice.job.job import Job, open_job
from sluice.store.open import StoreLocation
from sluice_airflow.applications import Application, Standalone, Yarn, cluster_of, reap, tag_of
from sluice_airflow.stage import CancelStagesOperator
from sluice_airflow.submitting import SubmitOperator
from tests.airflow.acts import a_context
from tests.contract.s3_stub import served
from tests.subtasks import acknowledge, take_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore")
SUBMIT = Submit(connection="there", conf={"spark.yarn.tags": "nightly"})
K8S = "k8s://https://api:6443"
CLUSTER_MODE = {"deploy-mode": "cluster"}
NAME = ApplicationName(
    pipeline="daily_orders", checkpoint_id=7, stage="top_3", attempt=2, life="0a1b2c3d"
)
Connect = Callable[..., None]
Submitted = Callable[[], tuple[ApplicationName, list[str]]]


@pytest.fixture(name="connect")
def _connect(monkeypatch: pytest.MonkeyPatch) -> Connect:
    def connect(master: str, **extra: str) -> None:
        connection = {"conn_type": "spark", "host": master, "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_THERE", json.dumps(connection))

    return connect


@pytest.fixture(name="submitted")
def _submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Submitted:
    """Submits a stage of a new job: its name, and the arguments with which an operator calls
    ``spark-submit``, which runs nothing here.
    """
    written = tmp_path / "arguments"
    script = tmp_path / "spark-submit"
    script.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" > {written}\necho Exit code: 0\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SLUICE_ROOT", "s3://bucket/jobs")

    def submitted() -> tuple[ApplicationName, list[str]]:
        job = a_running_job()
        trigger_one(job)
        (pending,) = job.state().pending
        stage = pending.tasks[0].uid
        operator = SubmitOperator(
            task_id="snapshot", pipeline=job.pipeline, stage=stage, submit=SUBMIT
        )
        with pytest.raises(StageFailed, match="has not acknowledged"):
            operator.run(job, pending, 1, a_context())
        return name_in(job), written.read_text().splitlines()

    return submitted


@contextmanager
def answering(answers: dict[str, Any]) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """A server that answers GET by path, as JSON, and keeps whatever else it was asked for."""
    asked: list[tuple[str, str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = urlsplit(self.path)
            asked.append(("GET", path.path, path.query))
            self._say(answers.get(path.path))

        def do_PUT(self) -> None:
            self.do_POST()

        def do_DELETE(self) -> None:
            self.do_POST()

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            asked.append((self.command, self.path, self.rfile.read(length).decode()))
            self._say({})

        def _say(self, what: Any) -> None:
            self.send_response(404 if what is None else 200)
            self.end_headers()
            self.wfile.write(json.dumps(what).encode())

        def log_message(self, *args: Any) -> None:
            pass

    with served(Handler) as url:
        yield url, asked


def name_in(job: Job, *, attempt: int = 1) -> ApplicationName:
    state = job.state()
    (pending,) = state.pending
    return ApplicationName(
        pipeline=job.pipeline.uid,
        checkpoint_id=pending.checkpoint_id,
        stage=pending.tasks[0].uid,
        attempt=attempt,
        life=short_life(job, state.life),
    )


def test_a_name_is_read_back_and_other_software_has_none() -> None:
    assert str(NAME) == "sluice-daily_orders-7-top_3-2-0a1b2c3d"
    assert ApplicationName.parse(str(NAME)) == NAME
    assert ApplicationName.parse("sluice-daily_orders") is None
    assert ApplicationName.parse("Spark shell") is None


def test_a_pod_has_a_name_of_its_own_that_kubernetes_allows() -> None:
    long = replace(NAME, pipeline="p" * 60, stage="s" * 60)

    assert NAME.pod.startswith("sluice-daily-orders-7-top-3-2-")
    for name in (NAME, long):
        assert len(name.pod) <= MAX_POD_NAME
        assert name.pod.endswith("-driver")
        assert set(name.pod) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    others = (replace(long, attempt=3), replace(long, life="ffffffff"), replace(NAME, stage="top"))
    assert len({one.pod for one in (*others, long, NAME)}) == 5


def test_an_attempt_is_awaited_until_a_newer_one_begins_or_its_checkpoint_is_subsumed() -> None:
    job = a_running_job(a_pipeline(num_retained=1))
    plan = trigger_one(job)
    name, other_life = name_in(job), replace(name_in(job), life="ffffffff")

    assert name.is_awaited(job, job.state())
    assert not other_life.is_awaited(job, job.state())
    start_attempt(job, plan.checkpoint_id, name.stage)
    assert not name.is_awaited(job, job.state())
    newer = replace(name, attempt=2)
    assert newer.is_awaited(job, job.state())
    for task in plan.tasks:
        (pending,) = job.state().pending
        acknowledge(job, plan, task.uid, attempt=pending.attempt_of(task.uid))
    finalize(job, plan.checkpoint_id)
    commit(job, plan.checkpoint_id)
    assert newer.is_awaited(job, job.state())  # It merges state.
    take_checkpoint(job)
    assert not newer.is_awaited(job, job.state())


def test_yarn_is_given_a_tag_of_the_job(connect: Connect, submitted: Submitted) -> None:
    connect("yarn", **CLUSTER_MODE)

    name, arguments = submitted()

    assert arguments[:6] == [
        *("--master", "yarn"),
        *("--conf", f"spark.yarn.tags=nightly,sluice-{name.life}"),
        *("--driver-memory", "1g"),
    ]
    assert arguments[6:10] == ["--name", str(name), "--deploy-mode", "cluster"]
    assert arguments[-6:] == [*("auctions", "1", name.stage, "1"), "--root", "s3://bucket/jobs"]


def test_kubernetes_is_given_the_name_of_the_pod(
    connect: Connect, submitted: Submitted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its provider is not installed here: the hook only asks whether it is."""
    monkeypatch.setattr(spark_submit, "kube_client", ModuleType("kube_client"), raising=False)
    connect(K8S, **CLUSTER_MODE, namespace="jobs")

    name, arguments = submitted()

    confs = [value for option, value in pairwise(arguments) if option == "--conf"]
    assert arguments[:2] == ["--master", "k8s://https://api:6443"]
    assert confs == [
        "spark.yarn.tags=nightly",
        f"spark.kubernetes.driver.pod.name={name.pod}",
        f"spark.kubernetes.driver.label.sluice-job={name.life}",
        f"spark.kubernetes.driver.annotation.sluice-application={name}",
        "spark.kubernetes.namespace=jobs",
    ]


@pytest.mark.parametrize("master", ["local[2]", "yarn", "spark://master:7077"])
def test_in_client_mode_only_yarn_gets_more(
    connect: Connect, submitted: Submitted, master: str
) -> None:
    connect(master)

    name, arguments = submitted()

    tags = f"nightly,sluice-{name.life}" if master == "yarn" else "nightly"
    assert arguments[2:4] == ["--conf", f"spark.yarn.tags={tags}"]
    assert arguments.count("--conf") == 1
    assert "--deploy-mode" not in arguments


def test_a_connection_that_no_stage_can_run_on_is_refused(connect: Connect) -> None:
    with pytest.raises(ConfigurationError, match="there is no Airflow connection 'there', to wh"):
        cluster_of(SUBMIT)
    connect("spark://master:7077", **CLUSTER_MODE)
    with pytest.raises(ConfigurationError, match="standalone master runs no Python; set deploy-mo"):
        cluster_of(SUBMIT)
    connect(K8S, **CLUSTER_MODE, namespace="jobs")
    with pytest.raises(ConfigurationError, match="pip install apache-airflow-providers-cncf-kub"):
        cluster_of(SUBMIT)


def test_a_standalone_master_is_asked_at_its_web_ui(connect: Connect) -> None:
    connect("spark://one:7077,two:7077")
    assert cluster_of(SUBMIT) == Standalone(["http://one:8080", "http://two:8080"])
    connect("spark://one:7077", master_webui_address="https://ui/")
    assert cluster_of(SUBMIT) == Standalone(["https://ui"])


def test_of_two_masters_one_may_be_down() -> None:
    with answering({"/json/": {"activeapps": [{"id": "app-1", "name": str(NAME)}]}}) as (up, _):
        down = "http://127.0.0.1:1"

        assert Standalone([down, up]).applications({NAME.life}) == [Application("app-1", str(NAME))]
        assert Standalone([up]).applications({"ffffffff"}) == []
        with pytest.raises(OSError, match="refused"):
            Standalone([down, down]).applications({NAME.life})


def test_yarn_is_asked_by_tag_and_told_to_end_it(connect: Connect) -> None:
    apps = "/ws/v1/cluster/apps"
    answers: dict[str, Any] = {
        apps: {"apps": {"app": [{"id": "application_1_2", "name": str(NAME)}]}}
    }
    with answering(answers) as (url, asked):
        connect("yarn", **CLUSTER_MODE, yarn_resourcemanager_webapp_address=url)
        cluster = cluster_of(SUBMIT)

        (found,) = cluster.applications({NAME.life})
        cluster.kill(found)
        answers[apps] = {"apps": None}  # As it says when there is none.
        assert cluster.applications({NAME.life}) == []

    assert parse_qs(asked[0][2])["applicationTags"] == [tag_of(NAME.life)]
    assert asked[1] == ("PUT", f"{apps}/application_1_2/state", '{"state": "KILLED"}')
    assert Yarn("", None, "").applications({NAME.life}) == []


def test_kubernetes_is_asked_by_label_and_told_to_delete_the_pod(
    connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own client, against the routes of its API that are used."""
    pytest.importorskip("airflow.providers.cncf.kubernetes", reason="it is no extra of ours")
    pods = "/api/v1/namespaces/jobs/pods"

    def a_pod(name: str, phase: str) -> dict[str, Any]:
        metadata = {"name": name, "annotations": {"sluice-application": str(NAME)}}
        return {"metadata": metadata, "status": {"phase": phase}}

    ended = [a_pod("failed", "Failed"), a_pod("succeeded", "Succeeded")]
    answers = {pods: {"kind": "PodList", "items": [a_pod(NAME.pod, "Running"), *ended]}}
    with answering(answers) as (url, asked):
        config = tmp_path / "config"
        config.write_text(
            json.dumps(
                {
                    "current-context": "here",
                    "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
                    "clusters": [{"name": "here", "cluster": {"server": url}}],
                    "users": [{"name": "me", "user": {}}],
                }
            )
        )
        monkeypatch.setenv("AIRFLOW__KUBERNETES_EXECUTOR__IN_CLUSTER", "False")
        monkeypatch.setenv("AIRFLOW__KUBERNETES_EXECUTOR__CONFIG_FILE", str(config))
        connect(K8S, **CLUSTER_MODE, namespace="jobs")
        cluster = cluster_of(SUBMIT)

        (found,) = cluster.applications({NAME.life})
        cluster.kill(found)

    assert found == Application(NAME.pod, str(NAME))
    selector = f"spark-role=driver,sluice-job in ({NAME.life})"
    assert parse_qs(asked[0][2])["labelSelector"] == [selector]
    assert asked[1][:2] == ("DELETE", f"{pods}/{NAME.pod}")


def test_the_reaper_ends_what_no_attempt_awaits_and_nothing_else(connect: Connect) -> None:
    job = a_running_job()
    plan = trigger_one(job)
    overtaken = name_in(job)
    start_attempt(job, plan.checkpoint_id, overtaken.stage)
    names = [overtaken, replace(overtaken, attempt=2), replace(overtaken, pipeline="other")]
    running = [{"id": f"app-{number}", "name": str(name)} for number, name in enumerate(names)]
    with answering({"/json/": {"activeapps": running}}) as (ui, asked):
        connect("spark://master:7077", master_webui_address=ui)

        assert reap(job, SUBMIT) == [str(overtaken)]
        assert asked[1:] == [("POST", "/app/kill/", "id=app-0&terminate=true")]
        fail_checkpoint(job, plan.checkpoint_id, CheckpointFailureReason.TASK_FAILURE, "died")
        assert reap(job, SUBMIT) == [str(overtaken), str(names[1])]


def test_the_reaper_of_a_copied_root_ends_nothing_of_the_original(connect: Connect) -> None:
    original = a_running_job()
    take_checkpoint(original)
    copy = open_job(original.pipeline, StoreLocation(root=f"{original.store.root}-copied"))
    for listed in original.store.list(""):
        copy.store.put(listed.key, original.store.get(listed.key) or b"")
    trigger_one(original)
    name = name_in(original)
    with answering({"/json/": {"activeapps": [{"id": "app-1", "name": str(name)}]}}) as (ui, _):
        connect("spark://master:7077", master_webui_address=ui)

        assert reap(copy, SUBMIT) == []
        assert reap(original, SUBMIT) == []
        start_attempt(original, original.state().pending[0].checkpoint_id, name.stage)
        assert reap(original, SUBMIT) == [str(name)]


def test_a_cluster_that_does_not_answer_stops_nothing(connect: Connect) -> None:
    job = a_running_job()
    trigger_one(job)
    connect("spark://master:7077", master_webui_address="http://127.0.0.1:1")

    assert reap(job, SUBMIT) == []


def test_an_abort_ends_the_applications_of_a_pipeline_that_submits(
    connect: Connect, root: str
) -> None:
    """And asks no Spark Connect server, which such a pipeline has not."""
    pipeline = a_pipeline()
    pipeline.orchestration = Orchestration(submit=SUBMIT)
    operator = CancelStagesOperator(task_id="cancel_stages", pipeline=pipeline)
    job = a_running_job(pipeline)
    context = a_context(dag_id="auctions", run_id="run-1")
    plan = trigger_one(job, cause="airflow:auctions/run-1")
    name = name_in(job)
    fail_checkpoint(job, plan.checkpoint_id, CheckpointFailureReason.TASK_FAILURE, "died")
    with answering({"/json/": {"activeapps": [{"id": "app-1", "name": str(name)}]}}) as (ui, _):
        connect("spark://master:7077", master_webui_address=ui)

        assert operator.act(job, context) == [str(name)]


@contextmanager
def a_retry_that_found_it(connect: Connect) -> Iterator[tuple[Job, list[Any], Callable[[], float]]]:
    """A job, what runs at its cluster, and the retry's wait for the application that is there."""
    job = a_running_job()
    trigger_one(job)
    (pending,) = job.state().pending
    running = [{"id": "app-1", "name": str(name_in(job))}]
    operator = SubmitOperator(
        task_id="snapshot", pipeline=job.pipeline, stage=pending.tasks[0].uid, submit=SUBMIT
    )
    with answering({"/json/": {"activeapps": running}}) as (ui, _):
        connect("spark://master:7077", master_webui_address=ui)
        assert operator.goes_on(job, pending, 1)
        yield job, running, lambda: operator.run(job, pending, 1, a_context(try_number=2))


def test_a_retry_waits_for_the_acks_of_what_it_found(connect: Connect) -> None:
    with a_retry_that_found_it(connect) as (job, _, wait):
        plan = job.plan(job.state().pending[0].checkpoint_id)
        assert plan is not None
        Timer(0.3, acknowledge, (job, plan, plan.tasks[0].uid)).start()

        assert wait() > 0.3


def test_a_retry_ends_when_what_it_found_has_gone_without_an_ack(connect: Connect) -> None:
    with a_retry_that_found_it(connect) as (_, running, wait):
        Timer(0.3, running.clear).start()

        with pytest.raises(StageFailed, match=r"-1-\w+ ended, and its stage has not acknowledged"):
            wait()


def test_a_retry_ends_when_the_checkpoint_was_aborted(connect: Connect) -> None:
    with a_retry_that_found_it(connect) as (job, _, wait):
        reason = CheckpointFailureReason.CHECKPOINT_EXPIRED
        fail_checkpoint(job, job.state().pending[0].checkpoint_id, reason, "too late")

        with pytest.raises(FencedError, match="was overtaken, or its checkpoint has ended"):
            wait()
