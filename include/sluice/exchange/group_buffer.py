"""The groups of an epoch, kept in bounded memory until all its rows have been read.

Groups that do not fit are spilled to local disk by hash, and are read back one range of the hash
space after the other.  A spill file is unlinked as soon as it is open: a killed worker leaves none.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Protocol, Self

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from sluice.operators.operator import Frames
from sluice.state.segments import HASH, to_frame, to_table

# Ranges of a subtask's hash space: enough for an epoch of some 30 times the memory, few enough for
# a file each.
RANGES = 64
_SPILL_SHARE = 4  # Groups may take up a quarter of the memory; state, output and Arrow the rest.


@dataclass(frozen=True, slots=True)
class HashRange:
    """A range of hashes; both ends are included."""

    first: int
    last: int


class Folding(Protocol):
    """The part of an ``Operator`` that a buffer needs."""

    def combine(self, groups: Frames) -> Frames: ...


class GroupBuffer:
    """A buffer of groups: ``ranges`` gives them back folded, in the order of their hashes."""

    def __init__(self, operator: Folding, owned: HashRange, memory_bytes: int) -> None:
        assert owned.last - owned.first >= RANGES**2, "key groups are 2**32 hashes wide"
        self._operator = operator
        self._owned = owned
        self._room = max(1, memory_bytes // _SPILL_SHARE)
        self._chunks: dict[str, list[pl.DataFrame]] = defaultdict(list)
        self._bytes = 0
        self._spill: _Spill | None = None
        self.rows = 0  # Of all groups that ``ranges`` has yielded.

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._spill is not None:
            self._spill.close()

    def add(self, groups: Frames) -> None:
        for name, frame in groups.items():
            self._chunks[name].append(frame)
            self._bytes += int(frame.estimated_size())
        if self._bytes > self._room:
            self._fold()

    def ranges(self, state_bytes: int) -> Iterator[tuple[HashRange, Frames]]:
        """The folded groups, range by range; *state_bytes* of state will be read beside them."""
        groups = self._folded()
        size = _size(groups) + state_bytes
        if self._spill is not None:
            self._spill.add(groups)
            size += self._spill.size_bytes
        count = min(RANGES, max(1, -(-size // self._room)))
        if self._spill is None and count == 1:
            self.rows += _rows(groups)
            yield self._owned, groups
            return
        if self._spill is None:
            groups = {name: frame.sort(HASH) for name, frame in groups.items()}
        for index in range(count):  # Neighbouring ranges, in shares of nearly the same size.
            first, last = RANGES * index // count, RANGES * (index + 1) // count
            bounds = HashRange(
                _bounds(self._owned, first).first, _bounds(self._owned, last - 1).last
            )
            part = (
                self._operator.combine(self._spill.read(first, last))
                if self._spill is not None
                else {name: _between(frame, bounds) for name, frame in groups.items()}
            )
            self.rows += _rows(part)
            yield bounds, part

    def _fold(self) -> None:
        groups = self._folded()
        self._bytes = _size(groups)
        # Groups that hardly shrink when they are folded are cheaper to spill than to fold again.
        if self._bytes > self._room // 2:
            if self._spill is None:
                self._spill = _Spill(self._owned)
            self._spill.add(groups)
            groups = {name: frame.clear() for name, frame in groups.items()}
            self._bytes = 0
        self._chunks = defaultdict(list, {name: [frame] for name, frame in groups.items()})

    def _folded(self) -> dict[str, pl.DataFrame]:
        together = {name: pl.concat(frames) for name, frames in self._chunks.items()}
        return dict(self._operator.combine(together))


class _Spill:
    """Spilled groups: a file per frame and range, each a stream of Arrow batches."""

    def __init__(self, owned: HashRange) -> None:
        self._owned = owned
        self._files: dict[tuple[str, int], tuple[IO[bytes], pa.ipc.RecordBatchStreamWriter]] = {}
        self._empty: dict[str, pl.DataFrame] = {}
        self.size_bytes = 0

    def add(self, groups: Frames) -> None:
        for name, frame in groups.items():
            self._empty.setdefault(name, frame.clear())
            table = to_table(frame.sort(HASH))
            self.size_bytes += int(frame.estimated_size())
            hashes = table.column(HASH).combine_chunks().to_numpy()
            cuts = _cuts(hashes, self._owned)
            for index in range(RANGES):
                part = table.slice(cuts[index], cuts[index + 1] - cuts[index])
                if part.num_rows:
                    self._writer(name, index, part.schema).write_table(part)

    def read(self, first: int, last: int) -> dict[str, pl.DataFrame]:
        """The rows of the ranges from *first* to before *last*."""
        found = {name: [empty] for name, empty in self._empty.items()}
        for name, frames in found.items():
            for index in range(first, last):
                if (name, index) in self._files:
                    file, writer = self._files.pop((name, index))
                    writer.close()
                    file.seek(0)
                    table = pa.ipc.open_stream(file).read_all()
                    frames.append(to_frame(table).cast(self._empty[name].schema))
                    file.close()
        return {name: pl.concat(frames) for name, frames in found.items()}

    def close(self) -> None:
        for file, writer in self._files.values():
            writer.close()
            file.close()

    def _writer(self, name: str, index: int, schema: pa.Schema) -> pa.ipc.RecordBatchStreamWriter:
        if (name, index) not in self._files:
            # ``read`` or ``close`` closes it.
            file = tempfile.TemporaryFile(prefix="sluice-spill-")  # noqa: SIM115
            self._files[name, index] = (file, pa.ipc.new_stream(file, schema))
        return self._files[name, index][1]


def _bounds(owned: HashRange, index: int) -> HashRange:
    """The range number *index* of the ``RANGES`` into which a subtask's hashes are cut."""
    width = -(-(owned.last - owned.first + 1) // RANGES)
    first = owned.first + index * width
    return HashRange(first, min(first + width - 1, owned.last))


def _cuts(sorted_hashes: npt.NDArray[np.int64], owned: HashRange) -> list[int]:
    firsts = [_bounds(owned, index).first for index in range(1, RANGES)]
    inner = np.searchsorted(sorted_hashes, np.array(firsts, np.int64))
    return [0, *(int(cut) for cut in inner), len(sorted_hashes)]


def _between(sorted_frame: pl.DataFrame, bounds: HashRange) -> pl.DataFrame:
    hashes = sorted_frame[HASH].to_numpy()
    first = int(np.searchsorted(hashes, bounds.first))
    end = int(np.searchsorted(hashes, bounds.last, side="right"))
    return sorted_frame.slice(first, end - first)


def _size(groups: Frames) -> int:
    return sum(int(frame.estimated_size()) for frame in groups.values())


def _rows(groups: Frames) -> int:
    return sum(frame.height for frame in groups.values())
