"""Files of Nexmark events in the reference generator's format.

Each event has its record under its type's name:
``{"event_type":2,"bid":{"auction":1000,...,"dateTime":1436918400053}}``.  Times are milliseconds.
Credit card, description and extra are left out, as our generator does not make them.  Records of
other types are absent in JSON and null in Parquet, which readers see as the same.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.connectors.nexmark.source import AUCTION, BID, COLUMNS, PARTITION, PERSON, NexmarkSource
from sluice.core.plan import Slice
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP_EVENTS = 500_000  # About 10 MB on disk; a slice decodes at most two groups for nothing.
COMPRESSION_LEVEL = 5  # Level 9 takes three times as long for two percent less.


@dataclass(frozen=True, slots=True)
class _Record:
    """The records of a type: the name of each field, and the generator's column for it."""

    name: str
    event_type: int
    fields: dict[str, str]


_RECORDS = (
    _Record(
        "person",
        PERSON,
        {
            "id": "person_id",
            "name": "person_name",
            "emailAddress": "email_address",
            "city": "city",
            "state": "state",
            "dateTime": "date_time",
        },
    ),
    _Record(
        "auction",
        AUCTION,
        {
            "id": "auction_id",
            "itemName": "item_name",
            "initialBid": "initial_bid",
            "reserve": "reserve",
            "dateTime": "date_time",
            "expires": "expires",
            "seller": "seller",
            "category": "category",
        },
    ),
    _Record(
        "bid",
        BID,
        {
            "auction": "bid_auction",
            "bidder": "bidder",
            "price": "price",
            "channel": "channel",
            "url": "url",
            "dateTime": "date_time",
        },
    ),
)

EVENT_DDL = (
    "event_type int, "
    "person struct<id: bigint, name: string, emailAddress: string, city: string, state: string, "
    "dateTime: bigint>, "
    "auction struct<id: bigint, itemName: string, initialBid: bigint, reserve: bigint, "
    "dateTime: bigint, expires: bigint, seller: bigint, category: bigint>, "
    "bid struct<auction: bigint, bidder: bigint, price: bigint, channel: string, url: string, "
    "dateTime: bigint>"
)


def write_json_lines(source: NexmarkSource, folder: str | Path, files: int) -> list[Path]:
    """Write all events as ``events-NNNNNN.jsonl.gz``, an equal part to each of *files* files."""
    paths = []
    for path, batches in _parts(source, folder, files, "jsonl.gz"):
        with gzip.open(path, "wb", compresslevel=COMPRESSION_LEVEL) as file:
            for batch in batches:
                file.write(_json_lines(batch))
        paths.append(path)
    return paths


def write_parquet(source: NexmarkSource, folder: str | Path, files: int) -> list[Path]:
    """Write all events as ``events-NNNNNN.parquet``, an equal part to each of *files* files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    paths = []
    for path, batches in _parts(source, folder, files, "parquet"):
        nested = [_nested(batch) for batch in batches]
        table = pa.Table.from_batches(nested, schema=_nested_schema())
        pq.write_table(table, path, row_group_size=ROW_GROUP_EVENTS)
        paths.append(path)
    return paths


def _parts(
    source: NexmarkSource, folder: str | Path, files: int, suffix: str
) -> Iterator[tuple[Path, Iterator[pa.RecordBatch]]]:
    if source.events is None:
        raise ConfigurationError("events without an end do not fit into files; set a number")
    Path(folder).mkdir(parents=True, exist_ok=True)
    complete = replace(source, columns=COLUMNS)
    bounds = [source.events * number // files for number in range(files + 1)]
    for number, (start, end) in enumerate(pairwise(bounds)):
        batches = complete.read(_slice(start, end)) if end > start else iter(())
        yield Path(folder) / f"events-{number:06}.{suffix}", batches


def _slice(start: int, end: int) -> Slice:
    return Slice(partition=PARTITION, start=start, end=end, first_record=start, records=end - start)


def _nested(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Columns ``event_type``, ``person``, ``auction`` and ``bid``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = {"event_type": batch.column("event_type").cast(pa.int32())}
    for record in _RECORDS:
        is_other = pc.not_equal(batch.column("event_type"), record.event_type)
        columns[record.name] = pa.StructArray.from_arrays(
            [_plain(batch.column(column)) for column in record.fields.values()],
            names=list(record.fields),
            mask=is_other,
        )
    return pa.RecordBatch.from_pydict(columns)


def _nested_schema() -> pa.Schema:
    """The schema of a file, also of an empty one."""
    return _nested(next(NexmarkSource(1).read(_slice(0, 1)))).schema


def _json_lines(batch: pa.RecordBatch) -> bytes:
    """The events as text, in their order: written type by type, and then interleaved."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    types = batch.column("event_type").to_numpy()
    lines, places = [], []
    for record in _RECORDS:
        rows = np.flatnonzero(types == record.event_type)
        lines.append(_json_objects(batch.take(pa.array(rows)), record))
        places.append(rows)
    order = np.argsort(np.concatenate(places))
    text = pc.take(pa.concat_arrays(lines), pa.array(order))
    start, end = (np.frombuffer(text.buffers()[1], np.int32)[at] for at in (0, len(text)))
    return bytes(text.buffers()[2][int(start) : int(end)])


def _json_objects(batch: pa.RecordBatch, record: _Record) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    parts: list[pa.Array | str] = [f'{{"event_type":{record.event_type},"{record.name}":']
    separator = "{"
    for name, column in record.fields.items():
        values = _plain(batch.column(column))
        quote = '"' if values.type == pa.string() else ""
        # The generator makes no quote, no backslash and no control character.
        parts += [f'{separator}"{name}":{quote}', values.cast(pa.string()), quote]
        separator = ","
    return pc.binary_join_element_wise(*parts, "}}\n", "")


def _plain(values: pa.Array) -> pa.Array:
    """Times as milliseconds since 1970."""
    import pyarrow as pa
    from pyarrow import types

    if not types.is_timestamp(values.type):
        return values
    return values.cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
