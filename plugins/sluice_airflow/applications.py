"""The Spark applications of stages: found at their cluster by name, and killed.

A standalone master, YARN's resource manager and Kubernetes' API each list what runs.  Nothing
depends on an answer: an application that is not found is fenced by a new attempt, and one that was
not killed writes what nothing reads.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import requests
from airflow.sdk import BaseHook

from sluice.declaration.schedules import Submit
from sluice.errors import ConfigurationError
from sluice.job.applications import ApplicationName, is_to_be_ended, short_lives
from sluice_airflow.compat import AirflowNotFoundException

if TYPE_CHECKING:
    from sluice.job.job import Job

log = logging.getLogger(__name__)

MASTER_UI = "master_webui_address"  # In the extra of a connection to a standalone master.
DEFAULT_UI_PORT = 8080
TIMEOUT_S = (5, 20)  # To connect, to answer.
LABEL = "sluice-job"
ANNOTATION = "sluice-application"


def tag_of(short: str) -> str:
    """The tag of all applications of a job's life, where a cluster has tags."""
    return f"sluice-{short}"


def reap(job: Job, submit: Submit) -> list[str]:
    """Kill what no attempt awaits; return the names.  A cluster that does not answer is logged.

    An application outlives the task that submitted it, if the worker died.  Once its checkpoint was
    aborted, or its attempt overtaken, its acks do not count, and it only holds cores.

    The state is read after the cluster: whatever runs was journaled before it was submitted, and an
    attempt that has ended never comes back.
    """
    try:
        return _reap(job, submit)
    except Exception:  # Nothing but cores depends on it, and the watchdog tries again.
        log.warning("applications not reaped pipeline=%s", job.pipeline.uid, exc_info=True)
        return []


def _reap(job: Job, submit: Submit) -> list[str]:
    lives = short_lives(job, job.state())
    if not lives:
        return []
    cluster = cluster_of(submit)
    found = cluster.applications(lives)
    if not found:
        return []
    state, reaped = job.state(), []
    for application in found:
        if not is_to_be_ended(application.name, job, state):
            continue
        cluster.kill(application)
        log.info("application killed name=%s id=%s", application.name, application.id)
        reaped.append(application.name)
    return reaped


@dataclass(frozen=True, slots=True)
class Application:
    """An application that runs, or waits to run, at a cluster."""

    id: str
    name: str


class SparkCluster(ABC):
    """A cluster that applications are submitted to; every call may raise its client's errors."""

    def properties(self, name: ApplicationName) -> dict[str, str]:  # noqa: ARG002 - for others
        """The Spark properties by which the application is found."""
        return {}

    @abstractmethod
    def applications(self, lives: Collection[str]) -> list[Application]:
        """The applications that were submitted in these short lives, and have not ended."""

    @abstractmethod
    def kill(self, application: Application) -> None:
        """Ask the cluster to end the application; returns before it has ended."""


class NoCluster(SparkCluster):
    """A local master, and Kubernetes in client mode: a driver is a process of its worker alone."""

    def applications(self, lives: Collection[str]) -> list[Application]:  # noqa: ARG002
        return []

    def kill(self, application: Application) -> None:
        raise AssertionError(f"{application} cannot have been found")


@dataclass(frozen=True, slots=True)
class Standalone(SparkCluster):
    """Spark's own master, or several of them, by the addresses of their web UIs."""

    uis: Sequence[str]

    def applications(self, lives: Collection[str]) -> list[Application]:
        found, errors = [], []
        for ui in self.uis:
            try:
                listing = _answer(requests.get(f"{ui}/json/", timeout=TIMEOUT_S))
            except requests.RequestException as error:  # One master of several may be down.
                errors.append(error)
            else:
                found += [Application(app["id"], app["name"]) for app in listing["activeapps"]]
        if len(errors) == len(self.uis):
            raise errors[0]
        names = [(application, ApplicationName.parse(application.name)) for application in found]
        return [app for app, name in names if name is not None and name.life in lives]

    def kill(self, application: Application) -> None:
        form = {"id": application.id, "terminate": "true"}
        for ui in self.uis:
            with suppress(requests.ConnectionError):  # As above.
                requests.post(f"{ui}/app/kill/", data=form, timeout=TIMEOUT_S)


