"""``python -m sluice.devstack.keeper COMMAND…``: run a server, and start it anew when it dies.

    keeper --starts--> server --died after a while--> pause --> server ...
                         '--died at once, the first time--> the keeper ends with its code

Both are in one process group, so a signal to that stops both.  ``up`` replaces a server that lives
and does not answer.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time

RUNS_AFTER_S = 5.0
LONGEST_PAUSE_S = 30.0


def kept(command: tuple[str, ...]) -> tuple[str, ...]:
    """The command that runs *command* under a keeper."""
    return (sys.executable, "-m", "sluice.devstack.keeper", *command)


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


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    sys.exit(keep(sys.argv[1:]))


if __name__ == "__main__":
    main()
