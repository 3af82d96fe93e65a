"""A subtask's answer to a barrier: its snapshot is durable, or it cannot take part.

Spark executes a subtask again when it has lost what the subtask sent, or takes it for slow.  A
user's function may answer differently then, and the rows of one epoch must not hold both answers.
So each execution of a chained subtask names the executions whose rows it got, and ``mixture_in``
compares them with those whose acks count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from sluice.core.failures import CheckpointFailureReason
from sluice.core.handles import SegmentHandle, StateHandle
from sluice.core.ids import CheckpointId, SubtaskId
from sluice.errors import require


@dataclass(frozen=True, slots=True, kw_only=True)
class Committable:
    """A file that a two-phase sink staged: invisible to readers until the commit names it.

    ``checksum`` is that of the file's bytes, empty where the sink does not know them.
    """

    sink: str
    file: str
    rows: int
    size_bytes: int
    checksum: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The writer of a staged file, for the file's name: an attempt of a subtask of a checkpoint.

    *checkpoint_token* is the checkpoint's alone: another life of the job, over an emptied root, and
    another job of the same table may have one of the same number.  *attempt_token* is unique to one
    file of one attempt.  Both are letters, digits, underscores; and hyphens, but not in the first.
    """

    checkpoint_id: int
    checkpoint_token: str
    subtask: int
    attempt_token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRequests:
    """Requests to stores by kind, as S3 charges them; sizes in bytes."""

    gets: int = 0
    puts: int = 0  # A conditional one is one of them.
    lists: int = 0
    deletes: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    @property
    def total(self) -> int:
        return self.gets + self.puts + self.lists + self.deletes

    def __add__(self, other: StoreRequests) -> StoreRequests:
        return StoreRequests(
            gets=self.gets + other.gets,
            puts=self.puts + other.puts,
            lists=self.lists + other.lists,
            deletes=self.deletes + other.deletes,
            bytes_read=self.bytes_read + other.bytes_read,
            bytes_written=self.bytes_written + other.bytes_written,
        )


