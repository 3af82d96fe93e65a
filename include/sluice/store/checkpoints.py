"""What belongs to a checkpoint in the bucket: its acks and declines, and its statistics.

Acks and declines are create-only objects, named by subtask and execution attempt.  The statistics
of a checkpoint that has ended are an object, written once; the newest are kept.  Statistics that
cannot be read count as absent: nothing but what people see depends on them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from sluice.core.answers import Ack, Decline, TaskFailure
from sluice.core.ids import CheckpointId, SubtaskId
from sluice.errors import ProtocolViolation, SluiceError
from sluice.figures.record import CheckpointStatistics
from sluice.protocol.keys import PipelinePaths, is_answer, subtask_of_answer
from sluice.protocol.records import (
    decode_ack,
    decode_decline,
    decode_failure,
    decode_stage_acks,
    decode_statistics,
    encode_ack,
    encode_decline,
    encode_failure,
    encode_stage_acks,
    encode_statistics,
)
from sluice.store.object_store import (
    AlreadyExists,
    Listed,
    ObjectStore,
    in_parallel,
    without_foreign,
)
from sluice.store.redaction import redacted

log = logging.getLogger(__name__)

PARALLEL_REQUESTS = 16  # Below the client's connection pool.
MAX_UNREADABLE = 3  # Damaged statistics in a row, before the history begins anew.


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The answers in one LIST of a checkpoint, by subtask and execution attempt."""

    acknowledged: frozenset[tuple[SubtaskId, int]]
    declined: frozenset[tuple[SubtaskId, int]]
    has_plan: bool

    def missing(self, subtasks: Iterable[SubtaskId], attempt: int) -> tuple[SubtaskId, ...]:
        return tuple(s for s in subtasks if (s, attempt) not in self.acknowledged)


class AnswerStore:
    def __init__(self, store: ObjectStore, paths: PipelinePaths) -> None:
        self._store = store
        self._paths = paths

    def observe(self, checkpoint_id: CheckpointId) -> Answers:
        """One LIST; without the plan the checkpoint was aborted and discarded."""
        acks, declines = self._paths.acks(checkpoint_id), self._paths.declines(checkpoint_id)
        found = [*self._store.list(self._paths.checkpoint(checkpoint_id))]
        return Answers(
            acknowledged=self._subtasks(found, acks),
            declined=self._subtasks(found, declines),
            has_plan=any(listed.key == self._paths.plan(checkpoint_id) for listed in found),
        )

    def acks(
        self, checkpoint_id: CheckpointId, stage: str, *, attempt: int, parallelism: int
    ) -> list[Ack]:
        """The acks of one stage's execution attempt so far, in subtask order.

        One GET once the stage has ended, else one for each subtask; never a LIST.

        Raises:
            ProtocolViolation: an object is no ack, or is that of another key.
        """
        key = self._paths.stage_acks(checkpoint_id, stage, attempt)
        raw = self._store.get(key)
        if raw is not None:
            together = decode_stage_acks(raw, key)
            for ack in together:
                named = self._paths.stage_acks(ack.checkpoint_id, ack.subtask.stage, ack.attempt)
                _require_its_key(named, key)
            return together
        keys = [
            self._paths.ack(checkpoint_id, SubtaskId(stage, index), attempt)
            for index in range(parallelism)
        ]
        bodies = in_parallel(self._store.get, keys, PARALLEL_REQUESTS)
        acks = {
            key: decode_ack(body, key)
            for key, body in zip(keys, bodies, strict=True)
            if body is not None
        }
        for key, ack in acks.items():
            _require_its_key(self._paths.ack(ack.checkpoint_id, ack.subtask, ack.attempt), key)
        return [*acks.values()]

    def write_ack(self, ack: Ack) -> bytes:
        """Answer once, and return the ack that counts.

        An earlier one of this subtask and attempt stays.
        """
        key = self._paths.ack(ack.checkpoint_id, ack.subtask, ack.attempt)
        raw = encode_ack(ack)
        result = self._store.create(key, raw)
        return result.body if isinstance(result, AlreadyExists) else raw

    def write_acks(self, acks: Sequence[Ack]) -> tuple[Ack, ...]:
        """Acknowledge for the subtasks of a stage that ran alone, and return the acks that count.

        Acks that another driver of the attempt has written stay: each is whole by itself.
        """
        counting = self._written(acks)
        self.write_stage(counting)
        return counting

    def write_stage(self, acks: Sequence[Ack]) -> None:
        """Put a stage's acks, all of one attempt and every one durable, into one object."""
        first = acks[0]
        key = self._paths.stage_acks(first.checkpoint_id, first.subtask.stage, first.attempt)
        self._store.create(key, encode_stage_acks(sorted(acks, key=lambda ack: ack.subtask)))

    def write_chain(self, stages: Sequence[Sequence[Ack]]) -> str | None:
        """Acknowledge for *stages* that ran as one, in their order.

        From the back: once a chained stage has acknowledged, all stages behind it have (ADR 4).
        Where another driver of the attempt has written other acks for a stage, that stage is
        returned, and nothing is written for those before it.
        """
        for acks in reversed(stages):
            if self._written(acks) != tuple(acks):
                return acks[0].subtask.stage
            self.write_stage(acks)
        return None

    def declines(self, checkpoint_id: CheckpointId) -> list[Decline]:
        listed = self._store.list(self._paths.declines(checkpoint_id))
        answers = without_foreign(listed, is_answer, self._store.root)
        found = [(answer.key, self._store.get(answer.key)) for answer in answers]
        return [decode_decline(body, key) for key, body in found if body is not None]

    def problems(self, checkpoint_id: CheckpointId) -> tuple[list[Decline], list[TaskFailure]]:
        """Why subtasks declined or failed, and tasks failed: a LIST, and a GET for each."""
        folder = [*self._store.list(self._paths.checkpoint(checkpoint_id))]
        declines = self._paths.declines(checkpoint_id)
        failures = self._paths.failures(checkpoint_id)
        answers = without_foreign(
            (one for one in folder if one.key.startswith(declines)), is_answer, self._store.root
        )
        told = (one for one in folder if one.key.startswith(failures))
        return (
            [decode_decline(body, key) for key, body in self._bodies(answers)],
            [decode_failure(body, key) for key, body in self._bodies(told)],
        )

    def _bodies(self, listed: Iterable[Listed]) -> Iterator[tuple[str, bytes]]:
        for one in listed:
            body = self._store.get(one.key)
            if body is not None:
                yield one.key, body

    def keep_failure(self, failure: TaskFailure) -> None:
        """Write why a task failed; best effort, as the task has something worse to raise."""
        key = self._paths.failure(failure.checkpoint_id, failure.task, failure.attempt)
        without_secrets = replace(failure, message=redacted(failure.message))
        try:
            self._store.create(key, encode_failure(without_secrets))
        except SluiceError as error:
            log.warning("failure not recorded task=%s: %s", failure.task, error)

    def decline(
        self, checkpoint_id: CheckpointId, subtask: SubtaskId, attempt: int
    ) -> Decline | None:
        key = self._paths.decline(checkpoint_id, subtask, attempt)
        raw = self._store.get(key)
        return None if raw is None else decode_decline(raw, key)

    def write_decline(self, decline: Decline) -> None:
        key = self._paths.decline(decline.checkpoint_id, decline.subtask, decline.attempt)
        without_secrets = replace(decline, message=redacted(decline.message))
        self._store.create(key, encode_decline(without_secrets))

    def _written(self, acks: Sequence[Ack]) -> tuple[Ack, ...]:
        """Write *acks*, and return those that count."""
        written = in_parallel(self.write_ack, acks, PARALLEL_REQUESTS)
        named = zip(acks, written, strict=True)
        return tuple(decode_ack(body, f"ack of {ack.subtask}") for ack, body in named)

    def _subtasks(self, listed: Iterable[Listed], folder: str) -> frozenset[tuple[SubtaskId, int]]:
        inside = (found for found in listed if found.key.startswith(folder))
        answers = without_foreign(inside, is_answer, self._store.root)
        return frozenset(subtask_of_answer(answer.key) for answer in answers)


