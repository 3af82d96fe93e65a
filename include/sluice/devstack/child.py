"""A process of the stack in one of three roles, each of which wraps a program in this process.

python -m sluice.devstack.child keep COMMAND…         a server, started anew when it dies
python -m sluice.devstack.child component scheduler   a component of Airflow, under supervisord
python -m sluice.devstack.child loopback scheduler    the same, which ``component`` becomes
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

COMPONENT_VARIABLE = "SLUICE_AIRFLOW_COMPONENT"  # A mark that all descendants inherit.
MIGRATED_FILE = "migrated"  # A file in AIRFLOW_HOME that marks the database as migrated.
RUNS_AFTER_S = 5.0
LONGEST_PAUSE_S = 30.0

_MODULE = "sluice.devstack.child"  # When it runs, its ``__name__`` is another.
_POLL_S = 0.05


def keeper_command(command: tuple[str, ...]) -> tuple[str, ...]:
    """The command that runs *command* under a keeper."""
    return (sys.executable, "-m", _MODULE, "keep", *command)


def component_command(component: str) -> tuple[str, ...]:
    """The command that runs a component of Airflow."""
    return (sys.executable, "-m", _MODULE, "component", component)


def keep_a_server(arguments: list[str]) -> None:
    """Run the command *arguments* until SIGTERM.

    Keeper and server are in one process group, so a signal to that stops both.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    sys.exit(keep(arguments))


def keep(command: list[str], *, runs_after_s: float = RUNS_AFTER_S) -> int:
    """Run *command* for ever; return its code if it never ran for *runs_after_s*.

    A server that lives and does not answer is not noticed here: ``up`` replaces it.

        keeper --starts--> server --died after a while--> pause --> server ...
                             '--died at once, the first time--> the keeper ends with its code
    """
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


def become_component(arguments: list[str]) -> None:
    """Kill leftovers, then become the Airflow process, which supervisord watches.

    A killed scheduler leaves its workers behind, blocked forever on a queue, and its log server,
    which holds the port of the next one.  So all processes of the component's former life are
    killed first, as with a container.

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
    os.environ[COMPONENT_VARIABLE] = component
    os.execv(sys.executable, [sys.executable, "-m", _MODULE, "loopback", component])  # noqa: S606


def run_airflow_on_loopback(arguments: list[str]) -> None:
    """Run Airflow with *arguments*; its log server listens on loopback.

    By itself it listens on every interface, and no option of Airflow says otherwise.
    """
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
