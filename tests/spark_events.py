"""What became of Spark's tasks and executors, by the event logs of applications, wherever their
drivers ran.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
    """How each task ended that did not succeed, in all applications that logged into *folder*."""
    ends = [event["Task End Reason"]["Reason"] for event in _events(folder, "TaskEnd")]
    assert ends, "no task was logged"
    return [end for end in ends if end != SUCCESS]


def has_begun_tasks(folder: Path) -> bool:
    """The log is flushed when a stage is submitted, and not for each task."""
    return any(_events(folder, "TaskStart"))


def executors_lost(folder: Path) -> list[str]:
    """Why each executor was removed before its application ended."""
    return [event["Removed Reason"] for event in _events(folder, "ExecutorRemoved")]


def _events(folder: Path, kind: str) -> Iterator[dict[str, Any]]:
    """Of a log that is still written the last line may not be whole yet."""
    for log in sorted(folder.iterdir()):
        *lines, _ = log.read_text().split("\n")
        yield from (json.loads(line) for line in lines if f'"SparkListener{kind}"' in line)
