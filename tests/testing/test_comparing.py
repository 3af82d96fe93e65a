"""Two tables are the same if they hold the same rows, whatever order and last digits they have."""

from __future__ import annotations

import polars as pl

from sluice.local.exactly_once import applied_changelog, difference


def test_order_does_not_count_and_the_last_digits_of_a_float_do_not() -> None:
    one = pl.DataFrame({"id": [1, 2], "mean": [0.1 + 0.2, float("nan")], "tags": [["a"], None]})
    other = pl.DataFrame({"mean": [float("nan"), 0.3], "tags": [None, ["a"]], "id": [2, 1]})

    assert difference(one, other) is None


def test_a_row_that_comes_twice_is_not_one_that_comes_once() -> None:
    once = pl.DataFrame({"id": [1, 2]})

    said = difference(once, pl.DataFrame({"id": [1, 1, 3]}))

    assert said == (
        "1 rows are missing, 2 too many\n    - {'id': 2}\n    + {'id': 1}\n    + {'id': 3}"
    )


def test_a_column_that_is_not_there_is_a_difference() -> None:
    said = difference(pl.DataFrame({"id": [1]}), pl.DataFrame({"it": [1]}))

    assert said == "it has the columns ['it'] where undisturbed it has ['id']"


def test_a_changelog_is_what_it_adds_up_to() -> None:
    short = pl.DataFrame({"kind": ["+I"], "id": [1], "n": [2]})
    long = pl.DataFrame({"kind": ["+I", "-U", "+U"], "id": [1, 1, 1], "n": [1, 1, 2]})
    broken = pl.DataFrame({"kind": ["+I", "-U", "+U"], "id": [1, 1, 1], "n": [1, 3, 2]})

    assert difference(applied_changelog(short), applied_changelog(long)) is None
    assert difference(applied_changelog(short), applied_changelog(broken)) is not None
