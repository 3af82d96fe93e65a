"""Frames of changes: what cancels out, and what a changelog says of each row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from sluice.operators.changes import KEY, changelog_of, changes_of, split_by_weight, without_pairs
from sluice.operators.operator import WEIGHT

Change = tuple[str | None, float | None, int]

changes = st.lists(
    st.tuples(
        st.sampled_from([None, "a", "b"]),
        st.sampled_from([None, 1.0, float("nan")]),
        st.sampled_from([1, -1]),
    ),
    max_size=12,
)


def a_frame(rows: Sequence[Change]) -> pl.DataFrame:
    schema = {"name": pl.String(), "value": pl.Float64(), WEIGHT: pl.Int8()}
    return pl.DataFrame(rows, schema=schema, orient="row")


def plain(*rows: tuple[str, int]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={"k": pl.String(), "n": pl.Int64()}, orient="row")


def net(frame: pl.DataFrame) -> dict[str, int]:
    """The number of copies of each row in the end, by its text, as NaN equals nothing."""
    counts: Counter[str] = Counter()
    for *row, weight in frame.rows():
        counts[repr(row)] += weight
    return {row: count for row, count in counts.items() if count}


@given(changes)
def test_what_is_left_adds_up_to_the_same_and_no_row_is_both_added_and_taken_back(
    rows: list[Change],
) -> None:
    given_ = a_frame(rows)

    left = without_pairs(given_)

    assert left.schema == given_.schema
    assert net(left) == net(given_)
    assert left.height == sum(abs(count) for count in net(given_).values())


@given(changes)
def test_what_is_left_keeps_its_order(rows: list[Change]) -> None:
    numbered = a_frame(rows)
    left = without_pairs(numbered).rows()

    found = iter(map(repr, numbered.rows()))
    assert all(repr(row) in found for row in left)


def test_rows_of_lists_and_structs_cancel_out_too() -> None:
    nested = pl.DataFrame(
        {
            "tags": [["a"], ["a"], ["b"]],
            "place": [{"x": [1]}, {"x": [1]}, {"x": [1]}],
            WEIGHT: pl.Series([-1, 1, 1], dtype=pl.Int8),
        }
    )

    assert without_pairs(nested).rows() == [(["b"], {"x": [1]}, 1)]


def test_rows_of_different_keys_do_not_cancel_out_for_they_may_be_processed_apart() -> None:
    both = changes_of(plain(("a", 1), ("b", 2)), plain(("b", 1)), ["k"])

    assert without_pairs(both.select("n", WEIGHT)).rows() == [(2, 1)]
    assert without_pairs(both.select("n", WEIGHT, KEY)).select("n", WEIGHT).rows() == [
        (1, -1),
        (1, 1),
        (2, 1),
    ]


def test_what_is_taken_back_and_what_is_added_leave_without_our_columns() -> None:
    both = changes_of(plain(("a", 2)), plain(("a", 1), ("b", 1)), ["k"])

    rows, taken_back = split_by_weight(both)

    assert rows.equals(plain(("a", 2)))
    assert taken_back.equals(plain(("a", 1), ("b", 1)))


def test_an_operator_that_took_nothing_back_has_only_rows() -> None:
    rows, taken_back = split_by_weight(changes_of(plain(("a", 2)), None, ["k"]))

    assert rows.equals(plain(("a", 2)))
    assert taken_back.equals(plain())


def test_a_changelog_tells_a_row_that_is_replaced_from_one_that_is_gone() -> None:
    changelog = changelog_of(
        plain(("a", 2), ("c", 1)), plain(("a", 1), ("b", 1)), replaced_by=("k",)
    )

    assert changelog.columns == ["kind", "k", "n"]
    assert changelog.rows() == [("-U", "a", 1), ("-D", "b", 1), ("+U", "a", 2), ("+I", "c", 1)]


def test_a_changelog_of_rows_that_nothing_identifies_inserts_and_deletes() -> None:
    changelog = changelog_of(plain(("a", 2)), plain(("a", 1)), replaced_by=())

    assert changelog.rows() == [("-D", "a", 1), ("+I", "a", 2)]


def test_a_changelog_of_nothing_has_its_columns() -> None:
    for key in ((), ("k",)):
        changelog = changelog_of(plain(), plain(), replaced_by=key)
        assert changelog.schema == {"kind": pl.String(), "k": pl.String(), "n": pl.Int64()}
        assert changelog.height == 0


def test_null_keys_are_equal() -> None:
    rows = pl.DataFrame({"k": [None], "n": [2]}, schema={"k": pl.String(), "n": pl.Int64()})
    before = rows.with_columns(n=pl.lit(1, pl.Int64()))

    assert changelog_of(rows, before, ("k",)).rows() == [("-U", None, 1), ("+U", None, 2)]
