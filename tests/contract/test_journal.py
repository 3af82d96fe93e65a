"""The journal on every kind of store: it stays one log under races, crashes and lost answers.

Stray entries of a coordinator that slept through a truncation never count.  A coordinator that
loses every race waits in between, and fails with an error at last.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from harness.counting_store import CountingStore
from harness.jobs import a_job
from sluice.core.events import HooksRestored, JobRestored, Verdict
from sluice.core.ids import Generation
from sluice.errors import FencedError, ProtocolViolation, StoreUnavailable
from sluice.protocol.records import FORMAT_VERSION
from sluice.store.journal import (
    FIRST_S,
    KEPT_ENTRIES,
    LONGEST_S,
    MAX_RACES,
    MAX_STEPS,
    Head,
    Journal,
    jittered_pause,
)
from sluice.store.memory import InMemoryStore
from sluice.store.object_store import AlreadyExists, Created, CreateResult, ObjectStore
from sluice.store.open import PatientStore, StoreLocation, open_store
from tests.contract.journals import (
    NAMES,
    Delayed,
    Elsewhere,
    Interrupted,
    Lossy,
    Through,
    a_journal,
    append,
    append_many,
    damage_newest,
    keys_in,
    next_number,
    number_of,
    numbers_in,
    paths_in,
    repair,
)
from tests.contract.racing import printed_by_racers
from tests.patching import replace_in
from tests.resealed import resealed

THREADS, EACH = 6, 6
PROCESSES, EACH_PROCESS = 3, 8


def test_an_empty_journal_is_the_beginning(store: ObjectStore) -> None:
    head = a_journal(store).load()

    assert (head.seq, head.author, head.state.generation) == (0, "", 0)
    assert numbers_in(store) == []
    assert a_journal(store).truncate() == 0


def test_what_was_appended_is_what_anybody_loads(store: ObjectStore) -> None:
    assert append_many(store, 3) == [1, 2, 3]

    assert number_of(store) == 3
    assert keys_in(store) == numbers_in(store) == [1, 2, 3]
    assert [entry.state.generation for entry in a_journal(store).entries(2)] == [2, 3]


def test_racing_threads_share_one_log(store: ObjectStore) -> None:
    def appends(_: int) -> list[int]:
        return append_many(store, EACH)

    with ThreadPoolExecutor(THREADS) as pool:
        taken = [number for numbers in pool.map(appends, range(THREADS)) for number in numbers]

    everything = list(range(1, THREADS * EACH + 1))
    assert sorted(taken) == everything
    assert keys_in(store) == numbers_in(store) == everything


SCRIPT = """
from tests.contract.journals import append_many
print(*append_many(store, int(arguments[0])))
"""


def test_racing_processes_share_one_log(location: StoreLocation) -> None:
    if location.root.startswith("memory:"):
        pytest.skip("memory belongs to one process")

    printed = printed_by_racers(location, SCRIPT, *[[str(EACH_PROCESS)]] * PROCESSES)

    taken = [int(number) for numbers in printed for number in numbers.split()]
    store = open_store(location)
    everything = list(range(1, PROCESSES * EACH_PROCESS + 1))
    assert sorted(taken) == everything
    assert keys_in(store) == numbers_in(store) == everything


@pytest.mark.parametrize("kind", ["create", "get", "list"])
@pytest.mark.parametrize("after_effect", [False, True], ids=["request lost", "answer lost"])
def test_a_lost_request_or_answer_is_repeated_and_counts_once(
    store: ObjectStore, kind: str, after_effect: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_in(monkeypatch, "tenacity.nap", "time", sleep=lambda _: None)
    patient = PatientStore(Lossy(store, kind, after_effect=after_effect))

    assert append_many(patient, 4) == [1, 2, 3, 4]

    assert keys_in(store) == numbers_in(store) == [1, 2, 3, 4]


def test_who_dies_before_the_answer_has_appended_all_the_same(store: ObjectStore) -> None:
    append(a_journal(store))
    dying = Lossy(store, "create", after_effect=True)

    with pytest.raises(StoreUnavailable, match="a create was lost"):
        append(a_journal(dying))

    assert number_of(store) == 2
    assert append(a_journal(store)) == 3


@pytest.mark.parametrize(
    ("entries", "keep", "deleted"),
    [(0, 1, 0), (1, 1, 0), (2, 1, 1), (3, 2, 0), (4, 2, 2), (9, 2, 7), (9, 9, 0)],
)
def test_only_the_newest_are_kept_once_there_are_twice_as_many(
    store: ObjectStore, entries: int, keep: int, deleted: int
) -> None:
    append_many(store, entries)

    assert a_journal(store).truncate(keep=keep) == deleted

    assert keys_in(store) == numbers_in(store) == list(range(deleted + 1, entries + 1))
    assert number_of(store) == entries
    assert append(a_journal(store)) == entries + 1


def test_a_listing_of_what_is_kept_is_one_request() -> None:
    assert 2 * KEPT_ENTRIES < 1_000


def test_truncating_while_others_append_loses_nothing(store: ObjectStore) -> None:
    """A coordinator that cannot confirm its entry any more steps again, on the newest state."""

    def appends_and_truncates(_: int) -> tuple[list[int], int]:
        taken: list[int] = []
        deleted = 0
        for _ in range(EACH):
            taken.append(append(a_journal(store)))
            deleted += a_journal(store).truncate(keep=THREADS)
        return taken, deleted

    with ThreadPoolExecutor(THREADS) as pool:
        outcomes = list(pool.map(appends_and_truncates, range(THREADS)))

    taken = {number for numbers, _ in outcomes for number in numbers}
    assert sum(deleted for _, deleted in outcomes) > 0
    assert len(taken) == THREADS * EACH
    newest, history = number_of(store), numbers_in(store)
    assert max(taken) <= newest
    assert history == list(range(newest - len(history) + 1, newest + 1))


def test_an_entry_in_the_way_that_is_truncated_before_it_is_read_was_a_race(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator that slept with an old head: its number was taken, and is gone."""
    append_many(store, 2)
    old = a_journal(store).load()
    append_many(store, 6)
    get, paths = type(store).get, paths_in(store)
    keys = [*map(paths.journal_entry, range(1, 7))]

    def truncated_before(self: ObjectStore, key: str) -> bytes | None:
        if key == paths.journal_entry(old.seq + 1):
            self.delete(keys)
        return get(self, key)

    monkeypatch.setattr(type(store), "get", truncated_before)

    assert a_journal(store).append(next_number, head=old).state.generation == 9
    assert keys_in(store)[-3:] == [7, 8, 9]


