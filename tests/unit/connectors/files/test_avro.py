"""Rows of Avro files: any cut, any block, every codec, and types as Spark's own reader has them."""

# ruff: noqa: SLF001 - blocks of a file are read one by one

from __future__ import annotations

import io
import zlib
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from sluice.connectors.files import avro
from sluice.connectors.files.avro import AvroSource
from sluice.core.plan import Slice
from sluice.errors import ConfigurationError
from tests.contract.source_rules import check_replay, plan_all, rows_of
from tests.examples import examples

INSTANT = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)


def a_schema(*fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "event", "namespace": "of.tests", "fields": list(fields)}


def a_field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind}


NUMBERS = a_schema(a_field("n", "long"))


def write(path: Path, schema: Any, rows: list[Any], **how: Any) -> None:
    with path.open("wb") as file:
        fastavro.writer(file, schema, rows, **how)


def all_rows_of(folder: Path) -> list[dict[str, Any]]:
    source = AvroSource(str(folder))
    return rows_of(source, plan_all(source))


@examples(60)
@given(
    files=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 60)), max_size=4),
    cuts=st.lists(st.tuples(st.none() | st.integers(1, 15), st.integers(1, 5)), max_size=20),
    chunk_rows=st.integers(1, 12),
    codec=st.sampled_from(["null", "deflate"]),
)
def test_any_sequence_of_cuts_covers_every_row_exactly_once(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[tuple[int, int]],
    cuts: list[tuple[int | None, int]],
    chunk_rows: int,
    codec: str,
) -> None:
    folder = tmp_path_factory.mktemp("cuts")
    total = 0
    for number, (rows, interval) in enumerate(files):
        numbers = [{"n": n} for n in range(total, total + rows)]
        write(folder / f"{number}.avro", NUMBERS, numbers, sync_interval=interval, codec=codec)
        total += rows
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(avro, "CHUNK_ROWS", chunk_rows)

        check_replay(AvroSource(str(folder)), cuts, [{"n": n} for n in range(total)], files=4)


def test_types_are_those_of_spark_and_times_are_utc(tmp_path: Path) -> None:
    naive = INSTANT.replace(tzinfo=None)
    millis = {"type": "long", "logicalType": "timestamp-millis"}
    point = {"type": "record", "name": "point", "fields": [a_field("at", ["null", millis])]}
    schema = a_schema(
        a_field("micros", {"type": "long", "logicalType": "timestamp-micros"}),
        a_field("local", {"type": "long", "logicalType": "local-timestamp-millis"}),
        a_field("nanos", {"type": "long", "logicalType": "timestamp-nanos"}),
        a_field("day", {"type": "int", "logicalType": "date"}),
        a_field("price", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}),
        a_field("id", {"type": "string", "logicalType": "uuid"}),
        a_field("color", {"type": "enum", "name": "color", "symbols": ["RED", "BLUE"]}),
        a_field("again", ["null", "color"]),
        a_field("four", {"type": "fixed", "name": "four", "size": 4}),
        a_field("points", {"type": "array", "items": point}),
        a_field("by_name", {"type": "map", "values": "of.tests.point"}),
        a_field("wide", ["int", "null", "long"]),
        a_field("float", "float"),
        a_field("flag", ["null", "boolean"]),
        a_field("unknown", {"type": "string", "logicalType": "of another day"}),
    )
    identity = "12345678-1234-5678-1234-567812345678"
    row = {
        "micros": INSTANT,
        "local": naive,
        "nanos": 1_767_323_045_678_901_999,
        "day": date(2026, 1, 2),
        "price": Decimal("12.34"),
        "id": UUID(identity),
        "color": "BLUE",
        "again": "RED",
        "four": b"1234",
        "points": [{"at": INSTANT}, {"at": None}],
        "by_name": {"a": {"at": INSTANT}},
        "wide": 2**40,
        "float": 0.5,
        "flag": None,
        "unknown": "text",
    }
    write(tmp_path / "a", schema, [row])
    source = AvroSource(str(tmp_path))

    [batch] = source.read(Slice(partition="a", start=0, end=1, first_record=0, records=1))

    utc = pa.timestamp("us", tz="UTC")
    cut_off = INSTANT.replace(microsecond=678_000)
    assert batch.schema == source.schema()
    assert [str(kind) for kind in source.schema().types] == [
        *(str(utc) for _ in range(3)),
        "date32[day]",
        "decimal128(10, 2)",
        *("string" for _ in range(3)),
        "binary",
        f"list<item: struct<at: {utc}>>",
        f"map<string, struct<at: {utc}>>",
        *("int64", "float", "bool", "string"),
    ]
    assert batch.to_pylist() == [
        row
        | {
            "local": cut_off,
            "nanos": INSTANT,
            "id": identity,
            "points": [{"at": cut_off}, {"at": None}],
            "by_name": [("a", {"at": cut_off})],
        }
    ]


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (["int", "string"], "field 'x' of a of .* is a union of int, string, which no column"),
        ("null", "field 'x' of a of .* is null, which has no column type"),
        ({"type": "int", "logicalType": "time-millis"}, r"'x' of .* is time-millis \(int\)"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 39, "scale": 0},
            "a decimal of 39 digits; at most 38",
        ),
        (["null", "event"], "a record 'of.tests.event' within itself"),
        (
            {"type": "array", "items": {"type": "record", "name": "e", "fields": []}},
            r"field 'x\[\]' of .* is a record without a field",
        ),
    ],
)
def test_a_type_without_a_column_is_named_with_its_field(
    tmp_path: Path, kind: Any, sentence: str
) -> None:
    write(tmp_path / "a", a_schema(a_field("x", kind)), [])

    with pytest.raises(ConfigurationError, match=sentence):
        plan_all(AvroSource(str(tmp_path)))


