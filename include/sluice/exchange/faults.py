"""Faults that are injected to test the recovery: off unless they are configured.

Of a subtask, between its uploads and its ack:

    kill-worker stage=window_rule    its Python worker dies
    decline stage=window_rule        it declines the checkpoint
    fail-worker stage=window_rule    its code raises
    hang-worker stage=window_rule seconds=60   it sleeps

Of an Airflow task (``stage=UID`` is short for the snapshot task of that stage):

    kill-task task=finalize          it kills itself with SIGKILL
    kill-supervisor task=trigger     it kills Airflow's supervisor, which reports its state
    fail-task task=commit            it raises
    hang task=trigger seconds=60     it sleeps, so that something else can be killed meanwhile

With ``when=after`` the fault strikes when the task has done its work and has not reported it yet,
with ``checkpoint=3`` in that checkpoint only, and with ``tries=1`` in the first try only.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from sluice.errors import CheckpointDeclined, ConfigurationError

FAULT_VARIABLE = "SLUICE_FAULT"
FORM = (
    "'KIND stage=UID' or 'KIND task=TASK', KIND being kill-worker, decline, fail-worker, "
    "hang-worker, kill-task, kill-supervisor, fail-task or hang; add checkpoint=ID, tries=N, "
    "when=after or, to hang, seconds=S"
)
MAX_SECONDS = 3_600

WorkerFault: TypeAlias = Literal["kill-worker", "decline", "fail-worker", "hang-worker"]
TaskFault: TypeAlias = Literal["kill-task", "kill-supervisor", "fail-task", "hang"]
FaultKind: TypeAlias = WorkerFault | TaskFault
WORKER_FAULTS: tuple[FaultKind, ...] = get_args(WorkerFault)
_TASK_FAULTS: tuple[FaultKind, ...] = get_args(TaskFault)
_KINDS: dict[str, FaultKind] = {kind: kind for kind in (*WORKER_FAULTS, *_TASK_FAULTS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault to inject; None for ``checkpoint_id`` or ``tries`` stands for all of them."""

    kind: FaultKind
    stage: str = ""
    task: str = ""
    checkpoint_id: int | None = None
    tries: int | None = None
    is_after: bool = False
    seconds: int = 0

    def strikes_subtask(self, stage: str, checkpoint_id: int) -> bool:
        return self.kind in WORKER_FAULTS and self.stage == stage and self._is_now(checkpoint_id)

    def strikes_task(
        self, task: str, checkpoint_id: int | None, *, is_after: bool, try_number: int
    ) -> bool:
        """Whether the fault strikes this try of *task*, which may belong to no checkpoint."""
        return (
            self.kind in _TASK_FAULTS
            and task == (self.task or f"{self.stage}.snapshot")
            and is_after == self.is_after
            and (self.tries is None or try_number <= self.tries)
            and self._is_now(checkpoint_id)
        )

    def _is_now(self, checkpoint_id: int | None) -> bool:
        return self.checkpoint_id in (None, checkpoint_id)

    def strike(self) -> None:
        """Inject the fault into the subtask that calls this."""
        match self.kind:
            case "kill-worker":
                os.kill(os.getpid(), signal.SIGKILL)
            case "decline":
                raise CheckpointDeclined(f"fault injected: {self}")
            case "hang-worker":
                time.sleep(self.seconds)
            case _:
                raise RuntimeError(f"fault injected: {self}")

    def __str__(self) -> str:
        """The form that ``parse_fault`` reads."""
        options = {
            "stage": self.stage,
            "task": self.task,
            "checkpoint": self.checkpoint_id,
            "tries": self.tries,
            "when": "after" if self.is_after else "",
            "seconds": self.seconds or "",
        }
        texts = (f"{name}={value}" for name, value in options.items() if value not in ("", None))
        return " ".join((self.kind, *texts))


def parse_fault(text: str) -> Fault | None:
    """The fault that *text* describes; None for an empty text.

    Raises:
        ConfigurationError: the text has another form.
    """
    words = text.split()
    if not words:
        return None
    kind = _KINDS.get(words[0])
    options = dict(word.partition("=")[::2] for word in words[1:])
    is_repeated = len(options) != len(words) - 1
    stage, task = options.pop("stage", ""), options.pop("task", "")
    numbers = {name: options.pop(name, None) for name in ("checkpoint", "tries", "seconds")}
    when = options.pop("when", "before")
    is_fitting = (
        kind is not None
        and not (options or is_repeated)
        and bool(stage) != bool(task)
        and not (task and kind in WORKER_FAULTS)
        and when in ("before", "after")
        and all(number is None or number.isdecimal() for number in numbers.values())
        and (kind in ("hang", "hang-worker")) == (numbers["seconds"] is not None)
    )
    found = {
        name: None if text is None else int(text) for name, text in numbers.items() if is_fitting
    }
    if kind is None or not is_fitting or (found["seconds"] or 0) > MAX_SECONDS:
        raise ConfigurationError(f"the fault {text!r} cannot be read; write {FORM}")
    return Fault(
        kind=kind,
        stage=stage,
        task=task,
        checkpoint_id=found["checkpoint"],
        tries=found["tries"],
        is_after=when == "after",
        seconds=found["seconds"] or 0,
    )


def fault_from_environment() -> Fault | None:
    return parse_fault(os.environ.get(FAULT_VARIABLE, ""))
