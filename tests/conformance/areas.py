"""One function per area: it runs a case on the real core, and answers in the case's own form."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from sluice.core.completed import CompletedCheckpoint, subsumed
from sluice.core.configuration import CheckpointType, JobStatus, Retention, is_discarded
from sluice.core.decider import CheckpointRequest, Decision, Limits, Situation, decide
from sluice.core.failures import CheckpointFailureReason, FailureCount
from sluice.core.ids import CheckpointIdCounter
from sluice.core.key_groups import check_parallelism, default_max_parallelism, key_group_range
from sluice.declaration.checkpointing import Checkpointing
from sluice.errors import ConfigurationError
from tests.conformance.flink_plan import (
    Edge,
    Subtasks,
    Vertex,
    get_and_increment,
    plan,
    previous_subtasks,
)
from tests.conformance.pending import pending_ack
from tests.conformance.reasons import reason_named
from tests.conformance.registry import shared_registry
from tests.property.core.completed_checkpoints import a_completed

Case = dict[str, Any]

ENDS = (JobStatus.FINISHED, JobStatus.CANCELED, JobStatus.FAILED, JobStatus.SUSPENDED)


def request_decider(case: Case) -> object:
    config = {"max_concurrent": 1, "min_pause_ms": 0, "max_queued": 1_000}
    limits = Limits(**config | case["given"].get("config", {}))
    queue: tuple[CheckpointRequest, ...] = ()
    answers: list[object] = []
    for step in case["when"]:
        submits = step.get("submit") or [None]
        ran: list[str] = []
        events: list[list[object]] = []
        for submit in submits if isinstance(submits, list) else [submits]:
            decision = decide(queue, limits, _situation(step), submit and _request(submit))
            queue = decision.queue
            ran += [decision.run.request_id] if decision.run else []
            events += _events(decision)
        answers.append({"run": ran[0] if len(ran) == 1 else ran or None, "events": events})
    return answers


def failure_counter(case: Case) -> object:
    try:
        tolerable = case["given"].get("tolerable_failures", 0)
        Checkpointing(tolerable_failed_checkpoints=tolerable or 0)
    except ConfigurationError as error:
        return {"fails": str(error)}
    count, failures = FailureCount(), 0
    steps: list[list[Any]] = case["when"]
    for kind, *details in steps:
        if kind == "ok":
            count = count.succeed(details[0])
            continue
        defaults: list[Any] = [None, None, "job", False, False]
        reason, checkpoint_id, level, savepoint, stop = [*details, *defaults[len(details) :]]
        count, fails_the_job = count.fail(
            checkpoint_id,
            reason_named(reason),
            tolerable=tolerable,
            type=_type(savepoint=savepoint, stops=stop),
            is_task_level=level == "task",
        )
        failures += fails_the_job
    return {"job_failures": failures}


def checkpoint_plan(case: Case) -> object:
    """By the model of Flink's calculation: in the product a stage finishes as a whole."""
    given = case["given"]
    if "operator_state_mode" in given:
        raise NotImplementedError("union list state does not exist in this system")
    declared = [dict(vertex) for vertex in given.get("vertices", [{"p": 1}])]
    edges = given.get("edges", [])
    for index in set(range(len(declared))) - {target for _, target, _ in edges}:
        declared[index] = {"state": given.get("state", "RUNNING")} | declared[index]
    found = plan(
        [_vertex(index, vertex) for index, vertex in enumerate(declared)],
        [
            Edge(source=str(source), target=str(target), is_pointwise=_is_pointwise(pattern))
            for source, target, pattern in edges
        ],
    )
    if isinstance(found, CheckpointFailureReason):
        return {"fails": found.value}
    everybody = _listed(found.to_wait_for)
    return {
        "trigger": _listed(found.to_trigger),
        "wait_and_commit": everybody,
        "wait": everybody,
        "commit": everybody,
        "finished": _listed(found.finished),
        "fully_finished": [int(uid) for uid in found.fully_finished],
    }


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
    try:
        num_retained = Checkpointing(num_retained=given["num_retained"]).num_retained
    except ConfigurationError as error:
        return {"fails": str(error)}
    queue = tuple(_completed(entry) for entry in given.get("queue_old_to_new", []))
    gone = subsumed(queue, num_retained)
    return {
        "kept": [c.checkpoint_id for c in queue if c not in gone],
        "subsumed": [c.checkpoint_id for c in gone],
    }


