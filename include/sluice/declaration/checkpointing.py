"""The declaration of checkpointing: how often, how many, where state is kept, what a failure does.

Each frozen dataclass is checked when it is built.  Field names and limits are those of Flink's
CheckpointConfig; docs/reference/configuration.md shows every field beside its Flink option, and
where a default differs.

A value outside its limits is refused: the message names the field, its value and the fix.  Two
values that Flink corrects silently are corrected with a warning: an interval below ``min_pause``,
and more than one concurrent checkpoint beside a ``min_pause``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from functools import partial
from typing import Annotated, Any, NoReturn, Protocol, TypeAlias, get_args, get_type_hints

from sluice.core.configuration import (
    CheckpointingMode,
    DamagedCheckpoint,
    JobConfiguration,
    Retention,
    Timing,
)
from sluice.core.restart import RestartStrategy, RestartType
from sluice.declaration.arguments import (
    NumberLimits,
    check_argument,
    checked_arguments,
    checked_initializer,
)
from sluice.declaration.durations import (
    Duration,
    DurationLimits,
    PositiveDuration,
    in_words,
    milliseconds,
)
from sluice.declaration.schedules import Continuous, Schedule
from sluice.errors import ConfigurationError

log = logging.getLogger(__name__)

MINIMAL_SUBTASK_MEMORY = 1024**2  # One Arrow batch of a few columns.
MAXIMAL_RUNS = 1_000  # Every lookup of an epoch searches every run: more is of no use.
MINIMAL_CHECKPOINT_TIME = timedelta(milliseconds=10)  # Flink's CheckpointConfig constant.
MAXIMAL_PAUSE = timedelta(days=365)  # To which Flink's CheckpointCoordinator cuts a longer one.
# By their age: a commit reads the _metadata of each, and the journal lists all.
MAXIMAL_RETAINED = 1_000
MAXIMAL_HISTORY = 10_000  # An overview is one object of about 50 bytes each, compressed.
MAXIMAL_INLINE_BYTES = 1_048_576  # Flink's FileSystemCheckpointStorage constant.
HOOK_TIMEOUT = timedelta(minutes=10)  # That of a checkpoint, by default.

CheckpointTime: TypeAlias = Annotated[timedelta, DurationLimits(MINIMAL_CHECKPOINT_TIME)]
MaxRecords: TypeAlias = (
    Annotated[int, NumberLimits(1, instead="use 1 or more, or leave it out")] | None
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """The description of an option of checkpointing, beside its type, its limits and its default.

    A submission and a restore keep it in the field ``kept_as`` of JobConfiguration, a person's
    change while the job runs in that of Timing: where a class has the field, that is how the option
    is set.  One that neither has takes effect with the next checkpoint after a deployment.
    """

    says: str
    kept_as: str = ""
    flink: str = ""  # Its option in Flink, below execution.checkpointing.
    default_in_flink: str = ""
    needs: str = ""  # Its limits by other options.
    unit: str = ""  # Of a number; that of a duration is its own.
    see: str = ""  # A link of the reference page.


@checked_initializer
@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointing:
    """The options of a pipeline's checkpoints: when they are taken, how, and how long they stay."""

    interval: Annotated[
        CheckpointTime | None,
        Option(
            says="The shortest time between two checkpoints; None: by hand only. A cron expression "
            "or an asset still decides when its DAG runs.",
            kept_as="interval_ms",
            flink="interval",
            default_in_flink="none: no checkpoints",
        ),
    ] = timedelta(minutes=1)
    schedule: Annotated[
        Schedule | None,
        Option(
            says="What starts checkpoints instead of the interval.",
            see="[airflow.md](../guides/airflow.md)",
            needs="`Continuous` needs one concurrent checkpoint",
        ),
    ] = None
    interval_during_backlog: Annotated[
        Duration | None,
        Option(
            says="The interval while a source works off a backlog.",
            kept_as="interval_during_backlog_ms",
            flink="interval-during-backlog",
            default_in_flink="none: the interval",
            needs="the interval or more",
        ),
    ] = None
    timeout: Annotated[
        CheckpointTime,
        Option(
            says="How long a checkpoint may be pending before it expires. A change leaves the "
            "deadline of a pending one.",
            kept_as="timeout_ms",
            flink="timeout",
            default_in_flink="10 min",
        ),
    ] = timedelta(minutes=10)
    min_pause: Annotated[
        timedelta,
        DurationLimits(timedelta(0), MAXIMAL_PAUSE),
        Option(
            says="The least time from the end of a checkpoint to the next periodic one.",
            kept_as="min_pause_ms",
            flink="min-pause",
            default_in_flink="0 ms",
        ),
    ] = timedelta(0)
    max_concurrent_checkpoints: Annotated[
        int,
        NumberLimits(1),
        Option(
            says="How many may be pending at the same time.",
            kept_as="max_concurrent",
            flink="max-concurrent-checkpoints",
            default_in_flink="1",
            needs="1 with `unaligned`",
        ),
    ] = 1
    num_retained: Annotated[
        int,
        NumberLimits(1, instead="retain at least 1, or there is nothing to restore"),
        Option(
            says="How many completed checkpoints are kept to go back to.",
            kept_as="num_retained",
            flink="num-retained",
            default_in_flink="1",
        ),
    ] = 3
    retain_for: Annotated[
        Duration,
        Option(
            says="How long a checkpoint is kept after it completed, beyond `num_retained`; 0: by "
            "their number alone.",
            kept_as="retain_ms",
            needs=f"at most {MAXIMAL_RETAINED:,} intervals",
        ),
    ] = timedelta(0)
    tolerable_failed_checkpoints: Annotated[
        int,
        NumberLimits(0),
        Option(
            says="How many failed checkpoints in a row the job survives; one more, and it fails "
            "over.",
            kept_as="tolerable_failed_checkpoints",
            flink="tolerable-failed-checkpoints",
            default_in_flink="0",
        ),
    ] = 0
    mode: Annotated[
        CheckpointingMode,
        Option(
            says="`AT_LEAST_ONCE`: sinks publish when their stage acknowledged, not when the "
            "checkpoint completed.",
            kept_as="mode",
            flink="mode",
            default_in_flink="EXACTLY_ONCE",
        ),
    ] = CheckpointingMode.EXACTLY_ONCE
    unaligned: Annotated[
        bool,
        Option(
            says="A stage that is behind is overtaken; what it has not read is in-flight data.",
            kept_as="unaligned",
            flink="unaligned.enabled",
            default_in_flink="false",
            needs="needs `EXACTLY_ONCE` and one concurrent checkpoint",
        ),
    ] = False
    aligned_checkpoint_timeout: Annotated[
        Duration,
        Option(
            says="How long to align first; 0: unaligned from the start.",
            kept_as="aligned_timeout_ms",
            flink="aligned-checkpoint-timeout",
            default_in_flink="0 ms",
            needs="more than 0 needs `unaligned`",
        ),
    ] = timedelta(0)
    externalized_checkpoint_retention: Annotated[
        Retention,
        Option(
            says="Whether retained checkpoints stay when the job ends for good; a SUSPENDED job "
            "keeps them all.",
            kept_as="retention",
            flink="externalized-checkpoint-retention",
            default_in_flink="NO_EXTERNALIZED_CHECKPOINTS",
        ),
    ] = Retention.RETAIN_ON_CANCELLATION
    on_damaged_checkpoint: Annotated[
        DamagedCheckpoint,
        Option(
            says="A restart that meets a damaged checkpoint stops the job, or goes on from the "
            "next `OLDER` one that is whole, tables rolled back.",
            see="[ADR 5](../adr/0005-damage-and-equal-failures.md)",
            kept_as="on_damaged_checkpoint",
            default_in_flink="it stops",
        ),
    ] = DamagedCheckpoint.STOP
    checkpoints_after_tasks_finish: Annotated[
        bool,
        Option(
            says="Stages finish with their bounded sources, and checkpoints go on without them; "
            "off: each stage takes part until the job ends.",
            kept_as="checkpoints_after_tasks_finish",
            flink="checkpoints-after-tasks-finish",
            default_in_flink="true",
        ),
    ] = True
    data_inline_threshold: Annotated[
        int,
        NumberLimits(0, MAXIMAL_INLINE_BYTES, instead=f"use 0 to {MAXIMAL_INLINE_BYTES} bytes"),
        Option(
            says="A state segment smaller than this travels inside the ack.",
            kept_as="inline_threshold_bytes",
            flink="data-inline-threshold",
            default_in_flink="20 kb (20,480)",
            unit="bytes",
        ),
    ] = 20_480
    max_records_per_epoch: Annotated[
        MaxRecords,
        Option(
            says="The most records that one epoch takes from each source; None: all there are.",
            kept_as="max_records_per_epoch",
        ),
    ] = None
    target_epoch: Annotated[
        CheckpointTime | None,
        Option(
            says="How long a checkpoint is to last: epochs are sized by the rate that was "
            "measured; None: they are not.",
            see="[epochs of a size](#epochs-of-a-size)",
            kept_as="target_epoch_ms",
            needs="less than the `timeout`",
        ),
    ] = None
    target_age: Annotated[
        PositiveDuration | None,
        Option(
            says="The age of the newest completed checkpoint from which the job is shown as late; "
            "None: three intervals.",
        ),
    ] = None
    num_retained_versions: Annotated[
        int,
        NumberLimits(1),
        Option(
            says="How many versions of a `FilesTable` or side output stay readable.",
            see="[vacuum](../connectors/files_table.md#merging-and-vacuum)",
        ),
    ] = 1_000
    history_size: Annotated[
        int,
        NumberLimits(1, MAXIMAL_HISTORY),
        Option(
            says="For how many ended checkpoints, retained or not, statistics are kept.",
            see="[statistics](statistics.md)",
            flink="web.checkpoints.history",
            default_in_flink="10",
        ),
    ] = 1_000
    restart_strategy: Annotated[
        RestartStrategy,
        Option(
            says="Whether, and how long after a failure, the job restarts.",
            see="[restart strategies](#restart-strategies)",
            kept_as="restart",
            flink="restart-strategy.type",
            default_in_flink="exponential-delay",
        ),
    ] = field(default_factory=RestartStrategy)

    def __post_init__(self) -> None:
        _check_combinations(self)
        _checked_strategy(self.restart_strategy)
        for name in ("interval", "interval_during_backlog"):
            interval: PositiveDuration | None = getattr(self, name)
            if interval is not None and interval < self.min_pause:
                self._correct(name, self.min_pause)
        if self.min_pause and self.max_concurrent_checkpoints > 1:
            self._correct("max_concurrent_checkpoints", 1)

    def _correct(self, name: str, value: timedelta | int) -> None:
        """Set the field to the value that ``min_pause`` enforces anyway, with a warning."""
        log.warning(
            "checkpointing corrected for min_pause field=%s given=%s effective=%s min_pause=%s",
            name,
            getattr(self, name),
            value,
            self.min_pause,
        )
        object.__setattr__(self, name, value)


