"""Files as a declaration: which source it opens, and what it says of a wrong format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sluice.connectors.files import FilesSource
from sluice.connectors.parquet import ParquetSource
from sluice.errors import ConfigurationError
from sluice.params import param
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
        json_schema=DDL,
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"format": "csv"}, r"the format of Files\('/x'\) is 'csv'; use text, json, parquet"),
        ({"format": "json"}, r"the format of Files\('/x'\) is 'json', and nothing says"),
    ],
)
def test_a_wrong_format_is_refused_when_it_is_declared(
    arguments: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        Files("/x", **arguments)


@pytest.mark.parametrize("given", ["avro", "json"])
def test_a_wrong_parameter_is_refused_when_it_is_known(given: str) -> None:
    with pytest.raises(ConfigurationError, match=f"parameter 'format' is '{given}'"):
        Files("/x", format=param("format")).open({"format": given}, None)
