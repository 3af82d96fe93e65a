"""The rows of operator lists: who reads, keeps and deletes which."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl
import pytest

from sluice.core.plan import TaskPlan
from sluice.declaration import operations as ops
from sluice.declaration.declared_states import with_own_states
from sluice.declaration.keyed_functions import (
    Context,
    KeyedProcessFunction,
    OperatorListState,
    Row,
    UnionListState,
)
from sluice.declaration.nodes import Input, StageNode
from sluice.local.savepoint_tables import bootstrapped
from sluice.operators.keyed_function import OperatorLists, list_tables
from sluice.state.segments import HASH

TABLE = "operator:waiting"


class Waits(KeyedProcessFunction):
    waiting = OperatorListState(str)
    seen = UnionListState(tuple[int, str])

    def process(self, row: Row, context: Context) -> Iterable[Row]:
        return ()


OPERATION = ops.ProcessKeyed(function=Waits(), result={"n": int})
TABLES = list_tables(StageNode(uid="waits", operation=OPERATION, inputs=(Input(producer="in"),)))
Rows = dict[str, pl.DataFrame]


def opened(rows: Rows, parallelism: int, subtask: int) -> tuple[OperatorLists, Waits]:
    task = TaskPlan(uid="waits", parallelism=parallelism, max_parallelism=8)
    lists = OperatorLists(TABLES, rows, task, subtask)
    own = with_own_states(Waits())
    lists.bind(own.lists)
    return lists, own.function


def applied(rows: Rows, opened_lists: Iterable[OperatorLists]) -> Rows:
    """The rows behind the changes of all subtasks."""
    found = dict(rows)
    for lists in opened_lists:
        for name, changes in lists.changes().items():
            identity = [*TABLES[name].identity]
            changed = pl.concat([changes.deletes, changes.upserts.select(identity)])
            kept = found[name].join(changed, on=identity, how="anti", nulls_equal=True)
            found[name] = pl.concat([kept, changes.upserts])
    return found


def none() -> Rows:
    return {name: schema.live.to_frame() for name, schema in TABLES.items()}


def played(rows: Rows, parallelism: int) -> tuple[Rows, list[list[str]]]:
    """An epoch in which nothing is written; its rows, and what each subtask has."""
    all_of = [opened(rows, parallelism, n) for n in range(parallelism)]
    return applied(rows, (lists for lists, _ in all_of)), [one.waiting.get() for _, one in all_of]


def test_elements_stay_where_they_are_until_the_parallelism_is_another_one() -> None:
    first = [opened(none(), 2, subtask) for subtask in (0, 1)]
    first[0][1].waiting.update("abcde")
    rows = applied(none(), (lists for lists, _ in first))

    same, two = played(rows, 2)
    four_rows, four = played(same, 4)
    again, settled = played(four_rows, 4)
    _, back = played(again, 1)

    assert two == [[*"abcde"], []]
    assert same[TABLE].equals(rows[TABLE])
    assert four == settled == [["a", "b"], ["c"], ["d"], ["e"]]
    assert again[TABLE].sort(HASH, "_index").equals(four_rows[TABLE].sort(HASH, "_index"))
    assert back == [[*"abcde"]]


def test_what_is_cleared_and_replaced_leaves_no_row() -> None:
    lists, function = opened(none(), 1, 0)
    function.waiting.update("abc")
    function.seen.add((1, "x"))
    rows = applied(none(), [lists])

    lists, function = opened(rows, 1, 0)
    assert function.seen.get() == [(1, "x")]
    function.waiting.update("z")
    function.waiting.add("y")
    function.seen.clear()
    rows = applied(rows, [lists])

    assert rows[TABLE].sort("_index")["_value"].to_list() == ["z", "y"]
    assert rows["operator:seen"].is_empty()


@pytest.mark.parametrize("subtask", [0, 1, 7, None])
@pytest.mark.parametrize("parallelism", [0, 2, None])
def test_rows_that_were_bootstrapped_are_dealt_out(
    subtask: int | None, parallelism: int | None
) -> None:
    given = pl.DataFrame(
        {"_subtask": subtask, "_index": [0, 1, 2], "_value": [*"abc"], "_parallelism": parallelism},
        TABLES[TABLE].columns,
    )
    made = bootstrapped(TABLES[TABLE], given, now_ms=0, what="state of 'waits'")
    rows = none() | {TABLE: made.select(*TABLES[TABLE].live)}

    dealt_rows, dealt = played(rows, 2)
    _, again = played(dealt_rows, 2)

    assert dealt == again == [["a", "b"], ["c"]]
    assert dealt_rows[TABLE].height == 3
