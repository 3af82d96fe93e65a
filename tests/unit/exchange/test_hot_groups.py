"""The key groups that have most rows are found exactly, whatever the chunks are, with hot keys."""

from __future__ import annotations

from collections import Counter

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.key_groups import KeyGroupRange, hash_range, key_group_range
from sluice.exchange.subtask import HOT, LEAST_ROWS, MAX_KEY_TEXT, MOST_GROUPS, KeyGroupRows
from sluice.state.segments import HASH


def a_chunk(*rows: tuple[int, str]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), {HASH: pl.Int64(), "key": pl.String()}, orient="row")


def first_hash(group: int, max_parallelism: int) -> int:
    return hash_range(max_parallelism, KeyGroupRange(group, group))[0]


@given(
    max_parallelism=st.integers(1, 300),
    of=st.data(),
    chunks=st.lists(st.lists(st.integers(0, 299), max_size=30), max_size=4),
)
def test_rows_are_counted_in_the_group_that_owns_their_hash(
    max_parallelism: int, of: st.DataObject, chunks: list[list[int]]
) -> None:
    parallelism = of.draw(st.integers(1, max_parallelism))
    owned = key_group_range(max_parallelism, parallelism, of.draw(st.integers(0, parallelism - 1)))
    size = owned.last - owned.first + 1
    counted = KeyGroupRows(owned, max_parallelism, ["key"], least_rows=1)
    expected: Counter[int] = Counter()

    for chunk in chunks:
        groups = [owned.first + one % size for one in chunk]
        expected.update(groups)
        ends = [hash_range(max_parallelism, KeyGroupRange(one, one)) for one in groups]
        counted.add(a_chunk(*((ends[n][n % 2], f"k{groups[n]}") for n in range(len(groups)))))

    found = {one.group: one.rows for one in counted.hot()}
    least = HOT * expected.total() / size
    hot = sorted((rows for rows in expected.values() if rows >= least), reverse=True)
    assert sorted(found.values(), reverse=True) == hot[:MOST_GROUPS]
    assert all(expected[group] == rows for group, rows in found.items())
    assert all(one.keys == (f"key=k{one.group}",) for one in counted.hot())


def test_the_keys_are_those_that_come_most_often() -> None:
    counted = KeyGroupRows(KeyGroupRange(0, 127), 128, ["key"], least_rows=1)
    hot = first_hash(7, 128)

    counted.add(a_chunk(*[(hot, "rare")], *[(hot, "often")] * 50, *[(hot, "a")] * 3, (0, "other")))
    counted.add(a_chunk((hot, "later")))

    assert counted.hot()[0].keys == ("key=often", "key=a", "key=rare")
    assert (counted.hot()[0].group, counted.hot()[0].rows) == (7, 55)


@pytest.mark.parametrize("name", ["rows", "len", "count", "group"])
def test_a_key_may_have_any_name(name: str) -> None:
    counted = KeyGroupRows(KeyGroupRange(0, 127), 128, [name], least_rows=1)

    counted.add(a_chunk((0, "a"), (0, "a")).rename({"key": name}))

    assert counted.hot()[0].keys == (f"{name}=a",)


def test_a_key_of_a_megabyte_is_cut() -> None:
    counted = KeyGroupRows(KeyGroupRange(0, 127), 128, ["key"], least_rows=1)

    counted.add(a_chunk((0, "x" * 1_000_000)))

    assert len(counted.hot()[0].keys[0]) == MAX_KEY_TEXT


@pytest.mark.parametrize("rows", [[], [(first_hash(group, 8), "k") for group in range(8)]])
def test_where_no_group_has_more_than_others_none_is_hot(rows: list[tuple[int, str]]) -> None:
    counted = KeyGroupRows(KeyGroupRange(0, 7), 8, ["key"], least_rows=1)

    counted.add(a_chunk(*rows))

    assert counted.hot() == ()


def test_a_group_of_few_rows_is_not_hot() -> None:
    counted = KeyGroupRows(KeyGroupRange(0, 127), 128, ["key"])

    counted.add(a_chunk(*[(0, "k")] * (LEAST_ROWS - 1)))
    assert counted.hot() == ()
    counted.add(a_chunk((0, "k")))
    assert [one.rows for one in counted.hot()] == [LEAST_ROWS]
