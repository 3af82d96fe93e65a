"""How a keyed input is read without the JVM: event times, batches, and what is read of its columns.

Event times come with the rows, so that every subtask computes the same watermark of them.  What is
read of an input is computed once for all epochs of a stage, and anew for any other.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from sluice.connectors.files.parquet import ParquetSource
from sluice.connectors.offsets import OffsetSource, Readable
from sluice.core.event_time import SourceClock, StageClock
from sluice.core.handles import SegmentHandle
from sluice.core.plan import PartitionOffset, Slice, SourceCut
from sluice.declaration.expressions import Filter, Projection, Step
from sluice.declaration.nodes import Input
from sluice.declaration.places import MALFORMED_COLUMN, UndecidedError
from sluice.errors import ConfigurationError
from sluice.exchange import reading
from sluice.exchange.reading import (
    CarriedClock,
    Feed,
    SourceRows,
    StreamRows,
    bounded,
    decisive_times,
    times_frame,
    times_of,
)
from sluice.operators.aggregate import Computed
from sluice.operators.operator import EpochTime
from sluice.protocol.records import checksum
from sluice.state.segments import HASH, encode_segment, to_frame, to_table
from sluice.store.open import StoreLocation

CUT = SourceCut(
    uid="events",
    position=(
        PartitionOffset(partition="a", offset=1, records=1),
        PartitionOffset(partition="b", offset=1, records=1, is_waiting=True),
    ),
    slices=(Slice(partition="a", start=0, end=1, first_record=0, records=1),),
    heads=(Slice(partition="b", start=0, end=1, first_record=0, records=1),),
)
SOURCE = SourceClock(
    uid="events",
    cut=CUT,
    before_ms={},
    out_of_orderness_ms=0,
    drains=False,
    has_event_time=True,
)
CLOCK = CarriedClock(
    stage=StageClock(sources=(SOURCE,), streams_ms=None),
    sources={0: "events", 1: "events"},
    heads={0: frozenset({"b"}), 1: frozenset({"b"})},
)


def test_times_of_several_readers_are_put_together() -> None:
    one, other = {"a": (3, 9), "b": (7, 8)}, {"a": (1, 5)}

    together = times_of(pl.concat([times_frame(one), times_frame(other)]))

    assert together == {"a": (1, 9), "b": (7, 8)}
    assert decisive_times(together, frozenset({"b"})) == {"a": 9, "b": 7}


def test_the_latest_of_two_inputs_of_one_source_counts() -> None:
    seen = {0: times_frame({"a": (1, 9), "b": (4, 8)}), 1: times_frame({"a": (2, 6)})}

    measured = CLOCK.measured_ms(seen)

    assert measured == {"events/a": 9, "events/b": 4}
    time = CLOCK.read(EpochTime(checkpoint_id=7, processing_time_ms=5), measured)
    assert time == EpochTime(checkpoint_id=7, processing_time_ms=5, watermark_ms=3)


def test_a_clock_stands_still_where_no_row_came() -> None:
    assert CLOCK.read(EpochTime(), CLOCK.measured_ms({})) == EpochTime()


def test_a_batch_of_wide_rows_is_cut_and_a_small_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "BATCH_BYTES", 1_000)
    wide = pa.RecordBatch.from_pydict({"doc": ["x" * 400] * 7})
    small = pa.RecordBatch.from_pydict({"n": [1, 2]})

    found = list(bounded([wide, small]))

    assert [batch.num_rows for batch in found] == [3, 3, 1, 2]
    assert pa.Table.from_batches(found[:3]).equals(pa.Table.from_batches([wide]))


def test_a_batch_of_many_rows_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BATCH_ROWS", 2)

    batch = pa.RecordBatch.from_pydict({"n": [1, 2, 3]})

    assert [part.num_rows for part in bounded([batch])] == [2, 1]


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
    "argument": replace(FEED, wanted=(Computed("x", "n > 6", "", is_condition=True),)),
    "filter": replace(FEED, given=replace(GIVEN, steps=(Filter("n > 6"),))),
    "projection": replace(FEED, given=replace(GIVEN, steps=(Projection(("k", "m AS n")),))),
    "renamed": replace(FEED, given=replace(GIVEN, renames={"m": "n", "n": "m"})),
    "key": replace(FEED, given=replace(GIVEN, key_expressions={"e": "m"})),
    "schema": replace(FEED, schema=WIDER),
}


def test_the_next_epoch_knows_what_is_read() -> None:
    read = pickle.loads(pickle.dumps(FEED))  # noqa: S301 - as a worker gets it
    following = replace(read, rows=replace(STREAM, shares=((SEGMENT,),)))

    assert following.compiled is read.compiled is FEED.compiled
    assert following.compiled.paths == ["k", "n"]


@pytest.mark.parametrize("name", OTHERS)
def test_of_any_other_input_it_is_computed_anew(name: str) -> None:
    other = OTHERS[name]

    assert other.compiled is not FEED.compiled
    computed, of_feed = (
        (feed.compiled.paths, feed.compiled.prepared(ROWS).rows(), feed.prepared_schema)
        for feed in (other, FEED)
    )
    assert computed != of_feed or other.hashed != FEED.hashed or other.schema != FEED.schema


NESTED = pl.DataFrame({"k": [1, 2], "s": [{"A": 5, "b": 6}, None], "unit price": [3, 4]})


def read_of(*steps: Step, rows: pl.DataFrame = NESTED, **given: Any) -> Feed:
    schema = to_table(rows).schema.serialize().to_pybytes()
    declared = Input(producer="rows", steps=steps, **given)
    rows_of = SourceRows(ParquetSource(""), (), schema)
    return Feed(rows=rows_of, schema=schema, given=declared, hashed=("k",))


def test_of_a_struct_only_the_fields_that_are_used_are_read() -> None:
    feed = read_of(
        Projection(("k", "S.a * 2 AS twice", "s.B", "`Unit Price`")), Filter("twice > 1")
    )
    narrow = feed.narrowed(["k", "twice"])

    assert feed.compiled.paths == ["k", "s.A", "s.b", "unit price"]
    assert narrow.compiled.paths == ["k", "s.A"]
    read = NESTED.select("k", pl.struct(pl.col("s").struct.field("A")).alias("s"))
    assert narrow.prepared(read).rows() == [(1, 10)]


def test_rows_of_which_no_column_is_used_are_counted() -> None:
    feed = read_of(
        Projection(("k", "1 AS one")), Projection(("2 AS k",)), key_expressions={"x": "3"}
    )

    assert feed.compiled.paths == ["k"]
    assert feed.narrowed(["x"]).prepared(NESTED.select("k"))["x"].to_list() == [3, 3]


def test_a_row_that_cannot_be_computed_is_sparks_of_a_source_and_an_error_of_a_stream() -> None:
    of_source = read_of(Projection(("k", "10 DIV (k - 1) AS q")))
    of_stream = replace(of_source, rows=STREAM)

    with pytest.raises(
        UndecidedError, match=r"10 DIV \(k - 1\) divides by zero in a row with k = 1"
    ):
        of_source.prepared(NESTED)
    with pytest.raises(
        ConfigurationError, match="what is read of 'rows' cannot be computed: 10 DIV"
    ):
        of_stream.prepared(NESTED)


def test_an_event_time_that_is_no_instant_is_not_measured() -> None:
    rows = pl.DataFrame({"k": [5, 2**62]})
    steps = Filter("k < 9"), Projection(("k", "timestamp_millis(K) AS at"))
    feed = read_of(*steps, rows=rows, event_time="at")

    measured = feed.of_event_time().prepared(rows)

    assert measured["at"].dt.epoch("ms").to_list() == [5, None]


@dataclass(frozen=True)
class TwoPartitions(OffsetSource):
    """Rows of one event time each, in batches of two; those of ``b`` are the later ones."""

    bounded: bool = True
    name: str = "two"

    def schema(self) -> pa.Schema:
        return pa.schema([("ms", pa.int64())])

    def readable(self) -> dict[str, Readable]:
        return {"a": Readable(0, 5), "b": Readable(100, 103)}

    def read(self, piece: Slice, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        for start in range(piece.start, piece.end, 2):
            yield pa.RecordBatch.from_pydict({"ms": [*range(start, min(start + 2, piece.end))]})


@pytest.mark.parametrize("chunk_rows", [1, 3, 1_000])
def test_each_partition_is_measured_in_its_own_rows_of_a_chunk(
    chunk_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "CHUNK_ROWS", chunk_rows)
    source = TwoPartitions()
    slices = source.plan((), max_records=None, parallelism=1).slices
    schema = source.schema().serialize().to_pybytes()
    steps = Projection(("ms", "timestamp_millis(ms) AS at")), Filter("ms % 5 = 1")
    given = Input(producer="rows", steps=steps, event_time="at")
    rows = SourceRows(source, (slices,), schema)
    feed = Feed(rows=rows, schema=schema, given=given, hashed=("ms",))
    timed = reading.TimedFeed(feed.of_event_time())

    read = [chunk for _, chunk in reading.read_together({0: feed}, 0, {0: timed})]

    assert pl.concat(read)["ms"].to_list() == [0, 1, 2, 3, 4, 100, 101, 102]
    assert timed.times_ms == {"a": (0, 4), "b": (100, 102)}


def test_what_spark_alone_computes_is_left_to_it_however_often_it_is_asked() -> None:
    feed = replace(FEED, given=replace(GIVEN, steps=(Filter("n > rand()"),)))

    assert [feed.compiled.is_possible, feed.compiled.is_possible] == [False, False]
    assert FEED.compiled.is_possible


@dataclass(frozen=True)
class Forgetful(OffsetSource):
    """It announces malformed rows, and never says which they are."""

    bounded: bool = True
    name: str = "forgetful"

    def schema(self) -> pa.Schema:
        return pa.schema([("n", pa.int64()), (MALFORMED_COLUMN, pa.string())])

    def readable(self) -> dict[str, Readable]:
        return {"p": Readable(0, 1)}

    def read(self, piece: Slice, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"n": [1]})


def test_a_source_that_does_not_say_which_rows_are_malformed_is_refused() -> None:
    source = Forgetful()
    slices = source.plan((), max_records=None, parallelism=1).slices
    schema = pa.schema([("n", pa.int64())]).serialize().to_pybytes()
    rows = SourceRows(source, (slices,), schema, has_malformed=True, is_doubtful=True)

    with pytest.raises(ConfigurationError, match="rows of p lack the column '_malformed'"):
        list(rows.read(0, ["n"]))


def a_segment(rows: pl.DataFrame) -> SegmentHandle:
    body = encode_segment(to_table(rows))
    return SegmentHandle(
        key="", size_bytes=len(body), rows=rows.height, checksum=checksum(body), inline=body
    )


def rows_in_flight(written: pl.DataFrame, now: pl.DataFrame) -> pl.DataFrame:
    schema = to_table(now).schema
    segments = (a_segment(written), a_segment(now))
    stream = StreamRows(PLACE, (segments,), schema.serialize().to_pybytes(), "before")
    batches = [batch for _, batch in stream.read(0, schema.names)]
    return to_frame(pa.Table.from_batches(batches, schema=schema))


def test_rows_that_waited_in_flight_have_the_columns_of_their_stream_as_it_is_now() -> None:
    more = rows_in_flight(pl.DataFrame({"a": [1]}), pl.DataFrame({"a": [2], "b": ["x"]}))
    fewer = rows_in_flight(pl.DataFrame({"b": ["x"], "a": [1]}), pl.DataFrame({"A": [2]}))

    assert more.rows() == [(1, None), (2, "x")]
    assert (fewer.columns, fewer.rows()) == (["A"], [(1,), (2,)])


@pytest.mark.parametrize(("before", "now"), [("a", "b"), ("a", "a, _weight"), ("a, _weight", "a")])
def test_rows_in_flight_of_which_a_column_may_be_another_are_refused(before: str, now: str) -> None:
    written, read = (pl.DataFrame({key: [1] for key in of.split(", ")}) for of in (before, now))

    with pytest.raises(ConfigurationError, match=f"with the columns {before}, and it yields {now}"):
        rows_in_flight(written, read)