def _require_its_key(named: str, key: str) -> None:
    if named != key:
        raise ProtocolViolation(
            f"{key} holds the ack that belongs under {named}; abort the checkpoint, and find out "
            "who else writes in that bucket"
        )


class StatisticsStore:
    def __init__(self, store: ObjectStore, paths: PipelinePaths) -> None:
        self._store = store
        self._paths = paths

    def read(self, checkpoint_id: int) -> CheckpointStatistics | None:
        """The statistics of a checkpoint; None if it has not ended, or ended long ago."""
        key = self._paths.statistics(checkpoint_id)
        raw = self._store.get(key)
        try:
            return None if raw is None else decode_statistics(raw, key)
        except ProtocolViolation as error:
            log.warning("statistics are passed over: %s", error)
            return None

    def newest(self, likely: int | None = None) -> CheckpointStatistics | None:
        """The statistics of the checkpoint with the greatest id.

        One GET where that id is *likely*; else a LIST more.
        """
        found = self.read(likely) if likely is not None else None
        if found is not None:
            return found
        readable = map(self.read, reversed(self.ids()[-MAX_UNREADABLE:]))
        return next((statistics for statistics in readable if statistics is not None), None)

    def write(self, statistics: CheckpointStatistics) -> None:
        """Write once: what another coordinator wrote of the same checkpoint stays."""
        key = self._paths.statistics(statistics.checkpoint.id)
        self._store.create(key, encode_statistics(statistics))

    def ids(self) -> list[CheckpointId]:
        """The checkpoints that statistics are kept of, in order; one LIST a thousand."""
        listed = self._store.list(self._paths.all_statistics())
        kept = without_foreign(listed, self._paths.is_statistics, self._store.root)
        return [self._paths.statistics_of(found.key) for found in kept]

    def prune(self, keep: int) -> int:
        """Delete all but the newest *keep*; return how many."""
        gone = [self._paths.statistics(checkpoint_id) for checkpoint_id in self.ids()[:-keep]]
        self._store.delete(gone)
        return len(gone)