@pytest.mark.parametrize("after", [1, 2, 3, 9, 10])
def test_a_hint_leads_to_the_newest_entry(store: ObjectStore, after: int) -> None:
    append_many(store, 10)

    assert a_journal(store).load(after=after) == a_journal(store).load()


@pytest.mark.parametrize(
    ("entries", "after", "lists"), [(5, 4, 0), (5, 1, 0), (5, 5, 1), (MAX_STEPS + 2, 1, 1)]
)
def test_a_good_hint_spares_the_listing(entries: int, after: int, lists: int) -> None:
    store = CountingStore(open_store(StoreLocation(root=f"memory://hint-{entries}-{after}")))
    append_many(store, entries)

    with store.counted() as asked:
        head = a_journal(store).load(after=after)

    assert (head.seq, asked["list"]) == (entries, lists)


@pytest.mark.parametrize(("others", "asked"), [(0, {"get": 1}), (2, {"get": 3})])
def test_a_handle_goes_on_from_what_it_knows_by_a_request_for_each_entry(
    others: int, asked: dict[str, int]
) -> None:
    store = CountingStore(open_store(StoreLocation(root=f"memory://known-{others}")))
    journal = a_journal(store)
    journal.drawn_offset_ms = 0
    append(journal)
    append_many(store, others)

    with store.counted() as requests:
        head = journal.load_on()

    assert (head.seq, dict(requests)) == (1 + others, asked)
    assert a_journal(store).load_on() == head


def test_a_handle_that_knows_no_clock_of_the_job_reads_the_whole_journal() -> None:
    """The entries behind may have been truncated, and among the newer ones is the clock."""
    store = CountingStore(open_store(StoreLocation(root="memory://no-clock")))
    journal = a_journal(store)
    append(journal)
    driver = a_journal(store)
    driver.drawn_offset_ms = 7
    append(driver)
    append_many(store, 3)
    a_journal(store).truncate(keep=2)

    head = journal.load_on()

    assert (head.seq, head.clock_offset_ms) == (5, 7)


