"""Columns in the names of folders, on every store: read, declared, refused; what is no file of it.

What Spark itself writes and infers is in tests/spark.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from datetime import date
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.connectors.files.avro import AvroSource
from sluice.connectors.files.parquet import ParquetSource
from sluice.connectors.files.text import FilesSource
from sluice.errors import ConfigurationError
from sluice.sources import Files
from sluice.store.object_store import ObjectStore
from sluice.store.open import StoreLocation, open_store
from tests.contract.source_rules import plan_all, rows_of

FORMATS = {
    "text": {},
    "json": {"schema": "n int"},
    "csv": {"schema": "n int"},
    "parquet": {},
    "avro": {},
}


def encoded(kind: str, n: int) -> bytes:
    body = io.BytesIO()
    if kind == "parquet":
        pq.write_table(pa.table({"n": pa.array([n], pa.int32())}), body)
    elif kind == "avro":
        schema = {"type": "record", "name": "row", "fields": [{"name": "n", "type": "int"}]}
        fastavro.writer(body, schema, [{"n": n}])
    else:
        body.write({"text": f"{n}\n", "csv": f"{n}\n", "json": f'{{"n": {n}}}\n'}[kind].encode())
    return body.getvalue()


def put(location: StoreLocation, files: Mapping[str, int], kind: str = "parquet") -> ObjectStore:
    store = open_store(location)
    for name, n in files.items():
        store.put(f"sales/{name}", encoded(kind, n))
    return store


def opened(
    location: StoreLocation, kind: str = "parquet", **how: Any
) -> FilesSource | ParquetSource | AvroSource:
    how = {"bounded": False} | FORMATS[kind] | how
    spec = Files(f"{location.root}/sales/", format=kind, **how)  # type: ignore[arg-type]
    source = spec.open({}, location.endpoint_url)
    assert isinstance(source, FilesSource | ParquetSource | AvroSource)
    return source


def test_rows_have_the_columns_of_their_folders(location: StoreLocation) -> None:
    for kind in FORMATS:
        where = StoreLocation(f"{location.root}/{kind}", location.endpoint_url)
        files = {"dt=2026-03-01/c=a%2Fb/x": 1, "dt=2026-03-02/c=__HIVE_DEFAULT_PARTITION__/y": 2}
        put(where, files, kind)
        hidden = ("_SUCCESS", ".dt=1/x", "_temporary/0/dt=1/x", "dt=2026-03-01/_x", "._COPYING_")
        put(where, dict.fromkeys([*hidden, "dt=2026-03-01/c=a/x._COPYING_"], 9), kind)
        source = opened(where, kind)

        rows = rows_of(source, plan_all(source))

        expected = [{"dt": date(2026, 3, 1), "c": "a/b"}, {"dt": date(2026, 3, 2), "c": None}]
        assert [{"dt": row["dt"], "c": row["c"]} for row in rows] == expected
        without = opened(where, kind, partitions="")
        assert all("dt" not in row for row in rows_of(without, plan_all(without)))
        if source.decoding is not None:
            assert source.decoding.keeps == ("dt", "c")


def test_declared_types_are_taken_and_a_value_that_is_none_of_them_is_named(
    location: StoreLocation,
) -> None:
    store = put(location, {"v=01/_day=3/x": 1})
    source = opened(location, partitions="V string, _day bigint")

    before = plan_all(source)

    assert rows_of(source, before) == [{"n": 1, "V": "01", "_day": 3}]
    store.put("sales/v=1/_day=x/x", encoded("parquet", 2))
    with pytest.raises(ConfigurationError, match=r"v=1/_day=x/x of .* _day 'x', which is no bigi"):
        plan_all(source, before.position)


@pytest.mark.parametrize(
    ("first", "then", "sentence"),
    [
        ("v=1/x", "v=a/x", "v=a/x of .* v 'a', which is no int; .*partitions='v string'"),
        ("v=1.5/x", "v=3000000000/x", "'v' .* was read as double, .* it would be string"),
        ("v=1/x", "w=1/x", "w=1/x of .* is in folders of w=, and the columns .* are v="),
        ("v=1/x", "a", "a of .* is in folders of no column"),
        ("a", "v=1/x", "v=1/x of .* in folders of v=, and a of no column"),
    ],
)
def test_a_new_file_never_changes_the_columns_of_those_that_were_read(
    location: StoreLocation, first: str, then: str, sentence: str
) -> None:
    store = put(location, {first: 1})
    source = opened(location)
    position = plan_all(source).position
    store.put(f"sales/{then}", encoded("parquet", 2))

    with pytest.raises(ConfigurationError, match=sentence):
        plan_all(source, position)


@pytest.mark.parametrize("name", ["=1/x", "v=/x", "v=1/V=2/x"])
def test_a_folder_without_a_name_or_a_value_or_twice_is_refused(
    location: StoreLocation, name: str
) -> None:
    put(location, {name: 1})

    with pytest.raises(ConfigurationError, match=r"has a column (without a|twice).*partitions="):
        plan_all(opened(location))


def test_a_folder_hides_the_column_of_its_name_in_a_file(location: StoreLocation) -> None:
    put(location, {"N=7/x": 1})
    source = opened(location)

    assert rows_of(source, plan_all(source)) == [{"N": 7}]
    assert isinstance(source, ParquetSource)
    (piece,) = plan_all(source).slices
    assert [batch.to_pylist() for batch in source.read(piece, ["N"])] == [[{"N": 7}]]


def test_a_schema_that_names_a_folders_column_is_refused(location: StoreLocation) -> None:
    put(location, {"n=7/x": 1}, "json")

    with pytest.raises(ConfigurationError, match=r"schema of .* 'n', which its folders have, too"):
        _ = opened(location, "json").decoding


def test_types_of_an_ordered_folder_have_to_be_declared(location: StoreLocation) -> None:
    put(location, {"dt=2026-03-01/x": 1, "dt=2026-03-02/x": 2})

    with pytest.raises(ConfigurationError, match=r'ordered=True .*partitions="dt date"'):
        plan_all(opened(location, ordered=True))
    source = opened(location, ordered=True, partitions="dt date")
    assert [row["dt"].day for row in rows_of(source, plan_all(source))] == [1, 2]


SPARKS = "part-00000-{}-c000.snappy.parquet"
A, B = (SPARKS.format(f"{letter * 8}-0000-4000-8000-{letter * 12}") for letter in "ab")


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(
    ("before", "gone", "new", "sentence"),
    [
        (["dt=1/a", "dt=2/b"], "dt=2/b", "dt=2/c", "dt=2 of .* overwritten: dt=2/b, .* dt=2/c is"),
        (["dt=1/a", "dt=1/b"], "dt=1/a", "dt=1/c", "dt=1 of .* overwritten: dt=1/a"),
        ([A], A, B, f"the folder of .* overwritten: {A}"),
        (["dt=1/a", "dt=2/b"], "dt=1/a", "dt=3/c", None),  # A day that is too old, and a new one.
        (["a", "b"], "a", "c", None),  # A landing place that is tidied.
        ([A, SPARKS.format("x")], A, B, None),  # Of the files in it one is left.
    ],
)
def test_a_new_version_of_rows_that_were_read_is_refused(
    location: StoreLocation,
    before: list[str],
    gone: str,
    new: str,
    sentence: str | None,
    ordered: bool,
) -> None:
    store = put(location, dict.fromkeys(["_SUCCESS", *before], 1))
    how: dict[str, Any] = {"ordered": ordered, "partitions": "dt int" if "=" in gone else ""}
    position = plan_all(opened(location, **how)).position
    store.delete([f"sales/{gone}"])
    position = plan_all(opened(location, **how), position).position  # Gone alone is no new version.
    store.put(f"sales/{new}", encoded("parquet", 2))

    if sentence is None:
        assert plan_all(opened(location, **how), position).records == 1
        return
    with pytest.raises(ConfigurationError, match=sentence):
        plan_all(opened(location, **how), position)
    taken = opened(location, replaced="append", **how)
    assert plan_all(taken, position).records == 1


def test_a_file_that_is_being_written_is_read_when_it_is_whole(location: StoreLocation) -> None:
    whole = encoded("parquet", 2)
    store = put(location, {"dt=1/a": 1})
    source = opened(location)
    position = plan_all(source).position
    store.put("sales/dt=1/b", whole[:-9])

    begun = plan_all(source, position)

    assert begun.records == 0
    with pytest.raises(ConfigurationError, match=r"dt=1/b of .* was not written to for 0 s"):
        plan_all(opened(location, give_up_after_s=0), position)
    store.put("sales/dt=1/b", whole)
    assert rows_of(source, plan_all(source, begun.position)) == [{"n": 2, "dt": 1}]
