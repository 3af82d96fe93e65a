"""The Spark Connect server from the pip package, on loopback, in the foreground as our child.

Unless it has the master of a cluster, every epoch of every pipeline runs in this one JVM, and
``local[n,4]`` retries failed Python tasks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from sluice.devstack.ports import LOOPBACK
from sluice.devstack.processes import Launch
from sluice.errors import ConfigurationError
from sluice.spark.session import PYTHON_WORKERS

NAME = "spark"
START_TIMEOUT_S = 180.0  # 9 s on a quiet machine; minutes on a loaded one.

_MAIN_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
_TASK_ATTEMPTS = 4  # The default of a cluster; plain local[n] never retries.


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    """The options of the server."""

    port: int
    ui_port: int
    driver_memory: str = "2g"
    cores: int = os.cpu_count() or 1
    # An archive of loaded classes, written when it stops, for later starts.
    writes_archive: bool = False
    cluster: str | None = None  # The address of its master, ``spark://host:port``.
    properties: Mapping[str, str] = field(default_factory=dict[str, str])  # Of Spark, beside ours.

    @property
    def master(self) -> str:
        return self.cluster or f"local[{self.cores},{_TASK_ATTEMPTS}]"


def spark_launch(settings: SparkSettings, *, sluice_dir: Path, env: Mapping[str, str]) -> Launch:
    """Return how to start the server; its scratch space lies in ``{sluice_dir}/spark``."""
    folder = sluice_dir / "spark"
    home = spark_home()
    properties = {**_properties(settings, folder), **settings.properties}
    command = [
        str(home / "bin" / "spark-submit"),
        "--class", _MAIN_CLASS,
        "--master", settings.master,
        "--driver-memory", settings.driver_memory,
        "--driver-java-options", " ".join(_java_options(settings, folder)),
    ]  # fmt: skip
    for name, value in properties.items():
        command += ["--conf", f"{name}={value}"]
    return Launch(
        name=NAME,
        command=(*command, "spark-internal"),
        env={
            **env,
            "SPARK_HOME": str(home),
            "SPARK_CONNECT_MODE": "0",  # As sbin/start-connect-server.sh: this is the server.
            "SPARK_LOCAL_IP": LOOPBACK,  # The UI listens there, too.
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        },
        folder=folder,
        log_path=sluice_dir / "logs" / "spark.log",
        port=settings.port,
    )


def spark_home() -> Path:
    """Return the folder of the pip package, without importing it."""
    spec = find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError("pyspark is not installed; run `pip install 'pyspark[connect]'`")
    return Path(spec.submodule_search_locations[0])


def _properties(settings: SparkSettings, folder: Path) -> dict[str, str]:
    return {
        "spark.app.name": "sluice",
        "spark.connect.grpc.binding.address": LOOPBACK,
        "spark.connect.grpc.binding.port": str(settings.port),
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.ui.port": str(settings.ui_port),
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(settings.cores),
        # A stage's partitions are its subtasks, so Spark must not merge them.
        "spark.sql.adaptive.enabled": "false",
        # Sessions are named and kept: losing one to idleness costs its warm Python workers.
        "spark.connect.session.manager.defaultSessionTimeout": "-1",
        **PYTHON_WORKERS,
    }


def _java_options(settings: SparkSettings, folder: Path) -> list[str]:
    archive = folder / "classes.jsa"
    if settings.writes_archive:
        return [f"-XX:ArchiveClassesAtExit={archive}"]
    if not archive.exists():
        return ["-Xshare:auto"]
    # Measured: listens after 5.2 s instead of 9.  An archive of other jars or another Java is
    # ignored by the JVM, so it can do no harm.
    return ["-Xshare:auto", f"-XX:SharedArchiveFile={archive}"]
