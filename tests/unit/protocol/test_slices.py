"""Slices travel as columns, and arrive as they were."""

from __future__ import annotations

from dataclasses import fields, replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.plan import Slice, SourceCut
from sluice.errors import ProtocolViolation
from sluice.protocol.records import SliceColumns, decode_plan, encode_plan
from tests.builders import a_plan
from tests.resealed import resealed


def a_slice(
    partition: str, start: int, length: int, first_record: int, records: int, version: str = ""
) -> Slice:
    return Slice(
        partition=partition,
        start=start,
        end=start + length,
        first_record=first_record,
        records=records,
        version=version,
    )


numbers = st.integers(0, 2**60)
slices = st.builds(
    a_slice,
    st.sampled_from("abc"),
    numbers,
    st.integers(1, 2**60),
    numbers,
    st.integers(1, 2**60),
    st.sampled_from(["", "mark-1", "mark-2"]),
)


@given(st.lists(slices, max_size=8))
def test_any_slices_come_back_in_their_order(given_slices: list[Slice]) -> None:
    assert [*SliceColumns.of_slices(given_slices).slices()] == given_slices


def test_every_field_of_a_slice_travels() -> None:
    """A new field of ``Slice`` needs a column, and a value in ``slices`` above."""
    assert [field.name for field in fields(Slice)] == [
        *("partition", "start", "end", "first_record", "records", "version"),
    ]


def test_a_plan_of_10000_slices_of_no_regular_length_is_below_50_kb() -> None:
    random, start, record, pieces = Random(1), 0, 0, []
    for _ in range(10_000):
        records = random.randint(300, 320)
        length = 100 * records + random.randint(0, 3_000)
        name = "day=2026-01-01/hour=07/part-000000001.log"
        pieces.append(a_slice(name, start, length, record, records))
        start, record = start + length, record + records
    cut = SourceCut(uid="events", position=(), slices=tuple(pieces))
    plan = replace(a_plan(), sources=(cut,))

    raw = encode_plan(plan)

    assert len(raw) < 50_000
    assert decode_plan(raw, "plan") == plan


def test_columns_that_contradict_each_other_are_refused_by_name() -> None:
    raw = encode_plan(a_plan())
    assert raw.count(b'"lengths":[') == 1

    with pytest.raises(ProtocolViolation, match="checkpoints/1/plan cannot be read as a plan"):
        decode_plan(resealed(raw.replace(b'"lengths":[', b'"lengths":[1,')), "checkpoints/1/plan")
