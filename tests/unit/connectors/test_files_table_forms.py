"""The refusals of a table of files, and the names of its files."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest

from sluice.connectors.files_table.maintenance import decode
from sluice.connectors.files_table.table import ManifestTable
from sluice.connectors.staged_files import is_deletes, of_data, partition_folder, unit_of
from sluice.errors import ConfigurationError
from sluice.sinks import FilesTable as Spec
from sluice.store.memory import InMemoryStore
from tests.contract.sink_case import JOB

TOKEN = "1-a"


def stage(columns: dict[str, Any], **form: Any) -> list[str]:
    store = InMemoryStore()
    ManifestTable("alerts", store, **form).stage(
        pa.table(columns), checkpoint_id=1, subtask=0, attempt_token=TOKEN
    )
    return [one.key for one in store.list("")]


@pytest.mark.parametrize(
    ("columns", "by", "message"),
    [
        ({"a": [1]}, ("day",), "its rows have no day; they have a"),
        ({"a": [1.5]}, ("a",), "cannot partition by 'a' of type double"),
        ({"a": [*range(1001)]}, ("a",), "1,001 different values .* more than 1,000"),
        ({"a": ["x" * 300]}, ("a",), "too long for a folder's name"),
    ],
)
def test_what_cannot_be_partitioned_is_refused_before_anything_is_written(
    columns: dict[str, Any], by: tuple[str, ...], message: str
) -> None:
    store = InMemoryStore()
    table = ManifestTable("alerts", store, partition_by=by)

    with pytest.raises(ConfigurationError, match=message):
        table.stage(pa.table(columns), checkpoint_id=1, subtask=0, attempt_token=TOKEN)
    assert [*store.list("")] == []


def test_partitions_are_named_as_hive_names_them() -> None:
    keys = stage({"a": ["x/y", None, ""], "n": [1, 2, 2]}, partition_by=("a", "n"))

    stem = "data/00000000000000000001-00000-1-a"
    assert keys == [
        f"{stem}.parts.json",
        f"{stem}/a=__HIVE_DEFAULT_PARTITION__/n=2/part.parquet",
        f"{stem}/a=x%2Fy/n=1/part.parquet",
    ]
    assert {unit_of(key) for key in keys} == {f"{stem}.parts.json"}
    assert [of_data(key) for key in keys] == [1, 1, 1]
    assert partition_folder(keys[2]) == "a=x%2Fy/n=1"
    assert not any(map(is_deletes, keys))


@pytest.mark.parametrize(
    "column",
    [
        pa.array([b"x"]),
        pa.array([1], pa.timestamp("ns")),
        pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
        pa.array([[0]], pa.list_(pa.timestamp("us"))),
    ],
    ids=str,
)
def test_types_that_json_would_change_are_refused(column: pa.Array) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot write column 'c' of type .* as JSON"):
        stage({"c": column}, format="json")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"format": "csv"}, "'csv'.* is not known; write parquet or json"),
        ({"partition_by": "day"}, r"is a text; write \('day',\)"),
        ({"partition_by": ("a", "a")}, "names a column twice"),
        ({"compact_when_files": 1}, "write 2 or more files, or 0 for never"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Spec(**given)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([-62_135_596_800_000_001], pa.timestamp("us")),
        pa.array([253_402_300_800], pa.timestamp("s", "Europe/Berlin")),
        pa.array([2**63 - 1, None], pa.timestamp("ms")),
        pa.array([2_932_897], pa.int32()).cast(pa.date32()),
    ],
    ids=["before", "after", "never", "date"],
)
def test_a_time_that_json_cannot_say_is_refused_by_its_column(column: pa.Array) -> None:
    with pytest.raises(ConfigurationError, match="column 'at' has times outside of the years 1 to"):
        stage({"at": column}, format="json")


def test_the_first_and_the_last_moment_that_json_can_say_come_back() -> None:
    table = ManifestTable("alerts", InMemoryStore(), format="json")
    rows = pa.table(
        {
            "at": pa.array(
                [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)],
                pa.timestamp("us", "Asia/Tokyo"),
            ),
            "day": [date.min, date.max],
        }
    )

    staged = table.stage(rows, checkpoint_id=1, subtask=0, attempt_token=TOKEN)
    assert staged is not None
    table.commit(JOB, 1, None, [staged])

    assert table.read().equals(rows)


@pytest.mark.parametrize("value", ["a\u2028b", "a\u2029b", "a\x85b", "a\nb", "é/%"])
def test_a_partition_of_any_text_is_one_line_for_foreign_readers(value: str) -> None:
    store = InMemoryStore()
    table = ManifestTable("alerts", store, partition_by=("p",), latest=True)
    for version in (1, 2):
        rows = pa.table({"p": [value], "v": [version]})
        staged = table.stage(rows, checkpoint_id=version, subtask=0, attempt_token=TOKEN)
        assert staged is not None
        table.commit(JOB, version, version - 1 or None, [staged])

    _, *lines = (store.get("_latest") or b"").decode().splitlines()

    files = [one.file for manifest in table.chain() for one in manifest.files]
    assert lines == [f"{store.root}/{file}" for file in files]
    assert decode((store.get("_latest") or b""), store.root) is not None
    assert table.read().to_pylist() == [{"p": value, "v": 1}, {"p": value, "v": 2}]
