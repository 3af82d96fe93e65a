"""The slices of a plan as columns: there is one for each of thousands of subtasks, and most begin
where the one before it ended, so a column of gaps is a column of zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from sluice.core.plan import Slice


class SliceColumns(msgspec.Struct, frozen=True):
    """``of`` are positions in ``partitions``, which were cut in these ``versions``.  ``gaps`` and
    ``record_gaps`` lie between a slice and the one before it in its partition, or the partition's
    beginning.
    """

    partitions: tuple[str, ...]
    versions: tuple[str, ...]
    of: tuple[int, ...]
    gaps: tuple[int, ...]
    lengths: tuple[int, ...]
    record_gaps: tuple[int, ...]
    records: tuple[int, ...]

    @classmethod
    def of_slices(cls, slices: Iterable[Slice]) -> SliceColumns:
        numbers: dict[tuple[str, str], int] = {}
        ends: dict[int, tuple[int, int]] = {}
        rows: list[tuple[int, int, int, int, int]] = []
        for piece in slices:
            number = numbers.setdefault((piece.partition, piece.version), len(numbers))
            end, record = ends.get(number, (0, 0))
            rows.append(
                (
                    number,
                    piece.start - end,
                    piece.end - piece.start,
                    piece.first_record - record,
                    piece.records,
                )
            )
            ends[number] = piece.end, piece.first_record + piece.records
        columns = tuple(zip(*rows, strict=True)) or ((), (), (), (), ())
        partitions, versions = tuple(zip(*numbers, strict=True)) or ((), ())
        return cls(partitions, versions, *columns)

    def slices(self) -> Iterator[Slice]:
        ends = [(0, 0)] * len(self.partitions)
        rows = zip(self.of, self.gaps, self.lengths, self.record_gaps, self.records, strict=True)
        for number, gap, length, record_gap, records in rows:
            end, record = ends[number]
            start, first_record = end + gap, record + record_gap
            ends[number] = start + length, first_record + records
            yield Slice(
                partition=self.partitions[number],
                start=start,
                end=start + length,
                first_record=first_record,
                records=records,
                version=self.versions[number],
            )
