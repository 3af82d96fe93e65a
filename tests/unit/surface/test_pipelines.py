"""The graph of a declared pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sluice import Append, Pipeline
from sluice.declaration.operations import KeyedLookup, Lookup
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.surface.pipelines import edges_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def priced(rows: DataFrame, rates: DataFrame) -> DataFrame:
    return rows.join(rates, "k")


@pytest.mark.parametrize("reader", ["lookup", "lookup of updates", "Spark code"])
def test_whatever_reads_a_table_has_an_edge_from_it(reader: str) -> None:
    pipeline = Pipeline("shop")
    rows = pipeline.source("rows", Files("/rows", format="json", schema="k string, n int"))
    rates = pipeline.source("rates", Files("/rates", format="parquet"), table=True)
    match reader:
        case "lookup":
            stage = rows.lookup("priced", rates, on="k")
            assert isinstance(pipeline.stages["priced"].operation, Lookup)
        case "lookup of updates":
            stage = rows.key_by("k").latest("newest", by="n").lookup("priced", rates, on="k")
            assert isinstance(pipeline.stages["priced"].operation, KeyedLookup)
        case _:
            stage = pipeline.spark(
                "priced",
                priced,
                reads={"rows": rows},
                tables={"rates": rates},
                schema="k string",
                result=Append(),
            )
    stage.sink("out", FilesTable(changelog=True))

    found = {(edge.producer, edge.consumer) for edge in edges_of(pipeline)}

    assert {("rates", "priced"), ("priced", "out")} <= found