# Upper bounds of how far late rows are behind: from what a larger lag mends to what it cannot.
LATE_BOUNDS_MS = (1_000, 10_000, 60_000, 600_000, 3_600_000, 86_400_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class LateRows:
    """The distance of late rows to the watermark at the epoch's start.

    ``within`` counts those that are at most each of ``LATE_BOUNDS_MS`` behind.
    """

    rows: int = 0
    most_ms: int = 0
    within: tuple[int, ...] = (0,) * len(LATE_BOUNDS_MS)

    def __add__(self, other: LateRows) -> LateRows:
        return LateRows(
            rows=self.rows + other.rows,
            most_ms=max(self.most_ms, other.most_ms),
            within=tuple(map(sum, zip(self.within, other.within, strict=True))),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HotGroup:
    """A key group that had more of an epoch's rows than most, and the keys that came often."""

    group: int
    rows: int
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskMetrics:
    """Measured by the subtask itself.  Times are its machine's clock, for display only."""

    started_at_ms: int = 0
    acknowledged_at_ms: int = 0
    sync_ms: int = 0  # Reading, merging, encoding; uploads run beside it.
    async_ms: int = 0  # From there until everything was durable: what was left to upload.
    async_start_delay_ms: int = 0  # The longest that an upload had to wait for a thread.
    rows_in: int = 0
    rows_out: int = 0
    groups: int = 0  # Of the rows that came in: distinct keys, or keys and windows.
    late_rows: int = 0
    late: dict[str, LateRows] = field(default_factory=dict[str, LateRows])  # By producer.
    malformed_rows: int = 0
    hot_groups: tuple[HotGroup, ...] = ()  # The hottest first.
    checkpointed_bytes: int = 0  # Written by this checkpoint.
    full_bytes: int = 0  # Everything the state handles name.
    requests: StoreRequests = field(default_factory=StoreRequests)  # Before its ack.


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """A subtask's snapshot for this checkpoint is durable (Flink's AcknowledgeCheckpoint).

    ``state`` lists every live segment, oldest first; ``event_times_ms`` the largest event time
    seen per ``source/partition``; ``schema`` the output's Arrow schema, known even without rows.
    ``watermark_ms`` is that of the streams it has read; None when it read sources alone.  A subtask
    with ``is_chained`` handed its output to those of the next stage, which have acknowledged.
    """

    checkpoint_id: CheckpointId
    subtask: SubtaskId
    attempt: int
    state: tuple[StateHandle, ...] = ()
    output: tuple[SegmentHandle, ...] = ()
    schema: bytes = b""
    event_times_ms: dict[str, int] = field(default_factory=dict[str, int])
    watermark_ms: int | None = None
    committables: tuple[Committable, ...] = ()
    is_chained: bool = False
    metrics: SubtaskMetrics = field(default_factory=SubtaskMetrics)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageAnswer:
    """The acks of all subtasks of a stage, in their order: one attempt, as one driver ran it.

    ``plan`` is the token of the plan that it answers, ``driver`` that of the driver.  ``read`` has
    per stage that it read in this epoch the driver whose answer, or in a chain whose rows, it read:
    a cluster may start a driver twice, and a function may answer otherwise the second time.
    """

    checkpoint_id: CheckpointId
    stage: str
    attempt: int
    plan: str
    driver: str
    acks: tuple[Ack, ...]
    read: dict[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        require(
            all(
                (ack.checkpoint_id, ack.subtask.stage, ack.attempt)
                == (self.checkpoint_id, self.stage, self.attempt)
                for ack in self.acks
            ),
            "the acks of an answer are of its checkpoint, stage and attempt",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decline:
    """A subtask cannot take part (Flink's DeclineCheckpoint); ``message`` is its first cause.

    ``plan`` is the token of the plan that it answers.
    With the reason TASK_FAILURE it has failed, as code that it called raised: the job fails over,
    as it does when code raised that no subtask of ours called.
    """

    checkpoint_id: CheckpointId
    subtask: SubtaskId
    attempt: int
    message: str
    reason: CheckpointFailureReason
    plan: str = ""

    def __post_init__(self) -> None:
        require(self.reason.is_of_a_task, "a task declines for a reason of its own")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFailure:
    """The cause of a *task*'s failure, written before it raised, for whoever aborts its checkpoint.

    ``task`` is ``{stage}.snapshot`` with the stage's execution attempt, or another task of the
    checkpoint with its try.  ``stack`` is the ``stack_of`` its error, for people.
    """

    checkpoint_id: CheckpointId
    task: str
    attempt: int
    message: str
    stack: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One execution of a subtask by Spark, with the ack that it came to.

    ``token`` is its own; ``read`` are the tokens of the executions whose rows it got, one for each
    subtask of the stage before it in its chain, in their order.
    """

    ack: Ack
    token: str
    read: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Mixture:
    """*reader* has read other executions of *producer* than those whose acks count."""

    producer: str
    reader: str


def mixture_in(stages: Sequence[str], executions: Iterable[Execution]) -> Mixture | None:
    """The first mixture in a chain of *stages*; None if all its rows are of the *executions*.

    Each stage is compared with the stage before it, so no row of another execution passes, however
    long the chain.
    """
    by_stage: dict[str, list[Execution]] = {stage: [] for stage in stages}
    for execution in sorted(executions, key=lambda execution: execution.ack.subtask):
        by_stage[execution.ack.subtask.stage].append(execution)
    for producer, reader in pairwise(stages):
        tokens = tuple(execution.token for execution in by_stage[producer])
        if any(execution.read != tokens for execution in by_stage[reader]):
            return Mixture(producer, reader)
    return None


def mixture_of_drivers(answers: Iterable[StageAnswer]) -> Mixture | None:
    """The first stage that read what another driver answered than the one whose answer counts;
    None if all *answers* of a checkpoint, of one attempt a stage, are of the rows of each other.
    """
    by_stage = {answer.stage: answer for answer in answers}
    for answer in by_stage.values():
        for producer, driver in answer.read.items():
            if producer in by_stage and by_stage[producer].driver != driver:
                return Mixture(producer, answer.stage)
    return None
