"""The registry against two others: a table of who uses what, and Flink's own last-use rule.

``Registry`` holds pairs of key and checkpoint, and a file is gone when its last pair is.
``LastUse`` repeats SharedStateRegistryImpl, which remembers only the newest user of a file.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sluice.core.ids import CheckpointId
from sluice.core.properties import ClaimMode
from sluice.core.shared_state import (
    SharedStateEntry,
    SharedStateRegistry,
    SharingFilesStrategy,
    SnapshotKind,
    Unregistered,
)
from tests.examples import examples

EMPTY = SharedStateRegistry()


def checkpoint(number: int) -> CheckpointId:
    return CheckpointId(number)


def registered(*pairs: tuple[str, int], base: SharedStateRegistry = EMPTY) -> SharedStateRegistry:
    for key, user in pairs:
        base, file = base.register(key, checkpoint(user))
        assert file == key
    return base


def restored(
    *keys: str,
    kind: SnapshotKind = SnapshotKind.NATIVE_SAVEPOINT,
    claim_mode: ClaimMode = ClaimMode.CLAIM,
) -> SharedStateRegistry:
    """Checkpoint 1 with these keys."""
    return EMPTY.register_all_after_restored(keys, checkpoint(1), kind, claim_mode)


def test_files_below_the_lowest_retained_checkpoint_go_in_order_of_registration() -> None:
    registry = registered(("first", 0), ("second", 0), ("third", 1))

    freed = registry.unregister_unused(checkpoint(1))

    assert freed == Unregistered(
        registry=registered(("third", 1)), still_in_use=frozenset(), to_delete=("first", "second")
    )


@pytest.mark.parametrize("lowest", [-1, 2**63 - 1])
def test_an_empty_registry_has_nothing_to_unregister(lowest: int) -> None:
    freed = EMPTY.unregister_unused(checkpoint(lowest))

    assert freed == Unregistered(registry=EMPTY, still_in_use=frozenset(), to_delete=())


def test_a_file_that_a_newer_checkpoint_uses_again_stays() -> None:
    freed = registered(("sst", 1), ("sst", 2)).unregister_unused(checkpoint(2))

    assert freed.to_delete == ()
    assert freed.still_in_use == frozenset()
    assert freed.registry.entries["sst"] == SharedStateEntry(
        file="sst", created_by=checkpoint(1), users=frozenset({checkpoint(2)})
    )


def test_the_files_of_a_changelog_go_one_by_one() -> None:
    first = registered(("base1", 41), ("log1", 41)).unregister_unused(checkpoint(41))
    second = registered(("base1", 42), ("log2", 42), base=first.registry)
    second_freed = second.unregister_unused(checkpoint(42))
    third = registered(("base2", 43), ("log2", 43), base=second_freed.registry)
    third_freed = third.unregister_unused(checkpoint(43))

    assert [first.to_delete, second_freed.to_delete, third_freed.to_delete] == [
        (),
        ("log1",),
        ("base1",),
    ]
    assert list(third_freed.registry.entries) == ["log2", "base2"]


@pytest.mark.parametrize("kind", list(SnapshotKind))
def test_only_a_savepoint_stays_in_use_as_long_as_its_files(kind: SnapshotKind) -> None:
    registry = registered(
        ("restored", 2), ("restored", 3), ("new", 4), base=restored("restored", kind=kind)
    )

    used = registry.unregister_unused(checkpoint(3))
    unused = used.registry.unregister_unused(checkpoint(4))

    bundles_its_files = kind.sharing is SharingFilesStrategy.NO_SHARING
    assert bundles_its_files == ("savepoint" in kind.value)
    assert used.still_in_use == ({1} if bundles_its_files else set())
    assert used.to_delete == ()
    assert unused.still_in_use == frozenset()
    assert unused.to_delete == ("restored",)


def test_a_user_that_needs_the_creator_too_keeps_a_restored_checkpoint() -> None:
    base = restored("restored", kind=SnapshotKind.CHECKPOINT)
    wrapped, _ = base.register("restored", checkpoint(2), keeps_creator=True)
    reused = registered(("restored", 3), base=wrapped)

    assert reused.unregister_unused(checkpoint(3)).still_in_use == {1}
    assert reused.unregister_unused(checkpoint(4)).still_in_use == frozenset()


def test_only_a_restored_checkpoint_is_kept_by_its_files() -> None:
    registry, _ = registered(("own", 1)).register("own", checkpoint(2), keeps_creator=True)

    assert registry.unregister_unused(checkpoint(2)).still_in_use == frozenset()


def test_a_snapshot_that_is_not_claimed_loses_no_file() -> None:
    base = restored("theirs", claim_mode=ClaimMode.NO_CLAIM)

    freed = registered(("ours", 2), base=base).unregister_unused(checkpoint(3))

    assert freed.to_delete == ("ours",)
    assert dict(freed.registry.entries) == {}


def test_a_file_that_a_snapshot_without_claim_shares_with_us_is_no_longer_ours() -> None:
    base = registered(("both", 1), ("ours", 1)).register_all_after_restored(
        ["both"], checkpoint(2), SnapshotKind.CHECKPOINT, ClaimMode.NO_CLAIM
    )
    claimed = base.register_all_after_restored(
        ["both"], checkpoint(3), SnapshotKind.CHECKPOINT, ClaimMode.CLAIM
    )

    assert base.unregister_unused(checkpoint(4)).to_delete == ("ours",)
    assert claimed.unregister_unused(checkpoint(4)).to_delete == ("ours",)


@pytest.mark.parametrize("second", [5, 6])
def test_a_key_stands_for_the_file_that_was_registered_first(second: int) -> None:
    registry, first_file = EMPTY.register("k", checkpoint(5), file="A")

    registry, second_file = registry.register("k", checkpoint(second), file="B")

    assert (first_file, second_file) == ("A", "A")
    assert registry.entries["k"].users == {5, second}
    assert registry.unregister_unused(checkpoint(7)).to_delete == ("A",)


def test_aborting_a_pending_checkpoint_spares_what_a_completed_one_uses() -> None:
    registry = registered(("a", 1), ("a", 2), ("b", 2))

    freed = registry.release([checkpoint(2)])

    assert freed == Unregistered(
        registry=registered(("a", 1)), still_in_use=frozenset(), to_delete=("b",)
    )


def test_a_checkpoint_between_two_retained_ones_is_released_exactly() -> None:
    registry = registered(("old", 1), ("old", 2), ("mid", 2), ("new", 2), ("new", 3))

    freed = registry.release([checkpoint(2), checkpoint(9)])

    assert freed.to_delete == ("mid",)
    users_left = {key: entry.users for key, entry in freed.registry.entries.items()}
    assert users_left == {"old": {1}, "new": {3}}


def test_registering_all_is_registering_one_by_one() -> None:
    base = registered(("a", 1))

    assert base.register_all(["a", "b"], checkpoint(2)) == registered(("a", 2), ("b", 2), base=base)


class LastUse:
    """SharedStateRegistryImpl for a job that was restored from nothing."""

    def __init__(self) -> None:
        self.last_use: dict[str, int] = {}
        self.deleted: list[str] = []

    def register(self, key: str, user: int) -> None:
        self.last_use[key] = max(user, self.last_use.get(key, user))

    def unregister_unused(self, lowest: int) -> None:
        unused = [key for key, last in self.last_use.items() if last < lowest]
        self.deleted += unused
        for key in unused:
            del self.last_use[key]


steps = st.lists(
    st.tuples(st.just("register"), st.sampled_from("abc"), st.integers(0, 5))
    | st.tuples(st.just("unused"), st.none(), st.integers(0, 6)),
    max_size=30,
)


@given(steps)
def test_unregistering_is_flinks_last_use_rule(history: list[tuple[str, str | None, int]]) -> None:
    registry, flink, deleted = EMPTY, LastUse(), list[str]()

    for _, key, number in history:
        if key is not None:
            registry, _ = registry.register(key, checkpoint(number))
            flink.register(key, number)
            continue
        freed = registry.unregister_unused(checkpoint(number))
        registry = freed.registry
        deleted += freed.to_delete
        flink.unregister_unused(number)

    assert deleted == flink.deleted
    assert list(registry.entries) == list(flink.last_use)


keys = st.sampled_from("abcd")
users = st.integers(1, 6).map(CheckpointId)


class Registry(RuleBasedStateMachine):
    """Against ``pairs``: who uses what, in order of registration."""

    @initialize()
    def start(self) -> None:
        self.registry = EMPTY
        self.pairs: list[tuple[str, CheckpointId]] = []
        self.created_by: dict[str, CheckpointId] = {}
        self.theirs: set[str] = set()
        self.savepoints: set[CheckpointId] = set()

    @rule(key=keys, user=users)
    def register(self, key: str, user: CheckpointId) -> None:
        self.registry, file = self.registry.register(key, user)
        assert file == key
        self.note([key], user)

    @rule(used=st.lists(keys, unique=True), user=users)
    def register_all(self, used: list[str], user: CheckpointId) -> None:
        self.registry = self.registry.register_all(used, user)
        self.note(used, user)

    @rule(
        used=st.lists(keys, unique=True),
        user=users,
        is_savepoint=st.booleans(),
        claim_mode=st.sampled_from(ClaimMode),
    )
    def restore(
        self, used: list[str], user: CheckpointId, is_savepoint: bool, claim_mode: ClaimMode
    ) -> None:
        kind = SnapshotKind.NATIVE_SAVEPOINT if is_savepoint else SnapshotKind.CHECKPOINT
        self.registry = self.registry.register_all_after_restored(used, user, kind, claim_mode)
        self.note(used, user)
        self.theirs |= set(used) if claim_mode is ClaimMode.NO_CLAIM else set()
        self.savepoints -= {user}
        self.savepoints |= {user} if is_savepoint else set()

    @rule(lowest=st.integers(0, 7).map(CheckpointId))
    def unregister_unused(self, lowest: CheckpointId) -> None:
        freed = self.registry.unregister_unused(lowest)
        self.forget({user for _, user in self.pairs if user < lowest}, freed)

    @rule(gone=st.sets(users))
    def release(self, gone: set[CheckpointId]) -> None:
        self.forget(gone, self.registry.release(gone))

    def note(self, used: list[str], user: CheckpointId) -> None:
        for key in used:
            self.pairs += [(key, user)] if (key, user) not in self.pairs else []
            self.created_by.setdefault(key, user)

    def forget(self, gone: set[CheckpointId], freed: Unregistered) -> None:
        before = list(self.created_by)
        self.pairs = [(key, user) for key, user in self.pairs if user not in gone]
        used = {key for key, _ in self.pairs}
        unused = [key for key in before if key not in used]
        assert list(freed.to_delete) == [key for key in unused if key not in self.theirs]
        assert freed.still_in_use == {self.created_by[key] for key in used} & self.savepoints
        for key in unused:
            del self.created_by[key]
            self.theirs.discard(key)
        self.registry = freed.registry

    @invariant()
    def the_entries_are_the_pairs(self) -> None:
        assert {
            (key, user) for key, entry in self.registry.entries.items() for user in entry.users
        } == set(self.pairs)
        assert list(self.registry.entries) == list(self.created_by)


Registry.TestCase.settings = settings(examples(40), stateful_step_count=40)
TestRegistry = Registry.TestCase