@checked_initializer
@dataclass(frozen=True, slots=True, kw_only=True)
class StateBackend:
    """The options of a subtask's state.  They change no result, so they may change at any time.

    An epoch's groups, the state they touch and the output may take ``memory_per_subtask`` bytes
    together; more than that goes through local disk.  A lookup searches at most ``max_runs`` sorted
    runs: an epoch that finds more merges them itself instead of leaving them to the compaction
    after it; 1 keeps all state in one run.
    """

    # Half of what a Spark task of 2 GB cores may take.
    memory_per_subtask: Annotated[
        int,
        NumberLimits(MINIMAL_SUBTASK_MEMORY, instead=f"use {MINIMAL_SUBTASK_MEMORY} bytes or more"),
    ] = 512 * 1024**2
    max_runs: Annotated[int, NumberLimits(1, MAXIMAL_RUNS)] = 16


@checked_arguments
def no_restart() -> RestartStrategy:
    """The first failure is final."""
    return RestartStrategy(type=RestartType.NONE)


@checked_arguments
def fixed_delay(
    *, attempts: int | None = 1, delay: Duration = timedelta(seconds=1)
) -> RestartStrategy:
    """Restart *delay* after a failure, at most *attempts* times; None is without limit."""
    return _checked_strategy(
        RestartStrategy(
            type=RestartType.FIXED_DELAY, attempts=attempts, delay_ms=milliseconds(delay)
        )
    )