@pytest.mark.parametrize("after", [1, 3, 5, 6, 7])
def test_a_hint_that_was_truncated_away_still_leads_to_the_newest(
    store: ObjectStore, after: int
) -> None:
    append_many(store, 6)
    a_journal(store).truncate(keep=2)

    assert a_journal(store).load(after=after).state.generation == 6


def test_what_an_old_state_refuses_is_asked_of_the_newest(store: ObjectStore) -> None:
    """A given head may be out of date: the step from it may only say yes."""
    journal = a_journal(store)
    append(journal)
    old = journal.load()
    journal.append(
        lambda state: JobRestored(
            at_ms=0,
            generation=Generation(state.generation + 1),
            checkpoint_id=None,
            has_hooks=True,
        )
    )

    transition = journal.append(lambda state: HooksRestored(generation=state.generation), head=old)

    assert transition.verdict is Verdict.APPLIED
    assert not journal.load().state.must_restore_hooks
    again = journal.append(lambda state: HooksRestored(generation=state.generation), head=old)
    assert again.verdict is Verdict.IGNORED


def read_the_head(store: ObjectStore) -> object:
    return a_journal(store).load()


def read_from_a_hint(store: ObjectStore) -> object:
    return a_journal(store).load(after=1)


def read_the_history(store: ObjectStore) -> object:
    return numbers_in(store)


def append_one(store: ObjectStore) -> object:
    return a_journal(store).append(next_number)


@pytest.mark.parametrize("act", [read_the_head, read_from_a_hint, read_the_history, append_one])
@pytest.mark.parametrize(
    ("found", "replaced", "message"),
    [
        (
            b'"version":%d' % FORMAT_VERSION,
            b'"version":99',
            "000000000002 has format version 99; this version of sl",
        ),
        (b'"JobRestored"', b'"JobTeleported"', "an event 'JobTeleported' that this version of sl"),
        (b'"journal entry"', b'"plan"', "000000000002 is a plan, not a journal entry"),
        (b'"author"', b'"editor"', "000000000002 cannot be read as EntryBody"),
    ],
)
def test_an_entry_that_cannot_be_understood_stops_everybody(
    act: Callable[[ObjectStore], object], found: bytes, replaced: bytes, message: str
) -> None:
    store = open_store(StoreLocation(root="memory://not-understood"))
    store.delete([listed.key for listed in store.list("")])
    append_many(store, 2)
    key = paths_in(store).journal_entry(2)
    store.put(key, resealed((store.get(key) or b"").replace(found, replaced)))

    with pytest.raises(ProtocolViolation, match=message):
        act(store)


@pytest.mark.parametrize("missing", [1, 3, 5])
def test_the_history_stops_at_a_gap(store: ObjectStore, missing: int) -> None:
    append_many(store, 6)
    store.delete([paths_in(store).journal_entry(missing)])

    assert numbers_in(store) == list(range(missing + 1, 7))
    assert number_of(store) == 6


def test_a_given_head_spares_the_load() -> None:
    store = CountingStore(open_store(StoreLocation(root="memory://given-head")))
    append_many(store, 2)
    journal = a_journal(store)
    head: Head = journal.load()

    with store.counted() as asked:
        journal.append(next_number, head=head)

    assert dict(asked) == {"create": 1, "list": 1}


BEFORE = 3  # Entries there are when the sleeper falls asleep.


def others_go_on(store: ObjectStore, count: int, keep: int) -> list[int]:
    """Others append and truncate, while one coordinator sleeps."""
    taken = append_many(store, count)
    a_journal(store).truncate(keep=keep)
    return taken


def is_one_log(store: ObjectStore, newest: int) -> bool:
    """Whether readers see one unbroken log up to *newest*, whatever strays there are."""
    history = numbers_in(store)
    return (
        number_of(store) == newest
        and history == list(range(newest - len(history) + 1, newest + 1))
        and append(a_journal(store)) == newest + 1
        and numbers_in(store)[-1] == newest + 1
    )


@pytest.mark.parametrize("count", range(1, 7))
@pytest.mark.parametrize("keep", [1, 2, 3])
def test_who_slept_between_load_and_create_appends_behind_the_others(
    store: ObjectStore, count: int, keep: int
) -> None:
    append_many(store, BEFORE)
    others: list[int] = []
    sleeper = Interrupted(
        store, before_create=lambda: others.extend(others_go_on(store, count, keep))
    )

    taken = append(a_journal(sleeper))

    assert (others[-1], taken) == (BEFORE + count, BEFORE + count + 1)
    assert is_one_log(store, taken)


