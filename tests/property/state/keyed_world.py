"""Epochs played into runs as a subtask keeps them, beside the dictionary that they stand for.

Keys are few and their hashes fewer, so that most lookups meet true collisions.  After an epoch some
of the newest runs are merged, at once or in pieces; every run is cut into segments somewhere.  Each
segment passes through its bytes and is opened lazily, which is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import polars as pl
import pyarrow as pa
from hypothesis import strategies as st

from sluice.core.handles import MAX_HASH, MIN_HASH
from sluice.protocol.records import checksum
from sluice.state.keyed import delta_table
from sluice.state.merging import last_write, merge_pieces, min_time
from sluice.state.runs import Run
from sluice.state.segments import HASH, StateSchema, decode_segment, encode_segment
from tests.merged_runs import merge_runs

TTL_MS = 10
NUMBERS = dict.fromkeys(("start", "at", "value"), pl.Int64())
SCHEMA = StateSchema(
    columns=pl.Schema({"id": pl.Int64(), "name": pl.String(), **NUMBERS}),
    key_columns=("id", "name"),
    sub_key_columns=("start",),
    time_column="at",
)
MORTAL = replace(SCHEMA, ttl_ms=TTL_MS)

HASHES = (MIN_HASH, -1, 7, 8, MAX_HASH)

Key = tuple[int, int | None, str | None]  # hash, id, name
Identity = tuple[int, int | None, str | None, int]
Value = tuple[int | None, int]  # at, value


def a_hash(key_id: int | None, name: str | None) -> int:
    """A function of the key with five values, the extremes among them."""
    return HASHES[(2 * (key_id or 0) + len(name or "")) % len(HASHES)]


ids = st.sampled_from([None, 0, 1, 2])  # Few, so that epochs meet in the same rows.
names = st.sampled_from([None, "b", "bb"])
identities = st.tuples(ids, names, st.integers(0, 1)).map(
    lambda identity: (a_hash(identity[0], identity[1]), *identity)
)
keys = identities.map(lambda identity: identity[:3])
values = st.tuples(st.none() | st.integers(-5, 20), st.integers(0, 3))
bounds = st.sampled_from([MIN_HASH, MIN_HASH + 1, -1, 0, 7, 8, 9, MAX_HASH - 1, MAX_HASH])
ranges = st.tuples(bounds, bounds).map(lambda pair: (min(pair), max(pair)))
schemas = st.sampled_from([SCHEMA, MORTAL])


@dataclass(frozen=True)
class Epoch:
    upserts: dict[Identity, Value] = field(default_factory=dict)
    deletes: set[Identity] = field(default_factory=set)
    pause_ms: int = 0  # Since the epoch before.
    merged: int = 1  # How many of the newest runs are merged afterwards.
    piece_rows: int | None = None  # In pieces of so many rows; None: at once.
    cuts: frozenset[int] = frozenset()  # Hashes at which the new run is cut.


histories = st.lists(
    st.builds(
        Epoch,
        upserts=st.dictionaries(identities, values, max_size=8),
        deletes=st.sets(identities, max_size=4),
        pause_ms=st.integers(0, 8),
        merged=st.integers(1, 4),
        piece_rows=st.none() | st.integers(1, 6),
        cuts=st.frozensets(bounds, max_size=3),
    ),
    min_size=1,
    max_size=5,
)


@dataclass
class Written:
    """The dictionary that a state stands for: the newest value of each row, and its write."""

    schema: StateSchema
    now_ms: int = 100
    written: dict[Identity, tuple[Value, int]] = field(default_factory=dict)

    @property
    def live(self) -> dict[Identity, Value]:
        ttl_ms = self.schema.ttl_ms
        return {
            identity: value
            for identity, (value, written_ms) in self.written.items()
            if ttl_ms is None or written_ms + ttl_ms > self.now_ms
        }

    def write(self, epoch: Epoch) -> pa.Table:
        """The changes of *epoch*, as a run."""
        self.now_ms += epoch.pause_ms
        for identity in epoch.deletes:
            self.written.pop(identity, None)
        self.written |= {i: (value, self.now_ms) for i, value in epoch.upserts.items()}
        return a_delta(epoch, self.schema, self.now_ms)


@dataclass
class World(Written):
    sorted_runs: list[list[Run]] = field(default_factory=list)  # Of each, its segments.
    opened: Counter[int] = field(default_factory=Counter)

    @property
    def runs(self) -> list[Run]:
        return [run for segments in self.sorted_runs for run in segments]

    def play(self, epoch: Epoch) -> None:
        self.sorted_runs.append(self.segments(self.write(epoch), epoch.cuts))
        newest = self.sorted_runs[-epoch.merged :]
        merge: dict[str, Any] = {
            "drop_tombstones": len(newest) == len(self.sorted_runs),
            "now_ms": self.now_ms,
        }
        runs = [run for segments in newest for run in segments]
        if epoch.piece_rows is None:
            merged = self.segments(merge_runs(self.schema, runs, **merge), epoch.cuts)
        else:
            tables = merge_pieces(self.schema, runs, **merge, max_rows=epoch.piece_rows)
            merged = [self.segment(t, *t[HASH].to_pylist()[:: max(1, len(t) - 1)]) for t in tables]
        self.sorted_runs[-epoch.merged :] = [merged]

    def segments(self, table: pa.Table, cuts: frozenset[int]) -> list[Run]:
        """*table* as segments of one sorted run: each of the hashes from one cut to the next."""
        starts = sorted({MIN_HASH, *cuts})
        ends = [start - 1 for start in starts[1:]] + [MAX_HASH]
        bounds = zip(starts, ends, strict=True)
        return [self.segment(between(table, *bound), *bound) for bound in bounds]

    def segment(self, table: pa.Table, first_hash: int, last_hash: int | None = None) -> Run:
        number = len(self.opened)
        self.opened[number] = 0
        return a_run(
            table,
            self.schema,
            first_hash=first_hash,
            last_hash=first_hash if last_hash is None else last_hash,
            opening=lambda: self.opened.update([number]),
        )


def played(history: Sequence[Epoch], schema: StateSchema = SCHEMA) -> World:
    world = World(schema)
    for epoch in history:
        world.play(epoch)
    return world


def between(table: pa.Table, first_hash: int, last_hash: int) -> pa.Table:
    hashes = pl.DataFrame(table)[HASH]
    return table.filter(hashes.is_between(first_hash, last_hash).to_arrow())


def a_delta(epoch: Epoch, schema: StateSchema = SCHEMA, now_ms: int = 0) -> pa.Table:
    upserts = [(*identity, *value) for identity, value in epoch.upserts.items()]
    return delta_table(
        schema,
        pl.DataFrame(upserts, schema=schema.live, orient="row"),
        frame_of(epoch.deletes, schema.identity),
        now_ms=now_ms,
    )


def a_run(
    table: pa.Table,
    schema: StateSchema = SCHEMA,
    *,
    first_hash: int = MIN_HASH,
    last_hash: int = MAX_HASH,
    opening: Callable[[], object] = lambda: None,
) -> Run:
    """A run as in a subtask: decoded from a segment's bytes, and opened when it is needed."""
    body = encode_segment(table)

    def opened() -> pa.Table:
        opening()
        return decode_segment(body, checksum=checksum(body), name="run")

    return Run(
        table=opened,
        first_hash=first_hash,
        last_hash=last_hash,
        min_time_ms=min_time(schema, table),
        last_write_ms=last_write(schema, table),
    )


def frame_of(
    rows: Sequence[tuple[object, ...]] | set[tuple[object, ...]] | set[Identity] | set[Key],
    columns: Sequence[str],
) -> pl.DataFrame:
    return pl.DataFrame(
        list(rows), schema={name: SCHEMA.live[name] for name in columns}, orient="row"
    )


def rows_of(live: dict[Identity, Value]) -> set[tuple[object, ...]]:
    return {(*identity, *value) for identity, value in live.items()}


def is_sorted(frame: pl.DataFrame, columns: Sequence[str]) -> bool:
    return frame.rows() == frame.sort(columns).rows()


def are_disjoint(pieces: Sequence[pl.DataFrame]) -> bool:
    """Whether no hash is in two, and they ascend."""
    return all(a[HASH][-1] < b[HASH][0] for a, b in pairwise(pieces))