@checked_arguments
def exponential_delay(
    *,
    attempts: int | None = None,
    delay: Duration = timedelta(seconds=1),
    max_delay: Duration = timedelta(minutes=1),
    multiplier: float = 1.5,
    jitter: float = 0.1,
    reset_after: PositiveDuration = timedelta(hours=1),
) -> RestartStrategy:
    """Restart *delay* after a failure, *multiplier* times that after the next, up to *max_delay*.

    After *reset_after* without a failure the delay and the *attempts* start anew.  *jitter* is the
    fraction of the delay that is randomly added or taken off, so that jobs do not restart at once.
    """
    return _checked_strategy(
        RestartStrategy(
            type=RestartType.EXPONENTIAL_DELAY,
            attempts=attempts,
            delay_ms=milliseconds(delay),
            max_delay_ms=milliseconds(max_delay),
            multiplier=multiplier,
            jitter=jitter,
            reset_after_ms=milliseconds(reset_after),
        )
    )


@checked_arguments
def failure_rate(
    *,
    max_failures_per_interval: int = 1,
    failure_rate_interval: PositiveDuration = timedelta(minutes=1),
    delay: Duration = timedelta(seconds=1),
) -> RestartStrategy:
    """Restart *delay* after a failure, until one interval has more failures than the maximum."""
    return _checked_strategy(
        RestartStrategy(
            type=RestartType.FAILURE_RATE,
            max_failures_per_interval=max_failures_per_interval,
            failure_rate_interval_ms=milliseconds(failure_rate_interval),
            delay_ms=milliseconds(delay),
        )
    )


