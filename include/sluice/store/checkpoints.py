"""The objects of a checkpoint in the bucket: its answers and declines, and its statistics.

A stage's answer, all of its acks, is one create-only object, named by stage, execution attempt and
the plan that it answers; a decline is one of a subtask.  The statistics
of a checkpoint that has ended are an object, written once; the newest are kept.  Statistics that
cannot be read count as absent: nothing but what people see depends on them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from sluice.core.answers import Decline, StageAnswer, TaskFailure
from sluice.core.ids import CheckpointId, SubtaskId
from sluice.errors import ProtocolViolation, SluiceError
from sluice.figures.record import CheckpointStatistics
from sluice.protocol.keys import JournalPaths, stage_of_answer, subtask_of_decline
from sluice.protocol.records import (
    decode_answer,
    decode_decline,
    decode_failure,
    decode_statistics,
    encode_answer,
    encode_decline,
    encode_failure,
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

READERS = 8  # GETs at once.
MAX_UNREADABLE = 3  # Damaged statistics in a row, before the history begins anew.


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The answers to one plan in one LIST of its checkpoint, by execution attempt."""

    answered: frozenset[tuple[str, int]]  # Stages: all subtasks of one acknowledge at once.
    declined: frozenset[tuple[SubtaskId, int]]
    has_plan: bool


class AnswerStore:
    def __init__(self, store: ObjectStore, paths: JournalPaths) -> None:
        self._store = store
        self._paths = paths

    def observe(self, checkpoint_id: CheckpointId, plan: str) -> Answers:
        """The answers to the plan of that token, by one LIST; without the plan the checkpoint was
        aborted and discarded.
        """
        found = [*self._store.list(self._paths.checkpoint(checkpoint_id))]
        answers = self._below(found, self._paths.answers(checkpoint_id), self._paths.is_answer)
        declines = self._below(found, self._paths.declines(checkpoint_id), self._paths.is_decline)
        stages = map(stage_of_answer, answers)
        subtasks = map(subtask_of_decline, declines)
        return Answers(
            answered=frozenset((stage, n) for stage, n, of in stages if of == plan),
            declined=frozenset((subtask, n) for subtask, n, of in subtasks if of == plan),
            has_plan=any(listed.key == self._paths.plan(checkpoint_id) for listed in found),
        )

    def answer(
        self, checkpoint_id: CheckpointId, stage: str, *, attempt: int, plan: str
    ) -> StageAnswer | None:
        """The answer of a stage's attempt to the plan of that token; None until it has ended.

        Raises:
            ProtocolViolation: the object is no answer, or is that of another key.
        """
        key = self._paths.answer(checkpoint_id, stage, attempt, plan)
        raw = self._store.get(key)
        return None if raw is None else self._decoded(raw, key)

    def write(self, answer: StageAnswer) -> StageAnswer:
        """Answer once, and return the answer that counts: that of the driver that came first."""
        key = self._key_of(answer)
        result = self._store.create(key, encode_answer(answer))
        return self._decoded(result.body, key) if isinstance(result, AlreadyExists) else answer

    def write_chain(self, answers: Sequence[StageAnswer]) -> str | None:
        """Answer for the stages that ran as one, which *answers* has in their order.

        From the back: once a chained stage has answered, all stages behind it have (ADR 4).  Where
        another driver of the attempt has answered for a stage, that stage is returned, and nothing
        is written for those before it.
        """
        for answer in reversed(answers):
            if self.write(answer).driver != answer.driver:
                return answer.stage
        return None

    def declines(self, checkpoint_id: CheckpointId) -> list[Decline]:
        """Every decline of the checkpoint, whether it counts or not."""
        listed = self._store.list(self._paths.declines(checkpoint_id))
        declines = without_foreign(listed, self._paths.is_decline, self._store.root)
        found = [(decline.key, self._store.get(decline.key)) for decline in declines]
        return [decode_decline(body, key) for key, body in found if body is not None]

    def problems(self, checkpoint_id: CheckpointId) -> tuple[list[Decline], list[TaskFailure]]:
        """The declines and failures of subtasks and tasks: a LIST, and a GET for each."""
        folder = [*self._store.list(self._paths.checkpoint(checkpoint_id))]
        return self.problems_in(checkpoint_id, folder)

    def problems_in(
        self, checkpoint_id: CheckpointId, folder: Sequence[Listed]
    ) -> tuple[list[Decline], list[TaskFailure]]:
        """The problems that *folder* lists: a GET for each."""
        declines = self._paths.declines(checkpoint_id)
        failures = self._paths.failures(checkpoint_id)
        answers = without_foreign(
            (one for one in folder if one.key.startswith(declines)),
            self._paths.is_decline,
            self._store.root,
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
        without_secrets = replace(
            failure, message=redacted(failure.message), stack=redacted(failure.stack)
        )
        try:
            self._store.create(key, encode_failure(without_secrets))
        except SluiceError as error:
            log.warning("failure not recorded task=%s: %s", failure.task, error)

    def decline(
        self, checkpoint_id: CheckpointId, subtask: SubtaskId, *, attempt: int, plan: str
    ) -> Decline | None:
        key = self._paths.decline(checkpoint_id, subtask, attempt, plan)
        raw = self._store.get(key)
        return None if raw is None else decode_decline(raw, key)

    def write_decline(self, decline: Decline) -> None:
        key = self._paths.decline(
            decline.checkpoint_id, decline.subtask, decline.attempt, decline.plan
        )
        without_secrets = replace(decline, message=redacted(decline.message))
        self._store.create(key, encode_decline(without_secrets))

    def _key_of(self, answer: StageAnswer) -> str:
        return self._paths.answer(answer.checkpoint_id, answer.stage, answer.attempt, answer.plan)

    def _decoded(self, raw: bytes, key: str) -> StageAnswer:
        answer = decode_answer(raw, key)
        if (named := self._key_of(answer)) != key:
            raise ProtocolViolation(
                f"{key} holds the answer that belongs under {named}; abort the checkpoint, and "
                "find out who else writes in that bucket"
            )
        return answer

    def _below(
        self, found: Iterable[Listed], folder: str, is_own: Callable[[str], bool]
    ) -> Iterator[str]:
        inside = (listed for listed in found if listed.key.startswith(folder))
        return (own.key for own in without_foreign(inside, is_own, self._store.root))


class StatisticsStore:
    def __init__(self, store: ObjectStore, paths: JournalPaths) -> None:
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

    def read_each(self, checkpoint_ids: Sequence[int]) -> list[CheckpointStatistics]:
        """The statistics of those of *checkpoint_ids* that have some, a few GETs at a time."""
        found = in_parallel(self.read, checkpoint_ids, READERS)
        return [statistics for statistics in found if statistics is not None]

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
        """The checkpoints with statistics, in order; one LIST for each thousand."""
        listed = self._store.list(self._paths.all_statistics())
        kept = without_foreign(listed, self._paths.is_statistics, self._store.root)
        return [self._paths.statistics_of(found.key) for found in kept]

    def prune(self, keep: int) -> int:
        """Delete all but the newest *keep*; return how many."""
        gone = [self._paths.statistics(checkpoint_id) for checkpoint_id in self.ids()[:-keep]]
        self._store.delete(gone)
        return len(gone)
