"""Files as a declaration: which source it opens, and what it says of a wrong format."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sluice.connectors.files.parquet import ParquetSource
from sluice.connectors.files.text import FilesSource
from sluice.declaration.params import param
from sluice.declaration.places import TextDecoding
from sluice.errors import ConfigurationError
from sluice.sources import Files

DDL = "a int, b struct<c: string>"


def test_one_declaration_reads_json_or_parquet(tmp_path: Path) -> None:
    files = Files(str(tmp_path), format=param("format", "parquet"), schema=DDL, bounded=False)
    location = f"file://{tmp_path}"

    assert [one.name for one in files.params] == ["format"]
    assert files.open({}, None) == ParquetSource(location, bounded=False)
    assert files.open({"format": "text"}, None) == FilesSource(location, bounded=False)
    opened = files.open({"format": "json"}, "http://localhost:1")
    assert opened == FilesSource(
        location,
        format="json",
        bounded=False,
        endpoint_url="http://localhost:1",
        text_decoding=TextDecoding(format="json", schema=DDL),
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"format": "xml"}, r"Files\('/x'\): format is 'xml'; use 'text', 'json', 'csv', 'parq"),
        ({"format": "csv"}, r"is 'csv', and nothing says what the rows hold"),
        ({"ordered": True}, "is ordered and bounded; .* add bounded=False"),
        ({"give_up_after_s": -1}, "give_up_after_s is -1; use 0 or more"),
        ({"quote": ""}, "quote of .* is ''; give one character"),
        ({"delimiter": "\n"}, "delimiter of .* no line break"),
        ({"options": {"mode": "FAILFAST"}}, "sets the option 'mode', which sluice decides"),
        ({"options": {"MODE": "FAILFAST"}}, "sets the option 'MODE', which sluice decides"),
        (
            {"format": "json", "schema": "k string", "options": {"timestampFormt": "yyyy"}},
            "option 'timestampFormt', which Spark does not know for json; did you mean 'time",
        ),
        (
            {"format": "json", "schema": "k string", "header": True},
            r"has header=True, which its format 'json' does not use; drop it, or .*='csv'",
        ),
        ({"schema": "k string"}, "has schema='k string', .* 'text' .* format='json' or 'csv'"),
        ({"format": "avro", "delimiter": ";"}, "has delimiter=';', which its format 'avro' does"),
        ({"format": "parquet", "options": {"locale": "de"}}, "which its format 'parquet' does not"),
        ({"format": "json"}, r"the format of Files\('/x'\) is 'json', and nothing says"),
    ],
)
def test_a_wrong_format_is_refused_when_it_is_declared(
    arguments: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        Files("/x", **arguments)


@pytest.mark.parametrize("given", ["xml", "json", "csv"])
def test_a_wrong_parameter_is_refused_when_it_is_known(given: str) -> None:
    with pytest.raises(ConfigurationError, match=f"parameter 'format' is '{given}'"):
        Files("/x", format=param("format")).open({"format": given}, None)


def test_a_declaration_of_csv_says_how_spark_reads_it(tmp_path: Path) -> None:
    files = Files(
        str(tmp_path),
        format="csv",
        schema="a int, b date",
        header=True,
        delimiter=";",
        null_value="NA",
        options={"dateFormat": "dd.MM.yyyy"},
    )

    assert pickle.loads(pickle.dumps(files)) == files  # noqa: S301 - our own bytes
    assert files.open({}, None).decoding == TextDecoding(
        format="csv",
        schema="a int, b date",
        options={
            "sep": ";",
            "quote": '"',
            "escape": '"',
            "nullValue": "NA",
            "dateFormat": "dd.MM.yyyy",
        },
        has_header=True,
    )


def test_order_and_patience_reach_the_source_of_every_format(tmp_path: Path) -> None:
    for format_ in ("text", "parquet", "avro"):
        files = Files(str(tmp_path), format=format_, bounded=False, ordered=True, give_up_after_s=7)
        source: Any = files.open({}, None)
        assert (source.ordered, source.give_up_after_s, source.bounded) == (True, 7, False)


def test_given_rows_may_lack_the_columns_of_folders_that_are_declared(tmp_path: Path) -> None:
    how: Any = {"format": "json", "schema": DDL}

    form = Files(str(tmp_path), partitions="dt date", **how).given_form({})

    assert form is not None
    assert form.decoding is not None
    assert form.decoding.keeps == ("dt",)
    assert form.schema.field("dt").type == pa.date32()
    assert form.fills["dt"](0, 2).to_pylist() == [None, None]
    discovered = Files(str(tmp_path), **how).given_form({})
    assert discovered is not None
    assert "dt" not in discovered.schema.names
    with pytest.raises(ConfigurationError, match=r"the column 'A', which its folders .*'A int'"):
        Files(str(tmp_path), partitions="A date", **how).given_form({})
