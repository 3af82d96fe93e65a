"""A position in layers equals the whole one, and writes only changed entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core import position
from sluice.core.event_time import known_times, source_watermark, with_activity
from sluice.core.handles import SegmentHandle
from sluice.core.plan import PartitionOffset, Slice, SourceCut
from sluice.core.position import PartitionEntries, Position, with_layers, with_whole

IDLE_AFTER_MS = 20


@dataclass
class Bucket:
    """Layers by checksum; ``written`` counts the entries of all of them."""

    layers: dict[str, dict[str, PartitionOffset]] = field(default_factory=dict)
    written: int = 0

    def layer_of(self, entries: Sequence[PartitionOffset]) -> SegmentHandle:
        name = f"layer{len(self.layers)}"
        self.layers[name] = {entry.partition: entry for entry in entries}
        self.written += len(entries)
        return SegmentHandle(key=name, size_bytes=1, rows=len(entries), checksum=name)

    def position_of(self, cut: SourceCut) -> Position:
        return Position.of(cut, [self.layers[layer.key] for layer in cut.layers])


@dataclass(frozen=True)
class Barrier:
    read: dict[str, int]
    sealed: frozenset[str]
    waiting: frozenset[str]
    gone: frozenset[str]
    shares_files: bool


names = st.sampled_from([f"part-{number}" for number in range(12)])
some_names = st.frozensets(names, max_size=3)
barriers = st.builds(
    Barrier,
    read=st.dictionaries(names, st.integers(0, 50), max_size=4),
    sealed=some_names,
    waiting=some_names,
    gone=st.just(frozenset[str]()) | some_names,
    shares_files=st.sampled_from([True, True, True, False]),
)


def cut_at(before: dict[str, PartitionOffset], barrier: Barrier) -> SourceCut:
    """What a source says of this barrier; what is sealed is neither read nor waits."""
    now = {name: one for name, one in before.items() if name not in barrier.gone}
    slices = []
    for name in sorted(barrier.read.keys() | barrier.waiting | barrier.sealed):
        old = now.get(name, PartitionOffset(partition=name, offset=0, records=0))
        if old.sealed or name in barrier.gone:
            continue
        if name in barrier.read:
            end = old.offset + 1
            slices.append(
                Slice(partition=name, start=old.offset, end=end, first_record=old.offset, records=1)
            )
            old = replace(old, offset=end, records=end)
        now[name] = replace(old, sealed=name in barrier.sealed)
    return SourceCut(
        uid="events",
        position=tuple(now[name] for name in sorted(now)),
        slices=tuple(slices),
    )


def marked_at(
    barrier: Barrier,
    cut: SourceCut,
    before: PartitionEntries,
    previous: SourceCut | None,
    **times: int,
) -> SourceCut:
    """*cut*, as the planner marks it."""
    waiting = {one.partition for one in cut.position if not one.sealed} & barrier.waiting
    return with_activity(cut, waiting, before, previous=previous, **times)


@given(history=st.lists(barriers, max_size=12), ends=st.booleans(), is_idling=st.booleans())
def test_what_is_kept_says_what_was_said_whole(
    history: list[Barrier], ends: bool, is_idling: bool
) -> None:
    bucket = Bucket()
    whole: SourceCut | None = None
    kept: SourceCut | None = None
    known_whole: dict[str, int] = {}
    known_kept: dict[str, int] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(position, "MAX_ABOVE", 2)
        for turn, barrier in enumerate(history):
            before = bucket.position_of(kept) if kept is not None else Position()
            cut = replace(cut_at(dict(before.entries), barrier), partitions_end=ends)
            times = {"now_ms": 10 * turn, "idle_after_ms": IDLE_AFTER_MS} if is_idling else {}
            given_cut = marked_at(barrier, cut, before.entries, kept, **times)
            entries = {} if whole is None else {one.partition: one for one in whole.position}
            whole = marked_at(barrier, cut, entries, whole, **times)
            kept = with_layers(
                given_cut, before, shares_files=barrier.shares_files, layer_of=bucket.layer_of
            )
            restored = with_whole(kept, bucket.position_of(kept))
            assert replace(restored, gone=()) == whole

            seen = restored if kept.needs_layers else kept
            assert seen.is_idle == whole.is_idle
            measured = {piece.partition: barrier.read[piece.partition] for piece in cut.slices}
            known_whole = known_times(known_whole, whole, measured)
            known_kept = known_times(known_kept, seen, measured)
            assert known_kept == known_whole
            assert watermark(seen, known_kept) == watermark(whole, known_whole)


def watermark(cut: SourceCut, known_ms: dict[str, int]) -> int | None:
    return source_watermark(
        cut, known_ms, is_silent=False, out_of_orderness_ms=0, drains=False, has_event_time=True
    )


def a_position(files: int) -> tuple[PartitionOffset, ...]:
    return tuple(
        PartitionOffset(partition=f"part-{number:06d}", offset=1, records=1, sealed=True)
        for number in range(files)
    )


def after_epochs(files: int, epochs: int) -> tuple[Bucket, SourceCut, int]:
    """A file more in each; the largest number of entries above the layers."""
    bucket, most = Bucket(), 0
    entries = a_position(files + epochs)
    kept = SourceCut(uid="events", position=entries[:files])
    for epoch in range(1, epochs + 1):
        now = SourceCut(uid="events", position=entries[: files + epoch])
        kept = with_layers(
            now, bucket.position_of(kept), shares_files=True, layer_of=bucket.layer_of
        )
        most = max(most, len(kept.position))
    return bucket, kept, most


def test_an_entry_is_written_a_few_times_however_many_there_are() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(position, "MAX_ABOVE", 16)
        bucket, kept, most = after_epochs(1_000, 300)

    assert most <= 17
    assert len(kept.layers) <= 4
    assert bucket.written <= 1_000 + 4 * 300
    assert len(bucket.position_of(kept).entries) == 1_300


def test_a_file_that_grows_again_and_again_does_not_fill_the_layers() -> None:
    bucket = Bucket()
    kept = SourceCut(uid="events", position=())
    for epoch in range(1, 40):
        names = [f"part-{number:06d}" for number in range(1_000)]
        growing = {names[(epoch * 300 + step) % 1_000] for step in range(300)}
        before = bucket.position_of(kept)
        now = {
            name: before.entries.get(name, PartitionOffset(partition=name, offset=1, records=1))
            for name in names
        }
        now |= {name: replace(now[name], offset=now[name].offset + 1) for name in growing}
        cut = SourceCut(uid="events", position=tuple(now[name] for name in names))
        kept = with_layers(cut, before, shares_files=True, layer_of=bucket.layer_of)
        assert sum(layer.rows for layer in kept.layers) <= 1_000 * 4 / 3
