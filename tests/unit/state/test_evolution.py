"""State written by an earlier declaration of its stage is read by the present one, or refused."""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from sluice.errors import RestoreError
from sluice.protocol.records import checksum
from sluice.state.evolution import is_widened
from sluice.state.keyed import KeyedState, delta_table
from sluice.state.merging import ReadOtherwise, last_write, merge_pieces, min_time
from sluice.state.runs import Run
from sluice.state.segments import (
    HASH,
    WRITTEN,
    DeclaredColumn,
    StateSchema,
    decode_segment,
    encode_segment,
)
from tests.merged_runs import merge_runs

WHOLE = {
    pl.Int8: (-(2**7), 2**7 - 1),
    pl.Int16: (-(2**15), 2**15 - 1),
    pl.Int32: (-(2**31), 2**31 - 1),
    pl.Int64: (-(2**63), 2**63 - 1),
    pl.UInt8: (0, 2**8 - 1),
    pl.UInt16: (0, 2**16 - 1),
    pl.UInt32: (0, 2**32 - 1),
    pl.UInt64: (0, 2**64 - 1),
    pl.Float32: (-(2**24), 2**24),  # Every whole number up to here, and none after.
    pl.Float64: (-(2**53), 2**53),
}
FLOATS = (pl.Float32, pl.Float64)


def a_schema(**columns: Any) -> StateSchema:
    return StateSchema(columns=pl.Schema({"id": pl.Int64(), **columns}), key_columns=("id",))


def a_run(schema: StateSchema, *rows: tuple[Any, ...], now_ms: int = 0) -> Run:
    """Rows are (id, value, ...); the hash is the id."""
    hashed = [(row[0], *row) for row in rows]
    upserts = pl.DataFrame(hashed, schema=schema.live, orient="row")
    body = encode_segment(delta_table(schema, upserts, schema.live.to_frame(), now_ms=now_ms))
    table = decode_segment(body, checksum=checksum(body), name="s")
    return Run(
        table=table, min_time_ms=min_time(schema, table), last_write_ms=last_write(schema, table)
    )


def read(schema: StateSchema, *runs: Run, now_ms: int = 0) -> list[dict[str, Any]]:
    """The rows of a scan, after checking that a search finds the same."""
    state = KeyedState(schema, runs, now_ms=now_ms, owner="stage 'totals'")
    scanned = state.scan()
    assert scanned.schema == schema.live
    assert state.find(scanned).equals(scanned)
    assert state.lookup(scanned).equals(scanned)
    return scanned.drop(HASH).to_dicts()


@pytest.mark.parametrize("before", WHOLE)
def test_a_number_is_widened_to_any_type_that_holds_all_its_values(before: Any) -> None:
    for now in WHOLE:
        check_widened(before, now)


def check_widened(before: Any, now: Any) -> None:
    holds_all = WHOLE[now][0] <= WHOLE[before][0] and WHOLE[before][1] <= WHOLE[now][1]
    expected = holds_all and (now in FLOATS or before not in FLOATS)

    assert is_widened(before(), now()) == expected, now
    if expected:
        extremes = pl.Series(WHOLE[before], dtype=before)
        rows = [(n, value) for n, value in enumerate(extremes)]
        found = read(a_schema(value=now()), a_run(a_schema(value=before()), *rows))
        assert [row["value"] for row in found] == extremes.to_list()


@pytest.mark.parametrize(
    ("before", "now", "value", "expected"),
    [
        (pl.Decimal(7, 2), pl.Decimal(20, 2), Decimal("99999.99"), Decimal("99999.99")),
        (pl.List(pl.Int32), pl.List(pl.Int64), [1, None], [1, None]),
        (pl.List(pl.Int8), pl.List(pl.Float64), None, None),
        (
            pl.Struct({"a": pl.Int32, "gone": pl.String, "b": pl.Int16}),
            pl.Struct({"b": pl.Int64, "new": pl.Date, "a": pl.Int32}),
            {"a": 1, "gone": "x", "b": 2},
            {"b": 2, "new": None, "a": 1},
        ),
        (pl.Struct({"a": pl.Int32}), pl.Struct({"a": pl.Int64}), None, None),
        (
            pl.List(pl.Struct({"a": pl.Int32, "b": pl.List(pl.Int8)})),
            pl.List(pl.Struct({"b": pl.List(pl.Int16), "a": pl.Int64})),
            [{"a": 1, "b": [2, None]}, None, {"a": None, "b": None}],
            [{"b": [2, None], "a": 1}, None, {"b": None, "a": None}],
        ),
    ],
)
def test_decimals_lists_and_structs_are_widened_by_their_parts(
    before: pl.DataType, now: pl.DataType, value: object, expected: object
) -> None:
    run = a_run(a_schema(value=before), (1, value), (2, None))

    rows = read(a_schema(value=now), run)

    assert rows == [{"id": 1, "value": expected}, {"id": 2, "value": None}]


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (pl.Int64(), pl.Int32()),
        (pl.Int64(), pl.Float64()),
        (pl.Float64(), pl.Int64()),
        (pl.Int64(), pl.String()),
        (pl.String(), pl.Int64()),
        (pl.Boolean(), pl.Int8()),
        (pl.Decimal(7, 2), pl.Decimal(20, 3)),
        (pl.Decimal(7, 2), pl.Decimal(6, 2)),
        (pl.Datetime("us", "UTC"), pl.Datetime("ms", "UTC")),
        (pl.Datetime("us"), pl.Datetime("us", "UTC")),
        (pl.List(pl.Int64), pl.List(pl.Int32)),
        (pl.List(pl.Int64), pl.Int64()),
        (pl.Struct({"a": pl.Int64}), pl.Struct({"a": pl.String})),
    ],
)
def test_any_other_change_of_a_type_is_refused_by_name(
    before: pl.DataType, now: pl.DataType
) -> None:
    run = a_run(a_schema(value=before), (1, None))

    both = re.escape(f"stage 'totals' cannot read its state: column 'value' was {before}")
    with pytest.raises(RestoreError, match=f"{both}.* is now {re.escape(str(now))}; restore"):
        read(a_schema(value=now), run)


