"""Nexmark: the same events however they are sliced, in the shape of the reference generator.

The files of ``bench.nexmark_files`` hold the same events in JSON and in Parquet.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.nexmark_files import EVENT_DDL, write_json_lines, write_parquet
from sluice.connectors.nexmark.source import AUCTION, BID, COLUMNS, PARTITION, PERSON, NexmarkSource
from sluice.core.plan import PartitionOffset, Slice
from sluice.declaration.places import SourcePosition
from sluice.errors import ConfigurationError
from tests.examples import examples

SAMPLE = 100_000


def table_of(source: NexmarkSource, start: int, end: int) -> pa.Table:
    piece = Slice(
        partition=PARTITION, start=start, end=end, first_record=start, records=end - start
    )
    return pa.Table.from_batches(source.read(piece), schema=source.schema())


def columns_of(source: NexmarkSource, event_type: int) -> dict[str, Any]:
    """The non-null columns of one type's events, as numpy arrays; strings as lists."""
    table = table_of(source, 0, SAMPLE)
    table = table.filter(pc.equal(table["event_type"], event_type))
    return {
        name: table[name].to_pylist()
        if table.schema.field(name).type == "string"
        else table[name].to_numpy()
        for name in table.column_names
        if table[name].null_count < table.num_rows
    }


@examples(40)
@given(
    start=st.integers(0, 200) | st.integers(10**12, 10**12 + 200),
    lengths=st.lists(st.integers(1, 120), min_size=1, max_size=5),
    group=st.sampled_from([1, 1, 100]),
    seed=st.integers(0, 3),
)
def test_any_slicing_gives_the_same_rows(
    start: int, lengths: list[int], group: int, seed: int
) -> None:
    source = NexmarkSource(events=None, seed=seed, out_of_order_group_size=group)
    whole = table_of(source, start, start + sum(lengths))

    parts = []
    for length in lengths:
        parts.append(table_of(source, start, start + length))
        start += length

    assert pa.concat_tables(parts) == whole


def test_slices_longer_than_a_batch_are_seamless() -> None:
    source = NexmarkSource(events=None, columns=("price", "bid_auction"))

    whole = table_of(source, 0, 70_000)

    parts = [table_of(source, 0, 33_333), table_of(source, 33_333, 70_000)]
    assert pa.concat_tables(parts) == whole.combine_chunks()


def test_the_first_events_never_change() -> None:
    """The benchmark's expected results depend on them."""
    rows = table_of(NexmarkSource(events=None), 0, 5).to_pylist()

    assert [row["event_type"] for row in rows] == [PERSON, AUCTION, AUCTION, AUCTION, BID]
    present = [{k: v for k, v in row.items() if v is not None} for row in rows]
    assert present[0]["person_name"] == "Luke Bartels"
    assert present[0]["email_address"] == "corwfmg@qtvxs.com"
    assert present[1]["initial_bid"] == 155_896
    assert {k: v for k, v in present[4].items() if k != "date_time"} == {
        "event_type": BID,
        "bid_auction": 1010,
        "bidder": 1001,
        "price": 1288,
        "channel": "channel-1051",
        "url": present[4]["url"],
    }


def test_another_seed_gives_other_events() -> None:
    first = table_of(NexmarkSource(events=None, columns=("price",)), 0, 100)

    assert table_of(NexmarkSource(events=None, columns=("price",), seed=1), 0, 100) != first


