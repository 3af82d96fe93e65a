"""What is read of an input is found out once for all epochs of a stage, and anew for any other."""

from __future__ import annotations

import pickle
from dataclasses import replace

import polars as pl
import pytest

from sluice.core.handles import SegmentHandle
from sluice.declaration.expressions import Filter, Projection
from sluice.declaration.nodes import Input
from sluice.exchange.reading import Feed, StreamRows
from sluice.operators.expressions import Computed
from sluice.state.segments import HASH, to_table
from sluice.store.open import StoreLocation

ROWS = pl.DataFrame({"k": [1, 2, 2], "n": [5, 6, 7], "m": [0, 1, 2]})
SCHEMA = to_table(ROWS).schema.serialize().to_pybytes()
WIDER = to_table(ROWS.with_columns(o=pl.col("m"))).schema.serialize().to_pybytes()
PLACE = StoreLocation("memory://plain")
STREAM = StreamRows(PLACE, ((),), SCHEMA)
SEGMENT = SegmentHandle(key="streams/rows/2/a", size_bytes=1, rows=1, checksum="0")

GIVEN = Input(producer="rows", steps=(Filter("n > 5"),), keys=("k",))
FEED = Feed(rows=STREAM, schema=SCHEMA, given=GIVEN, hashed=("k",), columns=("k", "n", HASH))
OTHERS = {
    "columns": replace(FEED, columns=("k", "m", HASH)),
    "all columns": replace(FEED, columns=None),
    "hash": replace(FEED, hashed=("m",)),
    "argument": replace(FEED, wanted=(Computed("x", "n > 6", is_condition=True),)),
    "filter": replace(FEED, given=replace(GIVEN, steps=(Filter("n > 6"),))),
    "projection": replace(FEED, given=replace(GIVEN, steps=(Projection(("k", "m AS n")),))),
    "renamed": replace(FEED, given=replace(GIVEN, renames={"m": "n", "n": "m"})),
    "key": replace(FEED, given=replace(GIVEN, key_expressions={"e": "m"})),
    "schema": replace(FEED, schema=WIDER),
}


def test_the_next_epoch_knows_what_is_read() -> None:
    read = pickle.loads(pickle.dumps(FEED))  # noqa: S301 - as a worker gets it
    following = replace(read, rows=replace(STREAM, shares=((SEGMENT,),)))

    assert following.plain is read.plain is FEED.plain
    assert following.plain.paths == ["k", "n"]


@pytest.mark.parametrize("name", OTHERS)
def test_any_other_input_is_looked_at_anew(name: str) -> None:
    other = OTHERS[name]

    assert other.plain is not FEED.plain
    answers = (other.plain.paths, other.plain.prepared(ROWS).rows(), other.prepared_schema)
    mine = (FEED.plain.paths, FEED.plain.prepared(ROWS).rows(), FEED.prepared_schema)
    assert answers != mine or other.hashed != FEED.hashed or other.schema != FEED.schema


def test_what_only_spark_can_compute_is_no_plain_input_however_often_it_is_asked() -> None:
    feed = replace(FEED, given=replace(GIVEN, steps=(Filter("n > rand()"),)))

    assert [feed.plain.is_possible, feed.plain.is_possible] == [False, False]
    assert FEED.plain.is_possible
