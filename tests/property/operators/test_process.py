"""The function of ``process`` against a dictionary, whatever the cuts, the order and the hashes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Any

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from sluice.declaration import operations as ops
from sluice.operators.keyed_function import ProcessOperator
from tests.examples import examples
from tests.property.operators.barriers import times_of
from tests.property.operators.played import a_stage, histories, play, seeds
from tests.property.operators.subtask import INPUT, Epoch, Subtask, check_content_alone_decides

TTL_MS = 100


def total_and_last(rows: pl.DataFrame, state: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Sums ``value`` per key and keeps the last; a key whose total is 0 is forgotten."""
    key = ["id", "name"]
    new = rows.group_by(key, maintain_order=True).agg(
        pl.col("value").sum().alias("more"), pl.col("value").last().alias("seen")
    )
    both = state.join(new, on=key, nulls_equal=True, maintain_order="left").with_columns(
        (pl.col("total").fill_null(0) + pl.col("more")).alias("total")
    )
    result = both.select(*key, "total", pl.col("last").alias("before"))
    is_kept = pl.col("total") != 0
    after = both.select(
        *key,
        pl.when(is_kept).then("total").alias("total"),
        pl.when(is_kept).then("seen").alias("last"),
    )
    return result, after


def a_process(ttl_ms: int | None = None) -> ProcessOperator:
    columns = {"total": int, "last": pl.Int32()}
    key = {"id": int, "name": str}
    declared = ops.Process(
        function=total_and_last,
        state=columns,
        result={**key, "total": int, "before": pl.Int32()},
    )
    return ProcessOperator(a_stage(declared, ttl_ms=ttl_ms), INPUT)


def by_time(rows: Iterable[Any]) -> list[Any]:
    """By time, then by content, nulls first."""
    return sorted(rows, key=lambda row: [(v is not None, v) for v in (row[3], *row)])


@examples(20)
@given(histories, seeds)
def test_process_applies_the_function_to_the_rows_and_the_state_of_their_keys(
    history: list[Epoch], random: Random
) -> None:
    subtask = Subtask(a_process(), [INPUT])
    state: dict[Any, tuple[int, int | None]] = {}

    for epoch, time in zip(history, times_of([0] * len(history)), strict=True):
        expected = []
        before = dict(state)
        for key in {row[:2] for row in epoch}:
            rows = by_time(row for row in epoch if row[:2] == key)
            total, last = state.get(key, (0, None))
            total += sum(row[2] or 0 for row in rows)
            expected.append((*key, total, last))
            state[key] = (total, rows[-1][2])
            if total == 0:
                del state[key]

        outcome = play(subtask, epoch, random, time)

        assert Counter(outcome.output.rows()) == Counter(expected)
        kept = {row[:2]: row[2:] for row in subtask.state()["state"].scan().drop("_hash").rows()}
        assert kept == state
        written = {row[1:3] for row in outcome.changes["state"].upserts.rows()}
        deleted = {row[1:3] for row in outcome.changes["state"].deletes.rows()}
        assert written == {key for key in state if state[key] != before.get(key)}
        assert deleted == before.keys() - state.keys()


@examples(8)
@given(histories, st.sampled_from([None, TTL_MS]))
def test_process_does_not_depend_on_chunks_order_or_subtasks(
    history: list[Epoch], ttl_ms: int | None
) -> None:
    times = times_of([0] * len(history))

    check_content_alone_decides(a_process(ttl_ms), [INPUT], [[e] for e in history], times)
