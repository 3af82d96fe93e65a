"""The coordinator's log: the moment an event becomes true, and the only memory there is.

Entry ``seq + 1`` is created only if absent, so of any number of coordinators one appends; the
others reload, step again and retry.  An entry carries the state it led to, so loading is one LIST
and one GET.  A lost answer is recognised by the author token inside the entry.

A damaged newest entry hides the state.  ``repair`` appends behind it what follows from the newest
entry that can be read: the damaged ones keep their numbers, so whoever wrote them, or read them
while they were whole, loses the race for the next one, reloads, and is fenced.

An entry names the store that was probed for conditional writes.  Whoever appends to a journal that
is new, or was copied from another store, probes first; to one that it was probed for, nobody does.

A journal has a token, drawn when it begins, in all of its keys; the create-only pointer ``begun``
says which one is the job's.  It is read once by each handle and never changes, unless somebody
empties the root and another journal begins.  Whoever slept through that goes on below the old
token, and is fenced as soon as it looks: an append counts only if its LIST shows the entry that it
continues, or the pointer still names the journal.

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
    JobSubmitted,
    JournalRepaired,
    Transition,
    TriggerFailed,
    Verdict,
)
from sluice.core.state import CoordinatorState
from sluice.errors import (
    ConfigurationError,
    DamagedRecord,
    FencedError,
    ObjectVanished,
    ProtocolViolation,
    StoreUnavailable,
)
from sluice.protocol.keys import JOURNAL_PREFIX, JournalPaths, PipelinePaths
from sluice.protocol.records import (
    BegunJournal,
    JournalEntry,
    checksum,
    decode_begun,
    decode_entry,
    encode_begun,
    encode_entry,
)
from sluice.store.object_store import AlreadyExists, ObjectStore, in_parallel, without_foreign
from sluice.store.open import place_of, verify_store
from sluice.store.redaction import redacted

log = logging.getLogger(__name__)

MAX_RACES = 100  # Appends lost in a row, before something must be wrong.
MAX_STEPS = 8  # Entries read one by one from a known one, before a LIST is cheaper.
KEPT_ENTRIES = 400  # About 100 checkpoints of history; twice as many still fit one LIST.
FIRST_S = 0.01  # The bound of the first pause: an append takes about as long.
LONGEST_S = 1.0
PARALLEL_READS = 16  # Below the client's connection pool.

# The events with a message, besides a decline.
WORDED = (CheckpointFailed, TriggerFailed, JobFailed, JobRestored, JobStopped, JournalRepaired)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The newest entry's number, 0 before the first, and what it carries; see ``JournalEntry``."""

    seq: int
    author: str
    state: CoordinatorState
    place: str = ""
    clock_offset_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedEntry:
    """An entry whose bytes are not those that were written, and ``why``."""

    seq: int
    size_bytes: int
    checksum: str  # Of the bytes as they are.
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalDamage:
    """The damaged entries at the journal's end, oldest first, and the entry ``before`` them, which
    can be read; ``event`` is its event.
    """

    entries: tuple[DamagedEntry, ...]
    before: Head
    event: Event

    @property
    def which(self) -> str:
        """The numbers of the damaged entries, in words."""
        first, last = self.entries[0].seq, self.entries[-1].seq
        return f"entry {first}" if first == last else f"entries {first} to {last}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalInspection:
    """All entries that are kept, read: how many, which are damaged, and which are not there."""

    entries: int
    damaged: tuple[DamagedEntry, ...]
    missing: tuple[int, ...]


NOTHING = Head(seq=0, author="", state=CoordinatorState())


def new_journal() -> str:
    """A token for a journal, which no other one ever has."""
    return f"{JOURNAL_PREFIX}{uuid.uuid4().hex[:16]}"


def no_pause(races: int) -> None:
    """No pause: for tests, and for callers without competitors."""


def jittered_pause(races: int) -> None:
    """Sleep after *races* lost in a row: a random time, up to a bound that doubles.

    The choice is made here, as the core knows neither time nor chance.
    """
    bound_s = min(LONGEST_S, FIRST_S * 2.0 ** min(races, 20))
    time.sleep(random.uniform(0, bound_s))  # noqa: S311 - no secret


