"""A real Apache Kafka for tests: one node (KRaft) on free loopback ports, in a folder of its own.

``python -m harness.kafka_server`` fetches its jars by Maven into ``.sluice``, once.  It has two
listeners: clients of the plain one may do all, those of SASL (SCRAM) what access control lists
say.  The kernel kills it when the thread that started it ends.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from harness import maven
from sluice.devstack import processes

VERSION = "4.1.1"
JARS = maven.FETCHED / f"kafka-{VERSION}"
MISSING = "Apache Kafka is not here; `make kafka` fetches it, with Java 17 and Maven"
START_TIMEOUT_S = 300.0  # It starts in 5 s on a quiet machine.
PORT_ATTEMPTS = 5  # Another process may take a free port before the server does.

_MODULES = [
    f"org.apache.kafka:kafka_2.13:{VERSION}",
    "org.apache.logging.log4j:log4j-slf4j-impl:2.25.3",
]
_STARTED = "Kafka Server started"
_LOGGING = """<Configuration status="WARN"><Appenders><Console name="out"><PatternLayout
pattern="[%d] %p %m (%c)%n"/></Console></Appenders><Loggers><Root level="WARN"><AppenderRef
ref="out"/></Root><Logger name="kafka.server.KafkaRaftServer" level="INFO"/></Loggers>
</Configuration>"""
# What the storage tool writes for a new node, features of this version among it.
_FORMATTED = ("meta.properties", "bootstrap.checkpoint")
# Starts a program that the kernel kills with us: PR_SET_PDEATHSIG is 1, and outlives an exec.
ENDS_WITH_US = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
os.execvp(sys.argv[1], sys.argv[1:])
"""


@dataclass(frozen=True, slots=True)
class KafkaServer:
    """The addresses of both listeners."""

    servers: str
    sasl_servers: str


def is_here() -> bool:
    return maven.is_fetched(JARS)


def fetch() -> None:
    """Have Maven fetch Kafka and what it needs (54 MB)."""
    maven.fetch(JARS, _MODULES, _format)


def _format() -> None:
    (JARS / "log4j2.xml").write_text(_LOGGING)
    with tempfile.TemporaryDirectory() as folder:
        _write_properties(Path(folder), (1, 2, 3))
        identity = ["-t", "c2x1aWNlLXRlc3RzLWtrYQ", "-c", f"{folder}/server.properties"]
        tool = [*_java(), "kafka.tools.StorageTool", "format", *identity]
        subprocess.run(tool, check=True, stdout=subprocess.DEVNULL)
        for name in _FORMATTED:
            shutil.copy(Path(folder, "data", name), JARS)


@contextmanager
def running_kafka(folder: Path) -> Iterator[KafkaServer]:
    """Run a server over *folder*, which is to be new."""
    process: subprocess.Popen[bytes] | None = None
    try:
        for _ in range(PORT_ATTEMPTS):
            ports = plain, sasl, _ = processes.free_ports(3)
            process = _launched(folder, ports)
            if _is_ready(process, folder / "log"):
                break
            _kill(process)
        else:
            raise RuntimeError(f"Kafka did not start:\n{(folder / 'log').read_text()[-4000:]}")
        yield KafkaServer(f"127.0.0.1:{plain}", f"127.0.0.1:{sasl}")
    finally:
        if process is not None:
            _kill(process)


def _launched(folder: Path, ports: tuple[int, ...]) -> subprocess.Popen[bytes]:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "data").mkdir(parents=True)
    for name in _FORMATTED:
        shutil.copy(JARS / name, folder / "data")
    _write_properties(folder, ports)
    command = [
        sys.executable,
        "-S",
        "-c",
        ENDS_WITH_US,
        *_java(),
        "kafka.Kafka",
        "server.properties",
    ]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _java() -> list[str]:
    # With one compiler instead of two it starts in half the CPU time.
    options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    log = [f"-Dlog4j2.configurationFile={JARS}/log4j2.xml", "-Dlog4j2.disable.jmx=true"]
    return ["java", *options, *log, "-cp", f"{JARS}/*"]


def _write_properties(folder: Path, ports: tuple[int, ...]) -> None:
    plain, sasl, controller = ports
    listeners = f"PLAIN://127.0.0.1:{plain},SASL://127.0.0.1:{sasl}"
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": (
            "PLAIN:PLAINTEXT,SASL:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"
        ),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAIN",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.sasl.scram-sha-512.sasl.jaas.config": login,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "log.dirs": f"{folder}/data",
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
    }
    lines = "".join(f"{name}={value}\n" for name, value in settings.items())
    (folder / "server.properties").write_text(lines)


def _is_ready(process: subprocess.Popen[bytes], log: Path) -> bool:
    """Wait until the server says so; False when its process has ended."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        if _STARTED in log.read_text(errors="replace"):
            return True
        time.sleep(0.1)
    return False


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):  # It ended by itself.
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    fetch()
