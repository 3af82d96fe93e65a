"""Barriers: the unread part behind one is counted, and Spark reads a place once for each."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from sluice.connectors.files.parquet import ParquetSource
from sluice.connectors.files.text import FilesSource
from sluice.connectors.nexmark.source import NexmarkSource
from sluice.connectors.offsets import OffsetSource, Readable
from sluice.connectors.spark_read.declared import Readings
from sluice.core.plan import Slice, Unread
from sluice.declaration.places import Barrier, SourcePosition


@dataclass(frozen=True, slots=True)
class Numbers(OffsetSource):
    """A topic of which only the offsets matter."""

    ends: dict[str, int] = field(default_factory=dict[str, int])
    bounded: bool = False
    name: str = "numbers"

    def schema(self) -> pa.Schema:
        return pa.schema([])

    def readable(self) -> Mapping[str, Readable]:
        return {name: Readable(0, end) for name, end in self.ends.items()}

    def read(self, piece: Slice, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        yield from ()


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 50), min_size=1),
    st.lists(st.integers(1, 40), max_size=6),
)
def test_a_topic_has_what_was_not_read_of_each_partition(
    ends: dict[str, int], caps: list[int]
) -> None:
    source = Numbers(ends)
    position: SourcePosition = ()
    read = 0
    for most in caps:
        barrier = source.plan(position, max_records=most, parallelism=2)
        position = barrier.position
        read += barrier.records

        assert barrier.unread is not None
        assert barrier.unread.records == sum(ends.values()) - read
        assert barrier.unread.partitions == len(barrier.waiting)


def test_lines_have_bytes_and_half_a_line_is_not_pending(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\ntwo\n")
    (tmp_path / "b").write_text("three\nfo")
    source = FilesSource(str(tmp_path), bounded=False)

    capped = source.plan((), max_records=1, parallelism=1)
    whole = source.plan(capped.position, max_records=None, parallelism=1)

    assert (capped.size_bytes, capped.unread) == (4, Unread(partitions=2, size_bytes=12))
    assert (whole.size_bytes, whole.unread) == (10, Unread(records=0, size_bytes=0))


def test_a_file_whose_offsets_are_no_bytes_counts_whole_until_it_is_read(tmp_path: Path) -> None:
    lines, rows = tmp_path / "a.gz", tmp_path / "a.parquet"
    lines.write_bytes(gzip.compress(b"one\ntwo\n"))
    pq.write_table(pa.table({"n": [1, 2]}), rows)

    for source, file in ((FilesSource(str(lines)), lines), (ParquetSource(str(rows)), rows)):
        barrier = source.plan((), max_records=1, parallelism=1)

        assert barrier.unread == Unread(partitions=1, size_bytes=file.stat().st_size)
        assert barrier.size_bytes is None


def test_a_generator_that_ends_says_what_is_left_and_one_that_does_not_cannot() -> None:
    ends = NexmarkSource(25).plan((), max_records=10, parallelism=2)
    endless = NexmarkSource(None).plan((), max_records=10, parallelism=2)

    assert ends.unread == Unread(partitions=1, records=15)
    assert endless.unread is None


OFTEN, SELDOM = Readings(1), Readings(3_600_000)


def plan(source: Readings, position: SourcePosition) -> Barrier:
    return source.plan(position, max_records=None, parallelism=1)


def test_another_interval_or_an_earlier_clock_neither_stops_the_readings_nor_repeats_all() -> None:
    first = plan(OFTEN, ())

    later = plan(SELDOM, first.position)  # Its numbers are lower, as behind a clock that went back.
    again = plan(OFTEN, later.position)

    assert [one.records for one in (first, later, again)] == [1, 0, 1]
    assert later.position[0].offset < first.position[0].offset
