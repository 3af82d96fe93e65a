"""Types of columns, and schemas in Spark's DDL."""

from __future__ import annotations

import re

import pytest

from sluice.declaration.column_types import ColumnType, row_schema
from sluice.errors import ConfigurationError
from sluice.sources import Files


def test_every_form_of_a_type_is_read() -> None:
    text = (
        "a string COLLATE UTF8_LCASE, b array<struct<x: int, y decimal(10, 2)>> COMMENT 'it, s', "
        "`c d` map<string, long> NOT NULL, e interval day to second, f dec, g timestamp_ltz, "
        "h struct<>"
    )

    columns = row_schema("Files('x')", text)

    inner = (("x", ColumnType("int")), ("y", ColumnType("decimal", (10, 2))))
    assert columns == {
        "a": ColumnType("string"),
        "b": ColumnType("array", (), (("", ColumnType("struct", (), inner)),)),
        "c d": ColumnType("map", (), (("", ColumnType("string")), ("", ColumnType("bigint")))),
        "e": ColumnType("interval"),
        "f": ColumnType("decimal"),
        "g": ColumnType("timestamp"),
        "h": ColumnType("struct"),
    }


NO_TYPE = "gives 'a' the type '{}', which Spark does not have ({})"
DECIMAL = "it takes at most 38 digits, and how many of them are decimals"


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        (
            "type strng",
            "gives 'type' the type 'strng', which Spark does not have (did you mean 'string'?)",
        ),
        ("a string b int", "lacks a comma before 'b'"),
        ("a", "lacks a type of 'a' at its end"),
        ("a int,", "lacks a column's name at its end"),
        ("a int, A int", "names the column 'A' twice"),
        ("a decimal(x)", "has 'x' where a number belongs"),
        ("a array<decimal(39, 2)>", NO_TYPE.format("decimal(39,2)", DECIMAL)),
        ("a decimal(10, 11)", NO_TYPE.format("decimal(10,11)", DECIMAL)),
        ("a decimal(40)", NO_TYPE.format("decimal(40)", DECIMAL)),
        ("a varchar", NO_TYPE.format("varchar", "it takes a length")),
        ("a int(5)", NO_TYPE.format("int(5)", "it takes no number")),
        ("a array<int", "lacks '>' at its end"),
        ("a int, = b", "lacks a column's name before '='"),
    ],
)
def test_a_mistake_is_one_sentence_when_the_source_is_declared(text: str, mistake: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        Files("x.csv", format="csv", schema=text)

    assert str(error.value) == (
        f"Files('x.csv') has the schema {text!r}, which {mistake}; write it as 'name string, "
        "n bigint'"
    )


def test_a_type_is_written_as_in_a_schema() -> None:
    text = "a array<struct<x:int,y:decimal(10,2)>>, b map<string,bigint>, c struct<>"

    columns = row_schema("Files('x')", text)

    assert ", ".join(f"{name} {of}" for name, of in columns.items()) == text


@pytest.mark.parametrize("of", ["array<int>", "map<string,int>", "struct<x:int>"])
def test_what_no_field_of_csv_holds_is_refused_when_the_source_is_declared(of: str) -> None:
    said = f"the schema of Files('x.csv') has a column 'b' of type {of}, and a field of CSV holds"

    with pytest.raises(ConfigurationError, match=re.escape(said)):
        Files("x.csv", format="csv", schema=f"a int, b {of}")
