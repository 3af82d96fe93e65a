"""A segment is its bytes: the same rows give the same ones, and other ones are refused."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from sluice.core.handles import checksum
from sluice.errors import CorruptSegment, ProtocolViolation
from sluice.state.segments import (
    HASH,
    IDENTITY,
    decode_segment,
    encode_segment,
    hash_column,
    open_segment,
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
def test_decoding_returns_what_was_encoded(rows: int) -> None:
    body = encode_segment(a_table(rows))

    table = decode_segment(body, checksum=checksum(body), name="s")

    assert table.equals(a_table(rows))


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_opening_maps_what_was_encoded_and_outlives_the_file(tmp_path: Path, rows: int) -> None:
    body = encode_segment(a_table(rows))
    path = written(tmp_path, body)

    table = open_segment(path, checksum=checksum(body), name="s")
    path.unlink()

    assert table.equals(a_table(rows))


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
        {
            "at": [0, None],
            "price": ["1.50", None],
            "name": ["a", None],
            "tags": [["x"], []],
        },
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
def test_a_truncated_file_is_refused(tmp_path: Path, length: int) -> None:
    body = encode_segment(a_table())

    with pytest.raises(ProtocolViolation, match="segment s is corrupt"):
        open_segment(written(tmp_path, body[:length]), checksum=checksum(body), name="s")


@pytest.mark.parametrize("length", [0, 7, 200])
def test_a_truncated_file_is_refused_even_when_it_is_trusted(tmp_path: Path, length: int) -> None:
    body = encode_segment(a_table())

    with pytest.raises(CorruptSegment, match="not an Arrow file"):
        open_segment(written(tmp_path, body[:length]), checksum=None, name="s")


def test_a_file_that_was_never_a_segment_is_refused_despite_its_checksum() -> None:
    body = b"PAR1 this is somebody else's file PAR1"

    with pytest.raises(CorruptSegment, match="not an Arrow file"):
        decode_segment(body, checksum=checksum(body), name="s")


def test_a_checksum_is_32_hex_characters() -> None:
    assert checksum(b"") == "cae66941d9efbd404e4d88758ea67670"
