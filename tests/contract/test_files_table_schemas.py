"""Rows go into a table of files when its columns can hold them, which is asked before they do."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from harness.counting_store import CountingStore
from sluice.connectors.files_table.table import ManifestTable
from sluice.core.answers import Committable
from sluice.core.timeline import Recovery
from sluice.errors import ConfigurationError
from sluice.store.memory import InMemoryStore
from sluice.store.object_store import ObjectStore
from tests.contract.sink_case import JOB, RESTORED

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def stage(table: ManifestTable, checkpoint_id: int, rows: pa.Table) -> Committable:
    staged = table.stage(rows, checkpoint_id=checkpoint_id, subtask=0, attempt_token="a-0")  # noqa: S106
    assert staged is not None
    return staged


def publish(table: ManifestTable, checkpoint_id: int, parent: int | None, rows: pa.Table) -> None:
    """Check and commit the rows, as a coordinator does."""
    staged = stage(table, checkpoint_id, rows)
    table.check(parent, rows.schema, ())
    table.commit(JOB, checkpoint_id, parent, [staged])


def of(*values: object, type_: pa.DataType | None = None) -> pa.Table:
    return pa.table({"v": pa.array([*values], type_)})


@pytest.mark.parametrize("form", ["parquet", "json"])
@pytest.mark.parametrize(
    ("before", "now"),
    [
        (of(1), of("one")),
        (of(1), of(1.5)),
        (of(NOW.date()), of(NOW.replace(tzinfo=None))),
        (of(NOW.replace(tzinfo=None)), of(NOW, type_=pa.timestamp("us", "UTC"))),
    ],
    ids=["text", "double", "time", "instant"],
)
def test_a_column_of_another_type_is_refused_before_its_checkpoint_completes(
    store: ObjectStore, form: str, before: pa.Table, now: pa.Table
) -> None:
    table = ManifestTable("alerts", store, format=form, compact_when_files=2)
    publish(table, 1, None, before)
    publish(table, 2, 1, before)
    types = [one.schema.field("v").type for one in (before, now)]

    with pytest.raises(ConfigurationError) as refused:
        publish(table, 3, 2, now)

    assert str(refused.value) == (
        f"column 'v' of the table at {store.root} is {types[0]}, and the rows to be added have "
        f"{types[1]}, which no type holds both of; cast it to {types[0]} in the stage, give the "
        "column another name, or begin a table elsewhere"
    )
    table.abort(3)
    publish(table, 4, 2, before)  # The stage was mended: nothing is lost, nothing is in the way.
    assert table.read()["v"].to_pylist() == before["v"].to_pylist() * 3


@pytest.mark.parametrize("form", ["parquet", "json"])
def test_wider_types_and_other_columns_are_read_and_merged_together(
    store: ObjectStore, form: str
) -> None:
    table = ManifestTable("alerts", store, format=form)
    publish(table, 1, None, pa.table({"id": pa.array([1], pa.int32()), "v": [1.5]}))
    publish(table, 2, 1, pa.table({"id": [2**40], "w": ["x"]}))
    publish(table, 3, 2, pa.table({"w": ["y"], "id": pa.array([-1], pa.int8())}))
    expected = [
        {"id": 1, "v": 1.5, "w": None},
        {"id": 2**40, "v": None, "w": "x"},
        {"id": -1, "v": None, "w": "y"},
    ]

    assert table.read().to_pylist() == expected
    assert table.compact() is not None
    assert table.read().to_pylist() == expected
    publish(table, 4, 3, pa.table({"id": [5]}))
    assert table.read().num_rows == 4
    with pytest.raises(ConfigurationError, match=r"column 'id' of the table .* is int64"):
        table.check(4, pa.schema([("id", pa.string())]), ())


def test_a_type_that_was_rolled_back_or_aborted_is_no_hindrance(store: ObjectStore) -> None:
    table = ManifestTable("alerts", store)
    publish(table, 1, None, of(1))
    publish(table, 2, 1, pa.table({"v": [2], "x": ["a text"]}))
    table.recover(RESTORED, Recovery(version=1, through=2, roll_back=True))
    rows = pa.table({"v": [3], "x": [3]})

    staged = stage(table, 3, rows)
    table.check(1, rows.schema, ())
    table.commit(RESTORED, 3, 1, [staged])

    assert table.read().to_pylist() == [{"v": 1, "x": None}, {"v": 3, "x": 3}]


def test_a_type_of_an_aborted_checkpoint_is_no_hindrance_and_no_licence(store: ObjectStore) -> None:
    table = ManifestTable("alerts", store)
    publish(table, 1, None, of(1))
    text, number = (pa.table({"v": [1], "x": [x]}) for x in ("a text", 2))
    stage(table, 2, text)
    table.check(1, text.schema, ())
    table.abort(2)

    publish(table, 3, 1, number)

    with pytest.raises(ConfigurationError, match=r"column 'x' of the table .* is int64"):
        table.check(3, text.schema, ())


def test_a_table_that_already_has_two_types_is_named_where_it_is_read_and_still_committed_to(
    store: ObjectStore,
) -> None:
    """It was written by an older build, which did not check."""
    table = ManifestTable("alerts", store, compact_when_files=2)
    for checkpoint_id, rows in enumerate((of(1), of("two"), of("three")), start=1):
        table.commit(
            JOB, checkpoint_id, checkpoint_id - 1 or None, [stage(table, checkpoint_id, rows)]
        )

    with pytest.raises(ConfigurationError, match=r"column 'v' of the table .* is int64"):
        table.read()
    with pytest.raises(ConfigurationError, match=r"column 'v' of the table .* is int64"):
        table.check(3, pa.schema([("v", pa.string())]), ())
    assert table.versions() == (1, 2, 3)


def test_asking_costs_one_request_however_large_the_table_is() -> None:
    store = CountingStore(InMemoryStore())
    table = ManifestTable("alerts", store)
    for checkpoint_id in range(1, 9):
        publish(table, checkpoint_id, checkpoint_id - 1 or None, of(checkpoint_id))

    store.requests.clear()
    table.check(8, of(9).schema, ())

    assert dict(store.requests) == {"get": 1}
