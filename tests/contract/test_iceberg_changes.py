"""An Iceberg table that people change: staged rows are mapped by field, or refused with the fix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyiceberg.types import LongType, StringType

from sluice.connectors.iceberg.declared_source import IcebergTable as Source
from sluice.core.answers import Committable
from sluice.declaration.places import DELETED
from sluice.errors import ConfigurationError, TableMismatch
from tests.contract.sink_rules import JOB, Row
from tests.contract.source_rules import rows_of
from tests.iceberg_catalog import TABLE, a_catalog, a_sink, a_table, loaded, properties

SCHEMA = pa.schema([("id", pa.int32()), ("v", pa.string())])
KEYS = [(), ("id",)]


def staged(
    folder: Path,
    checkpoint_id: int,
    given: list[Row],
    *key: str,
    gone: list[Row] | None = None,
    subtask: int = 0,
) -> list[Committable]:
    sink, found = a_sink(folder, *key, create=True), []
    for is_gone, some in enumerate((given, gone or [])):
        table = pa.Table.from_pylist(some, SCHEMA)
        if is_gone:
            table = table.append_column(DELETED, pa.array([True] * len(some), pa.bool_()))
        one = sink.stage(
            table,
            checkpoint_id=checkpoint_id,
            subtask=subtask,
            attempt_token="1-a",  # noqa: S106
        )
        found += [one] if one is not None else []
    return found


def commit(
    folder: Path, checkpoint_id: int, parent: int | None, given: list[Committable], *key: str
) -> None:
    sink = a_sink(folder, *key, create=True)
    sink.commit(JOB, checkpoint_id, parent, given)
    sink.discard_copied(given)


def found(folder: Path) -> list[Row]:
    rows: list[Row] = loaded(folder).scan().to_arrow().to_pylist()
    return sorted(rows, key=lambda row: str([*row.values()]))


def of(*pairs: tuple[int, str | None], **names: str) -> list[Row]:
    return [{names.get("id", "id"): id_, names.get("v", "v"): v} for id_, v in pairs]


def renamed(table: Table) -> None:
    with table.update_schema() as update:
        update.rename_column("v", "w")


def key_renamed(table: Table) -> None:
    with table.update_schema() as update:
        update.rename_column("id", "number")


def widened(table: Table) -> None:
    with table.update_schema() as update:
        update.update_column("id", LongType())


def added(table: Table) -> None:
    with table.update_schema() as update:
        update.add_column("z", StringType())


def dropped(table: Table) -> None:
    with table.update_schema() as update:
        update.delete_column("v")


def made_anew(table: Table) -> None:
    dropped(table)
    with table.refresh().update_schema() as update:
        update.add_column("v", StringType())


def moved(table: Table) -> None:
    with table.update_schema() as update:
        update.move_first("v")


def partitioned(table: Table) -> None:
    with table.update_spec() as update:
        update.add_field("v", "identity", "part")


BEFORE, CAME = ((1, "a"), (2, "b")), ((2, "B"), (3, "c"))


def all_of(key: tuple[str, ...]) -> list[tuple[int, str]]:
    return sorted((*BEFORE[: 1 if key else 2], *CAME))


@pytest.mark.parametrize("key", KEYS, ids=["appended", "upserted"])
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (renamed, lambda all_: of(*all_, v="w")),
        (key_renamed, lambda all_: of(*all_, id="number")),
        (widened, lambda all_: of(*all_)),
        (added, lambda all_: [{**row, "z": None} for row in of(*all_)]),
        (dropped, lambda all_: [{"id": id_} for id_, _ in all_]),
        (moved, lambda all_: [{"v": v, "id": id_} for id_, v in all_]),
        (partitioned, lambda all_: of(*all_)),
        (
            made_anew,
            lambda all_: [{"id": id_, "v": v if (id_, v) in CAME else None} for id_, v in all_],
        ),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_rows_staged_before_a_change_are_in_the_table_as_if_they_had_been_there_before_it(
    key: tuple[str, ...],
    change: Callable[[Table], None],
    expected: Callable[[Any], list[Row]],
    tmp_path: Path,
) -> None:
    """But for a column made anew, which has what the stage writes to that name."""
    a_table(tmp_path, SCHEMA)
    commit(tmp_path, 1, None, staged(tmp_path, 1, of(*BEFORE), *key), *key)
    given = staged(tmp_path, 2, of(*CAME), *key)
    change(loaded(tmp_path))

    commit(tmp_path, 2, 1, given, *key)

    assert found(tmp_path) == sorted(expected(all_of(key)), key=lambda row: str([*row.values()]))
    sink = a_sink(tmp_path, *key)
    assert sink.unpublished().staged == ()
    commit(tmp_path, 2, 1, given, *key)
    assert len(found(tmp_path)) == len(all_of(key))


def test_deleted_keys_are_found_by_their_field_when_it_was_renamed(tmp_path: Path) -> None:
    a_table(tmp_path, SCHEMA)
    commit(tmp_path, 1, None, staged(tmp_path, 1, of(*BEFORE), "id"), "id")
    given = staged(tmp_path, 2, of((3, "c")), "id", gone=of((1, None)))
    key_renamed(loaded(tmp_path))

    commit(tmp_path, 2, 1, given, "id")

    assert found(tmp_path) == of((2, "b"), (3, "c"), id="number")


def required(table: Table) -> None:
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.add_column("z", StringType(), required=True)


def nothing_may_lack(table: Table) -> None:
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.update_column("v", required=True)


def key_dropped(table: Table) -> None:
    with table.update_schema() as update:
        update.delete_column("id")


def optional_again(table: Table) -> None:
    with table.update_schema() as update:
        for field in table.schema().fields:
            update.update_column(field.name, required=False)


def key_is_back(table: Table) -> None:
    from pyiceberg.types import IntegerType

    with table.update_schema() as update:
        update.add_column("id", IntegerType())


@pytest.mark.parametrize(
    ("key", "change", "says", "mend"),
    [
        ((), required, "column 'z' .* is required, .* make the column optional", optional_again),
        ((), nothing_may_lack, "column 'v' .* required, and 1 rows have no", optional_again),
        (("id",), key_dropped, "'id', by which a sink upserts, was dropped .*; add", key_is_back),
    ],
    ids=["a column that nobody fills", "no value", "the key dropped"],
)
def test_what_cannot_be_mapped_is_refused_and_published_when_the_table_is_mended(
    key: tuple[str, ...],
    change: Callable[[Table], None],
    says: str,
    mend: Callable[[Table], None],
    tmp_path: Path,
) -> None:
    a_table(tmp_path, SCHEMA)
    commit(tmp_path, 1, None, staged(tmp_path, 1, of(*BEFORE), *key), *key)
    given = [
        *staged(tmp_path, 2, of((4, "d")), *key),
        *staged(tmp_path, 2, of((3, None)), *key, subtask=5),
    ]
    change(loaded(tmp_path))

    files = sorted(tmp_path.rglob("*.parquet"))
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=says):
            commit(tmp_path, 2, 1, given, *key)
    assert sorted(tmp_path.rglob("*.parquet")) == files
    mend(loaded(tmp_path))
    commit(tmp_path, 2, 1, given, *key)

    ids = {row["id"] for row in found(tmp_path)}
    assert {3, 4} <= ids
    assert len(found(tmp_path)) == 4


@pytest.mark.parametrize("key", KEYS, ids=["appended", "upserted"])
def test_a_table_that_was_dropped_is_not_made_anew_over_the_loss(
    key: tuple[str, ...], tmp_path: Path
) -> None:
    a_table(tmp_path, SCHEMA)
    commit(tmp_path, 1, None, staged(tmp_path, 1, of(*BEFORE), *key), *key)
    given = staged(tmp_path, 2, of(*CAME), *key)
    metadata = loaded(tmp_path).metadata_location
    a_catalog(tmp_path).drop_table(TABLE)

    with pytest.raises(
        TableMismatch, match="continues checkpoint 1, which the table does not show"
    ):
        commit(tmp_path, 2, 1, given, *key)
    with pytest.raises(ConfigurationError, match="there is no Iceberg table"):
        a_sink(tmp_path, *key).commit(JOB, 2, 1, given)
    assert not a_catalog(tmp_path).table_exists(TABLE)
    a_catalog(tmp_path).register_table(TABLE, metadata)
    commit(tmp_path, 2, 1, given, *key)

    assert found(tmp_path) == of(*all_of(key))


@pytest.mark.parametrize("key", KEYS, ids=["appended", "upserted"])
def test_what_was_staged_for_a_table_made_anew_meanwhile_is_found_by_name(
    key: tuple[str, ...], tmp_path: Path
) -> None:
    """Its field ids are others: the first column of one is the last of the other."""
    given = staged(tmp_path, 1, of(*CAME), *key)
    a_catalog(tmp_path).drop_table(TABLE)
    a_table(tmp_path, pa.schema([("v", pa.string()), ("more", pa.int64()), ("id", pa.int64())]))

    commit(tmp_path, 1, None, given, *key)

    assert found(tmp_path) == [
        {"v": "B", "more": None, "id": 2},
        {"v": "c", "more": None, "id": 3},
    ]


@pytest.mark.parametrize("with_rows", [False, True], ids=["alone", "with rows"])
def test_a_table_is_made_by_a_first_checkpoint_that_takes_rows_away(
    with_rows: bool, tmp_path: Path
) -> None:
    given = staged(tmp_path, 1, of(*CAME) if with_rows else [], "id", gone=of((9, None)))

    commit(tmp_path, 1, None, given, "id")
    commit(tmp_path, 2, 1, staged(tmp_path, 2, of((4, "d")), "id"), "id")

    assert found(tmp_path) == of(*(CAME if with_rows else ()), (4, "d"))


def test_a_made_table_that_was_dropped_before_its_first_commit_is_made_of_what_is_staged(
    tmp_path: Path,
) -> None:
    given = staged(tmp_path, 1, of(*CAME), "id")
    a_catalog(tmp_path).drop_table(TABLE)

    commit(tmp_path, 1, None, given, "id")

    assert found(tmp_path) == of(*CAME)


def test_a_change_is_told_before_the_checkpoint_completes(tmp_path: Path) -> None:
    table = a_table(tmp_path, SCHEMA)
    sink = a_sink(tmp_path)
    sink.check(None, SCHEMA, ())
    required(table)

    with pytest.raises(
        ConfigurationError, match=r"'z' .* is required, and the rows have only id, v"
    ):
        sink.check(None, SCHEMA, ())
    with pytest.raises(ConfigurationError, match="has no column 'x'; add it"):
        sink.check(
            None, pa.schema([("id", pa.int32()), ("x", pa.string()), ("z", pa.string())]), ()
        )


def test_who_passes_over_overwrites_sees_no_row_twice_after_the_partitions_changed(
    tmp_path: Path,
) -> None:
    """What stays of an older file is part of the overwrite, whatever partitions it goes to."""
    a_table(tmp_path, SCHEMA)
    commit(tmp_path, 1, None, staged(tmp_path, 1, of(*BEFORE), "id"), "id")
    source = Source(TABLE, properties(tmp_path), skip_overwrites=True).open({}, None)
    partitioned(loaded(tmp_path))

    commit(tmp_path, 2, 1, staged(tmp_path, 2, of(*CAME), "id"), "id")

    table = loaded(tmp_path)
    operations = [one.summary.operation.value for one in table.metadata.snapshots if one.summary]
    assert operations == ["append", "overwrite"]
    barrier = source.plan((), max_records=None, parallelism=1)
    assert [(row["id"], row["v"]) for row in rows_of(source, barrier)] == [*BEFORE]
    assert found(tmp_path) == of(*all_of(("id",)))
