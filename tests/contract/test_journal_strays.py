"""A coordinator that slept through a truncation: its stray entries never count."""

from __future__ import annotations

import pytest

from sluice.errors import StoreUnavailable
from sluice.store.journal import Head
from sluice.store.object_store import AlreadyExists, Created, ObjectStore
from sluice.store.open import PatientStore
from tests.contract.journals import (
    Delayed,
    Interrupted,
    a_journal,
    append,
    append_many,
    keys_in,
    next_number,
    number_of,
    numbers_in,
)
from tests.patching import replace_in

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
    assert (
        a_journal(store).append(next_number, head=a_journal(store).load(after=4)).state.generation
        == 9
    )
    a_journal(store).truncate(keep=2)
    assert is_one_log(store, 9)
