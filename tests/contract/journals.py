"""Coordinators that append to one journal, and stores between them that do the unexpected."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from sluice.core.events import JobRestored, JournalRepaired, Transition
from sluice.core.ids import CheckpointId, Generation
from sluice.core.state import CoordinatorState
from sluice.core.tables import TableDecision
from sluice.errors import StoreUnavailable
from sluice.protocol.keys import JournalPaths, PipelinePaths
from sluice.store.journal import Journal
from sluice.store.object_store import CreateResult, Listed, ObjectStore

T = TypeVar("T")

NAMES = PipelinePaths("auctions")
PATHS = NAMES.of_journal("j-1")  # Of objects that need no journal around them.


def next_number(state: CoordinatorState) -> JobRestored:
    """An event that is always allowed: the generation counts the appends."""
    return JobRestored(
        at_ms=0,
        generation=Generation(state.generation + 1),
        checkpoint_id=None,
        life="mine",
        tables=TableDecision(),
    )


def a_journal(store: ObjectStore) -> Journal:
    return Journal(store, NAMES)


def paths_in(store: ObjectStore) -> JournalPaths:
    """The keys of the journal that has begun there."""
    return a_journal(store).paths


def append(journal: Journal) -> int:
    """Take the next number."""
    return journal.append(next_number).state.generation


def append_many(store: ObjectStore, count: int) -> list[int]:
    return [append(a_journal(store)) for _ in range(count)]


def number_of(store: ObjectStore) -> int:
    """The number in the journal's newest state, for a reader without a cache."""
    return a_journal(store).load().state.generation


def numbers_in(store: ObjectStore) -> list[int]:
    """The numbers of the entries that are in the journal, as its history tells them."""
    return [entry.state.generation for entry in a_journal(store).entries(10_000)]


def keys_in(store: ObjectStore) -> list[int]:
    paths = paths_in(store)
    return [paths.journal_seq(listed.key) for listed in store.list(paths.journal())]


class Through:
    """Passes everything on; the base of what does not."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store

    @property
    def root(self) -> str:
        return self.store.root

    def get(self, key: str) -> bytes | None:
        return self.store.get(key)

    def get_range(self, key: str, start: int, end: int) -> bytes | None:
        return self.store.get_range(key, start, end)

    def put(self, key: str, body: bytes) -> None:
        self.store.put(key, body)

    def create(self, key: str, body: bytes) -> CreateResult:
        return self.store.create(key, body)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[Listed]:
        return self.store.list(prefix, start_after=start_after)

    def delete(self, keys: Iterable[str]) -> None:
        self.store.delete(keys)


class Interrupted(Through):
    """Something else happens right before its first create, and before the first check of it."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        before_create: Callable[[], object] | None = None,
        before_check: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(store)
        self._before_create = before_create
        self._before_check = before_check

    def create(self, key: str, body: bytes) -> CreateResult:
        act, self._before_create = self._before_create, None
        if act is not None:
            act()
        return super().create(key, body)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[Listed]:
        if start_after:
            act, self._before_check = self._before_check, None
            if act is not None:
                act()
        return super().list(prefix, start_after=start_after)


class Delayed(Through):
    """Its first create has no effect, and no answer, until it is delivered."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.under_way: tuple[str, bytes] | None = None
        self._is_first = True

    def create(self, key: str, body: bytes) -> CreateResult:
        if not self._is_first:
            return super().create(key, body)
        self._is_first, self.under_way = False, (key, body)
        raise StoreUnavailable("no answer came")

    def deliver(self) -> CreateResult:
        assert self.under_way is not None
        return self.store.create(*self.under_way)


class Lossy(Through):
    """Loses every other request of a kind: before it took effect, or only its answer."""

    def __init__(self, store: ObjectStore, kind: str, *, after_effect: bool) -> None:
        super().__init__(store)
        self._kind = kind
        self._after_effect = after_effect
        self._calls = 0

    def get(self, key: str) -> bytes | None:
        return self._lose("get", lambda: self.store.get(key))

    def create(self, key: str, body: bytes) -> CreateResult:
        return self._lose("create", lambda: self.store.create(key, body))

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[Listed]:
        listed = self._lose("list", lambda: [*self.store.list(prefix, start_after=start_after)])
        return iter(listed)

    def _lose(self, kind: str, call: Callable[[], T]) -> T:
        if kind != self._kind:
            return call()
        self._calls += 1
        if self._calls % 2 == 0:
            return call()
        if self._after_effect:
            call()
        raise StoreUnavailable(f"a {kind} was lost")


class Elsewhere(Through):
    """Somebody else has a whole turn right before its call number *before*, counted from 0."""

    def __init__(self, store: ObjectStore, before: int, turn: Callable[[], object]) -> None:
        super().__init__(store)
        self._left = before
        self._turn = turn

    def get(self, key: str) -> bytes | None:
        self._called()
        return super().get(key)

    def create(self, key: str, body: bytes) -> CreateResult:
        self._called()
        return super().create(key, body)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[Listed]:
        self._called()
        return super().list(prefix, start_after=start_after)

    @property
    def is_over(self) -> bool:
        """Whether the turn was taken."""
        return self._left < 0

    def _called(self) -> None:
        self._left -= 1
        if self._left == -1:
            self._turn()


def damage_newest(store: ObjectStore, how_many: int = 1) -> None:
    for seq in keys_in(store)[-how_many:]:
        store.put(paths_in(store).journal_entry(seq), b"{" * seq)


def repair(store: ObjectStore) -> Transition | None:
    """As ``coordinator.repair`` does; None where there was nothing to repair, or not any more."""
    damage = a_journal(store).damage()
    if damage is None:
        return None
    lost = len(damage.entries)
    event = JournalRepaired(
        at_ms=0,
        generation=Generation(damage.before.state.generation + lost + 1),
        first=damage.entries[0].seq,
        last=damage.entries[-1].seq,
        next_checkpoint_id=CheckpointId(1),
    )
    return a_journal(store).repair(damage, lambda _: event)