def test_of_fifty_events_one_is_a_person_three_are_auctions() -> None:
    types = table_of(NexmarkSource(events=None, columns=("event_type",)), 0, SAMPLE)

    counts = Counter(types["event_type"].to_pylist())
    assert counts == {PERSON: SAMPLE // 50, AUCTION: SAMPLE * 3 // 50, BID: SAMPLE * 46 // 50}


def test_ids_count_up_and_columns_of_other_types_are_null() -> None:
    people = columns_of(NexmarkSource(events=None), PERSON)
    auctions = columns_of(NexmarkSource(events=None), AUCTION)
    bids = columns_of(NexmarkSource(events=None), BID)

    assert people["person_id"].tolist() == list(range(1000, 1000 + SAMPLE // 50))
    assert auctions["auction_id"].tolist() == list(range(1000, 1000 + SAMPLE * 3 // 50))
    assert tuple(people) == COLUMNS[:7]
    assert tuple(auctions) == COLUMNS[:2] + COLUMNS[7:14]
    assert tuple(bids) == COLUMNS[:2] + COLUMNS[14:]


def test_without_a_lead_every_referenced_id_exists_already() -> None:
    table = table_of(NexmarkSource(events=None, id_lead=0), 0, SAMPLE).to_pandas()
    newest_person = table["person_id"].ffill()
    newest_auction = table["auction_id"].ffill()

    for reference, newest in [
        ("seller", newest_person),
        ("bidder", newest_person),
        ("bid_auction", newest_auction),
    ]:
        named = table[reference].notna()
        assert (table[reference][named] <= newest[named]).all()
        assert table[reference].min() == 1000


def test_hot_ids_are_as_frequent_as_in_the_reference() -> None:
    bids = columns_of(NexmarkSource(events=None), BID)
    auctions = columns_of(NexmarkSource(events=None), AUCTION)

    def share_of(ids: Any, remainder: int) -> float:
        return float(np.mean((ids - 1000) % 100 == remainder))

    assert share_of(bids["bid_auction"], 0) == pytest.approx(1 / 2, abs=0.02)
    assert share_of(bids["bidder"], 1) == pytest.approx(3 / 4, abs=0.02)
    assert share_of(auctions["seller"], 0) == pytest.approx(3 / 4, abs=0.02)
    hot_channels = sum(not name.startswith("channel-") for name in bids["channel"])
    assert hot_channels / len(bids["channel"]) == pytest.approx(1 / 2, abs=0.02)


def test_prices_categories_and_lifetimes_are_those_of_the_reference() -> None:
    bids = columns_of(NexmarkSource(events=None), BID)
    auctions = columns_of(NexmarkSource(events=None), AUCTION)

    quantiles = np.quantile(bids["price"], [0.0, 0.1, 0.5, 0.9, 1.0])
    expected = 100 * 10 ** np.array([0, 0.6, 3, 5.4, 6])
    assert quantiles == pytest.approx(expected, rel=0.15)
    assert (auctions["reserve"] - auctions["initial_bid"]).min() >= 100
    assert set(auctions["category"].tolist()) == {10, 11, 12, 13, 14}
    lifetime_ms = (auctions["expires"] - auctions["date_time"]) / np.timedelta64(1, "ms")
    assert lifetime_ms.min() >= 1
    assert lifetime_ms.mean() == pytest.approx(167, rel=0.05)  # 1,666 events at 10,000 a second.


def test_event_time_follows_the_rate() -> None:
    source = NexmarkSource(events=None, first_event_rate=1_000, columns=("date_time",))

    times = table_of(source, 0, 5_000)["date_time"].to_numpy()

    assert times[0] == np.datetime64("2015-07-15T00:00:00")
    assert (np.diff(times) == np.timedelta64(1, "ms")).all()


def test_a_group_out_of_order_is_a_permutation() -> None:
    ordered = NexmarkSource(events=None, first_event_rate=1_000)
    shuffled = NexmarkSource(events=None, first_event_rate=1_000, out_of_order_group_size=100)

    times = table_of(shuffled, 0, 1_000)["date_time"].to_pylist()

    assert times != sorted(times)
    assert sorted(times) == table_of(ordered, 0, 1_000)["date_time"].to_pylist()
    assert times[1] == table_of(ordered, 53, 54)["date_time"].to_pylist()[0]  # 953 modulo 100.


@given(
    events=st.integers(0, 500),
    cuts=st.lists(st.tuples(st.integers(1, 90), st.integers(1, 5)), max_size=8),
)
def test_cuts_cover_every_event_once(events: int, cuts: list[tuple[int, int]]) -> None:
    source = NexmarkSource(events=events)
    position: SourcePosition = ()
    covered = 0

    for max_records, parallelism in [*cuts, (1_000, 2)]:
        barrier = source.plan(position, max_records=max_records, parallelism=parallelism)
        for piece in barrier.slices:
            assert (piece.start, piece.first_record) == (covered, covered)
            assert piece.records == piece.end - piece.start <= -(-max_records // parallelism)
            covered = piece.end
        position = barrier.position
        assert position == (PartitionOffset(partition=PARTITION, offset=covered, records=covered),)
        assert barrier.exhausted == (covered == events)

    assert covered == events


def test_an_endless_source_needs_a_cap() -> None:
    source = NexmarkSource(events=None)

    assert not source.bounded
    assert not source.plan((), max_records=10, parallelism=2).exhausted
    with pytest.raises(ConfigurationError, match="set max_records, or a number of events"):
        source.plan((), max_records=None, parallelism=2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"events": -1},
        {"first_event_rate": 0},
        {"columns": ("prize",)},
        {"out_of_order_group_size": 953},
        {"id_lead": -1},
    ],
)
def test_a_wrong_option_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"Nexmark"):
        NexmarkSource(**({"events": 1} | wrong))


def json_rows(paths: list[Path]) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in paths
        for line in gzip.decompress(path.read_bytes()).splitlines()
    ]


def test_json_and_parquet_hold_the_same_events_as_the_source(tmp_path: Path) -> None:
    source = NexmarkSource(40_001, first_event_rate=1_000, out_of_order_group_size=100)

    rows = json_rows(write_json_lines(source, tmp_path / "json", files=3))
    tables = [pq.read_table(path) for path in write_parquet(source, tmp_path / "parquet", files=2)]

    nested = [row for table in tables for row in table.to_pylist()]
    assert [{k: v for k, v in row.items() if v is not None} for row in nested] == rows
    assert len(rows) == 40_001
    assert all(row[("person", "auction", "bid")[row["event_type"]]] for row in rows)
    assert [table.num_rows for table in tables] == [20_000, 20_001]


def test_fields_have_the_names_and_the_order_of_the_reference(tmp_path: Path) -> None:
    rows = json_rows(write_json_lines(NexmarkSource(5), tmp_path, files=1))

    assert rows[0] == {
        "event_type": 0,
        "person": {
            "id": 1000,
            "name": "Luke Bartels",
            "emailAddress": "corwfmg@qtvxs.com",
            "city": rows[0]["person"]["city"],
            "state": rows[0]["person"]["state"],
            "dateTime": 1_436_918_400_000,
        },
    }
    assert list(rows[1]["auction"]) == (
        ["id", "itemName", "initialBid", "reserve", "dateTime", "expires", "seller", "category"]
    )
    assert list(rows[4]["bid"]) == ["auction", "bidder", "price", "channel", "url", "dateTime"]


def test_the_declared_schema_is_the_written_one(tmp_path: Path) -> None:
    [path] = write_parquet(NexmarkSource(0), tmp_path, files=1)

    spark = {"int64": "bigint", "int32": "int", "string": "string"}
    columns = []
    for field in pq.read_schema(path):
        if field.name == "event_type":
            columns.append(f"event_type {spark[str(field.type)]}")
        else:
            members = ", ".join(f"{one.name}: {spark[str(one.type)]}" for one in field.type)
            columns.append(f"{field.name} struct<{members}>")
    assert ", ".join(columns) == EVENT_DDL
    assert pq.read_table(path).num_rows == 0


def test_more_files_than_events_are_empty(tmp_path: Path) -> None:
    paths = write_json_lines(NexmarkSource(2), tmp_path, files=3)

    assert [path.name for path in paths] == [f"events-{n:06}.jsonl.gz" for n in range(3)]
    assert len(json_rows(paths)) == 2


def test_events_without_an_end_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="set a number"):
        write_json_lines(NexmarkSource(None), tmp_path, files=1)
