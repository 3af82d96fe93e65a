"""What became of each Spark task, by the event logs of applications, wherever their drivers ran."""

from __future__ import annotations

import json
from pathlib import Path

SUCCESS = "Success"


def event_log(folder: Path) -> dict[str, str]:
    """The Spark properties of an application that writes its event log into *folder*."""
    folder.mkdir(exist_ok=True)
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder.as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
    }


def failed_tasks(folder: Path) -> list[str]:
    """How each task ended that did not succeed, in all applications that logged into *folder*.

    A log that is still written is read up to its last whole line.
    """
    ends = []
    for log in sorted(folder.iterdir()):
        *lines, _ = log.read_text().split("\n")
        events = (json.loads(line) for line in lines if '"SparkListenerTaskEnd"' in line)
        ends += [event["Task End Reason"]["Reason"] for event in events]
    assert SUCCESS in ends, "no task was logged"
    return [end for end in ends if end != SUCCESS]
