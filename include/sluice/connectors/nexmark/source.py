"""Nexmark: people, auctions and bids of an auction site, computed from the event's number alone.

After the reference generator (github.com/nexmark/nexmark) in proportions (1 : 3 : 46), ids, hot
sellers, bidders and auctions, prices, categories, channels and event times, with its default
settings.  Not in its random numbers: every value is a hash of (seed, event number, field), so any
slice yields the same rows however the events are sliced, and no state is carried along.  Without
the reference's free text: credit card, description and extra.

One flat table; columns that an event's type does not have are null:

    every event   event_type (0 person, 1 auction, 2 bid), date_time
    person        person_id, person_name, email_address, city, state
    auction       auction_id, item_name, initial_bid, reserve, expires, category,
                  seller (a person_id)
    bid           bid_auction (an auction_id), bidder (a person_id), price, channel, url

As in the reference, a bid or an auction may name one of the next ``id_lead`` people or auctions:
those events seem to be late.  ``id_lead=0`` names only what exists already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.connectors.contracts.source import (
    Barrier,
    SourceDefaults,
    SourcePosition,
    check_induced,
)
from sluice.core.plan import PartitionOffset, Slice, Unread
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa
PARTITION = "nexmark"
PERSON, AUCTION, BID = 0, 1, 2

COLUMNS = (
    *("event_type", "date_time"),
    *("person_id", "person_name", "email_address", "city", "state"),
    *("auction_id", "item_name", "initial_bid", "reserve", "expires", "seller", "category"),
    *("bid_auction", "bidder", "price", "channel", "url"),
)

# Large enough to make a column's fixed cost negligible, small enough for a second-level cache.
BATCH_EVENTS = 32_768

# An event number times 1,000, and the event's time, fit into 64 bits.
MAX_EVENTS = 10**15


@dataclass(frozen=True, slots=True)
class NexmarkSource(SourceDefaults):
    """A generator of *events* events, or of no end when None, ``first_event_rate`` per second.

    ``columns`` names those to compute, in that order; the fewer, the faster.  A group of
    ``out_of_order_group_size`` events arrives in a fixed disorder; 1 means in order.
    """

    events: int | None
    first_event_rate: int = 10_000
    base_time_ms: int = 1_436_918_400_000  # 2015-07-15, as in the reference.
    seed: int = 0
    columns: tuple[str, ...] = COLUMNS
    out_of_order_group_size: int = 1
    id_lead: int = 10

    def __post_init__(self) -> None:
        if self.events is not None and not 0 <= self.events <= MAX_EVENTS:
            raise ConfigurationError(
                f"Nexmark cannot generate {self.events} events; ask for 0 to {MAX_EVENTS}, or None"
            )
        if self.first_event_rate <= 0:
            raise ConfigurationError(
                f"Nexmark's first_event_rate is {self.first_event_rate}; make it positive"
            )
        if unknown := sorted(set(self.columns) - set(COLUMNS)):
            raise ConfigurationError(
                f"Nexmark has no columns {', '.join(unknown)}; it has {', '.join(COLUMNS)}"
            )
        if self.out_of_order_group_size < 1 or self.out_of_order_group_size % 953 == 0:
            # 953 is the reference's stride through a group; it must not divide the size.
            raise ConfigurationError(
                f"Nexmark's out_of_order_group_size is {self.out_of_order_group_size}; make it "
                "positive and no multiple of 953"
            )
        if self.id_lead < 0:
            raise ConfigurationError(f"Nexmark's id_lead is {self.id_lead}; make it 0 or more")

    @property
    def bounded(self) -> bool:
        return self.events is not None

    def schema(self) -> pa.Schema:
        import pyarrow as pa

        special = {
            "event_type": pa.int8(),
            "date_time": pa.timestamp("us", tz="UTC"),
            "expires": pa.timestamp("us", tz="UTC"),
        }
        strings = {"person_name", "email_address", "city", "state", "item_name", "channel", "url"}
        return pa.schema(
            [
                (name, special.get(name, pa.string() if name in strings else pa.int64()))
                for name in self.columns
            ]
        )

    def plan(
        self,
        position: SourcePosition,
        *,
        max_records: int | None,
        parallelism: int,
        until: Mapping[str, int] | None = None,
    ) -> Barrier:
        """Cut the next epoch by arithmetic.  See ``Source.plan``."""
        assert max_records is None or max_records > 0
        assert parallelism > 0

        start = position[0].offset if position else 0
        if self.events is None and max_records is None and until is None:
            raise ConfigurationError(
                "this Nexmark source never ends, so an epoch of all its records does not either; "
                "set max_records, or a number of events"
            )
        limit = MAX_EVENTS if self.events is None else self.events
        readable = limit
        if until is not None:
            check_induced("the Nexmark source", until, {PARTITION: (start, limit)})
            readable = until.get(PARTITION, start)
        end = max(start, readable if max_records is None else min(readable, start + max_records))
        slices = tuple(
            Slice(partition=PARTITION, start=a, end=b, first_record=a, records=b - a)
            for a, b in _ranges(start, end, parallelism)
        )
        after = PartitionOffset(
            partition=PARTITION, offset=max(start, end), records=max(start, end)
        )
        return Barrier(
            position=(after,),
            slices=slices,
            exhausted=self.bounded and end >= limit,
            is_backlog=self.bounded and end < limit,
            waiting=(PARTITION,) if end < limit else (),
            unread=Unread(partitions=int(end < limit), records=max(0, limit - end))
            if self.bounded
            else None,
        )

    def read(self, piece: Slice) -> Iterator[pa.RecordBatch]:
        """Compute the slice's events.  See ``Source.read``."""
        assert piece.partition == PARTITION
        import pyarrow as pa

        from sluice.connectors.nexmark.events import Events

        schema = self.schema()
        for start in range(piece.start, piece.end, BATCH_EVENTS):
            events = Events(self, start, min(start + BATCH_EVENTS, piece.end))
            arrays = [events.column(name) for name in self.columns]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _ranges(start: int, end: int, parallelism: int) -> Iterator[tuple[int, int]]:
    longest = max(1, -(-(end - start) // parallelism))
    for first in range(start, end, longest):
        yield first, min(first + longest, end)
