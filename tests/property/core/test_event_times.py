"""Random histories of a source's partitions, against a model that looks at all of the past anew."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from sluice.core.event_time import MIN_WATERMARK, combined_watermark, known_times, source_watermark
from sluice.core.plan import PartitionOffset, Slice, SourceCut

NAMES = ("a", "b", "c")
OUT_OF_ORDERNESS_MS = 3


@dataclass(frozen=True)
class Step:
    """What one epoch did to one partition; *times* are those of the rows that it read."""

    partition: str
    times: tuple[int | None, ...] = ()
    head: int | None = None
    is_waiting: bool = False
    is_sealed: bool = False
    is_there: bool = True


@dataclass
class Model:
    """Everything that ever happened, epoch by epoch; nothing is carried from one to the next."""

    partitions_end: bool
    epochs: list[dict[str, Step]] = field(default_factory=list)

    def holds_at(self, name: str) -> int | None:
        """The time at which a partition holds event time back; None if it does not."""
        now = self.epochs[-1][name]
        if now.is_sealed or not now.is_there:
            return None
        if self.partitions_end and not now.times and not now.is_waiting:
            return None
        at = self.last_known(name)
        if at is None:
            return MIN_WATERMARK if now.is_waiting else None
        return at - OUT_OF_ORDERNESS_MS - 1

    def last_known(self, name: str) -> int | None:
        """The largest time since it last was without one, or complete."""
        found: list[int] = []
        for epoch in reversed(self.epochs):
            step = epoch[name]
            known = [time for time in step.times if time is not None]
            was_complete = self.partitions_end and not step.times and not step.is_waiting
            if (step.times and not known) or not step.is_there or was_complete:
                break
            found += known if step.head is None else [*known, step.head]
        return max(found, default=None)

    def watermark(self) -> int | None:
        held = [at for name in NAMES if (at := self.holds_at(name)) is not None]
        if held:
            return min(held)
        now = [time for step in self.epochs[-1].values() for time in step.times]
        if now and all(time is None for time in now):
            return None
        every = [
            time
            for epoch in self.epochs
            for step in epoch.values()
            for time in (*step.times, step.head)
            if time is not None
        ]
        return max(every) - OUT_OF_ORDERNESS_MS - 1 if every else MIN_WATERMARK


times = st.integers(0, 50)


@st.composite
def histories(draw: st.DrawFn) -> list[dict[str, Step]]:
    """Partitions appear, wait, are read, pause, are sealed and go; sealed ones stay so."""
    epochs: list[dict[str, Step]] = []
    unread, sealed, there = set(NAMES), set[str](), set[str]()
    for _ in range(draw(st.integers(1, 8))):
        epoch = {}
        for name in NAMES:
            is_new = name not in there and name in unread and draw(st.booleans())
            if name not in there and not is_new:
                epoch[name] = Step(name, is_there=False)
                continue
            there.add(name)
            if name in sealed:
                epoch[name] = Step(name, is_sealed=True)
                if draw(st.integers(0, 3)) == 0:
                    there.discard(name)
                    epoch[name] = Step(name, is_there=False)
                continue
            read = tuple(draw(st.lists(st.none() | times, max_size=3)))
            is_waiting = draw(st.booleans())
            looks_ahead = is_new and not read and is_waiting
            head = draw(st.none() | times) if looks_ahead else None
            if read:
                unread.discard(name)
                if not is_waiting and draw(st.booleans()):
                    sealed.add(name)
            epoch[name] = Step(name, read, head, is_waiting=is_waiting, is_sealed=name in sealed)
        epochs.append(epoch)
    return epochs


def cut_of(epoch: dict[str, Step], *, partitions_end: bool) -> SourceCut:
    there = [step for step in epoch.values() if step.is_there]

    def piece(step: Step) -> Slice:
        return Slice(partition=step.partition, start=0, end=1, first_record=0, records=1)

    return SourceCut(
        uid="events",
        position=tuple(
            PartitionOffset(
                partition=step.partition,
                offset=1,
                records=1,
                sealed=step.is_sealed,
                is_waiting=step.is_waiting,
            )
            for step in there
        ),
        slices=tuple(piece(step) for step in there if step.times),
        heads=tuple(piece(step) for step in there if step.head is not None),
        partitions_end=partitions_end,
    )


def measured(epoch: dict[str, Step]) -> dict[str, int]:
    found = {
        step.partition: [time for time in (*step.times, step.head) if time is not None]
        for step in epoch.values()
    }
    return {name: max(known) for name, known in found.items() if known}


@given(histories(), st.booleans())
def test_the_watermark_is_that_of_a_model_without_memory(
    epochs: list[dict[str, Step]], partitions_end: bool
) -> None:
    model = Model(partitions_end)
    known: dict[str, int] = {}
    for epoch in epochs:
        model.epochs.append(epoch)
        cut = cut_of(epoch, partitions_end=partitions_end)
        seen = measured(epoch)

        known = known_times(known, cut, seen)
        watermark = source_watermark(
            cut,
            known,
            is_silent=bool(cut.slices) and not any(p.partition in seen for p in cut.slices),
            out_of_orderness_ms=OUT_OF_ORDERNESS_MS,
            drains=False,
            has_event_time=True,
        )

        assert watermark == model.watermark()
        growing = [part for part in cut.position if not part.sealed]
        assert len(known) <= len(growing) + 1


@given(
    st.lists(st.lists(times, min_size=1, max_size=6).map(sorted), min_size=1, max_size=4),
    st.integers(1, 4),
    st.booleans(),
)
def test_of_files_in_order_that_are_read_one_after_the_other_no_row_is_late(
    files: list[list[int]], most: int, is_sealed: bool
) -> None:
    """Each file's rows are in order of time, and all files are there; they may overlap."""
    done = [0] * len(files)
    known: dict[str, int] = {}
    watermark = MIN_WATERMARK
    is_first = True
    while sum(done) < sum(map(len, files)):
        before, left = list(done), most
        for index, rows in enumerate(files):
            taken = min(left, len(rows) - done[index])
            done[index], left = done[index] + taken, left - taken
        seen: dict[str, int] = {}
        for index, rows in enumerate(files):
            for time in rows[before[index] : done[index]]:
                assert time > watermark, "a row of a file in order is late"
                seen[str(index)] = time
            if is_first and done[index] == 0:
                seen[str(index)] = rows[0]
        is_first = False
        cut = SourceCut(
            uid="events",
            position=tuple(
                PartitionOffset(
                    partition=str(index),
                    offset=done[index],
                    records=done[index],
                    sealed=is_sealed and done[index] == len(rows),
                    is_waiting=done[index] < len(rows),
                )
                for index, rows in enumerate(files)
            ),
            slices=tuple(
                Slice(
                    partition=str(index),
                    start=before[index],
                    end=done[index],
                    first_record=before[index],
                    records=done[index] - before[index],
                )
                for index in range(len(files))
                if done[index] > before[index]
            ),
            partitions_end=True,
        )
        known = known_times(known, cut, seen)
        own = source_watermark(
            cut,
            known,
            is_silent=False,
            out_of_orderness_ms=0,
            drains=False,
            has_event_time=True,
        )
        watermark = combined_watermark([own], watermark)
