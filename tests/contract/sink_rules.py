"""What every sink promises, checked by reading its table from outside with another tool.

Used with any connector: a ``SinkCase`` opens handles, as different processes have them, and reads
what a stranger sees.  ``APPEND_RULES`` and ``UPSERT_RULES`` are to be run each on a fresh table.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from sluice.connectors.sink import DELETED, RollBack, Sink
from sluice.core.acks import Committable
from sluice.errors import ConfigurationError, FencedError

Row = dict[str, Any]

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("name", pa.string()),
        ("price", pa.float64()),
        ("at", pa.timestamp("us", tz="UTC")),
    ]
)
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class SinkCase:
    """``open`` gives a new handle on the same table; with upsert rules its key is ``id``.
    ``read`` gives the rows of ``SCHEMA`` that a stranger sees now, in any order.
    """

    open: Callable[[], Sink]
    read: Callable[[], list[Row]]


def rows(*ids: int, name: str | None = "n") -> list[Row]:
    return [
        {
            "id": number,
            "name": None if number % 7 == 0 else f"{name}{number} 'quoted', \\ tab\t, ü",
            "price": number / 4,
            "at": BEGIN + timedelta(microseconds=number),
        }
        for number in ids
    ]


def stage(
    sink: Sink, checkpoint_id: int, given: Iterable[Row], subtask: int = 0, attempt: str = "1-a"
) -> Committable | None:
    return sink.stage(
        pa.Table.from_pylist([*given], SCHEMA),
        checkpoint_id=checkpoint_id,
        subtask=subtask,
        attempt_token=attempt,
    )


def staged_rows(sink: Sink, checkpoint_id: int, *ids: int) -> Committable:
    staged = stage(sink, checkpoint_id, rows(*ids))
    assert staged is not None
    return staged


def stage_deletes(sink: Sink, checkpoint_id: int, given: Iterable[Row]) -> Committable:
    table = pa.Table.from_pylist([*given], SCHEMA)
    table = table.append_column(DELETED, pa.array([True] * table.num_rows))
    staged = sink.stage(table, checkpoint_id=checkpoint_id, subtask=0, attempt_token="1-deletes")  # noqa: S106
    assert staged is not None
    return staged


def publish(sink: Sink, checkpoint_id: int, parent: int | None, given: Iterable[Row]) -> None:
    staged = stage(sink, checkpoint_id, given)
    sink.commit(checkpoint_id, parent, [staged] if staged is not None else [])


def seen(case: SinkCase) -> list[Row]:
    return sorted(case.read(), key=lambda row: (row["id"], str(row)))


def staged_rows_are_seen_by_nobody(case: SinkCase) -> None:
    publish(case.open(), 1, None, rows(1))
    stage(case.open(), 2, rows(2))
    assert seen(case) == rows(1)


def a_commit_shows_the_rows_of_all_subtasks_and_types_survive(case: SinkCase) -> None:
    sink = case.open()
    staged = [stage(sink, 1, rows(1, 7), 0), stage(sink, 1, rows(2, 3), 1)]
    case.open().commit(1, None, [one for one in staged if one is not None])
    assert seen(case) == rows(1, 2, 3, 7)


def a_repeated_commit_changes_nothing(case: SinkCase) -> None:
    sink = case.open()
    staged = staged_rows(sink, 1, 1, 2)
    for handle in (sink, case.open(), case.open()):
        handle.commit(1, None, [staged])
        assert handle.is_published(1)
    assert seen(case) == rows(1, 2)


def an_attempt_that_no_ack_names_is_never_seen(case: SinkCase) -> None:
    sink = case.open()
    stage(sink, 1, rows(1), attempt="1-zombie")
    staged = stage(sink, 1, rows(1), attempt="2-b")
    assert staged is not None
    sink.commit(1, None, [staged])
    assert seen(case) == rows(1)


def an_epoch_without_rows_is_published_too(case: SinkCase) -> None:
    sink = case.open()
    assert stage(sink, 1, []) is None
    sink.commit(1, None, [])
    assert sink.is_published(1)
    publish(sink, 2, 1, rows(1))
    assert seen(case) == rows(1)


def an_aborted_checkpoint_leaves_nothing(case: SinkCase) -> None:
    sink = case.open()
    publish(sink, 1, None, rows(1))
    stage(sink, 2, rows(2))
    case.open().abort(2)
    case.open().abort(2)
    assert not case.open().is_published(2)
    assert not [one for one in sink.unpublished().staged if one.checkpoint_id > 1]
    publish(sink, 3, 1, rows(3))
    assert seen(case) == rows(1, 3)


def what_nobody_committed_is_listed_and_can_be_deleted(case: SinkCase) -> None:
    sink = case.open()
    publish(sink, 1, None, rows(1))
    stage(sink, 2, rows(2))
    stage(sink, 3, rows(3))
    left = [one for one in case.open().unpublished().staged if one.checkpoint_id > 1]
    assert {one.checkpoint_id for one in left} == {2, 3}
    sink.discard([one.file for one in left])
    assert not [one for one in sink.unpublished().staged if one.checkpoint_id > 1]
    assert seen(case) == rows(1)


def coordinators_that_commit_at_once_publish_once(case: SinkCase) -> None:
    for checkpoint_id in range(1, 6):
        staged = staged_rows(case.open(), checkpoint_id, checkpoint_id)
        handles = [case.open() for _ in range(3)]
        go = threading.Barrier(len(handles))
        problems: list[Exception] = []

        threads = [
            threading.Thread(target=_commit_at, args=(handle, go, checkpoint_id, staged, problems))
            for handle in handles
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert problems == []
    assert seen(case) == rows(1, 2, 3, 4, 5)


def what_is_ahead_of_a_version_is_named(case: SinkCase) -> None:
    sink = case.open()
    assert sink.published_after(None) == ()
    for checkpoint_id, parent in ((1, None), (2, 1), (4, 2)):
        publish(sink, checkpoint_id, parent, rows(checkpoint_id))
    assert case.open().published_after(None) == (1, 2, 4)
    assert case.open().published_after(1) == (2, 4)
    assert case.open().published_after(4) == ()
    assert all(case.open().describe(version) for version in (1, 2, 4))


def a_commit_that_a_restore_left_behind_shows_nothing(case: SinkCase) -> None:
    """The job was put back to 1 while somebody was about to commit 2, and goes on with 4."""
    sink = case.open()
    publish(sink, 1, None, rows(1))
    late = staged_rows(sink, 2, 2)
    for _ in range(2):
        case.open().recover(1, through=3, roll_back=False)
    _try_to_commit(case.open(), 2, 1, late)
    assert seen(case) == rows(1)
    publish(case.open(), 4, 1, rows(4))
    _try_to_commit(case.open(), 2, 1, late)
    assert seen(case) == rows(1, 4)


def a_commit_behind_a_later_one_shows_nothing(case: SinkCase) -> None:
    sink = case.open()
    publish(sink, 1, None, rows(1))
    late = staged_rows(sink, 2, 2)
    publish(case.open(), 3, 1, rows(3))
    _try_to_commit(case.open(), 2, 1, late)
    assert seen(case) == rows(1, 3)


def a_table_that_can_be_rolled_back_is_and_another_says_that_it_cannot(case: SinkCase) -> None:
    sink = case.open()
    for checkpoint_id in (1, 2, 3):
        publish(sink, checkpoint_id, checkpoint_id - 1 or None, rows(checkpoint_id))
    if sink.rolls_back is RollBack.NEVER:
        with pytest.raises(ConfigurationError, match="cannot be rolled back"):
            case.open().recover(1, through=3, roll_back=True)
        assert seen(case) == rows(1, 2, 3)
        return
    for _ in range(2):
        case.open().recover(1, through=3, roll_back=True)
        assert seen(case) == rows(1)
    assert case.open().published_after(1) == ()
    publish(case.open(), 4, 1, rows(2, 4))
    assert seen(case) == rows(1, 2, 4)
    case.open().recover(1, through=3, roll_back=True)  # A restore of long ago, once more.
    assert seen(case) == rows(1, 2, 4)


def a_table_is_rolled_back_to_nothing(case: SinkCase) -> None:
    sink = case.open()
    if sink.rolls_back is RollBack.NEVER:
        return
    publish(sink, 1, None, rows(1))
    sink.recover(None, through=1, roll_back=True)
    assert seen(case) == []
    publish(case.open(), 2, None, rows(2))
    assert seen(case) == rows(2)


def an_upsert_replaces_the_row_of_its_key(case: SinkCase) -> None:
    sink = case.open()
    publish(sink, 1, None, rows(1, 2))
    publish(sink, 2, 1, rows(2, 3, name="new"))
    assert seen(case) == [*rows(1), *rows(2, 3, name="new")]


def a_delete_takes_the_row_away_unless_it_is_written_again(case: SinkCase) -> None:
    sink = case.open()
    publish(sink, 1, None, rows(1, 2, 3))
    staged = [stage(sink, 2, rows(2, name="new")), stage_deletes(sink, 2, rows(1, 2))]
    sink.commit(2, 1, [one for one in staged if one is not None])
    assert seen(case) == [*rows(2, name="new"), *rows(3)]


def _commit_at(
    sink: Sink,
    go: threading.Barrier,
    checkpoint_id: int,
    staged: Committable,
    problems: list[Exception],
) -> None:
    go.wait()
    try:
        sink.commit(checkpoint_id, checkpoint_id - 1 or None, [staged])
    except Exception as error:  # noqa: BLE001 - whatever a thread raises is a problem
        problems.append(error)


def _try_to_commit(sink: Sink, checkpoint_id: int, parent: int, staged: Committable) -> None:
    with suppress(FencedError):
        sink.commit(checkpoint_id, parent, [staged])


APPEND_RULES = (
    staged_rows_are_seen_by_nobody,
    a_commit_shows_the_rows_of_all_subtasks_and_types_survive,
    a_repeated_commit_changes_nothing,
    an_attempt_that_no_ack_names_is_never_seen,
    an_epoch_without_rows_is_published_too,
    an_aborted_checkpoint_leaves_nothing,
    what_nobody_committed_is_listed_and_can_be_deleted,
    coordinators_that_commit_at_once_publish_once,
    what_is_ahead_of_a_version_is_named,
    a_commit_that_a_restore_left_behind_shows_nothing,
    a_commit_behind_a_later_one_shows_nothing,
    a_table_that_can_be_rolled_back_is_and_another_says_that_it_cannot,
    a_table_is_rolled_back_to_nothing,
)
UPSERT_RULES = (
    *APPEND_RULES,
    an_upsert_replaces_the_row_of_its_key,
    a_delete_takes_the_row_away_unless_it_is_written_again,
)
