"""Rows of any type can be deduplicated, however many there are."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from sluice.declaration.nodes import Input, StageNode
from sluice.declaration.operations import Deduplicate
from sluice.operators.build import build_operator
from sluice.operators.operator import EpochTime
from tests.property.operators.subtask import Subtask

A_STRUCT = pl.Struct({"a": pl.Int64(), "b": pl.String()})


@pytest.mark.parametrize(
    ("dtype", "values", "least"),
    [
        (pl.List(pl.Int64()), [[2], [1, 5], [1]], [1]),
        (A_STRUCT, [{"a": 1, "b": "y"}, {"a": 1, "b": "x"}], {"a": 1, "b": "x"}),
        (pl.List(pl.Struct({"a": pl.Int64()})), [[{"a": 1}], [{"a": 0}]], [{"a": 0}]),
        (pl.Binary(), [b"b", b"a"], b"a"),
    ],
)
def test_the_smallest_payload_is_the_first_row_of_its_key(
    dtype: pl.DataType, values: list[Any], least: object
) -> None:
    given = Input(producer="rows", keys=("k",))
    stage = StageNode(uid="first", operation=Deduplicate(), inputs=(given,))
    schema = pl.Schema({"k": pl.Int64(), "payload": dtype})
    subtask = Subtask(build_operator(stage, [schema]), [schema], key_count=1)
    rows = [(key, value) for value in values for key in (0, 1)] * 500

    outcome = subtask.play([rows], time=EpochTime())

    assert sorted(outcome.output.rows(), key=str) == [(0, least), (1, least)]
