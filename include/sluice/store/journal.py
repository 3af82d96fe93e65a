"""The coordinator's log: the moment an event becomes true, and the only memory there is.

Entry ``seq + 1`` is created only if absent, so of any number of coordinators one appends; the
others reload, step again and retry.  An entry carries the state it led to, so loading is one LIST
and one GET.  A lost answer is recognised by the author token inside the entry.

Old entries are deleted.  A coordinator that slept for that long could create a deleted number anew;
so an append counts only once a LIST shows that nothing newer was there, or that what is newer
continues it.  Such a stray entry lies below the newest one, and is never read.
See docs/adr/0001-create-only-journal.md.
"""

from __future__ import annotations

import logging
import random
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from sluice.core.coordinator import step
from sluice.core.events import (
    CheckpointFailed,
    DeclineReceived,
    Event,
    JobFailed,
    JobRestored,
    JobStopped,
    Transition,
    TriggerFailed,
    Verdict,
)
from sluice.core.state import CoordinatorState
from sluice.errors import ConfigurationError, ObjectVanished, StoreUnavailable
from sluice.protocol.keys import PipelinePaths
from sluice.protocol.records import JournalEntry, decode_entry, encode_entry
from sluice.store.object_store import AlreadyExists, ObjectStore, without_foreign
from sluice.store.redaction import redacted

log = logging.getLogger(__name__)

MAX_RACES = 100  # Appends lost in a row, before something must be wrong.
MAX_STEPS = 8  # Entries read one by one from a known one, before a LIST is cheaper.
KEPT_ENTRIES = 400  # About 100 checkpoints of history; twice as many still fit one LIST.
FIRST_S = 0.01  # The bound of the first pause: an append takes about as long.
LONGEST_S = 1.0

# The events with a message, besides a decline.
WORDED = (CheckpointFailed, TriggerFailed, JobFailed, JobRestored, JobStopped)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The newest entry's number, 0 before the first, its author, and the state it carries."""

    seq: int
    author: str
    state: CoordinatorState


NOTHING = Head(seq=0, author="", state=CoordinatorState())


def no_pause(races: int) -> None:
    """No pause: for tests, and for callers without competitors."""


def jittered_pause(races: int) -> None:
    """Sleep after *races* lost in a row: a random time, up to a bound that doubles.

    The choice is made here, as the core knows neither time nor chance.
    """
    bound_s = min(LONGEST_S, FIRST_S * 2.0 ** min(races, 20))
    time.sleep(random.uniform(0, bound_s))  # noqa: S311 - no secret


