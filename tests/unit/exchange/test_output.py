"""A chained subtask's blocks and acks for the next stage, and the rows of a side output."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pyarrow as pa
import pytest
from polars._typing import TimeUnit

from sluice.core.answers import Ack, Execution, LateRows
from sluice.core.event_time import StageClock
from sluice.core.handles import SegmentHandle
from sluice.core.ids import CheckpointId, SubtaskId
from sluice.core.plan import TaskPlan
from sluice.declaration import aggregates as agg
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.places import MALFORMED_COLUMN, RAW
from sluice.errors import ConfigurationError
from sluice.exchange.blocks import (
    BlockKind,
    ChainedClock,
    ChainedOutput,
    ChainLink,
    ExchangeSpec,
    executions_in,
    received,
)
from sluice.exchange.output import lateness_of, readable_rows
from sluice.exchange.reading import SOURCE, Feed, StreamRows
from sluice.operators.operator import EpochTime
from sluice.sources import Files
from sluice.state.segments import HASH
from sluice.store.open import StoreLocation

SCHEMA = pa.schema([("k", pa.int64()), ("n", pa.int64())])
BODY = SCHEMA.serialize().to_pybytes()
SEGMENT = SegmentHandle(key="of/the/bucket", size_bytes=1, rows=1, checksum="x")
ACK = Ack(
    checkpoint_id=CheckpointId(7),
    subtask=SubtaskId("before", 1),
    attempt=2,
    output=(SEGMENT,),
    event_times_ms={"rows/a": 3},
    watermark_ms=5,
)


def a_link(parallelism: int) -> ChainLink:
    pipeline = Pipeline("chained")
    rows = pipeline.source("rows", Files("/nowhere", format="text"))
    rows.key_by("k").aggregate("totals", n=agg.sum("n"))
    stage = pipeline.stages["totals"]
    nothing = StreamRows(StoreLocation("memory://chained"), ((),) * parallelism, BODY)
    given = stage.inputs[0]
    feed = Feed(rows=nothing, schema=BODY, given=given, hashed=("k",), columns=("k", "n", HASH))
    task = TaskPlan(uid="totals", parallelism=parallelism, max_parallelism=8)
    exchange = ExchangeSpec(
        stage=stage, task=task, feeds=(feed,), epoch_time=EpochTime(), pre_aggregates=False
    )
    return ChainLink(exchange=exchange, schema=BODY)


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_a_row_is_as_late_as_it_is_behind_the_watermark(unit: TimeUnit) -> None:
    at = pl.Series([100_000, 89_999, 100_500]).cast(pl.Datetime("ms", "UTC"))

    found = lateness_of(at.dt.cast_time_unit(unit), 100_000)

    assert found == LateRows(rows=3, most_ms=10_001, within=(2, 2, 3, 3, 3, 3))


def test_times_at_either_end_of_the_range_are_late_without_an_overflow() -> None:
    at = pl.Series([-(2**63) + 1, 2**63 - 1]).cast(pl.Datetime("ms", "UTC"))

    assert lateness_of(at, 2**63 - 2).within == (1,) * 6
    assert lateness_of(at, -(2**63) + 2).within == (2,) * 6


@pytest.mark.parametrize("memory_bytes", [8, 2**30])
def test_every_subtask_gets_its_rows_and_what_the_ack_says_of_time(memory_bytes: int) -> None:
    rows = pl.DataFrame({"k": range(1_000), "n": [n % 7 for n in range(1_000)]})
    first, then = "1-a", "1-b"
    earlier = Execution(ack=replace(ACK, subtask=SubtaskId("first", 0)), token=first)
    done = Execution(ack=ACK, token=then, read=(first,))

    with ChainedOutput("before", a_link(3), 1, memory_bytes) as output:
        for start in (0, 600):
            output.add(rows.slice(start, 600).to_arrow().cast(SCHEMA))
        blocks = [*output.blocks(done, {"first": [earlier]})]

    got: list[pl.DataFrame] = []
    acks: dict[int, list[Execution]] = {}
    for subtask in range(3):
        own = [block for block in blocks if block.column(0)[0].as_py() == subtask]
        for part in received(own):
            if part.kind is BlockKind.ACK:
                acks.setdefault(subtask, []).extend(executions_in(part.rows.iter_rows(), part.name))
            else:
                assert part.kind is BlockKind.ROWS
                got.append(part.rows.select("k", "n"))
    assert len(got) == 3
    assert pl.concat(got).sort("k").equals(rows)
    # One subtask passes on what counts; all of them need the watermark, and whose rows they got.
    assert acks[0] == [earlier, done]
    assert acks[1] == acks[2] == [replace(done, ack=replace(ACK, output=()))]


def test_rows_that_are_not_those_of_the_declaration_are_refused_by_name() -> None:
    match = r"'before' yields k int64, n string.*'totals' with"
    refused = pytest.raises(ConfigurationError, match=match)

    with ChainedOutput("before", a_link(1), 0, 2**20) as output, refused:
        output.add(pa.table({"k": [1], "n": ["one"]}))


def test_a_chained_clock_is_the_producers_and_never_goes_back() -> None:
    clock = ChainedClock(
        producer="before", before=StageClock(sources=(), streams_ms=None), floor_ms=4
    )
    late, idle = replace(ACK, watermark_ms=3), replace(ACK, watermark_ms=None)

    assert clock.streams_ms([ACK, replace(ACK, watermark_ms=9)]) == 5
    assert clock.streams_ms([late]) == 4
    assert clock.streams_ms([idle]) is None
    assert clock.read(EpochTime(), 5) == EpochTime(watermark_ms=5)
    assert clock.read(EpochTime(), None) == EpochTime(watermark_ms=4)


ORIGIN = {SOURCE: [{"partition": "a.json", "record": 6}]}
MALFORMED = {MALFORMED_COLUMN: ["no object"], RAW: ["{"]}


def test_a_row_that_could_not_be_read_says_where_it_was_and_why() -> None:
    rows = pl.DataFrame({"id": [None]} | MALFORMED | ORIGIN)

    assert readable_rows(rows).to_dicts() == [
        {"partition": "a.json", "record_number": 7, "id": None, "reason": "no object", "line": "{"}
    ]


def test_columns_that_rows_have_themselves_stay_theirs() -> None:
    own = {"reason": ["late"], "line": ["U8"], "partition": ["p"], "record_number": [1]}
    rows = pl.DataFrame(own | {"_reason": ["own, too"]} | MALFORMED | ORIGIN)

    (found,) = readable_rows(rows).to_dicts()

    assert found == {
        "_partition": "a.json",
        "_record_number": 7,
        "reason": "late",
        "line": "U8",
        "partition": "p",
        "record_number": 1,
        "_reason": "own, too",
        "__reason": "no object",
        "_line": "{",
    }


def test_no_two_columns_of_a_side_output_differ_only_in_case() -> None:
    rows = pl.DataFrame({"Reason": ["late"], "LINE": ["U8"]} | MALFORMED)

    assert readable_rows(rows).columns == ["Reason", "LINE", "_reason", "_line"]
