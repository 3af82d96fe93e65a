"""``python -m sluice.devstack.component scheduler``: become one component of Airflow.

A killed scheduler leaves its workers behind, blocked forever on a queue, and its log server, which
holds the port of the next one.  So all processes of the component's former life are killed first,
as with a container.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from sluice.devstack.processes import STACK_ID_VARIABLE, kill_all_carrying

COMPONENT_VARIABLE = "SLUICE_AIRFLOW_COMPONENT"
MIGRATED_FILE = "migrated"  # A file in AIRFLOW_HOME that marks the database as migrated.

_POLL_S = 0.05


def main() -> None:
    """Kill leftovers, then become the Airflow process, which supervisord watches.

    The wait for the migration has no timeout: if that fails, it ends supervisord, and this process.
    """
    component = sys.argv[1]
    stack_id = os.environ[STACK_ID_VARIABLE]
    killed = kill_all_carrying(
        f"{STACK_ID_VARIABLE}={stack_id}", f"{COMPONENT_VARIABLE}={component}"
    )
    print(f"starting airflow {component}; killed {killed} left-over processes", flush=True)
    migrated = Path(os.environ["AIRFLOW_HOME"]) / MIGRATED_FILE
    while not migrated.exists():
        time.sleep(_POLL_S)
    os.environ[COMPONENT_VARIABLE] = component  # The mark that all its descendants inherit.
    module = "sluice.devstack.loopback_airflow"
    os.execv(sys.executable, [sys.executable, "-m", module, component])  # noqa: S606


if __name__ == "__main__":
    main()
