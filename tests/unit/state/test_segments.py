"""A segment is its bytes: the same rows give the same ones, and other ones are refused.

Files of rows are bounded by rows and by bytes, and do not depend on how rows were cut.
"""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from sluice.errors import CorruptSegment, ProtocolViolation
from sluice.protocol.records import checksum
from sluice.state import segments
from sluice.state.key_hash import key_hash
from sluice.state.segments import (
    HASH,
    IDENTITY,
    RowFiles,
    decode_segment,
    encode_segment,
    fixed_width,
    hash_column,
    open_segment,
    row_sizes,
    to_frame,
    to_table,
)


def a_table(rows: int = 5) -> pa.Table:
    return pa.table(
        {
            HASH: pa.array(range(rows), pa.int64()),
            "name": pa.array([None if i % 2 else f"n{i}" for i in range(rows)], pa.large_string()),
            "seen": pa.array([None if i % 3 else i > 2 for i in range(rows)], pa.bool_()),
            "tags": pa.array(
                [None if i % 2 else list(range(i)) for i in range(rows)], pa.large_list(pa.int64())
            ),
        }
    )


def written(folder: Path, body: bytes) -> Path:
    path = folder / "segment"
    path.write_bytes(body)
    return path


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_what_was_encoded_is_decoded_and_mapped_and_outlives_its_file(
    tmp_path: Path, rows: int
) -> None:
    body = encode_segment(a_table(rows))
    path = written(tmp_path, body)

    decoded = decode_segment(body, checksum=checksum(body), name="s")
    mapped = open_segment(path, checksum=checksum(body), name="s")
    path.unlink()

    assert decoded.equals(a_table(rows))
    assert mapped.equals(a_table(rows))


def test_numbers_are_read_in_place() -> None:
    body = encode_segment(a_table())
    start = pa.py_buffer(body).address

    table = decode_segment(body, checksum=checksum(body), name="s")

    values = table.column(HASH).chunk(0).buffers()[1]
    assert start <= values.address < start + len(body)
    assert hash_column(table).ctypes.data == values.address
    assert to_frame(table)[HASH].to_numpy().ctypes.data == values.address


def test_a_memoryview_at_an_odd_address_decodes() -> None:
    body = encode_segment(a_table())
    view = memoryview(b"123" + body)[3:]

    table = decode_segment(view, checksum=checksum(body), name="s")

    assert table.equals(a_table())
    assert checksum(view) == checksum(body)


def test_chunks_slices_metadata_and_string_types_do_not_show_in_the_bytes() -> None:
    table = a_table(8)
    chunked = pa.concat_tables([table.slice(0, 3), table.slice(3, 1), table.slice(4)])
    sliced = pa.concat_tables([a_table(3), table]).slice(3)
    labelled = table.replace_schema_metadata({"pandas": "{}"})
    narrow = table.set_column(1, "name", table.column("name").cast(pa.string()))
    viewed = table.set_column(1, "name", table.column("name").cast(pa.string_view()))

    bodies = {encode_segment(t) for t in (table, chunked, sliced, labelled, narrow, viewed)}

    assert len(bodies) == 1


def test_only_the_identity_of_its_rows_stays_of_a_tables_metadata() -> None:
    table = a_table().replace_schema_metadata({IDENTITY: b'[["id"],[]]', b"pandas": b"{}"})
    body = encode_segment(table)

    again = decode_segment(body, checksum=checksum(body), name="s")

    assert again.schema.metadata == {IDENTITY: b'[["id"],[]]'}
    assert encode_segment(again) == body


def test_what_lies_under_a_null_or_after_the_last_bit_does_not_show_in_the_bytes() -> None:
    valid = pa.py_buffer(bytes([0b11111101]))
    numbers = [np.array([1, junk, 3], np.int64) for junk in (0, 99)]
    bits = [pa.py_buffer(bytes([junk])) for junk in (0b00000101, 0b11111101)]

    tables = [
        pa.table(
            {
                "n": pa.Array.from_buffers(pa.int64(), 3, [valid, pa.py_buffer(number)]),
                "b": pa.Array.from_buffers(pa.bool_(), 3, [None, bit]),
            }
        )
        for number, bit in zip(numbers, bits, strict=True)
    ]

    assert tables[0].equals(tables[1])
    assert encode_segment(tables[0]) == encode_segment(tables[1])


