"""The options that a job keeps from one restore to the next, told by the names that they have in a
declaration.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from datetime import timedelta
from enum import Enum
from typing import TypeAlias

from sluice.core.configuration import JobConfiguration
from sluice.core.ids import NO_GENERATION
from sluice.core.state import CoordinatorState
from sluice.declaration.config import Checkpointing
from sluice.declaration.job_configuration import renewed
from sluice.declaration.pipeline import Pipeline

Plain: TypeAlias = bool | int | float | str | None
_MS = timedelta(milliseconds=1)
_PERIODS = (
    *("interval", "interval_during_backlog", "timeout", "min_pause"),
    *("aligned_checkpoint_timeout", "retain_for", "target_epoch"),
)

# The fields of ``Checkpointing`` that a submission or restore fixes, and where it keeps them.
FIXED = {
    "interval_during_backlog": "interval_during_backlog_ms",
    "min_pause": "min_pause_ms",
    "max_concurrent_checkpoints": "max_concurrent",
    "num_retained": "num_retained",
    "retain_for": "retain_ms",
    "tolerable_failed_checkpoints": "tolerable_failed_checkpoints",
    "mode": "mode",
    "unaligned": "unaligned",
    "aligned_checkpoint_timeout": "aligned_timeout_ms",
    "externalized_checkpoint_retention": "retention",
    "on_damaged_checkpoint": "on_damaged_checkpoint",
    "checkpoints_after_tasks_finish": "checkpoints_after_tasks_finish",
    "data_inline_threshold": "inline_threshold_bytes",
    "max_records_per_epoch": "max_records_per_epoch",
    "target_epoch": "target_epoch_ms",
    "restart_strategy": "restart",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionChange:
    """An option that a restore changes: from ``before`` to ``after``."""

    name: str
    before: Plain
    after: Plain

    @property
    def awaited(self) -> str:
        """The change in words, while no restore has made it."""
        before, after = told(self.name, self.before), told(self.name, self.after)
        return f"{self.label}: declared {after}, in force {before} until a restore"

    @property
    def made(self) -> str:
        """The change in words, as what a restore makes or made."""
        return f"{self.label} {told(self.name, self.after)}, before {told(self.name, self.before)}"

    @property
    def label(self) -> str:
        return self.name.removesuffix("_ms")


def awaited_changes(pipeline: Pipeline, state: CoordinatorState) -> list[OptionChange]:
    """What a restore would change of the job's options; none for one that was never submitted."""
    if state.generation == NO_GENERATION:
        return []
    return [*_differences(state, renewed(pipeline.checkpointing, state.configuration))]


def options_after(
    state: CoordinatorState, configuration: JobConfiguration | None
) -> tuple[OptionChange, ...]:
    """What a restore with *configuration*, None for none, changes of the job's options."""
    if configuration is None or state.generation == NO_GENERATION:
        return ()
    return tuple(_differences(state, configuration))


def _differences(state: CoordinatorState, after: JobConfiguration) -> Iterator[OptionChange]:
    """What a person changed while the job runs stays in force through a restore."""
    before = state.configuration
    for field in fields(Checkpointing):
        kept_as = FIXED.get(field.name)
        if kept_as is None or getattr(state.timing, kept_as, None) is not None:
            continue
        old, new = (plain(field.name, getattr(one, kept_as)) for one in (before, after))
        for name in new:
            if old[name] != new[name]:
                yield OptionChange(name=name, before=old[name], after=new[name])


def plain(name: str, value: object) -> dict[str, Plain]:
    """The value under the option's name; of a restart strategy, each of its fields."""
    if name == "restart_strategy" and is_dataclass(value):
        return {f"{name}.{one.name}": _one(getattr(value, one.name)) for one in fields(value)}
    return {name: _one(value)}


def told(name: str, value: Plain) -> str:
    """The value as people write it: a period with its unit."""
    if value is None:
        return "none"
    is_period = name in _PERIODS or name.endswith("_ms")
    return _period_told(int(value)) if is_period and not isinstance(value, str) else str(value)


def _period_told(ms: int) -> str:
    for unit, factor in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if ms and ms % factor == 0:
            return f"{ms // factor} {unit}"
    return f"{ms} ms" if ms else "0"


def _one(value: object) -> Plain:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case timedelta():
            return value // _MS
        case Enum():
            return str(value.value)
        case _:
            return str(value)
