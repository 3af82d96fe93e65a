"""Groups come back folded and in the order of their hashes, whatever the memory.

Method: chunks of random groups go through buffers of no, little and much memory; what comes out,
put together, must be what one fold over all of them gives.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from random import Random

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.handles import MAX_HASH, MIN_HASH
from sluice.exchange.group_buffer import GroupBuffer, HashRange
from sluice.operators.operator import Frames
from sluice.state.segments import HASH, RowFiles, to_frame

EVERYTHING = HashRange(MIN_HASH, MAX_HASH)


class Summing:
    """As much of an operator as a buffer needs: sums per key, and rows kept as they are."""

    def combine(self, groups: Frames) -> dict[str, pl.DataFrame]:
        sums = groups["sums"].group_by(HASH, "key").agg(pl.col("n").sum())
        return {"sums": sums, "rows": groups["rows"]}


def a_chunk(random: Random, rows: int) -> dict[str, pl.DataFrame]:
    keys = [random.randrange(50) for _ in range(rows)]
    hashes = [Random(key).randrange(MIN_HASH, MAX_HASH) for key in keys]
    frame = pl.DataFrame(
        {HASH: hashes, "key": [f"k{key}" for key in keys], "n": [1] * rows},
        schema={HASH: pl.Int64, "key": pl.String, "n": pl.Int64},
    )
    return {"sums": frame, "rows": frame}


def passed_through(chunks: list[dict[str, pl.DataFrame]], memory: int, state_bytes: int) -> Frames:
    with GroupBuffer(Summing(), EVERYTHING, memory) as buffer:
        for chunk in chunks:
            buffer.add(chunk)
        parts = list(buffer.ranges(state_bytes))
        assert buffer.rows == sum(f.height for _, part in parts for f in part.values())
        has_spilled = buffer._spill is not None  # noqa: SLF001
        assert memory > 1_000 or has_spilled or not any(c["rows"].height for c in chunks)
    bounds = [bounds for bounds, _ in parts]
    assert bounds[0].first == MIN_HASH
    assert bounds[-1].last == MAX_HASH
    assert all(a.last + 1 == b.first for a, b in pairwise(bounds))
    for inside, part in parts:
        for frame in part.values():
            assert frame.filter(~pl.col(HASH).is_between(inside.first, inside.last)).is_empty()
    return {name: pl.concat([part[name] for _, part in parts]) for name in ("sums", "rows")}


@given(st.lists(st.integers(0, 40), min_size=1, max_size=5), st.integers(0, 10**6))
def test_memory_decides_nothing(sizes: list[int], seed: int) -> None:
    random = Random(seed)
    chunks = [a_chunk(random, size) for size in sizes]
    whole = Summing().combine({n: pl.concat([c[n] for c in chunks]) for n in ("sums", "rows")})

    for memory, state_bytes in ((1, 0), (4_000, 0), (10**9, 0), (10**9, 10**9)):
        found = passed_through(chunks, memory, state_bytes)

        for name, frame in whole.items():
            assert found[name].sort(pl.all()).equals(frame.sort(pl.all()))


def test_a_file_ends_where_rows_say_so_and_not_where_frames_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sluice.state.segments.ROWS_PER_FILE", 10)
    numbers = pl.DataFrame({"n": range(47)})

    files: list[list[list[int]]] = []

    def note(into: list[list[int]], table: pa.Table) -> None:
        into.append(to_frame(table)["n"].to_list())

    for cuts in ((0, 47), (0, 3, 10, 11, 47), (0, 25, 46, 47)):
        written: list[list[int]] = []
        files.append(written)
        rows = RowFiles(partial(note, written))
        for start, end in pairwise(cuts):
            rows.add(numbers[start:end])
        rows.finish()

    assert files[0] == files[1] == files[2]
    assert [len(file) for file in files[0]] == [10, 10, 10, 10, 7]
