"""The type of a column holds the values of all files exactly, or there is none."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.connectors.files_table.columns import conformed_to_schema, united, wider
from sluice.errors import ConfigurationError

LEAST_AND_MOST = {
    **{
        kind: ((0 if "u" in str(kind) else -(2 ** (kind.bit_width - 1))), most)
        for kind in (
            pa.int8(), pa.int16(), pa.int32(), pa.int64(),
            pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
        )
        for most in [2 ** (kind.bit_width - ("u" not in str(kind))) - 1]
    },
    pa.float32(): (-3.4028234663852886e38, 1.401298464324817e-45),
    pa.float64(): (-1.7976931348623157e308, 0.1),
    pa.decimal128(10, 2): (Decimal("-99999999.99"), Decimal("0.01")),
    pa.decimal128(38, 10): (Decimal("-9999999999999999999999999999.9999999999"), Decimal(1)),
    pa.string(): ("", "é"),
    pa.large_string(): ("", "é"),
    pa.binary(): (b"", b"\xff"),
    pa.timestamp("us"): (-(2**63), 2**63 - 1),
    pa.timestamp("us", "UTC"): (-(2**63), 2**63 - 1),
    pa.timestamp("ms"): (-(2**63), 2**63 - 1),
    pa.date32(): (-(2**31), 2**31 - 1),
    pa.bool_(): (False, True),
}  # fmt: skip
flat = st.sampled_from([*LEAST_AND_MOST])
kinds = st.recursive(
    flat,
    lambda inner: (
        inner.map(pa.list_)
        | inner.map(pa.large_list)
        | st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=2).map(
            lambda fields: pa.struct([*fields.items()])
        )
    ),
    max_leaves=3,
)


def values_of(kind: pa.DataType) -> pa.Array:
    """The least and the greatest of *kind*, and null."""
    if pa.types.is_struct(kind):
        fields = [values_of(field.type) for field in kind]
        return pa.StructArray.from_arrays(fields, fields=[*kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = values_of(kind.value_type)
        return (
            pa.nulls(3, kind) if _is_time(kind) else pa.array([inner.to_pylist(), [], None], kind)
        )
    if _is_time(kind):
        whole = pa.int32() if kind == pa.date32() else pa.int64()
        return pa.array([*LEAST_AND_MOST[kind], None], whole).cast(kind)
    return pa.array([*LEAST_AND_MOST[kind], None], kind)


def _is_time(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_is_time(kind.field(number).type) for number in range(kind.num_fields))
    return bool(pa.types.is_temporal(kind))


@given(kinds, kinds)
def test_the_wider_type_holds_every_value_of_both_and_gives_it_back(
    one: pa.DataType, other: pa.DataType
) -> None:
    wide = wider(one, other)

    if wide is None:
        return
    for kind in (one, other):
        values = values_of(kind)
        held = values.cast(wide)
        assert held.null_count == values.null_count
        assert held.cast(kind).equals(values)


@given(kinds, kinds)
def test_who_comes_first_is_no_matter_but_for_the_order_of_fields(
    one: pa.DataType, other: pa.DataType
) -> None:
    assert (wider(one, other) is None) == (wider(other, one) is None)
    assert wider(one, one) == one
    assert wider(pa.null(), one) == wider(one, pa.null()) == one


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.int8(), pa.uint8(), pa.int16()),
        (pa.int32(), pa.float32(), pa.float64()),
        (pa.int16(), pa.float32(), pa.float32()),
        (pa.int64(), pa.float64(), None),
        (pa.int64(), pa.uint64(), None),
        (pa.int64(), pa.decimal128(10, 2), pa.decimal128(21, 2)),
        (pa.decimal128(10, 2), pa.decimal128(12, 6), pa.decimal128(14, 6)),
        (pa.decimal128(38, 0), pa.decimal128(38, 10), None),
        (pa.int64(), pa.string(), None),
        (pa.date32(), pa.timestamp("us"), None),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), None),
        (pa.timestamp("ms"), pa.timestamp("us"), None),
        (pa.dictionary(pa.int32(), pa.string()), pa.large_string(), pa.large_string()),
        (
            pa.struct([("a", pa.int32())]),
            pa.struct([("b", pa.string()), ("a", pa.int64())]),
            pa.struct([("a", pa.int64()), ("b", pa.string())]),
        ),
        (pa.list_(pa.int32()), pa.list_(pa.string()), None),
    ],
)
def test_types_that_go_together(
    one: pa.DataType, other: pa.DataType, both: pa.DataType | None
) -> None:
    assert wider(one, other) == both


def test_a_column_that_fits_no_type_is_named_with_both_types_and_what_to_do() -> None:
    before = pa.schema([("id", pa.int64()), ("v", pa.float64())])
    with pytest.raises(ConfigurationError) as refused:
        united([before, pa.schema([("v", pa.string())])], "the table at s3://x")

    assert str(refused.value) == (
        "column 'v' of the table at s3://x is double, and the rows to be added have string, which "
        "no type holds both of; cast it to double in the stage, give the column another name, or "
        "begin a table elsewhere"
    )


def test_rows_take_the_types_of_the_table_and_null_where_they_have_no_column() -> None:
    schema = united([pa.schema([("a", pa.int32())]), pa.schema([("b", pa.string())])], "it")
    rows = pa.table({"b": ["x"], "_deleted": [True]})

    assert conformed_to_schema(rows, schema).to_pylist() == [
        {"a": None, "b": "x", "_deleted": True}
    ]
