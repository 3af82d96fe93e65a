"""The coordinator's log: the moment an event becomes true, and the only memory there is.

Entry ``seq + 1`` is created only if absent, so of any number of coordinators one appends; the
others reload, step again and retry.  An entry carries the state it led to, so loading is one LIST
and one GET.  A lost answer is recognised by the author token inside the entry.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sluice.core.coordinator import Transition, Verdict, step
from sluice.core.messages import Event
from sluice.core.state import CoordinatorState
from sluice.errors import ProtocolViolation, StoreUnavailable
from sluice.protocol.paths import PipelinePaths
from sluice.protocol.records import JournalEntry, decode_entry, encode_entry
from sluice.storage.object_store import AlreadyExists, ObjectStore

log = logging.getLogger(__name__)

MAX_RACES = 100  # Appends lost in a row before we say that something is wrong.


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The newest entry's number, 0 before the first, and the state it carries."""

    seq: int
    state: CoordinatorState


class Journal:
    def __init__(self, store: ObjectStore, paths: PipelinePaths) -> None:
        self._store = store
        self._paths = paths

    def load(self) -> Head:
        """The newest state; that of an empty journal when nobody wrote yet."""
        newest = ""
        for listed in self._store.list(self._paths.journal()):
            newest = listed.key
        if not newest:
            return Head(seq=0, state=CoordinatorState())
        entry = self._read(newest)
        return Head(seq=self._paths.journal_seq(newest), state=entry.state)

    def append(self, decide: Callable[[CoordinatorState], Event]) -> Transition:
        """Step the newest state by the event that *decide* makes of it, and journal the result.

        An event that changes nothing (IGNORED, FENCED, REFUSED) is not journaled; the verdict says
        so.  The commands of the returned transition are still to be carried out.
        """
        for _ in range(MAX_RACES):
            head = self.load()
            event = decide(head.state)
            transition = step(head.state, event)
            if transition.verdict is not Verdict.APPLIED:
                return transition
            entry = JournalEntry(author=uuid.uuid4().hex, event=event, state=transition.state)
            if self._create(head.seq + 1, encode_entry(entry)):
                log.info(
                    "journal appended pipeline=%s seq=%d event=%s",
                    self._paths.pipeline, head.seq + 1, type(event).__name__,
                )  # fmt: skip
                return transition
        raise StoreUnavailable(
            f"journal {self._paths.journal()} was won by others {MAX_RACES} times in a row; "
            "too many coordinators append to it"
        )

    def entries(self, last: int) -> Iterator[JournalEntry]:
        """The newest *last* entries, oldest first."""
        keys = [listed.key for listed in self._store.list(self._paths.journal())]
        for key in keys[-last:]:
            yield self._read(key)

    def _create(self, seq: int, raw: bytes) -> bool:
        result = self._store.create(self._paths.journal_entry(seq), raw)
        return not isinstance(result, AlreadyExists) or result.body == raw

    def _read(self, key: str) -> JournalEntry:
        raw = self._store.get(key)
        if raw is None:
            raise ProtocolViolation(f"{key} was listed and is gone; journal entries are immutable")
        return decode_entry(raw, key)
