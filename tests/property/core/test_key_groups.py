"""Key groups for every small job, and any large one: each has exactly one owner.

Small jobs are counted out completely, so there the definitions themselves are the model.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness.key_groups import key_group_of, subtask_of
from sluice.core.handles import MAX_HASH, MIN_HASH
from sluice.core.key_groups import (
    UPPER_BOUND_MAX_PARALLELISM,
    KeyGroupRange,
    check_parallelism,
    default_max_parallelism,
    hash_range,
    key_group_range,
)
from tests.conformance.flink_plan import previous_subtasks

hashes = st.integers(MIN_HASH, MAX_HASH) | st.sampled_from([MIN_HASH, -1, 0, MAX_HASH])
SMALL = [(maximum, p) for maximum in range(1, 24) for p in range(1, maximum + 1)]


def groups_of(maximum: int, parallelism: int) -> list[list[int]]:
    """Which key groups each subtask owns, from the side of the key groups."""
    owned: list[list[int]] = [[] for _ in range(parallelism)]
    for group in range(maximum):
        owned[subtask_of(group, maximum, parallelism)].append(group)
    return owned


def range_of(groups: KeyGroupRange) -> list[int]:
    return list(range(groups.first, groups.last + 1))


@st.composite
def jobs(draw: st.DrawFn) -> tuple[int, int, int]:
    """A max_parallelism, a parallelism that it allows, and one of that many subtasks."""
    maximum = draw(st.integers(1, UPPER_BOUND_MAX_PARALLELISM))
    parallelism = draw(st.integers(1, maximum))
    return maximum, parallelism, draw(st.integers(0, parallelism - 1))


def test_the_ranges_of_a_small_job_are_what_its_key_groups_say() -> None:
    for maximum, parallelism in SMALL:
        ranges = [key_group_range(maximum, parallelism, index) for index in range(parallelism)]

        assert [range_of(groups) for groups in ranges] == groups_of(maximum, parallelism)


@given(jobs())
def test_ranges_partition_the_key_groups_evenly(job: tuple[int, int, int]) -> None:
    maximum, parallelism, index = job

    groups = key_group_range(maximum, parallelism, index)

    size = groups.last - groups.first + 1
    assert maximum // parallelism <= size <= -(-maximum // parallelism)
    before = key_group_range(maximum, parallelism, index - 1).last if index else -1
    assert groups.first == before + 1
    assert (groups.last == maximum - 1) == (index == parallelism - 1)


@given(jobs(), st.data())
def test_the_subtask_of_a_key_group_owns_it_and_nobody_else_does(
    job: tuple[int, int, int], data: st.DataObject
) -> None:
    maximum, parallelism, index = job
    groups = key_group_range(maximum, parallelism, index)

    inside = data.draw(st.integers(groups.first, groups.last))

    assert subtask_of(inside, maximum, parallelism) == index
    for outside in {groups.first - 1, groups.last + 1} & set(range(maximum)):
        assert subtask_of(outside, maximum, parallelism) != index


@given(jobs())
def test_hash_ranges_partition_the_signed_64_bit_space(job: tuple[int, int, int]) -> None:
    maximum, parallelism, index = job
    groups = key_group_range(maximum, parallelism, index)

    first, last = hash_range(maximum, groups)

    assert first <= last
    if index:
        before = hash_range(maximum, key_group_range(maximum, parallelism, index - 1))
        assert first == before[1] + 1
    else:
        assert first == MIN_HASH
    if index == parallelism - 1:
        assert last == MAX_HASH


@given(jobs())
def test_every_bound_of_a_hash_range_agrees_with_the_key_groups(job: tuple[int, int, int]) -> None:
    maximum, parallelism, index = job
    groups = key_group_range(maximum, parallelism, index)

    first, last = hash_range(maximum, groups)

    assert key_group_of(first, maximum) == groups.first
    assert key_group_of(last, maximum) == groups.last
    if first > MIN_HASH:
        assert key_group_of(first - 1, maximum) == groups.first - 1
    if last < MAX_HASH:
        assert key_group_of(last + 1, maximum) == groups.last + 1


@given(jobs(), hashes)
def test_a_hash_lies_in_the_range_of_its_subtask(job: tuple[int, int, int], key_hash: int) -> None:
    maximum, parallelism, _ = job

    group = key_group_of(key_hash, maximum)

    assert 0 <= group < maximum
    owner = subtask_of(group, maximum, parallelism)
    first, last = hash_range(maximum, key_group_range(maximum, parallelism, owner))
    assert first <= key_hash <= last
    alone_first, alone_last = hash_range(maximum, KeyGroupRange(group, group))
    assert alone_first <= key_hash <= alone_last


def test_rescaling_a_small_job_reads_exactly_the_owners_of_its_key_groups() -> None:
    for maximum in range(1, 13):
        for old in range(1, maximum + 1):
            for new in range(1, maximum + 1):
                expected = [
                    sorted({subtask_of(group, maximum, old) for group in owned})
                    for owned in groups_of(maximum, new)
                ]
                assert [list(r) for r in previous_subtasks(maximum, old, new)] == expected


@given(st.integers(1, 64), st.data())
def test_after_rescaling_every_old_subtask_is_read_and_every_new_one_reads(
    maximum: int, data: st.DataObject
) -> None:
    old, new = (data.draw(st.integers(1, maximum)) for _ in range(2))

    reads = previous_subtasks(maximum, old, new)

    assert len(reads) == new
    assert all(reads)
    assert {index for subtasks in reads for index in subtasks} == set(range(old))
    if old == new:
        assert reads == tuple((index,) for index in range(old))


@given(st.integers(1, UPPER_BOUND_MAX_PARALLELISM))
def test_the_default_max_parallelism_leaves_room_to_grow(parallelism: int) -> None:
    maximum = default_max_parallelism(parallelism)

    check_parallelism("parse", parallelism, maximum)
    assert maximum.bit_count() == 1
    assert maximum >= min(parallelism + parallelism // 2, UPPER_BOUND_MAX_PARALLELISM)
    assert maximum == 128 or maximum < 2 * (parallelism + parallelism // 2)