class TriggerHook(Protocol):
    def __call__(self, checkpoint_id: int, timestamp_ms: int) -> str | None: ...


class RestoreHook(Protocol):
    def __call__(self, checkpoint_id: int | None, state: str | None) -> None:
        """*checkpoint_id* is None when the job starts from empty state."""
        ...


class NotificationHook(Protocol):
    def __call__(self, checkpoint_id: int, /) -> None: ...


@checked_initializer
@dataclass(frozen=True, slots=True)
class MasterHook:
    """Calls into a system outside of Sluice around each checkpoint (MasterTriggerRestoreHook).

        pipeline.hook("feature_flags", trigger=freeze_flags, restore=put_flags_back)

    ``prepare_snapshot_pre_barrier`` is called before the barrier is cut: what it writes to a source
    is part of this epoch.  The checkpoint gets the id of that call, unless the request is dropped
    or another coordinator is faster; an exception fails the request.

    ``trigger`` runs on the coordinator before the checkpoint's plan is durable, in the order of
    declaration; its result, text or None, is kept in the checkpoint.  ``restore`` gets that result
    before anything new is triggered.  Both may be called again for the same checkpoint: a
    coordinator may die after the call, before the checkpoint is pending or the restore is done.

    ``notify_checkpoint_complete`` is called when every sink has published, and perhaps again;
    ``notify_checkpoint_aborted`` when everything that an aborted checkpoint wrote is deleted, and
    ``notify_checkpoint_subsumed`` when a newer one has taken a checkpoint's place.  They are hints
    (CheckpointListener): ids are left out, and exceptions are logged.

    A call that takes longer than ``timeout`` has failed.  It runs in a thread of its own, which
    nothing can end: a hook that hangs must give up by itself.
    """

    uid: str
    trigger: TriggerHook
    restore: RestoreHook
    prepare_snapshot_pre_barrier: NotificationHook | None = None
    notify_checkpoint_complete: NotificationHook | None = None
    notify_checkpoint_aborted: NotificationHook | None = None
    notify_checkpoint_subsumed: NotificationHook | None = None
    timeout: PositiveDuration = HOOK_TIMEOUT


_HINTS = get_type_hints(Checkpointing, include_extras=True)

# By their names, in the order in which people read them.
OPTIONS: dict[str, Option] = {
    name: next(about for about in get_args(hint) if isinstance(about, Option))
    for name, hint in _HINTS.items()
}
FIXED = {
    name: option.kept_as
    for name, option in OPTIONS.items()
    if option.kept_as in {field.name for field in fields(JobConfiguration)}
}
CHANGEABLE = {
    name: option.kept_as
    for name, option in OPTIONS.items()
    if option.kept_as in {field.name for field in fields(Timing)}
}


def limits_of(name: str) -> DurationLimits | NumberLimits | None:
    """The limits of the option *name*; None if its type says it all, as no duration's does."""
    return next(_limits(_HINTS[name]), None)


def _limits(hint: object) -> Iterator[DurationLimits | NumberLimits]:
    for part in get_args(hint):
        if isinstance(part, DurationLimits | NumberLimits):
            yield part
        elif not isinstance(part, type):
            yield from _limits(part)


def kept(value: object) -> Any:  # noqa: ANN401 - of any option
    """The value of an option as the journal keeps it: a duration in milliseconds."""
    return milliseconds(value) if isinstance(value, timedelta) else value


def fixed_configuration(checkpointing: Checkpointing) -> JobConfiguration:
    """The configuration that a submission fixes, without parameters and parallelism."""
    return JobConfiguration(
        **{field: kept(getattr(checkpointing, name)) for name, field in FIXED.items()}
    )


def renewed(checkpointing: Checkpointing, before: JobConfiguration) -> JobConfiguration:
    """The configuration of a restored job: the options as they are declared now, and of *before*
    the parameters, the parallelism and a ``max_records_per_epoch`` that a person gave.
    """
    configuration = replace(
        fixed_configuration(checkpointing),
        params=before.params,
        parallelism=before.parallelism,
        stage_parallelism=before.stage_parallelism,
        has_given_max_records=before.has_given_max_records,
    )
    if before.has_given_max_records:
        return replace(configuration, max_records_per_epoch=before.max_records_per_epoch)
    return configuration