def test_a_frame_survives_the_passage_with_its_types() -> None:
    frame = pl.DataFrame(
        {"at": [0, None], "price": ["1.50", None], "name": ["a", None], "tags": [["x"], []]},
        schema={
            "at": pl.Datetime("us", "UTC"),
            "price": pl.Decimal(10, 2),
            "name": pl.String,
            "tags": pl.List(pl.String),
        },
        strict=False,
    )
    body = encode_segment(to_table(frame))

    again = to_frame(decode_segment(body, checksum=checksum(body), name="s"))

    assert again.schema == frame.schema
    assert again.equals(frame)


@pytest.mark.parametrize("position", [0, 100, -1])
def test_a_flipped_bit_is_refused_by_name(tmp_path: Path, position: int) -> None:
    body = bytearray(encode_segment(a_table()))
    recorded = checksum(bytes(body))
    body[position] ^= 1
    actual = checksum(bytes(body))

    both_named = re.escape("shared/agg/7.arrow") + f".*{recorded}.*{actual}"
    with pytest.raises(CorruptSegment, match=both_named):
        decode_segment(bytes(body), checksum=recorded, name="shared/agg/7.arrow")
    with pytest.raises(CorruptSegment, match=both_named):
        open_segment(written(tmp_path, bytes(body)), checksum=recorded, name="shared/agg/7.arrow")


@pytest.mark.parametrize("length", [0, 7, 200])
def test_a_truncated_file_is_refused_even_when_it_is_trusted(tmp_path: Path, length: int) -> None:
    body = encode_segment(a_table())
    path = written(tmp_path, body[:length])

    with pytest.raises(ProtocolViolation, match="segment s is corrupt"):
        open_segment(path, checksum=checksum(body), name="s")
    with pytest.raises(CorruptSegment, match="not an Arrow file"):
        open_segment(path, checksum=None, name="s")


def test_a_file_that_was_never_a_segment_is_refused_despite_its_checksum() -> None:
    body = b"PAR1 this is somebody else's file PAR1"

    with pytest.raises(CorruptSegment, match="not an Arrow file"):
        decode_segment(body, checksum=checksum(body), name="s")


def test_a_checksum_is_32_hex_characters() -> None:
    assert checksum(b"") == "cae66941d9efbd404e4d88758ea67670"


def files_of(rows: pl.DataFrame, *cuts: int) -> list[pa.Table]:
    written: list[pa.Table] = []
    files = RowFiles(written.append)
    for start, end in zip((0, *cuts), (*cuts, rows.height), strict=True):
        files.add(rows[start:end])
    files.finish()
    return written


def test_wide_rows_fill_a_file_long_before_their_number_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segments, "BYTES_PER_FILE", 1_000_000)
    rows = pl.DataFrame({"doc": ["x" * 100_000] * 35})

    assert [table.num_rows for table in files_of(rows, 3, 20)] == [10, 10, 10, 5]
    assert max(table.nbytes for table in files_of(rows, 3, 20)) < 1_100_000


@pytest.mark.parametrize("seed", range(5))
def test_the_same_rows_give_the_same_files_however_they_were_cut(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(segments, "BYTES_PER_FILE", 500)
    monkeypatch.setattr(segments, "WIDE_ROWS_PER_FILE", 9)
    random = Random(seed)
    rows = pl.DataFrame(
        {
            "text": ["y" * random.choice([0, 1, 40, 700]) for _ in range(200)],
            "list": [["z" * random.randrange(9)] * random.randrange(3) for _ in range(200)],
        }
    )

    whole = files_of(rows)
    cut = files_of(rows, *sorted(random.sample(range(1, 200), 20)))

    assert pa.concat_tables(whole).equals(pa.concat_tables(cut))
    assert [table.num_rows for table in whole] == [table.num_rows for table in cut]
    assert len(whole) > 20


def test_narrow_rows_fill_a_file_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "ROWS_PER_FILE", 100)

    files = files_of(pl.DataFrame({"n": range(250)}), 99)

    assert [table.num_rows for table in files] == [100, 100, 50]
    assert files_of(pl.DataFrame({"n": []})) == []