class Journal:
    """*pause* is called with the number of races lost, each time before the next."""

    def __init__(
        self,
        store: ObjectStore,
        paths: PipelinePaths,
        *,
        pause: Callable[[int], None] = no_pause,
    ) -> None:
        self._store = store
        self._paths = paths
        self.pause = pause

    def load(self, *, after: int = 0) -> Head:
        """The newest state; that of an empty journal before the first entry.

        *after* is the number of an entry known to have been written: the few that followed it are
        read one by one, without a LIST.  The result may then be out of date, or a stray, so act on
        it by an append, which makes certain, or load again without *after*.
        """
        return (self._walk(after) if after else None) or self._find()

    def is_newest(self, seq: int) -> bool:
        """Whether no entry follows the one numbered *seq*, by one small request."""
        return self._store.get(self._paths.journal_entry(seq + 1)) is None

    def append(
        self, decide: Callable[[CoordinatorState], Event], *, head: Head | None = None
    ) -> Transition:
        """Step the newest state by the event that *decide* makes of it, and journal the result.

        An event that changes nothing (IGNORED, FENCED, REFUSED) is not journaled.  The commands of
        the returned transition are still to be carried out.  With *head* the first attempt needs no
        load.  Messages are journaled without secrets.
        """
        is_certain = head is None
        for races in range(1, MAX_RACES + 1):
            head = head or self.load()
            event = _without_secrets(decide(head.state))
            transition = step(head.state, event)
            if transition.verdict is not Verdict.APPLIED:
                if is_certain:
                    return transition
                head, is_certain = None, True  # Only a state loaded now may turn the event down.
                continue
            entry = JournalEntry(
                author=uuid.uuid4().hex,
                previous=head.author,
                event=event,
                state=transition.state,
            )
            if self._create(head.seq + 1, encode_entry(entry)) and self._is_chained(
                head.seq + 1, entry.author
            ):
                log.info(
                    "journal appended pipeline=%s seq=%d event=%s",
                    self._paths.pipeline, head.seq + 1, type(event).__name__,
                )  # fmt: skip
                return transition
            head, is_certain = None, True
            if races < MAX_RACES:
                self.pause(races)
        raise StoreUnavailable(
            f"journal {self._paths.journal()} was won by others {MAX_RACES} times in a row; "
            "too many coordinators append to it"
        )

    def entries(self, last: int) -> Iterator[JournalEntry]:
        """The newest *last* of the entries that are still kept, oldest first."""
        return (entry for _, entry in self.numbered(last))

    def numbered(self, last: int, *, before: int | None = None) -> list[tuple[int, JournalEntry]]:
        """As ``entries``, each with its number; only those below *before*, if it is given."""
        found: list[tuple[int, JournalEntry]] = []
        expected = None if before is None else self._previous_of(before)
        for key in reversed([*self._keys()]):
            if before is not None and self._paths.journal_seq(key) >= before:
                continue
            entry = self._read(key) if len(found) < last else None
            if entry is None or expected not in (None, entry.author):
                break
            found.append((self._paths.journal_seq(key), entry))
            expected = entry.previous
        return found[::-1]

    def truncate(self, *, keep: int = KEPT_ENTRIES) -> int:
        """Delete all but the newest *keep* entries once there are twice as many; return how many.

        The newest entry is never deleted: it is what an append is checked against.
        """
        if keep < 1:
            raise ConfigurationError(f"a journal keeps 1 entry or more, not {keep}")
        keys = [*self._keys()]
        if len(keys) < 2 * keep:
            return 0
        self._store.delete(keys[:-keep])
        log.info("journal truncated pipeline=%s entries=%d", self._paths.pipeline, len(keys) - keep)
        return len(keys) - keep

    def _previous_of(self, seq: int) -> str | None:
        """The author of the entry before *seq*, which a stray lacks; None where *seq* is gone."""
        entry = self._read(self._paths.journal_entry(seq)) if seq > 0 else None
        return None if entry is None else entry.previous

    def _find(self) -> Head:
        while True:
            keys = [*self._keys()]
            if not keys:
                return NOTHING
            entry = self._read(keys[-1])
            if entry is not None:  # Else it was deleted while we slept between the two requests.
                return _head(self._paths.journal_seq(keys[-1]), entry)

    def _walk(self, after: int) -> Head | None:
        """The last entry of the unbroken row behind *after*; None where it is broken or long."""
        head: Head | None = None
        for seq in range(after + 1, after + 1 + MAX_STEPS):
            entry = self._read(self._paths.journal_entry(seq))
            if entry is None:
                return head
            if head is not None and entry.previous != head.author:
                return None
            head = _head(seq, entry)
        return None

    def _create(self, seq: int, raw: bytes) -> bool:
        try:
            result = self._store.create(self._paths.journal_entry(seq), raw)
        except ObjectVanished:  # Another's entry, which has been truncated meanwhile.
            return False
        return not isinstance(result, AlreadyExists) or result.body == raw

    def _is_chained(self, seq: int, author: str) -> bool:
        """Whether an unbroken row leads from entry *seq* to the newest one, which is no stray.

        To check the next entry alone would not do: that one may be a stray, too.
        """
        for key in self._keys(start_after=self._paths.journal_entry(seq)):
            seq += 1
            entry = self._read(key)
            if entry is None or key != self._paths.journal_entry(seq) or entry.previous != author:
                return False
            author = entry.author
        return True

    def _keys(self, *, start_after: str = "") -> Iterator[str]:
        """The keys of the entries, in order, without foreign objects."""
        listed = self._store.list(self._paths.journal(), start_after=start_after)
        entries = without_foreign(listed, self._paths.is_journal_entry, self._store.root)
        return (entry.key for entry in entries)

    def _read(self, key: str) -> JournalEntry | None:
        raw = self._store.get(key)
        return None if raw is None else decode_entry(raw, key)


def _without_secrets(event: Event) -> Event:
    """*event* with its message redacted: it may quote an error, which may quote anything."""
    if isinstance(event, DeclineReceived):
        decline = replace(event.decline, message=redacted(event.decline.message))
        return replace(event, decline=decline)
    if isinstance(event, WORDED) and event.message:
        return replace(event, message=redacted(event.message))
    return event


def _head(seq: int, entry: JournalEntry) -> Head:
    return Head(seq=seq, author=entry.author, state=entry.state)