def test_a_new_column_is_null_in_old_rows_and_a_dropped_one_is_ignored() -> None:
    old = a_run(a_schema(gone=pl.Int64(), kept=pl.Int64()), (1, 10, 100), (2, 20, 200))
    schema = a_schema(kept=pl.Int64(), new=pl.List(pl.String))

    rows = read(schema, old, a_run(schema, (2, 201, ["x"])))

    assert rows == [{"id": 1, "kept": 100, "new": None}, {"id": 2, "kept": 201, "new": ["x"]}]


def test_a_column_in_another_case_is_the_same() -> None:
    run = a_run(a_schema(Amount=pl.Int32, Other=pl.String), (1, 5, "x"))
    later = a_run(a_schema(amount=pl.Int64, other=pl.String), (2, 6, "y"))

    rows = read(a_schema(amount=pl.Int64, other=pl.String), run, later)

    assert rows == [{"id": 1, "amount": 5, "other": "x"}, {"id": 2, "amount": 6, "other": "y"}]


def test_rows_are_found_by_the_columns_of_a_sub_key_in_another_order() -> None:
    columns = pl.Schema({"id": pl.Int64(), "a": pl.Int64(), "b": pl.String()})
    before = StateSchema(columns=columns, key_columns=("id",), sub_key_columns=("a", "b"))
    now = replace(before, sub_key_columns=("b", "a"))
    old = a_run(before, *((1, a, b) for a in range(20) for b in "yxz"), (2, None, "x"))
    later = a_run(now, (1, 20, "x"), (1, 3, "x"))

    rows = read(now, old, later)

    assert sorted((r["id"], r["b"], r["a"]) for r in rows if r["id"] == 1) == [
        (1, b, a) for b in "xyz" for a in range(21) if a < 20 or b == "x"
    ]
    merged = merge_runs(now, [old, later], drop_tombstones=True)
    assert merged.select(["b", "a"]).to_pylist()[:3] == [{"b": "x", "a": a} for a in range(3)]


def test_states_of_a_function_differ_by_their_case() -> None:
    run = a_run(a_schema(Amount=pl.Int64), (1, 5))
    declared = {"amount": DeclaredColumn(state="amount", dtype=pl.Int64())}

    assert read(replace(a_schema(amount=pl.Int64()), declared=declared), run) == [
        {"id": 1, "amount": None}
    ]


def test_what_begins_anew_is_not_read_in_another_case() -> None:
    run = a_run(a_schema(Total=pl.Int64, n=pl.Int64), (1, 5, 2))
    assert isinstance(run.table, pa.Table)
    table = ReadOtherwise(without=frozenset({"total"})).of(run.table)

    rows = read(a_schema(total=pl.Int64(), n=pl.Int64()), replace(run, table=table))

    assert rows == [{"id": 1, "total": None, "n": 2}]


def test_a_time_column_that_is_new_makes_no_old_row_due() -> None:
    schema = replace(a_schema(at=pl.Int64()), time_column="at")
    old = replace(a_run(a_schema(), (1,), (2,)), min_time_ms=0)
    state = KeyedState(schema, [old, a_run(schema, (3, 5))])

    assert state.due(10).rows() == [(3, 3, 5)]