class Journal:
    """*pause* is called with the number of races lost, each time before the next.

    One that *probes* begins in no store that breaks its promise; the others are for who reads, or
    comes later.  Where the newest entry has no ``clock_offset_ms``, ``drawn_offset_ms`` is that of
    the next.

    Any call may raise FencedError: the root was emptied, and what this handle knows of is gone.
    """

    def __init__(
        self,
        store: ObjectStore,
        names: PipelinePaths,
        *,
        pause: Callable[[int], None] = no_pause,
        probes: bool = False,
    ) -> None:
        self._store = store
        self.names = names
        self._own: JournalPaths | None = None  # If it is this handle that begins one.
        self._begun: JournalPaths | None = None
        self._probes = probes
        self._is_probed = False
        self.pause = pause
        self._newest: Head | None = None  # That was read or written here.
        self.drawn_offset_ms: int | None = None

    def anew(self) -> Journal:
        """Another handle, as another process has it: it knows nothing yet."""
        return Journal(self._store, self.names, pause=self.pause, probes=self._probes)

    @property
    def paths(self) -> JournalPaths:
        """The keys of the job's journal; of one that nobody has begun, as long as there is none.

        Raises:
            ConfigurationError: its pointer alone is gone.
            ProtocolViolation: it is of an older format.
            StoreUnavailable: the first call asks the store.
        """
        return self._opened() or self._drawn()

    def require_current(self) -> None:
        """Ask the pointer again, once the journal has begun.

        Raises:
            FencedError: it names another journal than this handle's, or none: somebody emptied the
                root.
        """
        named = self._pointed_at()
        if self._begun is None or named != self._begun:
            mine, uid = self.paths.token, self.names.pipeline
            now = "none begun since" if named is None else f"{named.token} begun since"
            raise FencedError(
                f"{self._store.root}/{uid} was emptied while this process had journal {mine} open, "
                f"with {now}: what it did meanwhile is lost to the job, so start it anew"
            )

    def load(self, *, after: int = 0) -> Head:
        """The newest state; that of an empty journal before the first entry.

        *after* is the number of an entry known to have been written: the few that followed it, or
        followed a newer one that this handle knows, are read one by one, without a LIST.  The
        result may then be out of date, or a stray, so act on it by an append, which makes certain,
        or load again without *after*.
        """
        if self._opened() is None:
            head = NOTHING
        else:
            head = (self._walk(after) if after else None) or self._find()
        self._newest = head
        return head

    def load_on(self) -> Head:
        """``load`` after the newest entry that this handle has read or written, if that has the
        job's clock: a job that is taken for one without would be given this machine's.
        """
        known = self._newest
        return self.load(after=0 if known is None or known.clock_offset_ms is None else known.seq)

    @property
    def clock_offset_ms(self) -> int | None:
        """The clock's offset of the entry that was read or written last; read now if none was."""
        return (self._newest or self.load()).clock_offset_ms

    def verify_store(self) -> None:
        """Refuse a store that ignores conditions, or lets two writers win; once a journal.

        Raises:
            ConfigurationError: it does.
        """
        if not self._is_probed:
            verify_store(self._store, self.names.probe(uuid.uuid4().hex))
            self._is_probed = True

    def is_newest(self, seq: int) -> bool:
        """Whether no entry follows the one numbered *seq*, by one small request."""
        return self._store.get(self.paths.journal_entry(seq + 1)) is None

    def append(
        self, decide: Callable[[CoordinatorState], Event], *, head: Head | None = None
    ) -> Transition:
        """Step the newest state by the event that *decide* makes of it, and journal the result.

        An event that changes nothing (IGNORED, FENCED, REFUSED) is not journaled.  The commands of
        the returned transition are still to be carried out.  With *head* the first attempt needs no
        load.  Messages are journaled without secrets.

        Raises:
            ConfigurationError: the journal begins in this store, which ignores conditions.
            FencedError: the root was emptied, so the event is lost.
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
            place = place_of(self._store)
            if self._probes and head.place != place:
                self.verify_store()
            entry = JournalEntry(
                author=uuid.uuid4().hex,
                previous=head.author,
                event=event,
                state=transition.state,
                place=place,
                clock_offset_ms=self._offset_after(head, event),
            )
            if (
                (head.seq or self._begin())
                and self._create(head.seq + 1, encode_entry(entry))
                and self._is_chained(head.seq + 1, entry.author)
            ):
                log.info(
                    "journal appended pipeline=%s seq=%d event=%s",
                    self.names.pipeline, head.seq + 1, type(event).__name__,
                )  # fmt: skip
                self._newest = _head(head.seq + 1, entry)
                return transition
            head, is_certain = None, True
            if races < MAX_RACES:
                self.pause(races)
        raise StoreUnavailable(
            f"journal {self.paths.journal()} was won by others {MAX_RACES} times in a row; "
            "too many coordinators append to it"
        )

    def _offset_after(self, head: Head, event: Event) -> int | None:
        """A new submission begins without: a person may submit from anywhere, and the clock is that
        of the first who drives the job.
        """
        if isinstance(event, JobSubmitted):
            return None
        return self.drawn_offset_ms if head.clock_offset_ms is None else head.clock_offset_ms

    def entries(self, last: int) -> Iterator[JournalEntry]:
        """The newest *last* of the entries that are still kept, oldest first."""
        return (entry for _, entry in self.numbered(last))

    def numbered(self, last: int, *, before: int | None = None) -> list[tuple[int, JournalEntry]]:
        """The ``entries``, each with its number; only those below *before*, if it is given.

        Damaged ones before the newest are left out.
        """
        found: list[tuple[int, JournalEntry]] = []
        newer = None if before is None else self._entry(before)
        expected = None if newer is None else newer.previous
        seq = self.paths.journal_seq
        keys = [key for key in self._keys() if before is None or seq(key) < before]
        ahead: dict[str, JournalEntry | DamagedEntry | None] = {}
        while keys and len(found) < last:
            if not ahead:
                few = keys[-min(PARALLEL_READS, last - len(found)) :]
                read = in_parallel(self._examined, few, PARALLEL_READS)
                ahead = dict(zip(few, read, strict=True))
            key = keys.pop()
            entry = ahead.pop(key)
            if isinstance(entry, DamagedEntry):
                if before is None and not found:
                    raise ProtocolViolation(self._how_to_repair(entry))
                if newer is None or not isinstance(newer.event, JournalRepaired):
                    expected = None  # It took along the token of the entry before it.
                continue
            if entry is None or expected not in (None, entry.author):
                break
            found.append((self.paths.journal_seq(key), entry))
            newer, expected = entry, entry.previous
        return found[::-1]

    def damage(self) -> JournalDamage | None:
        """The damage that hides the newest state; None where the newest entry can be read.

        Raises:
            ProtocolViolation: no entry that can be read adjoins the damaged ones.
        """
        damaged: list[DamagedEntry] = []
        for key in reversed([*self._keys()]):
            seq = self.paths.journal_seq(key)
            if damaged and seq != damaged[0].seq - 1:
                break
            found = self._examined(key)
            if isinstance(found, DamagedEntry):
                damaged.insert(0, found)
            elif found is None or not damaged:
                return None  # It was truncated while we looked, so there are newer ones.
            else:
                self._newest = before = _head(seq, found)
                return JournalDamage(entries=tuple(damaged), before=before, event=found.event)
        if not damaged:
            return None
        uid, root = self.names.pipeline, self._store.root
        raise ProtocolViolation(
            f"{self.paths.journal_entry(damaged[-1].seq)} is damaged, and no entry before it can "
            f"be read; restore a savepoint or a checkpoint of this root into another one: 'sluice "
            f"restore {uid} --root NEW --from-root {root} --savepoint NAME'"
        )

    def repair(
        self, damage: JournalDamage, decide: Callable[[CoordinatorState], JournalRepaired]
    ) -> Transition | None:
        """Append what *decide* makes of the state before the *damage*, behind the damaged entries.

        None where these are not what *damage* says any more: another coordinator has appended
        behind them, or their bytes are others.  Nothing is deleted: they lie below the newest
        entry, where no coordinator reads, and go when the journal is truncated.
        """
        if self.damage() != damage:
            return None
        event = _without_secrets(decide(damage.before.state))
        transition = step(damage.before.state, event)
        if transition.verdict is not Verdict.APPLIED:
            return None
        entry = JournalEntry(
            author=uuid.uuid4().hex,
            previous=damage.before.author,
            event=event,
            state=transition.state,
            place=damage.before.place,
            clock_offset_ms=damage.before.clock_offset_ms,
        )
        seq = damage.entries[-1].seq + 1
        if not (self._create(seq, encode_entry(entry)) and self._is_chained(seq, entry.author)):
            return None
        log.warning(
            "journal repaired pipeline=%s seq=%d continues=%d",
            self.names.pipeline, seq, damage.before.seq,
        )  # fmt: skip
        return transition

    def inspect(self) -> JournalInspection:
        """Read every entry that is kept."""
        keys = [*self._keys()]
        found = in_parallel(self._examined, keys, PARALLEL_READS)
        there = [self.paths.journal_seq(key) for key in keys]
        numbers = range(there[0], there[-1] + 1) if there else range(0)
        return JournalInspection(
            entries=len(keys),
            damaged=tuple(one for one in found if isinstance(one, DamagedEntry)),
            missing=tuple(sorted({*numbers} - {*there})),
        )

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
        log.info("journal truncated pipeline=%s entries=%d", self.names.pipeline, len(keys) - keep)
        return len(keys) - keep

    def _entry(self, seq: int) -> JournalEntry | None:
        """The entry *seq*; None where it is gone, or damaged."""
        entry = self._examined(self.paths.journal_entry(seq)) if seq > 0 else None
        return entry if isinstance(entry, JournalEntry) else None

    def _opened(self) -> JournalPaths | None:
        """The paths that ``_pointed_at`` found; once it was there, without a request."""
        self._begun = self._begun or self._pointed_at()
        return self._begun

    def _pointed_at(self) -> JournalPaths | None:
        """The journal that the pointer names; None before the first one begins."""
        key = self.names.begun()
        raw = self._store.get(key)
        if raw is not None:
            return self.names.of_journal(self._decoded_begun(raw, key).token)
        self._require_none_whole()
        return None

    def _decoded_begun(self, raw: bytes, key: str) -> BegunJournal:
        try:
            return decode_begun(raw, key)
        except DamagedRecord as error:
            raise ProtocolViolation(
                f"{error}; it names the job's journal in {self._store.root}: put it back from "
                "a copy of the root, or restore a savepoint in another one"
            ) from error

    def _drawn(self) -> JournalPaths:
        """The paths of the journal that this handle would begin."""
        self._own = self._own or self.names.of_journal(new_journal())
        return self._own

    def _begin(self) -> bool:
        """Make this handle's journal the job's; False where another one is by now, so load it."""
        if self._begun is not None:
            return True  # Whoever began it died before the first entry.
        own = self._drawn()
        key, raw = self.names.begun(), encode_begun(BegunJournal(token=own.token))
        try:
            result = self._store.create(key, raw)
        except ObjectVanished:  # Another's, and the root has been emptied meanwhile.
            return False
        is_own = not isinstance(result, AlreadyExists) or result.body == raw
        if is_own:
            self._begun = own
        return is_own

    def _require_none_whole(self) -> None:
        """Refuse a root without a pointer that lacks it alone: that may be lost, and the rest would
        become garbage; or somebody is about to delete all of it.

        Raises:
            ConfigurationError: there is a journal with a checkpoint.
            ProtocolViolation: there is one of a format that has no pointer.
        """
        after, folder = "", self.names.journal_without_token()
        while first := next(self._store.list(self.names.all_journals(), start_after=after), None):
            other = self.names.journal_of(first.key)
            after = first.key if other is None else other.behind()
            if other is not None and self._has_checkpoint(other):
                raise ConfigurationError(
                    f"{self._store.root}/{self.names.begun()} is gone, and journal {other.token} "
                    "of the job is there with its checkpoints: wait if the root is being emptied; "
                    f"else put it back from a copy, or delete {other.folder}: the job begins anew"
                )
            if first.key.startswith(folder):
                raise ProtocolViolation(
                    f"{self._store.root}/{folder} is of a format version before 8, whose keys name "
                    "no journal; run the version of sluice that wrote it, or begin in another root"
                )

    def _has_checkpoint(self, other: JournalPaths) -> bool:
        entries = [found.key for found in self._store.list(other.journal())]
        raw = self._store.get(entries[-1]) if entries else None
        try:
            entry = None if raw is None else decode_entry(raw, entries[-1])
        except ProtocolViolation:
            return True  # Whatever it says: nobody knows that it is garbage.
        latest = None if entry is None else entry.state.latest_completed
        return (
            latest is not None and self._store.get(other.metadata(latest.checkpoint_id)) is not None
        )

    def _find(self) -> Head:
        while True:
            keys = [*self._keys()]
            newest = self.paths.journal_seq(keys[-1]) if keys else 0
            before = self.paths.journal_entry(newest - 1) if newest > 1 else ""
            if not keys or (before and before not in keys[-2:]):
                self.require_current()  # It looks like an emptied root.
            if not keys:
                return NOTHING
            entry = self._examined(keys[-1])
            if isinstance(entry, DamagedEntry):
                raise ProtocolViolation(self._how_to_repair(entry))
            if entry is not None:  # Else it was deleted while we slept between the two requests.
                return _head(self.paths.journal_seq(keys[-1]), entry)

    def _walk(self, after: int) -> Head | None:
        """The last entry of the unbroken row behind *after*; None where it is broken or long."""
        known = self._newest
        head = known if known is not None and known.seq >= after else None
        first = (after if head is None else head.seq) + 1
        for seq in range(first, first + MAX_STEPS):
            entry = self._examined(self.paths.journal_entry(seq))
            if entry is None:
                return head
            if isinstance(entry, DamagedEntry):
                return None
            if head is not None and entry.previous != head.author:
                return None
            head = _head(seq, entry)
        return None

    def _create(self, seq: int, raw: bytes) -> bool:
        try:
            result = self._store.create(self.paths.journal_entry(seq), raw)
        except ObjectVanished:  # Another's entry, which has been truncated meanwhile.
            return False
        return not isinstance(result, AlreadyExists) or result.body == raw

    def _is_chained(self, seq: int, author: str) -> bool:
        """Whether an unbroken row leads from entry *seq* to the newest one, which is no stray.

        To check the next entry alone would not do: that one may be a stray, too.  A repair
        continues the entry before the damaged ones that it names; other damaged ones tell nothing.

        Raises:
            FencedError: the root was emptied, and what the entry continues is gone.
        """
        is_known = True
        before, own = map(self.paths.journal_entry, (seq - 1, seq))
        keys = [*self._keys(start_after=self.paths.journal_entry(max(0, seq - 2)))]
        newer = [key for key in keys if key > own]
        if not newer and before not in keys:  # Nothing is before the first, so the pointer says.
            self.require_current()
        for key in newer:
            entry, number = self._examined(key), self.paths.journal_seq(key)
            if isinstance(entry, DamagedEntry):
                is_known = False
                continue
            if entry is None or entry.previous != author:
                return False
            repaired = entry.event.first if isinstance(entry.event, JournalRepaired) else number
            if seq + 1 != repaired:
                return False
            seq, author, is_known = number, entry.author, True
        return is_known

    def _keys(self, *, start_after: str = "") -> Iterator[str]:
        """The keys of the entries, in order, without foreign objects."""
        listed = self._store.list(self.paths.journal(), start_after=start_after)
        entries = without_foreign(listed, self.paths.is_journal_entry, self._store.root)
        return (entry.key for entry in entries)

    def _examined(self, key: str) -> JournalEntry | DamagedEntry | None:
        raw = self._store.get(key)
        if raw is None:
            return None
        try:
            return decode_entry(raw, key)
        except DamagedRecord as error:
            return DamagedEntry(
                seq=self.paths.journal_seq(key),
                size_bytes=len(raw),
                checksum=checksum(raw),
                why=str(error),
            )

    def _how_to_repair(self, entry: DamagedEntry) -> str:
        return (
            f"{entry.why}; it is the newest entry, without which nothing is known of the job: "
            f"'sluice journal repair {self.names.pipeline}' says what is lost without it, and "
            "goes on from the entry before"
        )


def _without_secrets(event: Event) -> Event:
    """*event* with its message redacted: it may quote an error, which may quote anything."""
    if isinstance(event, DeclineReceived):
        decline = replace(event.decline, message=redacted(event.decline.message))
        return replace(event, decline=decline)
    if isinstance(event, WORDED) and event.message:
        return replace(event, message=redacted(event.message))
    return event


def _head(seq: int, entry: JournalEntry) -> Head:
    return Head(
        seq=seq,
        author=entry.author,
        state=entry.state,
        place=entry.place,
        clock_offset_ms=entry.clock_offset_ms,
    )
