"""ChangelogNormalize against the table whose changes it reads, delivered again at any time."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.declaration.change_events import NOT_LOGGED
from sluice.declaration.operations import ChangelogNormalize
from sluice.errors import ConfigurationError, StageFailed
from sluice.operators.build import build_operator
from sluice.operators.changes import IMAGES
from sluice.operators.operator import EpochTime, Outcome
from tests.property.operators.played import a_stage
from tests.property.operators.subtask import Row, Subtask, check_content_alone_decides, in_chunks

LEFT_OUT = "(not logged)"
VALUES = {
    "id": pl.Int64(),
    "name": pl.String(),
    "note": pl.String(),
    "price": pl.Float64(),
    "paid": pl.Decimal(10, 2),
}
EVENT = pl.Schema(
    {"id": pl.Int64(), "lsn": pl.Int64(), "is_deleted": pl.Boolean()}
    | {name: of for name, of in VALUES.items() if name != "id"}
    | {f"before_{name}": of for name, of in VALUES.items()}
)
NONE: Row = (None,) * len(VALUES)

numbers = st.integers(0, 3)
texts = st.sampled_from([None, "a", "b"])
tables = st.tuples(texts, texts, st.sampled_from([None, 0.0, 1.5]), st.none())
edits = st.lists(st.tuples(numbers, st.none() | tables), max_size=14)


def an_operator(
    *,
    by_image: bool,
    ttl_ms: int | None = None,
    names: Sequence[str] = tuple(VALUES),
    **columns: pl.DataType,
) -> Subtask:
    operation = ChangelogNormalize(
        by=("lsn",),
        deleted="is_deleted",
        columns=dict.fromkeys(names, "string"),
        images={name: f"before_{name}" for name in names} if by_image else {},
        unlogged={} if by_image else {"note": LEFT_OUT},
    )
    schema = pl.Schema({**EVENT, **columns})
    operator = build_operator(a_stage(operation, keys=["id"], ttl_ms=ttl_ms), [schema])
    return Subtask(operator, [schema], key_count=1)


def an_event(lsn: int, before: Row | None, after: Row | None) -> Row:
    kept = after or before
    assert kept is not None
    values = NONE if after is None else after
    return (kept[0], lsn, after is None, *values[1:], *(before or NONE))


def history(changes: Sequence[tuple[int, Any]]) -> tuple[list[Row], dict[int, Row]]:
    """The events of *changes*, None for a delete, and the table that they lead to."""
    table, events = dict[int, Row](), list[Row]()
    for lsn, (number, values) in enumerate(changes, start=1):
        before = table.pop(number, None)
        if values is not None:
            table[number] = (number, *values)
        if before is not None or values is not None:
            events.append(an_event(lsn, before, table.get(number)))
    return events, table


@dataclass
class Sent:
    """The rows that are there, by what was sent so far."""

    rows: Counter[Row]

    def follow(self, outcome: Outcome) -> None:
        assert outcome.retracted is not None
        for row in outcome.retracted.rows():
            assert self.rows[row] == 1, "it takes back what it has sent, as it was"
            self.rows[row] -= 1
        self.rows += Counter(outcome.output.rows())
        assert not [row for row, copies in self.rows.items() if copies > 1]


@pytest.mark.parametrize("by_image", [False, True])
@given(edits, st.randoms(use_true_random=False))
def test_changes_that_come_again_are_the_table(
    by_image: bool, changes: list[tuple[int, Any]], random: Random
) -> None:
    events, table = history(changes)
    subtask, sent = an_operator(by_image=by_image), Sent(Counter())

    done = 0
    while done < len(events):
        again = random.randint(0, done)  # What an engine has sent since it last said so.
        upto = random.randint(done, len(events))
        delivered = events[again:upto]
        sent.follow(subtask.play(in_chunks(delivered, random), time=EpochTime()))
        done = upto

    assert sorted(map(str, sent.rows.elements())) == sorted(map(str, table.values()))


@given(edits, st.randoms(use_true_random=False))
def test_with_rows_in_the_state_changes_may_come_in_any_order(
    changes: list[tuple[int, Any]], random: Random
) -> None:
    events, table = history(changes)
    random.shuffle(events)
    subtask, sent = an_operator(by_image=False), Sent(Counter())

    for start in range(0, len(events), 3):
        cut = in_chunks(events[start : start + 3], random)
        sent.follow(subtask.play(cut, time=EpochTime()))

    assert sorted(map(str, sent.rows.elements())) == sorted(map(str, table.values()))


@pytest.mark.parametrize("by_image", [False, True])
@given(edits)
def test_chunks_ranges_and_merges_decide_nothing(
    by_image: bool, changes: list[tuple[int, Any]]
) -> None:
    events, _ = history(changes)
    epochs = [[events[start : start + 4]] for start in range(0, len(events), 3)]
    operator = an_operator(by_image=by_image).operator

    check_content_alone_decides(operator, [EVENT], epochs, key_count=1)


def played(subtask: Subtask, *epochs: list[Row]) -> list[Row]:
    sent = Sent(Counter())
    for epoch in epochs:
        sent.follow(subtask.play([epoch], time=EpochTime()))
    return sorted(sent.rows.elements())


def a_row(note: str | None, name: str = "n") -> Row:
    return (1, name, note, None, None)


def test_a_value_that_was_not_logged_is_that_of_the_row_before() -> None:
    created = an_event(1, None, a_row("long"))
    first = an_event(2, None, a_row(LEFT_OUT, "x"))
    second = an_event(3, None, a_row(LEFT_OUT, "y"))
    empty = an_event(4, None, a_row(None, "z"))
    third = an_event(5, None, a_row(LEFT_OUT, "z"))

    for epochs in (
        [[created, first, second]],
        [[created], [first], [second]],
        [[created], [second]],
    ):
        assert played(an_operator(by_image=False), *epochs) == [a_row("long", "y")]
    found = played(an_operator(by_image=False), [created, first], [empty], [third])
    assert found == [a_row(None, "z")]


@pytest.mark.parametrize("together", [False, True])
def test_a_value_that_no_row_before_has_fails_by_its_key(together: bool) -> None:
    created, gone = an_event(1, None, a_row("long")), an_event(2, a_row("long"), None)
    moved = an_event(3, None, a_row(LEFT_OUT))
    epochs = [[created, gone, moved]] if together else [[created], [gone], [moved]]

    with pytest.raises(StageFailed, match=re.escape(f"key id=1, column 'note': {NOT_LOGGED}")):
        played(an_operator(by_image=False), *epochs)


def test_without_rows_a_change_of_another_row_than_that_sent_fails() -> None:
    created = an_event(1, None, a_row("a"))
    behind_a_gap = an_event(3, a_row("b"), a_row("c"))
    by_key_alone = an_event(3, (1, *NONE[1:]), None)
    swapped = an_event(3, (1, None, "n", None, None), a_row("c"))

    for event in (behind_a_gap, by_key_alone, swapped):
        with pytest.raises(StageFailed, match="the row before a change is not the row"):
            played(an_operator(by_image=True), [created], [event])
    between = an_event(2, a_row("a"), a_row("b"))
    assert played(an_operator(by_image=True), [created], [between, behind_a_gap]) == [a_row("c")]


def test_a_row_is_the_same_in_another_order_of_columns_and_in_wider_ones() -> None:
    names = (*VALUES, "number")
    first = numbered(names, pl.Int32())
    first.play([[(*an_event(1, None, a_row("a")), 5, None)]], time=EpochTime())

    for of, now in ((pl.Int32(), names[::-1]), (pl.Int64(), names)):
        later = numbered(now, of)
        later.runs = first.runs
        event = (*an_event(2, a_row("a"), a_row("b")), 6, 5)
        outcome = later.play([[event]], time=EpochTime())
        assert outcome.output.select("note", "number").rows() == [("b", 6)]
        assert outcome.retracted is not None
        assert outcome.retracted.select("note", "number").rows() == [("a", 5)]
        first.runs[IMAGES].pop()


def test_both_zeros_are_one_value() -> None:
    created, zero = ((1, "n", "a", value, None) for value in (-0.0, 0.0))

    for before, now in ((created, zero), (zero, created)):
        subtask = an_operator(by_image=True)
        played(subtask, [an_event(1, None, before)], [an_event(2, now, a_row("b"))])


def numbered(names: Sequence[str], dtype: pl.DataType) -> Subtask:
    return an_operator(by_image=True, names=names, number=dtype, before_number=dtype)


def test_a_snapshot_that_is_taken_again_changes_nothing_or_fails() -> None:
    created, again = an_event(1, None, a_row("a")), an_event(5, None, a_row("a"))

    assert played(an_operator(by_image=True), [created], [again]) == [a_row("a")]
    with pytest.raises(StageFailed, match="before=False"):
        played(an_operator(by_image=True), [created], [an_event(5, None, a_row("b"))])
    assert played(an_operator(by_image=False), [created], [an_event(5, None, a_row("b"))]) == [
        a_row("b")
    ]


def test_what_no_hash_can_tell_apart_is_refused() -> None:
    nested = pl.Struct({"a": pl.Int64()})

    with pytest.raises(ConfigurationError, match="cannot compare the column 'note' of type struct"):
        an_operator(by_image=True, note=nested, before_note=nested)
