"""``python -m sluice.devstack.component scheduler``: become one component of Airflow.

A scheduler that was killed leaves its workers behind, blocked forever on a queue that nobody
fills, and its log server, which holds the port of the next one.  So first, as the death of a
container would, kill whatever a former life of this component left.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from sluice.devstack.processes import STACK_ID_VARIABLE, kill_all_carrying

COMPONENT_VARIABLE = "SLUICE_AIRFLOW_COMPONENT"
MIGRATED_FILE = "migrated"  # Appears in AIRFLOW_HOME when the database is as Airflow wants it.

_POLL_S = 0.05


def main() -> None:
    """Clear the place, then run Airflow in this very process, which supervisord watches.

    Whoever migrates ends supervisord, and so us, if that fails: waiting needs no end of its own.
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
    os.execv(sys.executable, [sys.executable, "-m", "airflow", component])  # noqa: S606


if __name__ == "__main__":
    main()