def test_the_entry_it_wrote_first_is_there_and_lies_below_the_gap(store: ObjectStore) -> None:
    append_many(store, BEFORE)
    sleeper = Interrupted(store, before_create=lambda: others_go_on(store, 4, 2))

    append(a_journal(sleeper))

    assert keys_in(store) == [4, 6, 7, 8]
    assert numbers_in(store) == [6, 7, 8]


def test_who_is_given_a_head_and_sleeps_on_it_appends_behind_the_others(store: ObjectStore) -> None:
    append_many(store, BEFORE)
    head: Head = a_journal(store).load()
    others_go_on(store, 5, 1)

    transition = a_journal(store).append(next_number, head=head)

    assert transition.state.generation == 9
    assert is_one_log(store, 9)


def test_a_hint_may_lead_to_a_stray_but_an_append_on_it_does_not_count(store: ObjectStore) -> None:
    append_many(store, BEFORE)
    sleeper = Interrupted(store, before_create=lambda: others_go_on(store, 4, 2))
    append(a_journal(sleeper))
    journal = a_journal(store)
    stray = journal.load(after=3)
    assert (stray.seq, stray.state.generation) == (4, 4)
    assert stray.author not in {entry.author for entry in journal.entries(100)}

    transition = journal.append(next_number, head=stray)

    assert transition.state.generation == 9
    assert is_one_log(store, 9)


@pytest.mark.parametrize("count", range(2, 7))
@pytest.mark.parametrize("keep", [1, 2, 3])
def test_two_strays_that_continue_each_other_do_not_make_each_other_true(
    store: ObjectStore, count: int, keep: int
) -> None:
    """The second comes from a hint to the first, before the first has been checked."""
    append_many(store, BEFORE)
    other: list[int] = []

    def another_believes_it() -> None:
        journal = a_journal(store)
        hinted = journal.load(after=BEFORE)
        other.append(journal.append(next_number, head=hinted).state.generation)

    sleeper = Interrupted(
        store,
        before_create=lambda: others_go_on(store, count, keep),
        before_check=another_believes_it,
    )

    taken = append(a_journal(sleeper))

    assert sorted([*other, taken]) == [BEFORE + count + 1, BEFORE + count + 2]
    assert is_one_log(store, BEFORE + count + 2)


@pytest.mark.parametrize("count", range(1, 7))
@pytest.mark.parametrize("keep", [1, 2, 3])
def test_a_create_that_arrives_late_is_not_believed(
    store: ObjectStore, count: int, keep: int
) -> None:
    append_many(store, BEFORE)
    slow = Delayed(store)
    with pytest.raises(StoreUnavailable):
        append(a_journal(slow))
    others_go_on(store, count, keep)
    was_truncated = BEFORE + 1 not in keys_in(store)

    result = slow.deliver()

    assert isinstance(result, Created) == was_truncated
    assert is_one_log(store, BEFORE + count)


def test_a_create_that_arrives_late_and_first_counts(store: ObjectStore) -> None:
    append_many(store, BEFORE)
    slow = Delayed(store)
    with pytest.raises(StoreUnavailable):
        append(a_journal(slow))

    assert slow.deliver() == Created()

    assert is_one_log(store, BEFORE + 1)