def key_groups(case: Case) -> object:
    given = case["given"]
    try:
        for parallelism in (given[name] for name in ("p", "old", "new") if name in given):
            check_parallelism(case["id"], parallelism, given.get("max", parallelism))
    except ConfigurationError as error:
        return {"fails": str(error)}
    match case["when"]:
        case "ranges":
            ranges = (
                key_group_range(given["max"], given["p"], index) for index in range(given["p"])
            )
            return [[groups.first, groups.last] for groups in ranges]
        case "assign keyed state":
            reads = previous_subtasks(given["max"], given["old"], given["new"])
            return [list(subtasks) for subtasks in reads]
        case "computeDefaultMaxParallelism" if "p" in given:
            return default_max_parallelism(given["p"])
        case "computeDefaultMaxParallelism":
            return [
                {"p": row["p"], "default_max": default_max_parallelism(row["p"])}
                for row in case["then"]
            ]
        case _:
            raise NotImplementedError(f"key-groups: {case['when']!r}")


def id_counter(case: Case) -> object:
    counter = CheckpointIdCounter()
    answers: list[int | None] = []
    for call in case["when"]:
        name, *arguments = call if isinstance(call, list) else re.findall(r"[\w-]+", call)
        match name:
            case "get":
                answers.append(counter.get())
            case "getAndIncrement":
                taken, counter = get_and_increment(counter)
                answers.append(taken)
            case "setCount":
                counter = counter.at_least(int(arguments[0]))
                answers.append(None)
            case _:
                raise NotImplementedError(f"id-counter: {name!r}")
    is_silent_on_void = None not in case["then"]
    return [given for given in answers if given is not None] if is_silent_on_void else answers


def _situation(step: dict[str, Any]) -> Situation:
    return Situation(
        is_triggering=step.get("triggering", False),
        pending=step.get("pending", 0),
        cleaning=step.get("cleaning", 0),
        last_completed_at_ms=step.get("last_completion_ms"),
        now_ms=step["now_ms"],
    )


def _request(submit: dict[str, Any]) -> CheckpointRequest:
    return CheckpointRequest(
        request_id=submit["id"],
        type=_type(savepoint=submit.get("savepoint", False), stops=False),
        is_periodic=submit.get("periodic", False),
        is_forced=submit.get("forced", False),
        requested_at_ms=submit.get("ts", 0),
    )


def _events(decision: Decision) -> list[list[object]]:
    events: list[list[object]] = [
        ["fail", rejection.request.request_id, rejection.reason.value]
        for rejection in decision.rejected
    ]
    if decision.reschedule_in_ms is not None:
        events.append(["reschedule_in_ms", decision.reschedule_in_ms])
    return events


def _vertex(index: int, declared: dict[str, Any]) -> Vertex:
    """``state`` is that of every subtask that has not finished, or one state for each subtask."""
    subtasks = range(declared["p"])
    state = declared.get("state", "RUNNING")
    states = state if isinstance(state, list) else [state for _ in subtasks]
    finished = {i for i in subtasks if states[i] == "FINISHED"} | set(declared.get("finished", []))
    not_running = {i for i in subtasks if states[i] != "RUNNING"}
    return Vertex(
        uid=str(index),
        parallelism=declared["p"],
        finished=frozenset(finished),
        not_running=frozenset(not_running | set(declared.get("not_running", []))) - finished,
    )


def _is_pointwise(pattern: str) -> bool:
    if pattern.lower().startswith("all"):
        return False
    return {"pointwise": True}[pattern.lower()]


def _listed(subtasks: Subtasks) -> list[list[object]]:
    return [[int(uid), list(indices)] for uid, indices in subtasks.items()]


def _type(*, savepoint: bool, stops: bool) -> CheckpointType:
    if stops:
        return CheckpointType.SAVEPOINT_SUSPEND
    return CheckpointType.SAVEPOINT if savepoint else CheckpointType.CHECKPOINT


def _completed(entry: dict[str, Any]) -> CompletedCheckpoint:
    type_ = _type(savepoint=entry["savepoint"], stops=entry.get("sync", False))
    return a_completed(entry["id"], type_)


AREAS: dict[str, Callable[[Case], object]] = {
    "request-decider": request_decider,
    "failure-counter": failure_counter,
    "pending-ack": pending_ack,
    "checkpoint-plan": checkpoint_plan,
    "retention": retention,
    "shared-registry": shared_registry,
    "key-groups": key_groups,
    "id-counter": id_counter,
}
