"""The rules for every sink, checked by reading its table from outside with another tool.

``APPEND_RULES`` and ``UPSERT_RULES`` are to be run each on a fresh table.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from sluice.declaration.places import Sink, Staged
from tests.builders import PLANNED
from tests.contract.restore_rules import RESTORE_RULES
from tests.contract.sink_case import (
    JOB,
    SinkCase,
    publish,
    rows,
    seen,
    stage,
    stage_deletes,
    staged_rows,
)


def staged_rows_are_seen_by_nobody(case: SinkCase) -> None:
    publish(case.open(), 1, None, rows(1))
    stage(case.open(), 2, rows(2))
    assert seen(case) == rows(1)


def a_commit_shows_the_rows_of_all_subtasks_and_types_survive(case: SinkCase) -> None:
    sink = case.open()
    staged = [staged_rows(sink, 1, 1, 7), staged_rows(sink, 1, 2, 3, subtask=1)]
    case.open().commit(JOB, 1, None, staged)
    assert seen(case) == rows(1, 2, 3, 7)


def a_repeated_commit_changes_nothing(case: SinkCase) -> None:
    sink = case.open()
    staged = staged_rows(sink, 1, 1, 2)
    for handle in (sink, case.open(), case.open()):
        handle.commit(JOB, 1, None, [staged])
        assert handle.is_published(1)
    assert seen(case) == rows(1, 2)


def an_attempt_that_no_ack_names_is_never_seen(case: SinkCase) -> None:
    sink = case.open()
    stage(sink, 1, rows(1), attempt="1-zombie")
    sink.commit(JOB, 1, None, [staged_rows(sink, 1, 1, attempt="2-b")])
    assert seen(case) == rows(1)


def an_epoch_without_rows_is_published_too(case: SinkCase) -> None:
    sink = case.open()
    assert stage(sink, 1, []) is None
    sink.commit(JOB, 1, None, [])
    assert sink.is_published(1)
    publish(sink, 2, 1, rows(1))
    assert seen(case) == rows(1)


def an_aborted_checkpoint_leaves_nothing(case: SinkCase) -> None:
    sink = case.open()
    publish(sink, 1, None, rows(1))
    stage(sink, 2, rows(2))
    case.open().abort(2, PLANNED)
    case.open().abort(2, PLANNED)
    assert not case.open().is_published(2)
    assert not left_behind(sink)
    publish(sink, 3, 1, rows(3))
    assert seen(case) == rows(1, 3)


def an_abort_leaves_what_another_life_staged_under_the_same_number(case: SinkCase) -> None:
    sink = case.open()
    publish(sink, 1, None, rows(1))
    anothers = staged_rows(sink, 2, 2, planned=f"{PLANNED}c")
    stage(sink, 2, rows(3))
    case.open().abort(2, PLANNED)
    assert [file.checkpoint_token for file in left_behind(sink)] == [f"{PLANNED}c"]
    sink.commit(JOB, 2, 1, [anothers])
    assert seen(case) == rows(1, 2)


def what_nobody_committed_is_listed_and_can_be_deleted(case: SinkCase) -> None:
    sink = case.open()
    publish(sink, 1, None, rows(1))
    stage(sink, 2, rows(2))
    stage(sink, 3, rows(3))
    left = left_behind(case.open())
    assert {unit.checkpoint_id for unit in left} == {2, 3}
    sink.discard([unit.file for unit in left])
    assert not left_behind(sink)
    assert seen(case) == rows(1)


def what_was_copied_is_deleted_when_that_is_journaled_and_what_is_the_table_stays(
    case: SinkCase,
) -> None:
    sink = case.open()
    publish(sink, 1, None, rows(1))
    staged = [staged_rows(sink, 2, 2, 3)]
    sink.commit(JOB, 2, 1, staged)
    for handle in (sink, case.open()):
        handle.discard_copied(staged)
    assert not left_behind(sink)
    assert seen(case) == rows(1, 2, 3)
    publish(sink, 3, 2, rows(4))
    assert seen(case) == rows(1, 2, 3, 4)


def coordinators_that_commit_at_once_publish_once(case: SinkCase) -> None:
    for checkpoint_id in range(1, 6):
        commit_at_once(case, checkpoint_id)
    assert seen(case) == rows(1, 2, 3, 4, 5)


def an_upsert_replaces_the_row_of_its_key(case: SinkCase) -> None:
    sink = case.open()
    publish(sink, 1, None, rows(1, 2))
    publish(sink, 2, 1, rows(2, 3, name="new"))
    assert seen(case) == [*rows(1), *rows(2, 3, name="new")]


def a_delete_takes_the_row_away_unless_it_is_written_again(case: SinkCase) -> None:
    sink = case.open()
    publish(sink, 1, None, rows(1, 2, 3))
    staged = [staged_rows(sink, 2, 2, name="new"), stage_deletes(sink, 2, rows(1, 2))]
    sink.commit(JOB, 2, 1, staged)
    assert seen(case) == [*rows(2, name="new"), *rows(3)]


def left_behind(sink: Sink) -> list[Staged]:
    """What checkpoints after the first have staged, and no commit has published."""
    return [unit for unit in sink.unpublished().staged if unit.checkpoint_id > 1]


def commit_at_once(case: SinkCase, checkpoint_id: int) -> None:
    staged = staged_rows(case.open(), checkpoint_id, checkpoint_id)
    handles = [case.open() for _ in range(3)]
    go = threading.Barrier(len(handles))

    def commit(sink: Sink) -> None:
        go.wait()
        sink.commit(JOB, checkpoint_id, checkpoint_id - 1 or None, [staged])

    with ThreadPoolExecutor(len(handles)) as pool:
        list(pool.map(commit, handles))  # Raises what a commit raises.


APPEND_RULES = (
    staged_rows_are_seen_by_nobody,
    a_commit_shows_the_rows_of_all_subtasks_and_types_survive,
    a_repeated_commit_changes_nothing,
    an_attempt_that_no_ack_names_is_never_seen,
    an_epoch_without_rows_is_published_too,
    an_aborted_checkpoint_leaves_nothing,
    an_abort_leaves_what_another_life_staged_under_the_same_number,
    what_nobody_committed_is_listed_and_can_be_deleted,
    what_was_copied_is_deleted_when_that_is_journaled_and_what_is_the_table_stays,
    coordinators_that_commit_at_once_publish_once,
    *RESTORE_RULES,
)
UPSERT_RULES = (
    *APPEND_RULES,
    an_upsert_replaces_the_row_of_its_key,
    a_delete_takes_the_row_away_unless_it_is_written_again,
)
