"""Acks and declines in the bucket: create-only objects, named by subtask and execution attempt."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sluice.core.acks import Ack, Decline
from sluice.core.ids import CheckpointId, SubtaskId
from sluice.errors import FencedError
from sluice.protocol.paths import PipelinePaths, subtask_of_answer
from sluice.protocol.records import decode_ack, decode_decline, encode_ack, encode_decline
from sluice.storage.object_store import ObjectStore

log = logging.getLogger(__name__)

PARALLEL_READS = 16  # Below the client's connection pool.


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What one LIST of a checkpoint shows: who acknowledged, who declined, in which attempt."""

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
        keys = [listed.key for listed in self._store.list(self._paths.checkpoint(checkpoint_id))]
        return Answers(
            acknowledged=frozenset(subtask_of_answer(k) for k in keys if k.startswith(acks)),
            declined=frozenset(subtask_of_answer(k) for k in keys if k.startswith(declines)),
            has_plan=self._paths.plan(checkpoint_id) in keys,
        )

    def acks(self, checkpoint_id: CheckpointId, stage: str | None = None) -> list[Ack]:
        """Every ack of the checkpoint, or of one stage, of whatever attempt, in key order.

        Raises:
            FencedError: the checkpoint was discarded while its acks were read.
        """
        prefix = self._paths.acks(checkpoint_id, stage)
        keys = [listed.key for listed in self._store.list(prefix)]
        with ThreadPoolExecutor(PARALLEL_READS) as pool:
            return [*pool.map(self._read_ack, keys)]

    def declines(self, checkpoint_id: CheckpointId) -> list[Decline]:
        keys = [listed.key for listed in self._store.list(self._paths.declines(checkpoint_id))]
        return [decode_decline(self._body(key), key) for key in keys]

    def write_ack(self, ack: Ack) -> None:
        """Answer once; an earlier ack of this subtask and attempt stays (a retried Spark task)."""
        key = self._paths.ack(ack.checkpoint_id, ack.subtask, ack.attempt)
        self._store.create(key, encode_ack(ack))

    def write_decline(self, decline: Decline) -> None:
        key = self._paths.decline(decline.checkpoint_id, decline.subtask, decline.attempt)
        self._store.create(key, encode_decline(decline))

    def _read_ack(self, key: str) -> Ack:
        return decode_ack(self._body(key), key)

    def _body(self, key: str) -> bytes:
        raw = self._store.get(key)
        if raw is None:
            raise FencedError(f"{key} was listed and is gone: its checkpoint ended meanwhile")
        return raw