@pytest.mark.parametrize("keep", [1, 2])
def test_who_repeats_a_create_that_then_arrives_after_all_has_appended_once(
    store: ObjectStore, keep: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_in(monkeypatch, "tenacity.nap", "time", sleep=lambda _: None)
    append_many(store, BEFORE)
    slow = Delayed(store)

    assert append(a_journal(PatientStore(slow))) == BEFORE + 1

    assert isinstance(slow.deliver(), AlreadyExists)
    others_go_on(store, 4, keep)
    assert slow.deliver() == Created()  # The network has it twice.
    assert is_one_log(store, BEFORE + 5)


def test_a_truncation_that_stopped_half_way_is_finished_by_the_next(store: ObjectStore) -> None:
    append_many(store, 8)

    class Dying(Interrupted):
        def delete(self, keys: object) -> None:
            assert isinstance(keys, list)
            super().delete(keys[1::2])  # A batch has no order.
            raise StoreUnavailable("a delete was lost")

    with pytest.raises(StoreUnavailable):
        a_journal(Dying(store)).truncate(keep=2)

    assert keys_in(store) == [1, 3, 5, 7, 8]
    assert numbers_in(store) == [7, 8]
    assert a_journal(store).load(after=4).seq in (5, 8)  # A hint; see the append.
    hinted = a_journal(store).load(after=4)
    assert a_journal(store).append(next_number, head=hinted).state.generation == 9
    a_journal(store).truncate(keep=2)
    assert is_one_log(store, 9)


def test_a_repair_goes_on_from_the_newest_entry_that_can_be_read(store: ObjectStore) -> None:
    append_many(store, 6)
    damage_newest(store, 2)
    with pytest.raises(ProtocolViolation, match="'sluice journal repair auctions'"):
        a_journal(store).load()

    repaired = repair(store)

    assert repaired is not None
    assert repaired.state.generation == 4 + 2 + 1
    assert keys_in(store) == [1, 2, 3, 4, 5, 6, 7]
    assert numbers_in(store) == [1, 2, 3, 4, 7]
    assert append(a_journal(store)) == 8
    assert repair(store) is None


@pytest.mark.parametrize("repairer_is_first", [False, True])
@pytest.mark.parametrize("before", range(12))
def test_of_a_repair_and_who_knew_the_damaged_entry_one_goes_on_and_the_other_reloads(
    before: int, store: ObjectStore, *, repairer_is_first: bool
) -> None:
    """Whichever of them has its whole turn before whichever call of the other."""
    append_many(store, 4)
    head: Head = a_journal(store).load()
    damage_newest(store)
    done: dict[str, Any] = {}

    def repairs(through: ObjectStore) -> None:
        done["repair"] = repair(through)

    def goes_on(through: ObjectStore) -> None:
        done["zombie"] = a_journal(through).append(next_number, head=head).state.generation

    outer, inner = (repairs, goes_on) if repairer_is_first else (goes_on, repairs)
    between = Elsewhere(store, before, lambda: inner(store))
    outer(between)
    if not between.is_over:
        inner(store)

    repaired = done["repair"]
    if repaired is None:  # The zombie was first: its entry has the state that was lost.
        assert done["zombie"] == 5
        assert numbers_in(store) == [1, 2, 3, 5]
    else:
        assert repaired.state.generation == 3 + 1 + 1
        assert done["zombie"] == 6
        assert numbers_in(store) == [1, 2, 3, 5, 6]
    assert append(a_journal(store)) == done["zombie"] + 1


@pytest.mark.parametrize("before", range(8))
def test_who_wrote_the_damaged_entry_and_has_not_confirmed_it_yet_writes_another(
    before: int, store: ObjectStore
) -> None:
    """Damage and repair come between the requests of its append."""
    append_many(store, 3)

    def befalls() -> None:
        if keys_in(store)[-1] == 4:
            damage_newest(store)
            assert repair(store) is not None

    taken = append(a_journal(Elsewhere(store, before, befalls)))

    numbers = numbers_in(store)
    assert numbers[-1] in (taken, 5)
    assert taken in numbers or numbers == [1, 2, 3, 5]
    assert append(a_journal(store)) == numbers[-1] + 1


class Busy(Through):
    """A store where another coordinator appends right before us, a number of times."""

    def __init__(self, races: int) -> None:
        super().__init__(InMemoryStore())
        self.races = races

    def create(self, key: str, body: bytes) -> CreateResult:
        if self.races:
            self.races -= 1
            append(Journal(self.store, NAMES))
        return super().create(key, body)


def test_a_pause_comes_after_each_race_that_was_lost() -> None:
    paused: list[int] = []
    journal = Journal(Busy(5), NAMES, pause=paused.append)

    taken = journal.append(next_number).state.generation

    assert (taken, paused) == (6, [1, 2, 3, 4, 5])


def test_who_loses_all_of_them_says_who_is_to_blame() -> None:
    paused: list[int] = []
    journal = Journal(Busy(MAX_RACES), NAMES, pause=paused.append)

    with pytest.raises(StoreUnavailable, match="won by others 100 times in a row; too many coord"):
        journal.append(next_number)

    assert paused == list(range(1, MAX_RACES)), "and does not wait for nothing"


def test_pauses_differ_and_are_bounded_by_twice_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    replace_in(monkeypatch, "sluice.store.journal", "time", sleep=slept.append)

    for races in (1, 3, 60):
        for _ in range(200):
            jittered_pause(races)

    bounds = (2 * FIRST_S, 8 * FIRST_S, LONGEST_S)
    for number, bound in enumerate(bounds):
        pauses = slept[number * 200 : (number + 1) * 200]
        assert all(0 <= seconds <= bound for seconds in pauses)
        assert len(set(pauses)) > 150
        assert max(pauses) > bound / 2


def test_a_job_pauses_so_by_itself() -> None:
    assert a_job().journal.pause is jittered_pause


def emptied(store: ObjectStore) -> None:
    store.delete([listed.key for listed in store.list("")])


@pytest.mark.parametrize("begun", [0, 1, 5], ids=["nothing", "shorter", "longer"])
@pytest.mark.parametrize("before", range(4), ids=["list", "get", "create", "check"])
def test_who_overslept_an_emptied_root_appends_nothing_to_the_next_journal(
    store: ObjectStore, before: int, begun: int
) -> None:
    """At whichever of its requests it sleeps; its number may be free there, or taken."""

    def next_journal() -> None:
        emptied(store)
        append_many(store, begun)

    append_many(store, 3)
    old = a_journal(Elsewhere(store, 3 + before, next_journal))
    assert old.load().seq == 3

    with pytest.raises(FencedError, match=r"was emptied while this process had journal j-\w+ open"):
        append(old)

    assert numbers_in(store) == list(range(1, begun + 1))
    assert append(a_journal(store)) == begun + 1


def test_a_handle_never_goes_over_to_another_journal(store: ObjectStore) -> None:
    append_many(store, 2)
    old, told = a_journal(store), a_journal(store)
    assert (old.load().seq, told.load().seq) == (2, 2)
    emptied(store)
    with pytest.raises(FencedError, match="with none begun since: what it did meanwhile is lost"):
        told.load()
    append_many(store, 4)

    for act in (old.load, lambda: append(old), old.require_current):
        with pytest.raises(FencedError, match=f"with {paths_in(store).token} begun since"):
            act()

    assert old.anew().load().seq == 4
    assert numbers_in(store) == [1, 2, 3, 4]


def test_of_two_that_begin_at_once_one_journal_is_the_jobs(store: ObjectStore) -> None:
    first = a_journal(Interrupted(store, before_create=lambda: append(a_journal(store))))

    assert append(first) == 2
    assert numbers_in(store) == [1, 2]
    assert first.paths == paths_in(store)


def test_a_journal_whose_beginner_died_before_its_first_entry_is_gone_on_with(
    store: ObjectStore,
) -> None:
    def dies() -> None:
        raise RuntimeError

    died = a_journal(Elsewhere(store, 3, dies))
    with pytest.raises(RuntimeError):
        append(died)
    begun = paths_in(store)

    assert append_many(store, 2) == [1, 2]
    assert paths_in(store) == begun == died.paths


def test_which_journal_it_is_is_asked_once_a_handle() -> None:
    store = CountingStore(open_store(StoreLocation(root="memory://asked-once")))
    append_many(store, 3)
    journal = a_journal(store)

    with store.counted() as first:
        journal.load()
    with store.counted() as second:
        journal.load()
        journal.append(next_number)

    assert (first["get"], first["list"]) == (2, 1)
    assert dict(second) == {"list": 3, "get": 2, "create": 1}


def test_a_journal_of_a_format_without_a_token_is_refused(store: ObjectStore) -> None:
    store.put("auctions/journal/000000000001", b"an entry of format version 7")

    for act in (a_journal(store).load, lambda: append(a_journal(store))):
        with pytest.raises(ProtocolViolation, match="journal/ is of a format version before 8, "):
            act()


def test_a_damaged_pointer_stops_everybody_and_is_put_back(store: ObjectStore) -> None:
    append_many(store, 2)
    key = NAMES.begun()
    raw = store.get(key)
    assert raw is not None
    store.put(key, raw[:-9])

    for act in (a_journal(store).load, lambda: append(a_journal(store))):
        with pytest.raises(
            ProtocolViolation, match=r"auctions/begun .*: put it back from a copy of"
        ):
            act()
    store.put(key, raw)

    assert append(a_journal(store)) == 3
