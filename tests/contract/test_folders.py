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
from sluice.declaration import aggregates as agg
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.places import InputCopy
from sluice.errors import ConfigurationError, StoreUnavailable
from sluice.protocol.records import checksum
from sluice.sinks import FilesTable
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


def test_what_may_be_replaced_is_declared_where_it_can_be_kept() -> None:
    spec = Files("s3://lake/sales/", "parquet", bounded=False, replaced="by partition")
    pipeline = Pipeline("replaced")

    with pytest.raises(ConfigurationError, match=r"is ordered, .* drop ordered=True"):
        Files("s3://lake/x/", bounded=False, ordered=True, replaced="by partition")
    with pytest.raises(ConfigurationError, match=r"'a' takes rows back, .* table=True"):
        pipeline.source("a", spec, table=True)
    with pytest.raises(ConfigurationError, match=r"'b' takes rows back, .* induced=True"):
        pipeline.source("b", spec, induced=True)
    rows = pipeline.source("sales", spec)
    with pytest.raises(ConfigurationError, match=r"'d' reads 'sales', which takes rows back.*lat"):
        rows.key_by("n").deduplicate("d", by="n")
    with pytest.raises(ConfigurationError, match=r"'out' appends, but 't' takes rows back"):
        rows.transform("t", lambda found: found).sink("out", FilesTable())
    rows.key_by("n").aggregate("totals", n=agg.count())


def test_a_file_that_is_too_large_to_be_kept_or_changes_under_the_plan_is_named(
    location: StoreLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = put(location, {"dt=2026-03-01/x": 1})
    source = opened(location, replaced="by partition")
    planned = plan_all(source)
    (entry,) = planned.position
    assert planned.begun == ("dt=2026-03-01/x",)
    assert source.content(entry) == encoded("parquet", 1)

    store.put("sales/dt=2026-03-01/x", encoded("parquet", 22))
    with pytest.raises(StoreUnavailable, match=r"x of .* was replaced while its epoch was plan"):
        source.content(entry)
    monkeypatch.setattr("sluice.connectors.files.source.MOST_COPIED_BYTES", 10)
    with pytest.raises(ConfigurationError, match=r"x of .* bytes, .* at most 10; write smaller"):
        source.content(entry)


@pytest.mark.parametrize("kind", FORMATS)
def test_rows_of_every_format_are_taken_back_from_their_copies(
    location: StoreLocation, kind: str
) -> None:
    store = put(location, {"dt=2026-03-01/x": 1, "dt=2026-03-02/x": 2}, kind)
    source = opened(location, kind, replaced="by partition")
    before = plan_all(source)
    copies = {}
    for entry in before.position:
        body = source.content(entry)
        store.put(f"root/{entry.partition}", body)
        copies[entry.partition] = InputCopy(
            location, f"root/{entry.partition}", len(body), checksum(body)
        )
    store.put("sales/dt=2026-03-01/x", encoded(kind, 3))
    store.delete(["sales/dt=2026-03-02/x"])

    after = plan_all(source.with_copies(copies, {}), before.position)

    assert after.begun == ("dt=2026-03-01/x",)
    body = encoded(kind, 3)
    store.put("root/new", body)
    new = {"dt=2026-03-01/x": InputCopy(location, "root/new", len(body), checksum(body))}
    reading = source.with_copies(new, copies).settled(entry.partition for entry in after.position)
    found = rows_of(reading, after)
    column = {"parquet": "n", "avro": "n"}.get(kind, "line")
    texts = [encoded(kind, n).decode().strip() if column == "line" else n for n in (1, 2, 3)]
    days = (date(2026, 3, 1), date(2026, 3, 2), date(2026, 3, 1))
    assert [(row[column], row["dt"], row["_weight"]) for row in found] == [
        (text, day, weight) for text, day, weight in zip(texts, days, (-1, -1, 1), strict=True)
    ]
    if kind == "json":
        decoded = reading.decoded()
        assert decoded is not None
        assert [(row["n"], row["_weight"]) for row in rows_of(decoded, after)] == [
            (1, -1),
            (2, -1),
            (3, 1),
        ]