@dataclass(frozen=True, slots=True)
class Yarn(SparkCluster):
    """YARN, in either mode; without its resource manager's address nothing is found."""

    resource_manager: str
    auth: Any
    tags: str

    def properties(self, name: ApplicationName) -> dict[str, str]:
        return {"spark.yarn.tags": ",".join(filter(None, (self.tags, tag_of(name.life))))}

    def applications(self, lives: Collection[str]) -> list[Application]:
        if not self.resource_manager:
            return []
        query = {
            "applicationTags": ",".join(tag_of(life) for life in lives),
            "states": "NEW,NEW_SAVING,SUBMITTED,ACCEPTED,RUNNING",
        }
        url = f"{self.resource_manager}/ws/v1/cluster/apps"
        listing = _answer(requests.get(url, params=query, auth=self.auth, timeout=TIMEOUT_S))
        found = (listing.get("apps") or {}).get("app", [])
        return [Application(app["id"], app["name"]) for app in found]

    def kill(self, application: Application) -> None:
        url = f"{self.resource_manager}/ws/v1/cluster/apps/{application.id}/state"
        requests.put(url, json={"state": "KILLED"}, auth=self.auth, timeout=TIMEOUT_S)


@dataclass(frozen=True, slots=True)
class Kubernetes(SparkCluster):
    """Kubernetes in cluster mode: an application is its driver's pod."""

    namespace: str

    def properties(self, name: ApplicationName) -> dict[str, str]:
        return {
            "spark.kubernetes.driver.pod.name": name.pod,
            f"spark.kubernetes.driver.label.{LABEL}": name.life,
            f"spark.kubernetes.driver.annotation.{ANNOTATION}": str(name),
        }

    def applications(self, lives: Collection[str]) -> list[Application]:
        selected = f"spark-role=driver,{LABEL} in ({','.join(sorted(lives))})"
        pods = self._client().list_namespaced_pod(self.namespace, label_selector=selected)
        return [
            Application(pod.metadata.name, pod.metadata.annotations[ANNOTATION])
            for pod in pods.items
            if pod.status.phase not in ("Succeeded", "Failed")
        ]

    def kill(self, application: Application) -> None:
        self._client().delete_namespaced_pod(application.id, self.namespace)

    def _client(self) -> Any:  # noqa: ANN401 - of a library without annotations
        from airflow.providers.cncf.kubernetes.kube_client import get_kube_client

        return get_kube_client()


def cluster_of(submit: Submit) -> SparkCluster:
    """The cluster behind the connection that *submit* names.

    Raises:
        ConfigurationError: there is no such connection, or no stage can run as it says.
    """
    extra, hook = _opened(submit)
    resolved: Mapping[str, Any] = hook._connection  # noqa: SLF001 - With the hook's defaults.
    master, is_cluster_mode = str(resolved["master"]), resolved["deploy_mode"] == "cluster"
    if master.startswith("yarn"):
        address, auth = "", None
        if extra.get(hook._YARN_RM_WEBAPP_ADDRESS_EXTRA_KEY):  # noqa: SLF001
            address, auth = hook._get_yarn_rm_base_url(), hook._resolved_yarn_rm_auth  # noqa: SLF001
        return Yarn(address, auth, submit.conf.get("spark.yarn.tags", ""))
    if master.startswith("k8s"):
        return Kubernetes(resolved["namespace"] or "default") if is_cluster_mode else NoCluster()
    if not master.startswith("spark://"):
        return NoCluster()
    if is_cluster_mode:
        raise ConfigurationError(
            f"the Airflow connection {submit.connection!r} has the deploy mode cluster, in which a "
            "standalone master runs no Python; set deploy-mode to client in its extra"
        )
    hosts = master.removeprefix("spark://").split(",")
    default = ",".join(f"http://{host.rpartition(':')[0]}:{DEFAULT_UI_PORT}" for host in hosts)
    return Standalone([ui.rstrip("/") for ui in str(extra.get(MASTER_UI, default)).split(",")])


def _opened(submit: Submit) -> tuple[Mapping[str, Any], Any]:
    """The extra of the connection, and Airflow's hook for it."""
    try:
        connection = BaseHook.get_connection(submit.connection)
    except AirflowNotFoundException as error:  # The hook would take YARN instead.
        raise ConfigurationError(
            f"there is no Airflow connection {submit.connection!r}, to which stages are submitted; "
            "create one of type Spark, or name another in Submit(connection=…)"
        ) from error
    try:
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

        hook = SparkSubmitHook(conf=dict(submit.conf), conn_id=submit.connection)
    except NameError as error:  # What the hook raises where its optional import failed.
        raise ConfigurationError(
            f"the master of the Airflow connection {submit.connection!r} is Kubernetes, for which "
            "Airflow's provider is not installed; run: "
            "pip install apache-airflow-providers-cncf-kubernetes"
        ) from error
    return connection.extra_dejson, hook


def _answer(response: requests.Response) -> dict[str, Any]:
    response.raise_for_status()
    answer: dict[str, Any] = response.json()
    return answer
