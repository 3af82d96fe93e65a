"""Rows are grouped by UUIDs as text as they are by any text."""

from __future__ import annotations

import re
import uuid
from random import Random
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from sluice.declaration import aggregates as agg
from sluice.declaration.pipeline import Pipeline
from sluice.operators import kernels
from sluice.operators.build import build_operator
from sluice.operators.kernels import packed_uuids
from sluice.operators.operator import EpochTime, Operator
from sluice.sources import Files

AS_WRITTEN = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
ONE = "01234567-89ab-cdef-fedc-ba9876543210"
RANDOM = Random(20261125)
UUIDS = [str(uuid.UUID(int=RANDOM.getrandbits(128))) for _ in range(40)]
ROWS = pl.DataFrame(
    {"k": [RANDOM.choice(UUIDS) for _ in range(200)], "v": [RANDOM.random() for _ in range(200)]}
)
FORMS: dict[str, dict[str, Any]] = {
    "sums": {"n": agg.count(), "s": agg.sum("v"), "m": agg.max("v")},
    "of the key": {"least": agg.min("k"), "d": agg.count_distinct("v")},
    "in order": {"newest": agg.last("v", by="v")},
}


@pytest.fixture(autouse=True)
def few_rows_are_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_MANY_ROWS", 2)
    monkeypatch.setattr(kernels, "_DISTINCT", 0.0)
    monkeypatch.setattr(kernels, "_BLOCK", 7)


def with_letter(place: int, letter: str) -> str:
    return ONE[:place] + letter + ONE[place + 1 :]


@pytest.mark.parametrize("place", range(len(ONE)))
def test_a_text_is_a_uuid_only_if_each_letter_may_be_there(place: int) -> None:
    texts = [with_letter(place, chr(code)) for code in range(128)]

    are_uuids = [packed_uuids(pl.Series([ONE, text])) is not None for text in texts]

    assert are_uuids == [AS_WRITTEN.fullmatch(text) is not None for text in texts]


def test_each_digit_makes_another_number() -> None:
    places = (place for place, letter in enumerate(ONE) if letter != "-")
    texts = {with_letter(place, digit) for place in places for digit in "0123456789abcdef"}

    packed = packed_uuids(pl.Series(sorted(texts)))

    assert packed is not None
    assert packed.n_unique() == len(texts) == 1 + 32 * 15


def test_the_same_texts_are_the_same_number_also_in_a_part_of_the_rows() -> None:
    packed, part = packed_uuids(ROWS["k"]), packed_uuids(ROWS["k"][11:90])

    assert packed is not None
    assert part is not None
    assert packed.n_unique() == ROWS["k"].n_unique()
    assert packed[11:90].equals(part)


@pytest.mark.parametrize(
    "other",
    [None, "", ONE.upper(), f"{{{ONE}}}", ONE.replace("-", ""), ONE[:-1], "é" * 18, ONE + ONE],
)
def test_one_other_text_is_enough(other: str | None) -> None:
    for place in (0, 20, len(UUIDS)):
        assert packed_uuids(pl.Series([*UUIDS[:place], other, *UUIDS[place:]])) is None


def test_few_rows_and_few_uuids_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert packed_uuids(pl.Series([], dtype=pl.String)) is None
    monkeypatch.setattr(kernels, "_MANY_ROWS", len(UUIDS))
    assert packed_uuids(pl.Series(UUIDS[1:])) is None
    monkeypatch.setattr(kernels, "_DISTINCT", 0.97)
    assert packed_uuids(pl.Series(UUIDS)) is not None
    assert packed_uuids(pl.Series([*UUIDS, *UUIDS])) is None


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [ROWS, ROWS.with_columns(pl.col("k").str.to_uppercase())])
def test_groups_do_not_depend_on_how_uuids_are_grouped(
    form: str, rows: pl.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = the_operator(form)
    packed = folded(operator, rows)

    monkeypatch.setattr(kernels, "_MANY_ROWS", 1_000_000)
    plain = folded(operator, rows)

    assert packed.keys() == plain.keys()
    for name, groups in packed.items():
        assert_frame_equal(groups, plain[name], check_row_order=False)


def the_operator(form: str) -> Operator:
    pipeline = Pipeline("grouped")
    rows = pipeline.source("rows", Files("/nowhere", format="text"))
    rows.key_by("k").aggregate("stage", **FORMS[form])
    return build_operator(pipeline.stages["stage"], [ROWS.schema])


def folded(operator: Operator, rows: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """The groups of two parts of the rows, combined."""
    time = EpochTime(watermark_ms=0)
    first, second = (operator.partial(part, time).groups for part in (rows[:90], rows[90:]))
    return dict(operator.combine({name: pl.concat([first[name], second[name]]) for name in first}))
