"""A DAG run and its checkpoint: the one whose journaled ``cause`` names the run.

Nothing else is used.  XCom and Airflow's database may be lost, cleared or late; the journal has the
cause from the moment the checkpoint is pending, and both the triggerer and tasks can read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

from sluice.core.completed import CompletedCheckpoint
from sluice.core.ids import CheckpointId
from sluice.core.pending import PendingCheckpoint
from sluice.core.state import CoordinatorState, FailedCheckpoint
from sluice.errors import FencedError, SluiceError
from sluice.store.redaction import masked, redact_logs
from sluice_airflow.compat import AirflowFailException, AirflowSkipException


def run_cause(task_instance: Any) -> str:  # noqa: ANN401 - Airflow has four classes of them
    """The ``cause`` under which this DAG run triggers its checkpoint."""
    return f"airflow:{task_instance.dag_id}/{task_instance.run_id}"


def run_of(cause: str) -> tuple[str, str] | None:
    """The DAG and run that a ``cause`` names; None when it is not of Airflow."""
    kind, _, name = cause.partition(":")
    dag_id, slash, run_id = name.partition("/")
    return (dag_id, run_id) if kind == "airflow" and slash else None


def pending_of(state: CoordinatorState, cause: str) -> PendingCheckpoint | None:
    return next((p for p in state.pending if p.cause == cause), None)


def completed_of(state: CoordinatorState, cause: str) -> CompletedCheckpoint | None:
    """The newest completed checkpoint of a run; one that was cleared may have several."""
    return next((c for c in reversed(state.completed) if c.cause == cause), None)


def failed_of(state: CoordinatorState, cause: str) -> FailedCheckpoint | None:
    """The newest failed checkpoint of a run."""
    return next((failed for failed in reversed(state.failed) if failed.cause == cause), None)


def checkpoint_of(state: CoordinatorState, cause: str) -> CheckpointId:
    """The pending or retained checkpoint of this run.

    Raises:
        FencedError: it was aborted, or subsumed; or the run never triggered one.
    """
    owned = pending_of(state, cause) or completed_of(state, cause)
    if owned is not None:
        return owned.checkpoint_id
    failed = failed_of(state, cause)
    if failed is not None:
        raise FencedError(str(failed))
    raise FencedError(
        f"no checkpoint of {cause} is pending or retained; it was aborted, or a newer "
        "coordinator took over"
    )


def redact_airflow_logs() -> None:
    """No log of this process has a secret from now on: neither Python's, nor Airflow's own."""
    import structlog

    redact_logs()
    processors = structlog.get_config()["processors"]  # The list itself, which its loggers share.
    if _without_secrets not in processors:
        processors.insert(len(processors) - 1, _without_secrets)  # The last one writes.


def _without_secrets(_: object, __: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    return {name: masked(value) for name, value in event.items()}


@contextmanager
def airflow_failures() -> Iterator[None]:
    """The retry policy of every task: retry what may succeed later, skip what a newer coordinator
    owns, fail the rest.  What the task logs from here on has no secret, nor has what Airflow logs
    of its failure.
    """
    redact_airflow_logs()
    try:
        yield
    except FencedError as error:
        raise AirflowSkipException(str(error)) from error
    except SluiceError as error:
        if error.retryable:
            raise  # Airflow's own retry policy applies.
        raise AirflowFailException(str(error)) from error
