"""Processes that begin at the same moment, as coordinators of one job do."""

from __future__ import annotations

import subprocess
import sys

from sluice.store.open import StoreLocation
from tests.contract.conftest import environment_with_sluice

PROLOGUE = """
import sys
from sluice.store.open import StoreLocation, open_store
root, endpoint_url, *arguments = sys.argv[1:]
store = open_store(StoreLocation(root=root, endpoint_url=endpoint_url or None))
print("ready", flush=True)
sys.stdin.readline()
"""


def printed_by_racers(location: StoreLocation, script: str, *racers: list[str]) -> list[str]:
    """The output of *script* in a process for each of *racers*, its ``arguments``; all end well.

    It has the ``store`` of *location*, and begins once every process is ready.
    """
    command = [sys.executable, "-c", PROLOGUE + script, location.root, location.endpoint_url or ""]
    processes = [
        subprocess.Popen(
            [*command, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment_with_sluice(),
        )
        for arguments in racers
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    printed = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(racers)
    return printed
