"""Flink's rules as cases: ``python -m tests.conformance.run FILE.jsonl...``

Runs any file of these areas through the real core and ends with ``N passed, N failed``.  A case of
an area that the core does not have yet fails, and says so.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from sluice.core.completed import CompletedCheckpoint, subsumed
from sluice.core.failures import FailureCount
from sluice.core.ids import CheckpointId, Generation
from sluice.core.key_groups import default_max_parallelism, key_group_range, previous_subtasks
from sluice.core.properties import CheckpointType, JobStatus, Retention, is_discarded
from sluice.core.reasons import CheckpointFailureReason

Case = dict[str, Any]

ENDS = (JobStatus.FINISHED, JobStatus.CANCELED, JobStatus.FAILED, JobStatus.SUSPENDED)


def failure_counter(case: Case) -> object:
    count, failures = FailureCount(), 0
    for kind, *details in case["when"]:
        if kind == "ok":
            count = count.succeed(details[0])
            continue
        defaults = (None, None, "job", False, False)
        reason, checkpoint_id, level, savepoint, stop = (*details, *defaults[len(details) :])
        count, fails_the_job = count.fail(
            checkpoint_id,
            CheckpointFailureReason(reason),
            tolerable=case["given"]["tolerable_failures"],
            type=_type(savepoint=savepoint, stops=stop),
            is_task_level=level == "task",
        )
        failures += fails_the_job
    return {"job_failures": failures}


def retention(case: Case) -> object:
    given = case["given"]
    if "properties" in given:
        name = given["properties"].split()[0]
        is_savepoint = name not in Retention.__members__
        policy = Retention.RETAIN_ON_CANCELLATION if is_savepoint else Retention[name]
        type_ = _type(savepoint=is_savepoint, stops=False)
        discards = {
            "subsumed" if ended is None else ended.value: is_discarded(type_, policy, ended)
            for ended in (None, *ENDS)
        }
        return {event: "discard" if gone else "keep" for event, gone in discards.items()}
    queue = tuple(
        _completed(entry["id"], _type(savepoint=entry["savepoint"], stops=entry.get("sync", False)))
        for entry in given["queue_old_to_new"]
    )
    gone = subsumed(queue, given["num_retained"])
    return {
        "kept": [c.checkpoint_id for c in queue if c not in gone],
        "subsumed": [c.checkpoint_id for c in gone],
    }


def key_groups(case: Case) -> object:
    given = case["given"]
    match case["when"]:
        case "ranges":
            ranges = (
                key_group_range(given["max"], given["p"], index) for index in range(given["p"])
            )
            return [[groups.first, groups.last] for groups in ranges]
        case "assign keyed state":
            reads = previous_subtasks(given["max"], given["old"], given["new"])
            return [list(subtasks) for subtasks in reads]
        case "computeDefaultMaxParallelism":
            return [
                {"p": row["p"], "default_max": default_max_parallelism(row["p"])}
                for row in case["then"]
            ]
    raise NotImplementedError(f"key-groups: {case['when']!r}")


AREAS: dict[str, Callable[[Case], object]] = {
    "failure-counter": failure_counter,
    "retention": retention,
    "key-groups": key_groups,
}


def cases(paths: Iterable[Path]) -> list[Case]:
    return [json.loads(line) for path in paths for line in path.read_text().splitlines() if line]


def answer(case: Case) -> object:
    """What the core says to a case; raises NotImplementedError for an area it does not have."""
    if case["area"] not in AREAS:
        raise NotImplementedError(f"the core has no area {case['area']!r} yet")
    return AREAS[case["area"]](case)


def main(arguments: list[str]) -> int:
    failed = 0
    everything = cases(Path(argument) for argument in arguments)
    for case in everything:
        try:
            actual = answer(case)
        except NotImplementedError as error:
            actual = str(error)
        if actual != case["then"]:
            failed += 1
            print(f"{case['id']}\n  expected {case['then']}\n  got      {actual}")  # noqa: T201
    print(f"{len(everything) - failed} passed, {failed} failed")  # noqa: T201
    return 1 if failed else 0


def _type(*, savepoint: bool, stops: bool) -> CheckpointType:
    if stops:
        return CheckpointType.SAVEPOINT_SUSPEND
    return CheckpointType.SAVEPOINT if savepoint else CheckpointType.CHECKPOINT


def _completed(checkpoint_id: int, type_: CheckpointType) -> CompletedCheckpoint:
    return CompletedCheckpoint(
        checkpoint_id=CheckpointId(checkpoint_id),
        generation=Generation(1),
        parent=None,
        type=type_,
        triggered_at_ms=0,
        completed_at_ms=0,
        drains=False,
        records=0,
        checkpointed_bytes=0,
        full_bytes=0,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
