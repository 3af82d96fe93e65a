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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from sluice.core.plan import PartitionOffset, Slice, Unread
from sluice.declaration.places import Barrier, SourceDefaults, SourcePosition, check_induced
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

# The reference's default settings.
CYCLE, AUCTIONS_PER_CYCLE = 50, 3
FIRST_ID, FIRST_CATEGORY, CATEGORIES = 1000, 10, 5
ACTIVE_PEOPLE, AUCTIONS_IN_FLIGHT = 1000, 100
HOT_EVERY = 100  # One of a hundred people or auctions is hot: the first, or for bidders the second.
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
OTHER_CHANNELS = 10_000
FIRST_NAMES = "Peter,Paul,Luke,John,Saul,Vicky,Kate,Julie,Sarah,Deiter,Walter"
LAST_NAMES = "Shultz,Abrams,Spencer,White,Bartels,Walton,Smith,Jones,Noris"
CITIES = "Phoenix,Los Angeles,San Francisco,Boise,Portland,Bend,Redmond,Seattle,Kent,Cheyenne"
STATES = "AZ,CA,ID,OR,WA,WY"

PRICE_KNOTS = 4096  # The error of a price between two knots is below two in a million.

MASK_64 = 2**64 - 1
GOLDEN_GAMMA, MIX_1, MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

