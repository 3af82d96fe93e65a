"""Key groups: Flink's vectors, and the agreement of hash, key group, subtask and hash range.

Operator lists are dealt out as Flink's RoundRobinOperatorStateRepartitioner does.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.key_groups import key_group_of, subtask_of
from sluice.core.handles import MAX_HASH, MIN_HASH
from sluice.core.key_groups import (
    UPPER_BOUND_MAX_PARALLELISM,
    check_parallelism,
    dealt_out,
    default_max_parallelism,
    hash_range,
    key_group_range,
)
from sluice.errors import ConfigurationError
from tests.conformance.flink_rules import previous_subtasks

max_parallelisms = st.integers(1, UPPER_BOUND_MAX_PARALLELISM)
hashes = st.integers(MIN_HASH, MAX_HASH) | st.sampled_from([MIN_HASH, -1, 0, MAX_HASH])


@st.composite
def parallelisms(draw: st.DrawFn) -> tuple[int, int]:
    """A max_parallelism and a parallelism that it allows."""
    maximum = draw(max_parallelisms)
    return maximum, draw(st.integers(1, min(maximum, 64)))


def ranges(maximum: int, parallelism: int) -> list[tuple[int, int]]:
    groups = [key_group_range(maximum, parallelism, index) for index in range(parallelism)]
    return [(g.first, g.last) for g in groups]


@pytest.mark.parametrize(
    ("maximum", "parallelism", "expected"),
    [
        (128, 1, [(0, 127)]),
        (128, 4, [(0, 31), (32, 63), (64, 95), (96, 127)]),
        (128, 7, [(0, 18), (19, 36), (37, 54), (55, 73), (74, 91), (92, 109), (110, 127)]),
        (10, 4, [(0, 2), (3, 4), (5, 7), (8, 9)]),
    ],
)
def test_ranges_are_those_of_flink(
    maximum: int, parallelism: int, expected: list[tuple[int, int]]
) -> None:
    assert ranges(maximum, parallelism) == expected


@pytest.mark.parametrize(
    ("parallelism", "expected"),
    [
        *((1, 128), (64, 128), (85, 128), (86, 256), (100, 256), (128, 256), (170, 256)),
        *((171, 256), (500, 1024), (1000, 2048), (10000, 16384), (21845, 32768)),
        *((21846, 32768), (32768, 32768)),
    ],
)
def test_the_default_max_parallelism_is_that_of_flink(parallelism: int, expected: int) -> None:
    assert default_max_parallelism(parallelism) == expected


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (3, 2, ((0, 1), (1, 2))),
        (4, 1, ((0, 1, 2, 3),)),
        (4, 4, ((0,), (1,), (2,), (3,))),
    ],
)
def test_rescaling_reads_the_subtasks_that_flink_assigns(
    old: int, new: int, expected: tuple[tuple[int, ...], ...]
) -> None:
    assert previous_subtasks(128, old, new) == expected


@given(parallelisms())
def test_ranges_partition_the_key_groups_and_the_hashes(given_: tuple[int, int]) -> None:
    maximum, parallelism = given_
    groups = [key_group_range(maximum, parallelism, index) for index in range(parallelism)]
    bounds = [hash_range(maximum, group) for group in groups]

    assert [g.first for g in groups] == [0, *(g.last + 1 for g in groups[:-1])]
    assert groups[-1].last == maximum - 1
    assert [first for first, _ in bounds] == [MIN_HASH, *(last + 1 for _, last in bounds[:-1])]
    assert bounds[-1][1] == MAX_HASH


@given(parallelisms(), hashes)
def test_a_hash_belongs_to_the_one_subtask_whose_range_holds_it(
    given_: tuple[int, int], key_hash: int
) -> None:
    maximum, parallelism = given_

    group = key_group_of(key_hash, maximum)
    index = subtask_of(group, maximum, parallelism)

    owned = key_group_range(maximum, parallelism, index)
    first, last = hash_range(maximum, owned)
    assert 0 <= group < maximum
    assert owned.first <= group <= owned.last
    assert first <= key_hash <= last


@given(parallelisms(), st.data())
def test_every_bound_of_a_hash_range_agrees_with_the_key_groups(
    given_: tuple[int, int], data: st.DataObject
) -> None:
    maximum, parallelism = given_
    index = data.draw(st.integers(0, parallelism - 1))
    groups = key_group_range(maximum, parallelism, index)
    first, last = hash_range(maximum, groups)

    assert key_group_of(first, maximum) == groups.first
    assert key_group_of(last, maximum) == groups.last
    if first > MIN_HASH:
        assert key_group_of(first - 1, maximum) == groups.first - 1
    if last < MAX_HASH:
        assert key_group_of(last + 1, maximum) == groups.last + 1


@given(parallelisms(), st.integers(1, 32))
def test_rescaling_reads_exactly_the_subtasks_that_overlap(
    given_: tuple[int, int], wanted: int
) -> None:
    maximum, old = given_
    new = min(wanted, maximum)

    assigned = previous_subtasks(maximum, old, new)

    for index, olds in enumerate(assigned):
        groups = key_group_range(maximum, new, index)
        owners = {subtask_of(group, maximum, old) for group in (groups.first, groups.last)}
        assert olds == tuple(range(min(owners), max(owners) + 1))


@pytest.mark.parametrize(
    ("parallelism", "maximum", "message"),
    [
        (0, 128, r"stage 'parse' has parallelism 0"),
        (9, 8, r"stage 'parse' has parallelism 9.*max_parallelism 8"),
        (1, 0, r"stage 'parse' has max_parallelism 0; choose 1 to 32768"),
        (1, 32769, r"stage 'parse' has max_parallelism 32769; choose 1 to 32768"),
    ],
)
def test_an_impossible_parallelism_is_refused_with_the_stage(
    parallelism: int, maximum: int, message: str
) -> None:
    check_parallelism("parse", 8, 8)

    with pytest.raises(ConfigurationError, match=message):
        check_parallelism("parse", parallelism, maximum)


@pytest.mark.parametrize(
    ("elements", "parallelism", "parts"),
    [
        ({"a": 10}, 3, {"a": [(0, 4), (4, 7), (7, 10)]}),
        ({"a": 1}, 2, {"a": [(0, 1), (1, 1)]}),
        ({"a": 0}, 2, {"a": [(0, 0), (0, 0)]}),
        # The odd one of the second list goes to the subtask behind that of the first.
        ({"a": 1, "b": 3}, 2, {"a": [(0, 1), (1, 1)], "b": [(2, 3), (0, 2)]}),
    ],
)
def test_elements_are_dealt_out_in_turn(
    elements: dict[str, int], parallelism: int, parts: dict[str, list[tuple[int, int]]]
) -> None:
    assert dealt_out(elements, parallelism) == parts


@given(st.dictionaries(st.text(max_size=2), st.integers(0, 30)), st.integers(1, 9))
def test_each_element_goes_to_one_subtask_and_none_has_two_more_than_another(
    elements: dict[str, int], parallelism: int
) -> None:
    found = dealt_out(elements, parallelism)

    totals = [0] * parallelism
    for name, parts in found.items():
        covered = sorted(place for start, end in parts for place in range(start, end))
        assert covered == list(range(elements[name]))
        totals = [total + end - start for total, (start, end) in zip(totals, parts, strict=True)]
    assert max(totals) - min(totals) <= 1
