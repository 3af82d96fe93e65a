"""Objects in a job's prefix that sluice did not write, and keys that lead out of a root."""

from __future__ import annotations

import logging

import pytest

from sluice.core.answers import StageAnswer
from sluice.core.ids import CheckpointId, SubtaskId
from sluice.errors import ProtocolViolation
from sluice.protocol.records import encode_answer
from sluice.store.checkpoints import Answers, AnswerStore
from sluice.store.object_store import ObjectStore
from tests.builders import an_ack
from tests.contract.journals import (
    PATHS,
    a_journal,
    append,
    append_many,
    number_of,
    numbers_in,
    paths_in,
)

PLAN = "a1b2"
COPIED = ("auctions/savepoints/mine/_metadata", "README.txt", "zzz", "0000", "000000000002.bak")


def test_a_journal_passes_foreign_objects_by_and_names_each(
    store: ObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    append_many(store, 2)
    folder = paths_in(store).journal()
    for name in COPIED:
        store.put(folder + name, b"not ours")

    with caplog.at_level(logging.WARNING):
        assert number_of(store) == 2
        assert append(a_journal(store)) == 3
        assert numbers_in(store) == [1, 2, 3]
        append_many(store, 5)
        assert a_journal(store).truncate(keep=2) == 6

    assert number_of(store) == 8
    left = [listed.key for listed in store.list(folder)]
    assert {folder + name for name in COPIED} <= set(left)
    named = [r.getMessage() for r in caplog.records if "foreign object" in r.getMessage()]
    assert sorted(named) == sorted({*named}), "each once"
    assert all(any(f"{folder}{name}:" in line for line in named) for name in COPIED)


def test_a_foreign_object_is_no_answer(store: ObjectStore) -> None:
    answers = AnswerStore(store, PATHS)
    store.put(PATHS.answer(3, "parse", 1, PLAN), b"an answer")
    store.put(PATHS.answer(3, "parse", 1, "another"), b"an answer to another plan of that id")
    store.put(PATHS.decline(3, SubtaskId("parse", 0), 1, "another"), b"likewise")
    for name in ("parse/.DS_Store", "parse.1", "parse/0.1-a.bak", "0.1/x", "README"):
        store.put(PATHS.answers(3) + name, b"not ours")
        store.put(PATHS.declines(3) + name, b"not ours")

    assert answers.observe(CheckpointId(3), PLAN) == Answers(
        answered=frozenset({("parse", 1)}), declined=frozenset(), has_plan=False
    )
    store.delete([PATHS.decline(3, SubtaskId("parse", 0), 1, "another")])
    assert answers.declines(CheckpointId(3)) == []


def test_an_answer_under_the_key_of_another_is_refused(store: ObjectStore) -> None:
    """It was copied there by hand, or restored from a backup of another checkpoint."""
    answers, ack = AnswerStore(store, PATHS), an_ack(SubtaskId("parse", 0), checkpoint_id=3)
    answer = StageAnswer(
        checkpoint_id=ack.checkpoint_id,
        stage="parse",
        attempt=1,
        plan=PLAN,
        driver="c3d4",
        acks=(ack,),
    )
    for checkpoint_id, attempt, plan in ((3, 2, PLAN), (4, 1, PLAN), (3, 1, "another")):
        store.put(PATHS.answer(checkpoint_id, "parse", attempt, plan), encode_answer(answer))

        with pytest.raises(ProtocolViolation, match=r"the answer that belongs under .*/000000000"):
            answers.answer(CheckpointId(checkpoint_id), "parse", attempt=attempt, plan=plan)


@pytest.mark.parametrize("key", ["../x", "a/../../x", "/etc/hostname", "", "a/.sluice-tmp-1"])
def test_no_verb_takes_a_key_that_leads_out_of_the_root(store: ObjectStore, key: str) -> None:
    for act in (
        lambda: store.get(key),
        lambda: store.get_range(key, 0, 1),
        lambda: store.put(key, b"x"),
        lambda: store.create(key, b"x"),
        lambda: store.delete([key]),
        lambda: [*store.list(f"{key or '.'}/")],
    ):
        with pytest.raises(ProtocolViolation, match="is no key"):
            act()


def test_a_range_that_is_none_is_refused(store: ObjectStore) -> None:
    store.put("a", b"abc")

    with pytest.raises(ProtocolViolation, match="no range"):
        store.get_range("a", 2, 1)
