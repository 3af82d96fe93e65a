"""docker-compose.yaml, which cannot run here: read as Docker would, held to its promises."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from sluice.declaration.project import load_pipeline

COMPOSE = Path(__file__).resolve().parents[2] / "docker-compose.yaml"
CONNECTION = "AIRFLOW_CONN_SPARK_STANDALONE"


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
    return services


def test_whatever_serves_is_watched_and_started_again(services: dict[str, Any]) -> None:
    for name, service in services.items():
        if name == "airflow-init":
            assert service["restart"] == "on-failure"
            continue
        assert service["restart"] == "unless-stopped", name
        assert service["healthcheck"]["test"][0] in {"CMD", "CMD-SHELL"}, name


def test_airflow_waits_for_a_migrated_postgres(services: dict[str, Any]) -> None:
    parts = [name for name in services if name.startswith("airflow-") and name != "airflow-init"]

    assert len(parts) == 4
    assert services["airflow-init"]["depends_on"]["postgres"] == {"condition": "service_healthy"}
    for name in parts:
        environment = services[name]["environment"]
        assert services[name]["depends_on"] == {
            "airflow-init": {"condition": "service_completed_successfully"}
        }
        assert environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].startswith("postgresql+psycopg2")
        assert environment["AIRFLOW__SCHEDULER__ENABLE_HEALTH_CHECK"] == "True"


def test_kafka_comes_only_when_it_is_asked_for(services: dict[str, Any]) -> None:
    """For the tests that want a real broker; Sluice itself needs none."""
    assert services["kafka"]["profiles"] == ["kafka"]
    assert "127.0.0.1:9092" in services["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert not [s for s in services.values() if "kafka" in s.get("depends_on", {})]


def test_a_standalone_master_comes_when_it_is_asked_for_and_its_dag_with_it(
    services: dict[str, Any],
) -> None:
    connection = json.loads(services["airflow-scheduler"]["environment"][CONNECTION])
    master, worker = services["spark-master"], services["spark-worker"]
    dags = re.search(r'SLUICE_DAGS="(.*)"', COMPOSE.with_name("Dockerfile").read_text())

    assert master["profiles"] == worker["profiles"] == ["submit"]
    assert "--host spark-master --port 7077 --webui-port 8080" in master["command"][-1]
    assert worker["command"][-1].endswith(f" {connection['host']}")
    assert connection["host"] == "spark://spark-master:7077"
    assert connection["extra"] == {"master_webui_address": "http://spark-master:8080"}
    assert worker["deploy"] == {"replicas": 2}
    assert dags is not None
    selected = services["airflow-scheduler"]["environment"]["SLUICE_DAGS"]
    assert selected == f"${{SLUICE_DAGS:-{dags[1]}}}"
    submit = load_pipeline("auctions_submitted").orchestration.submit
    assert submit is not None
    assert f"AIRFLOW_CONN_{submit.connection.upper()}" == CONNECTION


def test_nothing_is_published_beyond_loopback(services: dict[str, Any]) -> None:
    published = [port for service in services.values() for port in service.get("ports", [])]

    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)
