"""The options of a job: as declared, in force, and by default, by their names in a declaration.

A submission fixes most options, and a restore takes them from the declaration as it is then; until
that, what the declaration says and what is in force may differ.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import NamedTuple, TypeAlias, get_args, get_type_hints

import msgspec

from sluice.coordinator.requests import timeout_ms
from sluice.core.configuration import (
    CheckpointType,
    JobConfiguration,
    JobStatus,
    Retention,
    Timing,
    is_discarded,
)
from sluice.core.ids import NO_GENERATION
from sluice.core.state import CoordinatorState
from sluice.declaration.checkpointing import (
    MAXIMAL_PAUSE,
    MINIMAL_CHECKPOINT_TIME,
    Checkpointing,
    fixed_configuration,
    renewed,
)
from sluice.declaration.pipeline import Pipeline
from sluice.job.job import Job
from sluice.store.redaction import redacted

Plain: TypeAlias = bool | int | float | str | None


class Changeable(NamedTuple):
    """Where ``Timing`` has a person's value of an option, and its limits."""

    kept_as: str
    least: int
    most: int | None = None


_MS = timedelta(milliseconds=1)
_PERIODS = {
    name
    for name, hint in get_type_hints(Checkpointing).items()
    if timedelta in (hint, *get_args(hint))
}

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