@pytest.mark.parametrize("name", ["price", "of.tests.price"])
def test_a_named_type_is_found_by_the_name_that_its_record_lends_it(
    tmp_path: Path, name: str
) -> None:
    price = {"type": "fixed", "name": "price", "size": 4, "logicalType": "decimal"}
    schema = a_schema(a_field("a", price | {"precision": 9, "scale": 2}), a_field("b", name))
    row = {"a": Decimal("1.25"), "b": Decimal("2.50")}
    # fastavro's writer knows no decimals by name.
    write(tmp_path / "a", schema, [{"a": row["a"], "b": b"\0\0\0\xfa"}])

    assert all_rows_of(tmp_path) == [row]


def test_a_time_that_no_microsecond_can_say_is_an_error(tmp_path: Path) -> None:
    kind = {"type": "long", "logicalType": "local-timestamp-millis"}
    write(tmp_path / "a", a_schema(a_field("at", kind)), [{"at": 2**62}])

    with pytest.raises(ConfigurationError, match=r"column 'at' of a of .* no timestamp"):
        all_rows_of(tmp_path)


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        (a_schema(a_field("_malformed", "string")), "a column '_malformed', a name"),
        ("long", "rows of type 'long'"),
    ],
    ids=["a name of ours", "no records"],
)
def test_rows_without_columns_of_their_own_are_refused(
    tmp_path: Path, schema: Any, sentence: str
) -> None:
    write(tmp_path / "a", schema, [])

    with pytest.raises(ConfigurationError, match=f"a of .* has {sentence}"):
        AvroSource(str(tmp_path)).schema()


def test_a_file_with_other_columns_is_named_with_its_column(tmp_path: Path) -> None:
    write(tmp_path / "a", NUMBERS, [{"n": 1}])
    write(tmp_path / "b", a_schema(a_field("n", ["null", "string"])), [{"n": "1"}])

    with pytest.raises(ConfigurationError, match="column 'n' of b is string, and of a int64"):
        AvroSource(str(tmp_path)).plan((), max_records=1, parallelism=1)


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_every_codec_of_fastavro_is_read(tmp_path: Path, codec: str) -> None:
    write(tmp_path / "a", NUMBERS, [{"n": n} for n in range(100)], codec=codec, sync_interval=99)

    assert all_rows_of(tmp_path) == [{"n": n} for n in range(100)]


@pytest.mark.parametrize("codec", ["snappy", "zstandard"])
def test_codecs_that_fastavro_lacks_here_are_read(tmp_path: Path, codec: str) -> None:
    """Such a file is made of an uncompressed one, block by block, as the format says."""
    plain = io.BytesIO()
    rows = [{"n": n} for n in range(1000)]
    fastavro.writer(plain, NUMBERS, rows, codec="null", sync_interval=300)
    (tmp_path / "plain").write_bytes(plain.getvalue())
    source = AvroSource(str(tmp_path / "plain"))
    of = source._file(next(iter(source._files.listed())))
    assert isinstance(of, avro.AvroFile)
    with of.opened() as file:
        header = of.header(file)
        start = plain.getvalue()[: file.tell()].replace(
            b"\x14avro.codec\x08null", b"\x14avro.codec" + bytes([2 * len(codec)]) + codec.encode()
        )
        body = [start]
        for block in of.blocks(file, header):
            raw = of._decompressed(file, header, block)
            if codec == "snappy":
                small = bytes(pa.Codec("snappy").compress(raw)) + zlib.crc32(raw).to_bytes(4, "big")
            else:
                small = zstandard.compress(raw)
            body += [*avro._block([small], block.rows)[:-1], header.sync]
    (tmp_path / "plain").unlink()
    (tmp_path / "a").write_bytes(b"".join(body))

    assert all_rows_of(tmp_path) == rows


def test_blocks_outside_of_a_slice_are_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a", NUMBERS, [{"n": n} for n in range(10_000)], sync_interval=200)
    source = AvroSource(str(tmp_path))
    barrier = plan_all(source, parallelism=8)
    decoded: list[int] = []
    real = avro.AvroFile._decompressed

    def counted(self: Any, file: Any, header: Any, block: avro.Block) -> bytes:
        decoded.append(block.rows)
        return real(self, file, header, block)

    monkeypatch.setattr(avro.AvroFile, "_decompressed", counted)

    for piece in barrier.slices:
        decoded.clear()
        assert sum(batch.num_rows for batch in source.read(piece)) == piece.records
        assert piece.records <= sum(decoded) <= piece.records + 200
    assert len(barrier.slices) == 8  # One huge file is shared by all subtasks.


@pytest.mark.parametrize("at", [-40, -8])
def test_a_damaged_file_is_named(tmp_path: Path, at: int) -> None:
    write(tmp_path / "a", NUMBERS, [{"n": n} for n in range(1000)], codec="deflate")
    body = bytearray((tmp_path / "a").read_bytes())
    body[at] ^= 0xFF
    (tmp_path / "a").write_bytes(body)

    with pytest.raises(ConfigurationError, match=r"a of .* is damaged .*restore it"):
        all_rows_of(tmp_path)


def test_a_slice_of_a_file_that_became_shorter_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a", NUMBERS, [{"n": n} for n in range(5)])
    source = AvroSource(str(tmp_path))
    [piece] = plan_all(source, parallelism=1).slices
    write(tmp_path / "a", NUMBERS, [{"n": n} for n in range(4)])

    with pytest.raises(ConfigurationError, match="was replaced after this epoch was planned"):
        list(source.read(piece))
