"""Epochs played into the state of several subtasks, as checkpoints name it, beside dictionaries.

Epochs update and delete rows of few keys, whose hashes are fewer; afterwards newest segments are
merged, or the hashes are shared out among other subtasks, each of which reads its part of the
segments that there are.  Every segment lies inside its handle, so no store is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from hypothesis import strategies as st

from sluice.core.handles import MAX_HASH, MIN_HASH, StateHandle
from sluice.state.cache import SegmentCache
from sluice.state.merging import describe_segment, merge_pieces, open_runs
from sluice.store.open import StoreLocation
from sluice.surface.state import StateTable
from tests.property.state.keyed_world import (
    Epoch,
    Identity,
    Value,
    Written,
    between,
    bounds,
    identities,
    values,
)

LOCATION = StoreLocation(root="memory://differences")


@dataclass(frozen=True)
class Step:
    epoch: Epoch = field(default_factory=Epoch)
    rescaled: frozenset[int] | None = None  # Afterwards subtasks begin at these hashes.


@dataclass(frozen=True)
class Snapshot:
    """A checkpoint's state: the table as it is stored, and the rows that are alive in it."""

    table: StateTable
    live: dict[Identity, Value]


steps = st.builds(
    Step,
    st.builds(
        Epoch,
        upserts=st.dictionaries(identities, values, max_size=4),
        deletes=st.sets(identities, max_size=2),
        pause_ms=st.sampled_from([0, 4, 8]),  # A row lives for 10 ms, if not for ever.
        merged=st.sampled_from([1, 1, 1, 2, 4]),  # Most segments stay: the two share some.
        piece_rows=st.integers(1, 6),
    ),
    st.none() | st.frozensets(bounds.filter(lambda bound: bound > MIN_HASH), max_size=2),
)


@dataclass
class World(Written):
    starts: tuple[int, ...] = (MIN_HASH,)
    subtasks: list[list[StateHandle]] = field(default_factory=lambda: [[]])

    def play(self, step: Step) -> Snapshot:
        epoch = step.epoch
        delta = self.write(epoch)
        for index, start in enumerate(self.starts):
            handles = self.subtasks[index]
            handles += self.segment(between(delta, start, self.last(index)).combine_chunks())
            newest = handles[-epoch.merged :]
            is_all = len(newest) == len(handles)
            handles[-epoch.merged :] = self.merged(newest, epoch, is_all=is_all)
        if step.rescaled is not None:
            self.rescale((MIN_HASH, *sorted(step.rescaled)))
        return self.snapshot()

    def last(self, index: int) -> int:
        return self.starts[index + 1] - 1 if index + 1 < len(self.starts) else MAX_HASH

    def segment(self, table: pa.Table) -> list[StateHandle]:
        return [describe_segment(self.schema, table)[0]] if table.num_rows else []

    def merged(
        self, handles: Sequence[StateHandle], epoch: Epoch, *, is_all: bool
    ) -> list[StateHandle]:
        if epoch.merged == 1:
            return [*handles]
        tables = merge_pieces(
            self.schema,
            open_runs(SegmentCache(LOCATION), handles),
            drop_tombstones=is_all,
            now_ms=self.now_ms,
            max_rows=epoch.piece_rows or 1,
        )
        return [handle for table in tables for handle in self.segment(table)]

    def rescale(self, starts: tuple[int, ...]) -> None:
        every = [handle for handles in self.subtasks for handle in handles]
        self.starts, self.subtasks = starts, []
        for index, start in enumerate(starts):
            end = self.last(index)
            self.subtasks.append(
                [
                    replace(h, first_hash=max(h.first_hash, start), last_hash=min(h.last_hash, end))
                    for h in every
                    if h.first_hash <= end and start <= h.last_hash
                ]
            )

    def snapshot(self) -> Snapshot:
        table = StateTable(
            location=LOCATION,
            stage="totals",
            name="totals",
            subtasks=tuple(tuple(handles) for handles in self.subtasks if handles),
            ttl_ms=self.schema.ttl_ms,
            as_of_ms=self.now_ms,
        )
        return Snapshot(table, self.live)
