"""Whatever a format of staged files writes, of every type that operators yield, is read back equal.

A table has one column of a drawn type, with drawn values of it, in the form in which Spark hands it
over (Arrow's) or a keyed stage does (Polars').  What a format cannot hold is refused by its types,
before a row is staged.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import uuid4

import msgspec
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sluice.connectors.json_rows import encode_lines
from sluice.connectors.kafka.messages import JsonRow, MessageFormat
from sluice.connectors.postgres.copy import as_csv
from sluice.connectors.staged_files import StagedFiles, check_format_types
from sluice.core.answers import Attempt
from sluice.errors import ConfigurationError
from sluice.store.memory import InMemoryStore
from tests.builders import PLANNED
from tests.examples import examples

FORMATS = ("parquet", "json")
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
moments = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59))  # noqa: DTZ001 - local times
Typed = tuple[pa.DataType, st.SearchStrategy[Any]]


def decimals(digits: int, scale: int) -> Typed:
    most = 10**digits - 1
    values = st.integers(-most, most).map(lambda n: Decimal(n).scaleb(-scale))
    return pa.decimal128(digits, scale), values


def whole(kind: pa.DataType) -> Typed:
    is_signed = pa.types.is_signed_integer(kind)
    bits = kind.bit_width - is_signed
    return kind, st.integers(-(2**bits) if is_signed else 0, 2**bits - 1)


SCALARS: list[Typed] = [
    (pa.bool_(), st.booleans()),
    *map(whole, (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
    *map(whole, (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    decimals(10, 2),
    (pa.string(), texts),
    (pa.binary(), st.binary(max_size=4)),
    (pa.date32(), st.dates(date(1, 1, 1))),
    (pa.timestamp("us"), moments),
    (pa.timestamp("us", "UTC"), moments.map(lambda at: at.replace(tzinfo=UTC))),
    (
        pa.timestamp("ms"),
        moments.map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000)),
    ),
    (pa.timestamp("ns"), st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1))),  # noqa: DTZ001
    (pa.duration("us"), st.timedeltas(timedelta(-999_999), timedelta(999_999))),
    (pa.time64("us"), st.times()),
    (pa.null(), st.none()),
]
KEYS = [typed for typed in SCALARS if typed[0] not in (pa.null(),)]


def nested(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    def listed(item: Typed) -> Typed:
        return pa.list_(item[0]), st.lists(st.none() | item[1], max_size=3)

    def struct(fields: list[Typed]) -> Typed:
        named = {f"f{number}": typed for number, typed in enumerate(fields)}
        kind = pa.struct([(name, kind) for name, (kind, _) in named.items()])
        values = {name: st.none() | values for name, (_, values) in named.items()}
        return kind, st.fixed_dictionaries(values)

    def mapped(key: Typed, item: Typed) -> Typed:
        entries = st.lists(
            st.tuples(key[1], st.none() | item[1]), max_size=3, unique_by=lambda e: repr(e[0])
        )
        return pa.map_(key[0], item[0]), entries

    return (
        inner.map(listed)
        | st.lists(inner, min_size=1, max_size=2).map(struct)
        | st.tuples(st.sampled_from(KEYS), inner).map(lambda both: mapped(*both))
    )


typed = st.recursive(st.sampled_from(SCALARS), nested, max_leaves=4)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    kind, values = draw(typed)
    rows = draw(st.lists(st.none() | values, min_size=1, max_size=4))
    table = pa.table({"k": range(len(rows)), "v": pa.array(rows, kind)})
    if not draw(st.booleans()):
        return table
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame.to_arrow(compat_level=pl.CompatLevel.oldest())


def read_back(table: pa.Table, format_: str) -> pa.Table:
    files = StagedFiles(sink="out", store=InMemoryStore(), format=format_)
    file = files.stage(
        table,
        Attempt(checkpoint_id=1, subtask=0, checkpoint_token=PLANNED, attempt_token=uuid4().hex),
    )
    assert file is not None
    return files.read(file.file, rows=file.rows, size_bytes=file.size_bytes)


def is_refused(table: pa.Table, format_: str) -> bool:
    try:
        check_format_types(format_, table.schema, "out")
    except ConfigurationError:
        return True
    return False


@pytest.mark.parametrize("format_", FORMATS)
@examples(150)
@given(tables())
def test_what_a_format_does_not_refuse_is_read_back_equal(format_: str, table: pa.Table) -> None:
    assume(not is_refused(table, format_))

    found = read_back(table, format_)

    assert found.schema.equals(table.schema)
    assert repr(found.to_pylist()) == repr(table.to_pylist())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.0, 1e300, 5e-324])
def test_json_keeps_every_double(value: float) -> None:
    for table in (pa.table({"v": [value, None, 1.5]}), pa.table({"v": [[value], None, [1.5]]})):
        assert repr(read_back(table, "json").to_pylist()) == repr(table.to_pylist())


@pytest.mark.parametrize(
    ("format_", "kind", "named"),
    [
        ("json", pa.timestamp("ns"), "type timestamp[ns] as JSON"),
        ("json", pa.list_(pa.timestamp("ns")), "within it timestamp[ns], as JSON"),
        ("json", pa.map_(pa.float64(), pa.int64()), "of type map<double, int64> as JSON"),
        ("json", pa.list_(pa.decimal128(5, -2)), "within it decimal128(5, -2), as JSON"),
        ("parquet", pa.decimal128(5, -2), "Parquet has no column for decimal128(5, -2)"),
        ("parquet", pa.list_(pa.struct([])), "Parquet has no column for struct<>"),
    ],
)
def test_what_a_format_cannot_hold_is_refused_by_its_type(
    format_: str, kind: pa.DataType, named: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"column 'v'.*{re.escape(named)}"):
        check_format_types(format_, pa.schema([("v", kind)]), "out")


# --- one form in every sink -----------------------------------------------------------------------


@examples(60)
@given(tables())
def test_every_sink_writes_the_same_json_of_a_value(table: pa.Table) -> None:
    assume(pa.types.is_nested(table.schema.field("v").type) and not is_refused(table, "json"))

    of_kafka = [msgspec.json.decode(row)["v"] for row in map(as_bytes, kafka_json(table))]
    of_files = [msgspec.json.decode(row)["v"] for row in encode_lines(table).splitlines()]
    of_postgres = [text and msgspec.json.decode(text) for text in postgres_json(table)]

    assert of_kafka == of_files == of_postgres


def test_each_type_has_its_one_form() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    row = {
        "map": [("color", "red"), ("size", None)],
        "days": [(date(2026, 1, 1), [b"\x00\xff"])],
        "numbers": [Decimal("1.50"), None],
        "floats": {"nan": math.nan, "most": -math.inf, "some": 0.5},
        "at": noon,
        "local": noon.replace(tzinfo=None),
    }
    schema = pa.schema(
        {
            "map": pa.map_(pa.string(), pa.string()),
            "days": pa.map_(pa.date32(), pa.list_(pa.binary())),
            "numbers": pa.list_(pa.decimal128(5, 2)),
            "floats": pa.struct(dict.fromkeys(("nan", "most", "some"), pa.float64())),
            "at": pa.timestamp("us", "UTC"),
            "local": pa.timestamp("us"),
        }
    )

    assert msgspec.json.decode(encode_lines(pa.Table.from_pylist([row], schema))) == {
        "map": {"color": "red", "size": None},
        "days": {"2026-01-01": ["AP8="]},
        "numbers": ["1.50", None],
        "floats": {"nan": "NaN", "most": "-Infinity", "some": 0.5},
        "at": "2026-01-01T12:00:00Z",
        "local": "2026-01-01T12:00:00",
    }


def test_a_key_that_a_map_has_twice_is_refused() -> None:
    twice = pa.table({"v": pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))})

    with pytest.raises(ConfigurationError, match="column 'v' has a map with a key that is there"):
        encode_lines(twice)


def kafka_json(table: pa.Table) -> Sequence[bytes | str | None]:
    return MessageFormat(JsonRow()).values(table)


def as_bytes(text: bytes | str | None) -> bytes:
    assert isinstance(text, bytes)
    return text


def postgres_json(table: pa.Table) -> list[str | None]:
    """The column ``v`` as COPY gets it, each row by itself."""
    rows = (bytes(*as_csv(table.slice(n, 1).select(["v"]))) for n in range(table.num_rows))
    return ["".join(*csv.reader(io.StringIO(row.decode()))) or None for row in rows]
