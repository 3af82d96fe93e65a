"""Faults that a person injects to see the recovery: off unless asked for.

``kill-worker stage=window_rule``: the Python worker of a subtask dies in mid-epoch.
``kill-task stage=window_rule checkpoint=3``: the Airflow task kills itself with SIGKILL, once.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from sluice.errors import ConfigurationError

FAULT_VARIABLE = "SLUICE_FAULT"
FORM = "'kill-worker stage=UID' or 'kill-task stage=UID', with checkpoint=ID to strike only once"

FaultKind: TypeAlias = Literal["kill-worker", "kill-task"]
_KINDS: dict[str, FaultKind] = {kind: kind for kind in get_args(FaultKind)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """``checkpoint_id`` None: every checkpoint."""

    kind: FaultKind
    stage: str
    checkpoint_id: int | None = None

    def strikes(self, kind: FaultKind, stage: str, checkpoint_id: int) -> bool:
        return (self.kind, self.stage) == (kind, stage) and self.checkpoint_id in (
            None,
            checkpoint_id,
        )

    def __str__(self) -> str:
        """The form that ``parse_fault`` reads."""
        only = "" if self.checkpoint_id is None else f" checkpoint={self.checkpoint_id}"
        return f"{self.kind} stage={self.stage}{only}"


def parse_fault(text: str) -> Fault | None:
    """None for an empty text.

    Raises:
        ConfigurationError: the text has another form.
    """
    words = text.split()
    if not words:
        return None
    kind = _KINDS.get(words[0])
    options = dict(word.partition("=")[::2] for word in words[1:])
    stage = options.pop("stage", "")
    checkpoint = options.pop("checkpoint", None)
    is_number = checkpoint is None or checkpoint.isdecimal()
    if kind is None or not stage or options or not is_number or len(words) > 3:
        raise ConfigurationError(f"the fault {text!r} cannot be read; write {FORM}")
    return Fault(
        kind=kind, stage=stage, checkpoint_id=None if checkpoint is None else int(checkpoint)
    )


def fault_from_environment() -> Fault | None:
    return parse_fault(os.environ.get(FAULT_VARIABLE, ""))
