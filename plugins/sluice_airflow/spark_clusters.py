"""The clusters to which stages are submitted: what runs there is found by name, and killed.

A standalone master, YARN's resource manager and Kubernetes' API each list what runs.  Nothing
depends on an answer: an application that is not found is fenced by a new attempt, and one that was
not killed writes what nothing reads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import requests
from airflow.providers.apache.spark.hooks.spark_submit import (  # noqa: TID253 - on demand
    SparkSubmitHook,
)
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from sluice.declaration.schedules import Submit
from sluice.errors import ConfigurationError
from sluice_airflow.application_names import ApplicationName, tag_of

MASTER_UI = "master_webui_address"  # In the extra of a connection to a standalone master.
DEFAULT_UI_PORT = 8080
TIMEOUT_S = (5, 20)  # To connect, to answer.
LABEL = "sluice-job"
ANNOTATION = "sluice-application"


@dataclass(frozen=True, slots=True)
class Application:
    """What runs, or waits to run, at a cluster: its id there, and its name."""

    id: str
    name: str


class Cluster(ABC):
    """Where applications are submitted; every call may raise what its client raises."""

    def properties(self, name: ApplicationName) -> dict[str, str]:  # noqa: ARG002 - for others
        """The Spark properties by which the application is found."""
        return {}

    @abstractmethod
    def applications(self, lives: Collection[str]) -> list[Application]:
        """What was submitted in these short lives of jobs, and has not ended."""

    @abstractmethod
    def kill(self, application: Application) -> None:
        """Ask the cluster to end the application; returns before it has ended."""


class NoCluster(Cluster):
    """A local master, and Kubernetes in client mode: a driver is a process of its worker alone."""

    def applications(self, lives: Collection[str]) -> list[Application]:  # noqa: ARG002
        return []

    def kill(self, application: Application) -> None:
        raise AssertionError(f"{application} cannot have been found")


@dataclass(frozen=True, slots=True)
class Standalone(Cluster):
    """Spark's own master, or several of them, by the addresses of their web UIs."""

    uis: Sequence[str]

    def applications(self, lives: Collection[str]) -> list[Application]:
        found, errors = [], []
        for ui in self.uis:
            try:
                said = _answer(requests.get(f"{ui}/json/", timeout=TIMEOUT_S))
            except requests.RequestException as error:  # Of several one may be down.
                errors.append(error)
            else:
                found += [Application(one["id"], one["name"]) for one in said["activeapps"]]
        if len(errors) == len(self.uis):
            raise errors[0]
        names = [(one, ApplicationName.parse(one.name)) for one in found]
        return [one for one, name in names if name is not None and name.life in lives]

    def kill(self, application: Application) -> None:
        asked = {"id": application.id, "terminate": "true"}
        for ui in self.uis:
            with suppress(requests.ConnectionError):  # As above.
                requests.post(f"{ui}/app/kill/", data=asked, timeout=TIMEOUT_S)


@dataclass(frozen=True, slots=True)
class Yarn(Cluster):
    """YARN, in either mode; without its resource manager's address nothing is found."""

    resource_manager: str
    auth: Any
    tags: str

    def properties(self, name: ApplicationName) -> dict[str, str]:
        return {"spark.yarn.tags": ",".join(filter(None, (self.tags, name.tag)))}

    def applications(self, lives: Collection[str]) -> list[Application]:
        if not self.resource_manager:
            return []
        asked = {
            "applicationTags": ",".join(tag_of(life) for life in lives),
            "states": "NEW,NEW_SAVING,SUBMITTED,ACCEPTED,RUNNING",
        }
        url = f"{self.resource_manager}/ws/v1/cluster/apps"
        said = _answer(requests.get(url, params=asked, auth=self.auth, timeout=TIMEOUT_S))
        found = (said.get("apps") or {}).get("app", [])
        return [Application(one["id"], one["name"]) for one in found]

    def kill(self, application: Application) -> None:
        url = f"{self.resource_manager}/ws/v1/cluster/apps/{application.id}/state"
        requests.put(url, json={"state": "KILLED"}, auth=self.auth, timeout=TIMEOUT_S)


@dataclass(frozen=True, slots=True)
class Kubernetes(Cluster):
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


def cluster_of(submit: Submit) -> Cluster:
    """The cluster behind the connection that *submit* names.

    Raises:
        ConfigurationError: there is no such connection, or no stage can run as it says.
    """
    extra, hook = _opened(submit)
    said: Mapping[str, Any] = hook._connection  # noqa: SLF001 - Its rules, with their defaults.
    master, is_cluster_mode = str(said["master"]), said["deploy_mode"] == "cluster"
    if master.startswith("yarn"):
        address, auth = "", None
        if extra.get(SparkSubmitHook._YARN_RM_WEBAPP_ADDRESS_EXTRA_KEY):  # noqa: SLF001
            address, auth = hook._get_yarn_rm_base_url(), hook._resolved_yarn_rm_auth  # noqa: SLF001
        return Yarn(address, auth, submit.conf.get("spark.yarn.tags", ""))
    if master.startswith("k8s"):
        return Kubernetes(said["namespace"] or "default") if is_cluster_mode else NoCluster()
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


def _opened(submit: Submit) -> tuple[Mapping[str, Any], SparkSubmitHook]:
    """The extra of the connection, and Airflow's hook for it."""
    try:
        connection = BaseHook.get_connection(submit.connection)
    except AirflowNotFoundException as error:  # The hook would take YARN instead.
        raise ConfigurationError(
            f"there is no Airflow connection {submit.connection!r}, to which stages are submitted; "
            "create one of type Spark, or name another in Submit(connection=…)"
        ) from error
    try:
        hook = SparkSubmitHook(conf=dict(submit.conf), conn_id=submit.connection)
    except NameError as error:  # So it ends where its optional import failed.
        raise ConfigurationError(
            f"the master of the Airflow connection {submit.connection!r} is Kubernetes, for which "
            "Airflow's provider is not installed; run: "
            "pip install apache-airflow-providers-cncf-kubernetes"
        ) from error
    return connection.extra_dejson, hook


def _answer(response: requests.Response) -> dict[str, Any]:
    response.raise_for_status()
    said: dict[str, Any] = response.json()
    return said