def test_generations_are_merged_into_what_the_stage_keeps_now() -> None:
    schema = a_schema(value=pl.Int64(), new=pl.String())
    runs = [
        a_run(a_schema(value=pl.Int8(), gone=pl.Int8()), (1, 1, 1), (2, 2, 2), (3, 3, 3)),
        a_run(a_schema(value=pl.Int32()), (2, 20)),
        a_run(schema, (3, 300, "x")),
    ]

    merged = merge_runs(schema, runs, drop_tombstones=True)
    pieces = [*merge_pieces(schema, runs, drop_tombstones=True, max_rows=1)]

    expected = a_run(schema, (1, 1, None), (2, 20, None), (3, 300, "x")).table
    assert merged.equals(expected, check_metadata=True)
    assert pa.concat_tables(pieces).combine_chunks().equals(expected, check_metadata=True)


def test_a_tombstone_of_an_earlier_generation_still_deletes() -> None:
    before, now = a_schema(value=pl.Int32()), a_schema(value=pl.Int64())
    deletes = pl.DataFrame({HASH: [1], "id": [1]})
    deleted = Run(table=delta_table(before, before.live.to_frame(), deletes))

    assert read(now, a_run(before, (1, 1), (2, 2)), deleted) == [{"id": 2, "value": 2}]


def test_rows_from_before_a_ttl_do_not_expire_until_they_are_written_again() -> None:
    before = a_schema(value=pl.Int64())
    now = replace(before, ttl_ms=10)
    runs = [a_run(before, (1, 1), (2, 2)), a_run(now, (2, 20), now_ms=100)]

    assert read(now, *runs, now_ms=109) == [{"id": 1, "value": 1}, {"id": 2, "value": 20}]
    assert read(now, *runs, now_ms=110) == [{"id": 1, "value": 1}]
    merged = merge_runs(now, runs, drop_tombstones=True, now_ms=109)
    assert merged.column(WRITTEN).to_pylist() == [None, 100]
    assert last_write(now, merged) is None
    assert read(now, Run(table=merged), now_ms=10**12) == [{"id": 1, "value": 1}]


def test_without_its_ttl_state_lives_for_ever() -> None:
    before = replace(a_schema(value=pl.Int64()), ttl_ms=10)
    now = replace(before, ttl_ms=None)
    run = a_run(before, (1, 1), now_ms=100)

    assert read(before, run, now_ms=1_000) == []
    assert read(now, run, now_ms=1_000) == [{"id": 1, "value": 1}]
    assert WRITTEN not in merge_runs(now, [run], drop_tombstones=False).column_names


@pytest.mark.parametrize(
    ("now", "change"),
    [
        (pl.Int32(), "key column 'id' was Int64 and is now Int32, but the columns of a key"),
        (pl.String(), "key column 'id' was Int64 and is now String"),
    ],
)
def test_the_type_of_a_key_may_not_change_at_all(now: pl.DataType, change: str) -> None:
    run = a_run(a_schema(), (1,))
    schema = StateSchema(columns=pl.Schema({"id": now}), key_columns=("id",))

    with pytest.raises(RestoreError, match=f"stage 'totals' cannot read its state: {change}"):
        KeyedState(schema, [run], owner="stage 'totals'").scan()


@pytest.mark.parametrize(
    ("keys", "sub_keys", "change"),
    [
        (("a",), (), "its key was a, b and is now a;"),
        (("b", "a"), (), "its key was a, b and is now b, a;"),
        (("a", "b", "c"), (), "its key was a, b and is now a, b, c;"),
        (("a", "b"), ("c",), "its key was a, b and is now a, b and, within it, c;"),
    ],
)
def test_the_columns_of_a_key_and_their_order_may_not_change(
    keys: tuple[str, ...], sub_keys: tuple[str, ...], change: str
) -> None:
    columns = pl.Schema({"a": pl.Int64(), "b": pl.Int64(), "c": pl.Int64()})
    before = StateSchema(columns=columns, key_columns=("a", "b"))
    now = StateSchema(columns=columns, key_columns=keys, sub_key_columns=sub_keys)
    run = a_run(before, (1, 2, 3))

    with pytest.raises(RestoreError, match=f"a stage cannot read its state: {change} restore with"):
        KeyedState(now, [run]).scan()
    with pytest.raises(RestoreError, match=change):
        merge_runs(now, [run], drop_tombstones=True)


def test_a_key_that_a_segment_does_not_name_is_refused_if_it_is_not_there() -> None:
    table = a_run(a_schema(), (1,)).table
    assert isinstance(table, pa.Table)
    run = Run(table=table.replace_schema_metadata(None))
    columns = pl.Schema({"id": pl.Int64(), "other": pl.Int64()})
    schema = StateSchema(columns=columns, key_columns=("id", "other"))

    assert read(a_schema(), run) == [{"id": 1}]
    with pytest.raises(RestoreError, match="key column 'other' was not there and is now Int64"):
        KeyedState(schema, [run]).scan()