# The options that a person may change while the job runs.
_CHANGEABLE = {
    "interval": Changeable("interval_ms", MINIMAL_CHECKPOINT_TIME // _MS),
    "timeout": Changeable("timeout_ms", MINIMAL_CHECKPOINT_TIME // _MS),
    "min_pause": Changeable("min_pause_ms", 0, MAXIMAL_PAUSE // _MS),
    "tolerable_failed_checkpoints": Changeable("tolerable_failed_checkpoints", 0),
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
        before = value_with_unit(self.name, self.before)
        after = value_with_unit(self.name, self.after)
        return f"{self.label}: declared {after}, in force {before} until a restore"

    @property
    def made(self) -> str:
        """The change in words, of a restore that makes or has made it."""
        before = value_with_unit(self.name, self.before)
        after = value_with_unit(self.name, self.after)
        return f"{self.label} {after}, before {before}"

    @property
    def label(self) -> str:
        return self.name.removesuffix("_ms")


class Externalization(msgspec.Struct, frozen=True, kw_only=True):
    enabled: bool
    delete_on_cancellation: bool


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One option; periods are in milliseconds, sizes in bytes.

    ``in_force`` differs from ``declared`` where the declaration changed and ``awaits_restore``;
    where a person changed it while the job ran, which ``changed`` says; and where a person gave it
    with the submission.  ``least`` and ``most`` are the limits of what a person may change while
    the job runs; None: there is no such limit.
    """

    name: str
    declared: Plain
    in_force: Plain
    default: Plain
    can_change: bool = False
    changed: bool = False
    awaits_restore: bool = False
    least: int | None = None
    most: int | None = None


class CheckpointConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Flink's CheckpointConfigInfo, of what is in force; ``interval`` is None without one.

    Beside it all ``settings``, and the parameters that the job was submitted with.  While it is
    ``paused`` no periodic checkpoint is taken; ``changed_by`` and ``changed_at`` are of the last
    pause, resume or change of times.
    """

    mode: str
    interval: int | None
    timeout: int
    min_pause: int
    max_concurrent: int
    externalization: Externalization
    state_backend: str
    checkpoint_storage: str
    unaligned_checkpoints: bool
    tolerable_failed_checkpoints: int
    aligned_checkpoint_timeout: int
    checkpoints_after_tasks_finish: bool
    settings: tuple[Setting, ...]
    params: dict[str, str]
    paused: bool = False
    changed_by: str = ""
    changed_at: int | None = None


def checkpoint_config(job: Job) -> CheckpointConfig:
    """The options of a job, for a LIST and a GET; before a submission, those that it would fix."""
    state = job.state()
    declared = job.pipeline.checkpointing
    is_submitted = state.generation != NO_GENERATION
    fixed = state.configuration if is_submitted else fixed_configuration(declared)
    timing = state.timing
    awaiting = {change.name for change in awaited_changes(job.pipeline, state)}
    if is_submitted:
        fixed = replace(
            fixed,
            min_pause_ms=state.min_pause_ms,
            tolerable_failed_checkpoints=state.tolerable_failed_checkpoints,
        )
    timed = replace(
        declared,
        interval=declared.interval if timing.interval_ms is None else timing.interval_ms * _MS,
        timeout=timeout_ms(job, state) * _MS,
    )
    return CheckpointConfig(
        mode=fixed.mode.value.lower(),
        interval=None if timed.interval is None else timed.interval // _MS,
        timeout=timed.timeout // _MS,
        min_pause=fixed.min_pause_ms,
        max_concurrent=fixed.max_concurrent,
        externalization=_externalization(fixed.retention),
        state_backend="Arrow segments, LSM",
        checkpoint_storage=redacted(f"{job.store.root}/{job.pipeline.uid}"),
        unaligned_checkpoints=fixed.unaligned,
        tolerable_failed_checkpoints=fixed.tolerable_failed_checkpoints,
        aligned_checkpoint_timeout=fixed.aligned_timeout_ms,
        checkpoints_after_tasks_finish=fixed.checkpoints_after_tasks_finish,
        settings=tuple(_settings(declared, timed, fixed, timing, awaiting)),
        params={name: redacted(value) for name, value in fixed.params.items()},
        paused=timing.is_paused,
        changed_by=redacted(timing.changed_by),
        changed_at=timing.changed_at_ms,
    )


def awaited_changes(pipeline: Pipeline, state: CoordinatorState) -> list[OptionChange]:
    """The changes that a restore would make to the job's options; none before a submission."""
    if state.generation == NO_GENERATION:
        return []
    return [*_differences(state, renewed(pipeline.checkpointing, state.configuration))]


def options_after(
    state: CoordinatorState, configuration: JobConfiguration | None
) -> tuple[OptionChange, ...]:
    """The changes that a restore with *configuration* makes to the job's options."""
    if configuration is None or state.generation == NO_GENERATION:
        return ()
    return tuple(_differences(state, configuration))


def plain_options(name: str, value: object) -> dict[str, Plain]:
    """The value under the option's name; of a restart strategy, each of its fields."""
    if name == "restart_strategy" and is_dataclass(value):
        return {
            f"{name}.{field.name}": _plain(getattr(value, field.name)) for field in fields(value)
        }
    return {name: _plain(value)}


def value_with_unit(name: str, value: Plain) -> str:
    """The value as people write it: a period with its unit."""
    if value is None:
        return "none"
    is_period = name in _PERIODS or name.endswith("_ms")
    return _period_with_unit(int(value)) if is_period and not isinstance(value, str) else str(value)


def _differences(state: CoordinatorState, after: JobConfiguration) -> Iterator[OptionChange]:
    """The options that differ, but for those that a person changed while the job runs: these stay
    in force through a restore.
    """
    before = state.configuration
    for field in fields(Checkpointing):
        kept_as = FIXED.get(field.name)
        if kept_as is None or getattr(state.timing, kept_as, None) is not None:
            continue
        old = plain_options(field.name, getattr(before, kept_as))
        new = plain_options(field.name, getattr(after, kept_as))
        for name in new:
            if old[name] != new[name]:
                yield OptionChange(name=name, before=old[name], after=new[name])


def _period_with_unit(ms: int) -> str:
    for unit, factor in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if ms and ms % factor == 0:
            return f"{ms // factor} {unit}"
    return f"{ms} ms" if ms else "0"


def _plain(value: object) -> Plain:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case timedelta():
            return value // _MS
        case Enum():
            return str(value.value)
        case _:
            return str(value)


def _externalization(retention: Retention) -> Externalization:
    discarded = partial(is_discarded, CheckpointType.CHECKPOINT, retention)
    return Externalization(
        enabled=not discarded(JobStatus.FAILED),
        delete_on_cancellation=discarded(JobStatus.CANCELED),
    )


def _settings(
    declared: Checkpointing,
    timed: Checkpointing,
    fixed: JobConfiguration,
    timing: Timing,
    awaiting: Collection[str],
) -> Iterator[Setting]:
    """*timed* has, as they are in force, the times that the journal does not fix."""
    default = Checkpointing()
    for field in fields(Checkpointing):
        name = field.name
        effective = getattr(fixed, FIXED[name]) if name in FIXED else getattr(timed, name)
        by_declaration = plain_options(name, getattr(declared, name))
        in_force = plain_options(name, effective)
        by_default = plain_options(name, getattr(default, name))
        changeable = _CHANGEABLE.get(name)
        for key in by_declaration:
            yield Setting(
                name=key,
                declared=by_declaration[key],
                in_force=in_force[key],
                default=by_default[key],
                can_change=changeable is not None,
                changed=changeable is not None and getattr(timing, changeable.kept_as) is not None,
                awaits_restore=key in awaiting,
                least=None if changeable is None else changeable.least,
                most=None if changeable is None else changeable.most,
            )
