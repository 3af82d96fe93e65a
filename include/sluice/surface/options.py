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
from typing import TypeAlias

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
    CHANGEABLE,
    FIXED,
    OPTIONS,
    Checkpointing,
    fixed_configuration,
    limits_of,
    renewed,
)
from sluice.declaration.durations import LONGEST, DurationLimits
from sluice.declaration.pipeline import Pipeline
from sluice.job.job import Job
from sluice.store.redaction import redacted

Plain: TypeAlias = bool | int | float | str | None


_MS = timedelta(milliseconds=1)


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
    """One option, in words what it ``says``, and its value in ``unit``: ``ms``, ``bytes``, or none.

    ``in_force`` differs from ``declared`` where the declaration changed and ``awaits_restore``;
    where a person changed it while the job ran, which ``changed`` says; and where a person gave it
    with the submission.  ``least`` and ``most`` are the limits of what a person may change while
    the job runs; None: there is no such limit.
    """

    name: str
    says: str
    unit: str
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
    is_period = _unit(name) == "ms" and not isinstance(value, str)
    return _period_with_unit(int(value)) if is_period else str(value)


def _unit(name: str) -> str:
    """The unit of an option, or of a field of the restart strategy."""
    if name.endswith("_ms"):
        return "ms"
    option = OPTIONS.get(name)
    if option is None:
        return ""
    return "ms" if isinstance(limits_of(name), DurationLimits) else option.unit


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
        can_change = name in CHANGEABLE
        least, most = _bounds(name) if can_change else (None, None)
        for key in by_declaration:
            yield Setting(
                name=key,
                says=OPTIONS[name].says,
                unit=_unit(key),
                declared=by_declaration[key],
                in_force=in_force[key],
                default=by_default[key],
                can_change=can_change,
                changed=can_change and getattr(timing, CHANGEABLE[name]) is not None,
                awaits_restore=key in awaiting,
                least=least,
                most=most,
            )


def _bounds(name: str) -> tuple[int | None, int | None]:
    """The least and the most of an option that a person may change, as people are shown them."""
    limits = limits_of(name)
    if limits is None:
        return None, None
    if isinstance(limits, DurationLimits):
        return limits.least // _MS, None if limits.most == LONGEST else limits.most // _MS
    least, most = limits.least, limits.most
    return None if least is None else int(least), None if most is None else int(most)
