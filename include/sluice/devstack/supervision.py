"""Airflow's components under supervisord, which restarts each one that dies.

``airflow standalone`` does not: after a kill -9 of its scheduler it runs on without one.

    supervisord
     ├── airflow db migrate, once; if it fails, it ends supervisord
     ├── component.py scheduler       -> airflow scheduler, when the database is migrated
     ├── component.py api-server      -> airflow api-server
     └── ... (each in a process group of its own, all in one session)
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from sluice.devstack.component import MIGRATED_FILE

COMPONENTS = ("scheduler", "api-server", "triggerer", "dag-processor")

# All in parallel, because supervisord takes two seconds to start.
_MIGRATE_AND_SUPERVISE = (
    'rm -f "$2"; { "$0" -m airflow db migrate && touch "$2" || kill $$; } &'
    ' exec "$0" -m supervisor.supervisord --nodaemon --configuration "$1"'
)
# A component that dies earlier is restarted after a pause that grows by 1 s each time.
_RUNS_AFTER_S = 5
_FOREVER = 1_000_000  # Supervisord's default is to give up after three tries.
_STOP_WAIT_S = 8  # Less than the stack's own grace period, after which all are killed.


def supervisor_command(sluice_dir: Path) -> tuple[str, ...]:
    """The command that migrates Airflow's database once, and then runs all components."""
    home = sluice_dir / "airflow"
    files = (str(_path(sluice_dir)), str(home / MIGRATED_FILE))
    return ("/bin/sh", "-c", _MIGRATE_AND_SUPERVISE, sys.executable, *files)


def write_supervisor_configuration(sluice_dir: Path) -> None:
    """Write supervisord's configuration; it logs to its output, each component to a file."""
    path = _path(sluice_dir)
    path.parent.mkdir(parents=True, exist_ok=True)
    programs = "".join(_program(name, sluice_dir) for name in COMPONENTS)
    path.write_text(_supervisord(sluice_dir) + programs, encoding="utf-8")


def component_log(sluice_dir: Path, component: str) -> Path:
    return sluice_dir / "logs" / f"airflow-{component}.log"


def _supervisord(sluice_dir: Path) -> str:
    # No [unix_http_server] and no [inet_http_server], as it has no clients.
    return f"""\
; Written by sluice.devstack.supervision.
[supervisord]
logfile = /dev/null
logfile_maxbytes = 0
pidfile = {_escaped(sluice_dir / "airflow" / "supervisord.pid")}
"""


def _program(component: str, sluice_dir: Path) -> str:
    command = shlex.join((sys.executable, "-m", "sluice.devstack.component", component))
    return f"""
[program:{component}]
command = {_escaped(command)}
autorestart = true
startsecs = {_RUNS_AFTER_S}
startretries = {_FOREVER}
stopasgroup = true
killasgroup = true
stopwaitsecs = {_STOP_WAIT_S}
redirect_stderr = true
stdout_logfile = {_escaped(component_log(sluice_dir, component))}
stdout_logfile_backups = 1
"""


def _escaped(value: str | Path) -> str:
    return str(value).replace("%", "%%")  # Supervisord expands %(...)s.


def _path(sluice_dir: Path) -> Path:
    return sluice_dir / "airflow" / "supervisord.conf"
