"""Whoever starts a Spark for us by hand has the settings of the Sparks that we start."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.spark.session import JVM_OPTIONS, PYTHON_WORKERS

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "place", ["docker-compose.yaml", "docs/own-airflow.md", "docs/guides/clusters.md"]
)
def test_its_python_workers_and_its_jvm_are_ours(place: str) -> None:
    text = (REPOSITORY / place).read_text()

    lines = [JVM_OPTIONS, *(f"{name}={value}" for name, value in PYTHON_WORKERS.items())]
    assert [line for line in lines if line not in text] == []