Integers: TypeAlias = npt.NDArray[np.int64]
EventHashes: TypeAlias = npt.NDArray[np.uint64]


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

    def read(self, piece: Slice, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Compute the slice's events.  See ``Source.read``."""
        assert piece.partition == PARTITION
        import pyarrow as pa

        names = [name for name in self.columns if columns is None or name in columns]
        schema = replace(self, columns=tuple(names)).schema()
        for start in range(piece.start, piece.end, BATCH_EVENTS):
            events = Events(self, start, min(start + BATCH_EVENTS, piece.end))
            arrays = [events.column(name) for name in names]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _ranges(start: int, end: int, parallelism: int) -> Iterator[tuple[int, int]]:
    longest = max(1, -(-(end - start) // parallelism))
    for first in range(start, end, longest):
        yield first, min(first + longest, end)


class Events:
    """Events *start* to *end* of *source*, computed a column at a time with numpy.

    Of 50 events the first is a person, the next three are auctions, the others bids; so the number
    of an event also gives the newest person and auction.  A bid's columns are computed for every
    row and masked; people and auctions are few, so theirs are computed for them alone and
    scattered.  No result depends on the processor: floats are only read from a table, added and
    multiplied.
    """

    def __init__(self, source: NexmarkSource, start: int, end: int) -> None:
        self._source = source
        arrived = np.arange(start, end, dtype=np.int64)
        group = source.out_of_order_group_size
        in_group = arrived % group
        self._number = arrived if group == 1 else arrived - in_group + arrived * 953 % group
        self._cycle = self._number // CYCLE
        self._place = self._number % CYCLE

    def column(self, name: str) -> pa.Array:
        if name == "event_type":
            return self._event_type()
        if name == "date_time":
            return _timestamps(self._time_ms(self._number))
        if name in {"bid_auction", "bidder", "price", "channel", "url"}:
            return self._bid_column(name)
        if name in {"person_id", "person_name", "email_address", "city", "state"}:
            return self._person_column(name).take(self._person_rows)
        return self._auction_column(name).take(self._auction_rows)

    def _event_type(self) -> pa.Array:
        import pyarrow as pa

        return pa.array((self._place > 0).view(np.int8) + self._is_bid.view(np.int8))

    def _bid_column(self, name: str) -> pa.Array:
        import pyarrow as pa

        is_other = ~self._is_bid
        match name:
            case "bid_auction":
                return pa.array(FIRST_ID + self._bid_auction(), mask=is_other)
            case "bidder":
                bidder = self._person(name, self._number, self._cycle, second=1)
                return pa.array(FIRST_ID + bidder, mask=is_other)
            case "price":
                return pa.array(self._price(name, self._number), mask=is_other)
            case _:
                names_or_urls = _channels()[0 if name == "channel" else 1]
                return names_or_urls.take(pa.array(self._channel_index(), mask=is_other))

    def _person_column(self, name: str) -> pa.Array:
        import pyarrow as pa

        numbers = self._number[self._people]
        match name:
            case "person_id":
                return pa.array(FIRST_ID + self._cycle[self._people])
            case "person_name":
                pairs = product(FIRST_NAMES.split(","), LAST_NAMES.split(","))
                names = [" ".join(pair) for pair in pairs]
            case "city":
                names = CITIES.split(",")
            case "state":
                names = STATES.split(",")
            case _:
                letters = _letters(self._hash("email_address", numbers), 12)
                return _fixed_width_strings([letters[:, :7], b"@", letters[:, 7:], b".com"])
        return pa.array(names, pa.string()).take(
            pa.array(_below(self._hash(name, numbers), len(names)))
        )

    def _auction_column(self, name: str) -> pa.Array:
        import pyarrow as pa

        numbers = self._number[self._auctions]
        match name:
            case "auction_id":
                return pa.array(FIRST_ID + self._last_auction[self._auctions])
            case "item_name":
                return _fixed_width_strings([_letters(self._hash(name, numbers), 12)])
            case "initial_bid":
                return pa.array(self._price("initial_bid", numbers))
            case "reserve":
                return pa.array(
                    self._price("initial_bid", numbers) + self._price("reserve", numbers)
                )
            case "seller":
                return pa.array(
                    FIRST_ID + self._person(name, numbers, self._cycle[self._auctions], second=0)
                )
            case "category":
                return pa.array(FIRST_CATEGORY + _below(self._hash(name, numbers), CATEGORIES))
            case _:
                assert name == "expires"
                return _timestamps(self._expires_ms(numbers))

    @cached_property
    def _is_bid(self) -> npt.NDArray[np.bool_]:
        return self._place > AUCTIONS_PER_CYCLE

    @cached_property
    def _people(self) -> npt.NDArray[np.intp]:
        return np.flatnonzero(self._place == 0)

    @cached_property
    def _auctions(self) -> npt.NDArray[np.intp]:
        return np.flatnonzero((self._place > 0) & ~self._is_bid)

    @cached_property
    def _person_rows(self) -> pa.Array:
        return _rows_of(self._people, len(self._number))

    @cached_property
    def _auction_rows(self) -> pa.Array:
        return _rows_of(self._auctions, len(self._number))

    @cached_property
    def _last_auction(self) -> Integers:
        """The newest auction, counted from 0, an auction's own included; -1 before the first."""
        in_cycle = np.minimum(self._place - 1, AUCTIONS_PER_CYCLE - 1)
        return self._cycle * AUCTIONS_PER_CYCLE + in_cycle

    def _bid_auction(self) -> Integers:
        hashes = self._hash("bid_auction", self._number)
        last = self._last_auction
        oldest = np.maximum(last - AUCTIONS_IN_FLIGHT, 0)
        any_in_flight = oldest + _below(hashes, last - oldest + 1 + self._source.id_lead)
        return np.where(hashes & 1 == 1, last // HOT_EVERY * HOT_EVERY, any_in_flight)

    def _person(self, field: str, numbers: Integers, last: Integers, *, second: int) -> Integers:
        """The hot person in three of four cases, else any active one; *last* is the newest."""
        hashes = self._hash(field, numbers)
        newest = last + self._source.id_lead
        oldest = np.maximum(last + 1 - ACTIVE_PEOPLE, 0)
        anyone = oldest + _below(hashes, newest - oldest + 1)
        hot = np.minimum(last // HOT_EVERY * HOT_EVERY + second, newest)
        return np.where(hashes & 3 != 0, hot, anyone)

    def _price(self, field: str, numbers: Integers) -> Integers:
        """10 to the power of 0 to 6, in cents: most prices are small, some are very high."""
        hashes = self._hash(field, numbers)
        floor, step = _price_knots()
        knot = (hashes >> 52).astype(np.intp)
        beyond = ((hashes >> 20) & 0xFFFFFFFF).astype(np.float64) * 2.0**-32
        return np.rint(floor[knot] + step[knot] * beyond).astype(np.int64)

    def _channel_index(self) -> Integers:
        hashes = self._hash("channel", self._number)
        hot = _below(hashes, len(HOT_CHANNELS))
        other = len(HOT_CHANNELS) + _below(hashes, OTHER_CHANNELS)
        return np.where(hashes & 1 == 1, hot, other)

    def _expires_ms(self, numbers: Integers) -> Integers:
        """The end of each auction: on average after as many newer auctions as are in flight."""
        now = self._time_ms(numbers)
        ahead = AUCTIONS_IN_FLIGHT * CYCLE // AUCTIONS_PER_CYCLE
        twice_the_mean = np.maximum(2 * (self._time_ms(numbers + ahead) - now), 1)
        return now + 1 + _below(self._hash("expires", numbers), twice_the_mean)

    def _time_ms(self, numbers: Integers) -> Integers:
        return self._source.base_time_ms + numbers * 1000 // self._source.first_event_rate

    def _hash(self, field: str, numbers: Integers) -> EventHashes:
        return _mixed(numbers, _stream(self._source.seed, field))


def _mixed(numbers: Integers, stream: int) -> EventHashes:
    """The splitmix64 generator that starts at *stream*, at positions *numbers*."""
    mixed = numbers.astype(np.uint64) * np.uint64(GOLDEN_GAMMA)
    mixed += np.uint64(stream)
    mixed ^= mixed >> 30
    mixed *= np.uint64(MIX_1)
    mixed ^= mixed >> 27
    mixed *= np.uint64(MIX_2)
    mixed ^= mixed >> 31
    return mixed


@lru_cache
def _stream(seed: int, field: str) -> int:
    """The start of a field's generator, far from those of the others."""
    state = int.from_bytes(field.encode().ljust(16, b"\0"), "little") * GOLDEN_GAMMA + seed
    for multiplier in (MIX_1, MIX_2, MIX_1):
        state = ((state ^ (state >> 31)) * multiplier) & MASK_64
    return state


def _below(hashes: EventHashes, bound: Integers | int) -> Integers:
    """A number from 0 to *bound* (exclusive, below 2**32) by the upper half of each hash."""
    return ((hashes >> 32).astype(np.int64) * bound) >> 32


@lru_cache
def _price_knots() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The price at each knot, and the difference to that at the next."""
    prices = np.array([10 ** (knot / PRICE_KNOTS * 6) * 100 for knot in range(PRICE_KNOTS + 1)])
    return prices[:-1], np.diff(prices)


@lru_cache
def _channels() -> tuple[pa.Array, pa.Array]:
    """Every channel, the hot ones first, and the one URL that its bids came through."""
    import pyarrow as pa

    names = [*HOT_CHANNELS, *(f"channel-{number}" for number in range(OTHER_CHANNELS))]
    letters = _letters(_mixed(np.arange(len(names)), _stream(0, "url")), 12).tobytes().decode()
    urls = []
    for index in range(len(names)):
        path = letters[12 * index : 12 * index + 12]
        url = f"https://www.nexmark.com/{path[:4]}/{path[4:8]}/{path[8:]}/item.htm?query=1"
        number = index - len(HOT_CHANNELS)
        if number > 0 and number % 10 != 0:  # Nine of ten bids, and the id, as in the reference.
            reversed_bits = int(f"{number:032b}"[::-1], 2)
            url += f"&channel_id={min(reversed_bits, 2**32 - reversed_bits)}"
        urls.append(url)
    return pa.array(names, pa.string()), pa.array(urls, pa.string())


def _letters(hashes: EventHashes, length: int) -> npt.NDArray[np.uint8]:
    """A row of *length* lower-case letters for each hash; 13 letters are all that one holds."""
    assert length <= 13
    letters = np.empty((len(hashes), length), np.uint8)
    remaining = hashes.copy()
    for place in range(length):
        letters[:, place] = remaining % 26 + ord("a")
        remaining //= 26
    return letters


def _fixed_width_strings(parts: list[npt.NDArray[np.uint8] | bytes]) -> pa.Array:
    """Join the parts of every row; bytes are the same in each."""
    import pyarrow as pa

    rows = next(len(part) for part in parts if not isinstance(part, bytes))
    matrix = np.hstack(
        [
            np.tile(np.frombuffer(part, np.uint8), (rows, 1)) if isinstance(part, bytes) else part
            for part in parts
        ]
    )
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(matrix.shape[1])
    return pa.StringArray.from_buffers(
        rows, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(matrix))
    )


def _rows_of(places: npt.NDArray[np.intp], length: int) -> pa.Array:
    """Row numbers that scatter dense values to their *places*, and null elsewhere."""
    import pyarrow as pa

    rows = np.zeros(length, np.int32)
    rows[places] = np.arange(len(places), dtype=np.int32)
    absent = np.ones(length, np.bool_)
    absent[places] = False
    return pa.array(rows, mask=absent)


def _timestamps(time_ms: Integers) -> pa.Array:
    import pyarrow as pa

    return pa.array(time_ms * 1000).cast(pa.timestamp("us", tz="UTC"))
