"""What the stack starts as processes: a server that is kept alive, or a component of Airflow.

    python -m sluice.devstack.child keep COMMAND…
    python -m sluice.devstack.child component scheduler

``component`` becomes one component of Airflow.

A killed scheduler leaves its workers behind, blocked forever on a queue, and its log server, which
holds the port of the next one.  So all processes of the component's former life are killed first,
as with a container.

``keep`` runs a server, and starts it anew when it dies.

    keeper --starts--> server --died after a while--> pause --> server ...
                         '--died at once, the first time--> the keeper ends with its code

Both are in one process group, so a signal to that stops both.  ``up`` replaces a server that lives
and does not answer.

Airflow's log servers listen on every interface, and no option of Airflow says otherwise:
``loopback`` is that component, listening on loopback.
"""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from sluice.devstack.processes import LOOPBACK, STACK_ID_VARIABLE, kill_all_carrying

COMPONENT_VARIABLE = "SLUICE_AIRFLOW_COMPONENT"
MIGRATED_FILE = "migrated"  # A file in AIRFLOW_HOME that marks the database as migrated.

_POLL_S = 0.05


def become_component(arguments: list[str]) -> None:
    """Kill leftovers, then become the Airflow process, which supervisord watches.

    The wait for the migration has no timeout: if that fails, it ends supervisord, and this process.
    """
    (component,) = arguments
    stack_id = os.environ[STACK_ID_VARIABLE]
    killed = kill_all_carrying(
        f"{STACK_ID_VARIABLE}={stack_id}", f"{COMPONENT_VARIABLE}={component}"
    )
    print(f"starting airflow {component}; killed {killed} left-over processes", flush=True)
    migrated = Path(os.environ["AIRFLOW_HOME"]) / MIGRATED_FILE
    while not migrated.exists():
        time.sleep(_POLL_S)
    os.environ[COMPONENT_VARIABLE] = component  # The mark that all its descendants inherit.
    module = "sluice.devstack.child"
    os.execv(sys.executable, [sys.executable, "-m", module, "loopback", component])  # noqa: S606


RUNS_AFTER_S = 5.0
LONGEST_PAUSE_S = 30.0


def keeper_command(command: tuple[str, ...]) -> tuple[str, ...]:
    """The command that runs *command* under a keeper."""
    return (sys.executable, "-m", "sluice.devstack.child", "keep", *command)


def keep(command: list[str], *, runs_after_s: float = RUNS_AFTER_S) -> int:
    """Run *command* for ever; return its code if it never ran for *runs_after_s*."""
    has_run, deaths = False, 0
    while True:
        begin = time.monotonic()
        code = subprocess.call(command)
        if time.monotonic() - begin >= runs_after_s:
            has_run, deaths = True, 0
        if not has_run:
            return code
        print(f"{command[0]} ended with {code}; starting it anew", flush=True)
        time.sleep(min(deaths, LONGEST_PAUSE_S))
        deaths += 1


def keep_a_server(arguments: list[str]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    sys.exit(keep(arguments))


def run_airflow_on_loopback(arguments: list[str]) -> None:
    import uvicorn

    run = uvicorn.run

    def on_loopback(app: Any, *, host: str = "", **options: Any) -> None:  # noqa: ANN401 - uvicorn's
        run(app, host=host or LOOPBACK, **options)

    vars(uvicorn)["run"] = on_loopback  # Airflow calls it by this name, in a fork of this process.
    sys.argv[1:] = arguments
    runpy.run_module("airflow", run_name="__main__")


ROLES = {
    "keep": keep_a_server,
    "component": become_component,
    "loopback": run_airflow_on_loopback,
}

if __name__ == "__main__":
    ROLES[sys.argv[1]](sys.argv[2:])