def test_the_size_of_a_row_is_that_of_its_content() -> None:
    rows = pl.DataFrame(
        {
            "n": [1, None],
            "text": ["abc", None],
            "body": [b"12345", None],
            "list": [[1, 2], None],
            "texts": [["ab", "c"], []],
            "nested": [{"a": "abcd", "b": [True]}, {"a": None, "b": None}],
        }
    )

    assert row_sizes(rows).to_list() == [
        8 + (3 + 8) + (5 + 8) + (16 + 8) + (2 + 8 + 1 + 8 + 8) + (1 + 4 + 8 + 1 + 8),
        8 + 8 + 8 + 8 + 8 + (1 + 8 + 8),
    ]
    assert fixed_width(rows.schema) is None
    assert fixed_width(pl.Schema({"n": pl.Int64(), "b": pl.Boolean(), "d": pl.Date()})) == 13


def test_structs_of_numbers_alone_have_a_size_for_each_row() -> None:
    pairs = pl.Struct({"f0": pl.Int64, "f1": pl.Float32})
    rows = pl.DataFrame(
        {"pair": [{"f0": 1, "f1": 2.0}] * 3, "pairs": [[], [{"f0": 1, "f1": 2.0}] * 2, None]},
        schema={"pair": pairs, "pairs": pl.List(pairs)},
    )

    assert fixed_width(rows.select("pair").schema) == 13
    assert row_sizes(rows).to_list() == [13 + 8, 13 + 8 + 26, 13 + 8]
    assert [table.num_rows for table in files_of(rows, 1)] == [3]


@pytest.mark.parametrize(
    ("dtype", "values", "sizes"),
    [
        (pa.map_(pa.string(), pa.int64()), [[("ab", 1)], None, []], [8 + 1 + 10 + 8, 8, 8]),
        (pa.map_(pa.int64(), pa.int32()), [[(1, 2), (3, None)], [], None], [8 + 26, 8, 8]),
        (pa.list_(pa.map_(pa.int64(), pa.int64())), [[[(1, 2)]], [None], []], [8 + 25, 16, 8]),
    ],
)
def test_a_map_has_the_size_of_its_entries(
    dtype: pa.DataType, values: list[object], sizes: list[int]
) -> None:
    rows = pl.from_arrow(pa.table({"id": [1, 2, 3], "map": pa.array(values, dtype)}))
    assert isinstance(rows, pl.DataFrame)

    assert row_sizes(rows).to_list() == [8 + size for size in sizes]
    assert [row_sizes(rows[n : n + 1]).item() for n in range(3)] == [8 + size for size in sizes]


ROWS = 50_001
SLICE = 1_000  # Less than a block.
NUMBERS = pl.Series("number", range(ROWS))


@pytest.mark.parametrize(
    "key",
    [
        NUMBERS,
        NUMBERS.cast(pl.Int32),
        pl.Series([f"{number:036d}" for number in range(ROWS)]),
        pl.Series([f"{number:07d}".encode() for number in range(ROWS)]),
        pl.Series(["é" * (number % 41) for number in range(ROWS)]),
        pl.Series([None if number % 3 else f"key {number}" for number in range(ROWS)]),
        pl.Series([None] * ROWS, dtype=pl.String),
        pl.Series([""] * ROWS),
    ],
    ids=["long", "int", "texts", "bytes", "lengths", "nulls", "no text", "empty texts"],
)
def test_a_hash_does_not_depend_on_the_rows_around_it(key: pl.Series) -> None:
    rows = pl.DataFrame({"key": key, "number": NUMBERS})

    hashed = key_hash(rows, ["number", "key"])

    slices = [key_hash(part, ["number", "key"]) for part in rows.iter_slices(SLICE)]
    assert np.array_equal(hashed, np.concatenate(slices))
    assert np.array_equal(hashed[7:ROWS], key_hash(rows.slice(7), ["number", "key"]))
