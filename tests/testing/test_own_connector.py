"""Connectors of a user's own in a local run: given rows in their place, and the sink's checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from sluice.declaration import aggregates as agg
from sluice.declaration.params import Param
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.places import GivenForm, Sink, TextDecoding
from sluice.errors import ConfigurationError, StageFailed
from sluice.sinks import FilesTable
from sluice.testing import run_local
from tests.own_page import names_of_the_page

TEXTS = pa.schema([("body", pa.string()), ("topic", pa.string())])


@dataclass(frozen=True)
class Messages:
    """A source of JSON, which says its form and is never opened."""

    params: tuple[Param, ...] = ()

    def given_form(self, params: Mapping[str, str]) -> GivenForm:
        return GivenForm(
            schema=TEXTS,
            decoding=TextDecoding(
                format="json", schema="id bigint, n bigint", column="body", keeps=("topic",)
            ),
            fills={"topic": lambda _, count: pa.repeat(pa.scalar("events"), count)},
            text="body",
        )

    def open(self, params: Mapping[str, str], endpoint_url: str | None) -> Any:
        raise AssertionError("a local run opens no place")


@dataclass(frozen=True)
class SmallNumbers:
    """A sink that takes numbers below 100, and is never opened."""

    params: tuple[Param, ...] = ()
    upsert_key: tuple[str, ...] = ("id",)
    changelog: bool = False

    def open(self, uid: str, params: Mapping[str, str], default: Any) -> Sink:
        raise AssertionError("a local run opens no place")

    def row_checks(self, uid: str) -> SmallNumbers:
        return self

    def check_columns(self, schema: pa.Schema) -> None:
        if "id" not in schema.names:
            raise ConfigurationError("small numbers have an id")

    def check_rows(self, rows: pa.Table) -> None:
        if any(n is not None and n >= 100 for n in rows["n"].to_pylist()):
            raise ConfigurationError("n is 100 or more, which small numbers cannot hold")


def sums() -> Pipeline:
    pipeline = Pipeline("sums")
    rows = pipeline.source("messages", Messages())
    rows.key_by("id").aggregate("sums", n=agg.sum("n")).sink("out", SmallNumbers())
    return pipeline


def test_texts_may_be_given_in_the_form_that_the_source_says() -> None:
    result = run_local(sums(), {"messages": ['{"id":1,"n":2}', '{"id":1,"n":3}', "{"]})

    assert result.table("out").to_dicts() == [{"id": 1, "n": 5}]
    (bad,) = result.side_output("sums", "malformed").to_dicts()
    assert bad["line"] == "{"


def test_a_column_that_is_not_declared_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="have a column 'm'"):
        run_local(sums(), {"messages": [{"id": 1, "m": 2}]})


def test_a_row_that_the_sink_cannot_hold_is_refused() -> None:
    with pytest.raises(StageFailed, match="n is 100 or more, which small numbers cannot hold"):
        run_local(sums(), {"messages": [{"id": 1, "n": 200}]})


def test_rows_are_given_for_a_table_of_ones_own_by_epoch() -> None:
    pipeline, rows = Pipeline("priced"), names_of_the_page()["Rows"]("/nowhere")
    prices = pipeline.source("prices", rows, table=True)
    items = pipeline.source("items", Messages())
    priced = items.lookup("priced", prices, on={"id": "id"}, add=("price",))
    priced.sink("out", FilesTable())
    given = {
        "items": [[{"id": 1, "n": 0}], [{"id": 1, "n": 1}]],
        "prices": [[{"id": 1, "price": 10}], [{"id": 1, "price": 20}]],
    }

    result = run_local(pipeline, given)

    assert result.table("out").sort("n")["price"].to_list() == [10, 20]
