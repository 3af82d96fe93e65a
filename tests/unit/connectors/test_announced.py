"""A stage's rows have the columns that it was started for, or it fails and names the one."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sluice.connectors.columns import check_announced, narrowed_schema
from sluice.errors import ConfigurationError

BID = pa.struct([("price", pa.int64()), ("at", pa.int64()), ("name", pa.string())])
ANNOUNCED = pa.schema([("a", pa.int32()), ("b", pa.int32()), ("bid", BID), ("x.y", pa.int32())])


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([("b", "int32"), ("a", "int32")], r"columns of t/0 are b, a, .*, and were a, b, bid"),
        ([("a", "int32"), ("c", "int32")], r"'b' of t/0 is no such column, and was int32 when"),
        ([("a", "int64"), ("b", "int32")], r"column 'a' of t/0 is int64, and was int32 when"),
        ([("a", "int32"), ("b", "int32"), ("c", "int32")], r"'c' of t/0 is int32, and was no such"),
        ([("a", "int32"), ("b", "int32"), ("b", "int32")], r"column 'b' of t/0 is no such column"),
    ],
)
def test_other_columns_are_refused_by_name(found: list[tuple[str, str]], words: str) -> None:
    rest = [ANNOUNCED.field(2), ANNOUNCED.field(3)]
    fields = [pa.field(name, pa.type_for_alias(kind)) for name, kind in found]

    with pytest.raises(ConfigurationError, match=words):
        check_announced(pa.schema([*fields, *rest]), ANNOUNCED, "t/0")


def test_the_same_columns_are_taken_and_what_is_read_of_them_is_known() -> None:
    check_announced(pa.schema([*ANNOUNCED]), ANNOUNCED, "t/0")

    some = narrowed_schema(ANNOUNCED, ["bid.name", "a", "bid.price"])

    bid = pa.struct([("price", pa.int64()), ("name", pa.string())])
    assert some == pa.schema([("a", pa.int32()), ("bid", bid)])
    assert narrowed_schema(ANNOUNCED, ["bid", "bid.price"]) == pa.schema([("bid", BID)])
