"""Ordering and searching by hash are exact, however the hashes lie.

Method: against Python's own sorting and NumPy's binary search; long runs are searched by guessing,
so their threshold is lowered here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from itertools import groupby
from random import Random

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluice.core.handles import MAX_HASH, MIN_HASH
from sluice.state import runs
from sluice.state.runs import aligned, equal_hashes, first_not_less, newest_per_identity, order_of
from sluice.state.segments import HASH
from tests.examples import examples

any_hash = st.integers(MIN_HASH, MAX_HASH)
close_hash = st.integers(-3, 3)
hashes = st.lists(any_hash | close_hash, max_size=60) | st.lists(close_hash, max_size=60)


@pytest.fixture(autouse=True)
def _guess_in_short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_INTERPOLATE_FROM", 1)


def array(values: list[int]) -> np.ndarray:
    return np.array(values, np.int64)


@examples(200)
@given(hashes, hashes)
@example([MIN_HASH, MAX_HASH], [MIN_HASH, 0, MAX_HASH])
@example([0], [MIN_HASH, 0, MAX_HASH])
def test_every_pair_of_equal_hashes_is_found(stored: list[int], wanted: list[int]) -> None:
    stored = sorted(stored)

    which, where = equal_hashes(array(stored), array(wanted)).pairs()

    assert [*zip(which.tolist(), where.tolist(), strict=True)] == [
        (i, j) for i, hash_ in enumerate(wanted) for j, other in enumerate(stored) if other == hash_
    ]


identities = st.sets(st.tuples(close_hash | any_hash, st.none() | st.sampled_from("abc")))


@examples(200)
@given(identities, identities)
@example({(1, "a")}, {(1, "a")})
@example({(1, "a")}, {(1, "b")})
@example({(1, None)}, {(1, None), (2, None)})
def test_rows_are_put_beside_those_of_their_identity(
    stored: set[tuple[int, str | None]], wanted: set[tuple[int, str | None]]
) -> None:
    columns = {HASH: pl.Int64(), "name": pl.String(), "number": pl.Int64()}
    numbered = [(*identity, number) for number, identity in enumerate(stored)]
    rows = pl.DataFrame(numbered, schema=columns, orient="row").sort(HASH)
    sought = pl.DataFrame([*wanted], schema=[*columns.items()][:2], orient="row").sort(HASH)

    found, rest = aligned(rows, sought)

    number_of = {(hash_, name): number for hash_, name, number in numbered}
    nothing = (None, None, None)
    assert found.rows() == [
        (*identity, number_of[identity]) if identity in number_of else nothing
        for identity in sought.rows()
    ]
    assert rest.rows() == [row for row in rows.rows() if row[:2] not in wanted]
    assert found.schema == rest.schema == rows.schema


@pytest.mark.parametrize("seed", range(8))
def test_guessing_a_place_is_exact_in_long_runs_even_or_not(seed: int) -> None:
    random = np.random.default_rng(seed)
    even = random.integers(MIN_HASH, MAX_HASH, 50_000)
    stored = np.sort(even if seed % 2 else np.concatenate([even, even[:99] // 7, even // 2**40]))
    wanted = np.concatenate([random.choice(stored, 20_000), random.integers(MIN_HASH, 0, 20_000)])

    places = first_not_less(stored, wanted)

    assert places.tolist() == [bisect_left(stored, value) for value in wanted]


@examples(100)
@given(st.lists(hashes, max_size=4), st.booleans())
def test_the_order_of_hashes_is_sorted_and_stable(parts: list[list[int]], are_runs: bool) -> None:
    values = [hash_ for part in parts for hash_ in (sorted(part) if are_runs else part)]

    order = order_of(array(values))

    assert [*(range(len(values)) if order is None else order)] == sorted(
        range(len(values)), key=values.__getitem__
    )


@pytest.mark.parametrize("spread", [2**63 - 1, 2**20, 5])
def test_many_shuffled_hashes_are_ordered_stably(spread: int) -> None:
    values = np.random.default_rng(spread).integers(-spread, spread, 20_000)

    order = order_of(values)

    assert order is not None
    assert order.tolist() == np.argsort(values, kind="stable").tolist()


names = st.none() | st.sampled_from(["", "a", "b"])
rows = st.tuples(close_hash, names, st.none() | st.booleans(), st.floats(allow_nan=True))


@examples(150)
@given(st.lists(rows, max_size=30), st.booleans())
def test_the_first_row_of_an_identity_is_the_newest(
    given_rows: list[tuple[int, str | None, bool | None, float]], is_sorted: bool
) -> None:
    columns = {HASH: pl.Int64(), "name": pl.String(), "flag": pl.Boolean(), "value": pl.Float64()}
    frame = pl.DataFrame(given_rows, schema=columns, orient="row").with_row_index("number")
    identity = [HASH, "name", "flag"]
    if is_sorted:
        frame = frame.sort(identity, maintain_order=True)

    newest = newest_per_identity(frame, identity)

    stably = frame.sort(identity, maintain_order=True).select(*identity, "number").rows()
    expected = [next(same)[-1] for _, same in groupby(stably, key=lambda row: row[:-1])]
    assert newest["number"].to_list() == expected
    assert newest.schema == frame.schema


@pytest.mark.parametrize(
    "dtype", [pl.Float64(), pl.Date(), pl.Binary(), pl.Struct({"x": pl.Int64}), pl.List(pl.Int64)]
)
def test_sub_keys_of_any_type_are_ordered(dtype: pl.DataType) -> None:
    wrap: dict[type[pl.DataType], Callable[[int], object]] = {
        pl.Struct: lambda n: {"x": n},
        pl.List: lambda n: [n],
        pl.Binary: lambda n: bytes([n]),
    }
    of_type: Callable[[int], object] = wrap.get(dtype.base_type(), int)
    numbers = [*range(9), *range(0, 9, 2), *range(1, 9, 2)]
    Random(7).shuffle(numbers)
    values = [None, *(of_type(n) for n in numbers), None]
    frame = pl.DataFrame(
        {HASH: [1] * len(values), "sub": values, "number": range(len(values))},
        schema_overrides={"sub": dtype},
        strict=False,
    )

    newest = newest_per_identity(frame, [HASH, "sub"])

    assert newest["number"].to_list() == [0, *(1 + numbers.index(n) for n in range(9))]
