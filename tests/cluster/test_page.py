"""The page's commands, run to the letter but for their ports, start a cluster and use it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from harness.s3_server import own_bucket
from sluice.devstack import processes, servers
from sluice.devstack.processes import LOOPBACK, Launch, ProcessRecord
from sluice.devstack.servers import BUCKET
from tests.best_auctions import best_auctions
from tests.cluster.conftest import DECLARED, WAIT_S, whole
from tests.docs.commands import blocks
from tests.house.test_repository import REPOSITORY

pytestmark = whole
EVENTS = 4_000  # As the page says.


@pytest.fixture(name="env")
def _env(tmp_path: Path) -> Iterator[dict[str, str]]:
    with own_bucket(tmp_path / "s3") as bucket:
        yield {
            **os.environ,
            **bucket,
            "HOST": LOOPBACK,
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_HOME": str(servers.spark_home()),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYSPARK_PYTHON": sys.executable,
            "SLUICE_ROOT": f"s3://{BUCKET}/jobs",
            "SLUICE_PIPELINES": str(DECLARED),
        }


def test_the_page_starts_a_cluster_runs_a_job_and_rescales_it(
    tmp_path: Path, env: dict[str, str]
) -> None:
    ports = dict(zip(("7077", "8080", "15002"), processes.free_ports(3), strict=True))
    commands = [one.body for one in blocks(REPOSITORY / "docs/guides/clusters.md")]
    for given, ours in ports.items():
        commands = [command.replace(given, str(ours)) for command in commands]
    master, worker, server, job = commands
    machines = [
        ("master", master, ports["8080"]),
        ("worker-1", worker, None),
        ("worker-2", worker, None),
        ("server", server, ports["15002"]),
    ]
    started: list[ProcessRecord] = []
    try:
        for name, command, port in machines:
            started.append(begun(tmp_path / name, command, env, port or 0))
            if port is not None:
                processes.wait_until_ready(
                    started[-1],
                    partial(processes.accepts_connections, port),
                    timeout_s=WAIT_S,
                    cancelled=Event(),
                )
        ran = subprocess.run(
            ["bash", "-e", "-c", job],
            cwd=tmp_path,
            env=env,
            check=False,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
    finally:
        processes.stop_all(started, stack_id=None, grace_s=0.5)

    assert ran.returncode == 0, ran.stderr
    rows = json.loads((tmp_path / "ranking.json").read_text())
    assert sorted(rows, key=lambda row: (row["category"], row["rank"])) == best_auctions(EVENTS)


def begun(disk: Path, command: str, env: dict[str, str], port: int) -> ProcessRecord:
    """A machine of its own, of which *disk* is the disk."""
    return processes.start(
        Launch(
            name=disk.name,
            command=("bash", "-e", "-c", command),
            env={**env, "DISK": str(disk)},
            folder=disk,
            log_path=disk / "log",
            port=port,
        )
    )