def check_max_records(value: int | None) -> None:
    """Raises ConfigurationError unless *value* is None or at least 1."""
    check_argument("the option", "max_records_per_epoch", value, MaxRecords)


def _check_combinations(given: Checkpointing) -> None:
    refuse = partial(_refuse, "Checkpointing():", given)
    if given.target_epoch is not None and given.target_epoch >= given.timeout:
        refuse(
            "target_epoch",
            f"a checkpoint expires after the timeout, {in_words(given.timeout)}: use less, or a "
            "longer timeout",
        )
    backlog = given.interval_during_backlog
    if backlog == timedelta(0):
        refuse(
            "interval_during_backlog",
            "Flink takes no checkpoint during a backlog then, but here an epoch's data is "
            "processed by its checkpoint, so the job would stop: use the interval or more, or "
            "leave it out",
        )
    if backlog is not None and given.interval is None:
        refuse(
            "interval_during_backlog",
            "interval is None, so no checkpoint is periodic: give an interval too, or leave it out",
        )
    if backlog is not None and given.interval is not None and backlog < given.interval:
        refuse("interval_during_backlog", f"use the interval, {in_words(given.interval)}, or more")
    if given.unaligned and given.mode is CheckpointingMode.AT_LEAST_ONCE:
        refuse(
            "unaligned",
            "mode is AT_LEAST_ONCE, in which no stage waits for a barrier: use EXACTLY_ONCE, or "
            "leave unaligned out",
        )
    if given.unaligned and given.max_concurrent_checkpoints > 1:
        refuse(
            "unaligned",
            f"max_concurrent_checkpoints is {given.max_concurrent_checkpoints}, and unaligned "
            "checkpoints cannot overlap: use 1, or leave unaligned out",
        )
    if isinstance(given.schedule, Continuous) and given.max_concurrent_checkpoints > 1:
        refuse(
            "max_concurrent_checkpoints",
            "the schedule is Continuous, and Airflow runs one continuous run at a time: use 1, or "
            "an interval",
        )
    is_by_interval = given.schedule is None and given.interval is not None
    if is_by_interval and given.retain_for > MAXIMAL_RETAINED * (given.interval or timedelta(0)):
        refuse(
            "retain_for",
            f"with the interval, {in_words(given.interval or timedelta(0))}, more than "
            f"{MAXIMAL_RETAINED:,} checkpoints would be retained: use a longer interval or a "
            "shorter time, and savepoints to go back further",
        )
    if given.aligned_checkpoint_timeout and not given.unaligned:
        refuse(
            "aligned_checkpoint_timeout",
            "unaligned is False, so nothing would look at it: add unaligned=True, or leave it out",
        )


def _checked_strategy(given: RestartStrategy) -> RestartStrategy:
    """*given*, if the fields that its type reads are within the limits of Flink's classes."""
    for name, hint in get_type_hints(RestartStrategy).items():
        check_argument("restart_strategy", name, getattr(given, name), hint)
    refuse = partial(_refuse, "restart_strategy", given)
    if given.type is RestartType.NONE:
        return given
    counts = given.type is not RestartType.FAILURE_RATE
    if counts and given.attempts is not None and given.attempts < 1:
        refuse("attempts", "use 1 or more, None for no limit, or no_restart()")
    if given.delay_ms < 0:
        refuse("delay_ms", "use 0 or more")
    if given.type is RestartType.EXPONENTIAL_DELAY:
        _check_exponential_delay(given)
    if given.type is RestartType.FAILURE_RATE:
        if given.max_failures_per_interval < 1:
            refuse("max_failures_per_interval", "use 1 or more, or no_restart()")
        if given.failure_rate_interval_ms < 1:
            refuse("failure_rate_interval_ms", "use 1 ms or more")
    return given


def _check_exponential_delay(given: RestartStrategy) -> None:
    refuse = partial(_refuse, "restart_strategy", given)
    if given.delay_ms < 1:
        refuse("delay_ms", "use 1 ms or more, as no multiplier makes 0 longer")
    if given.max_delay_ms < given.delay_ms:
        refuse("max_delay_ms", f"use the delay, {given.delay_ms} ms, or more")
    if not 1 < given.multiplier < math.inf:
        refuse("multiplier", "use more than 1, or fixed_delay()")
    if not 0 <= given.jitter <= 1:
        refuse("jitter", "use 0 to 1")
    if given.reset_after_ms < 1:
        refuse("reset_after_ms", "use 1 ms or more")


def _refuse(subject: str, given: object, name: str, fix: str) -> NoReturn:
    value = getattr(given, name)
    shown = in_words(value) if isinstance(value, timedelta) else value
    raise ConfigurationError(f"{subject} {name} is {shown}; {fix}")
