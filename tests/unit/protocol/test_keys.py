"""Keys: as the layout has them, sorted as the numbers in them, and read back without loss.

Names that cannot be part of a key are refused, also under ``python -O``.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.ids import CheckpointId, SavepointId, SubtaskId
from sluice.errors import ConfigurationError, ProtocolViolation
from sluice.protocol.keys import (
    ID_DIGITS,
    SEQ_DIGITS,
    PipelinePaths,
    check_key,
    check_prefix,
    stage_of_answer,
    subtask_of_decline,
)

NAMES = PipelinePaths("auctions")
PATHS = NAMES.of_journal("j-1f0c")
MINE = SavepointId("mine", "a1b2")
SUBTASK = SubtaskId("count_bids", 11)

seqs = st.integers(0, 10**SEQ_DIGITS - 1)
ids = st.integers(0, 10**ID_DIGITS - 1)
tokens = st.from_regex(r"[a-z0-9]{0,16}", fullmatch=True)
uids = st.from_regex(r"[a-z][a-z0-9_]{0,20}", fullmatch=True)


def test_keys_are_those_of_the_layout() -> None:
    built = [
        PATHS.begun(),
        PATHS.journal(),
        PATHS.journal_entry(7),
        PATHS.checkpoint(3),
        PATHS.plan(3),
        PATHS.metadata(3),
        PATHS.answers(3),
        PATHS.answer(3, "count_bids", 2, "a1b2"),
        PATHS.declines(3),
        PATHS.decline(3, SUBTASK, 2, "a1b2"),
        PATHS.shared_segments("a", 3),
        PATHS.shared_segment("a", 3, "c0"),
        PATHS.streams("a", 3),
        PATHS.stream_segment("a", 3, "c0"),
        PATHS.table("results"),
        PATHS.side_output("a.late"),
        PATHS.savepoint("mine"),
        PATHS.savepoint_pointer("mine", 7),
        PATHS.savepoint_metadata(MINE),
        PATHS.savepoint_file(MINE, "c0"),
        PATHS.probe("t"),
    ]

    assert built == [
        "auctions/begun",
        "auctions/j-1f0c/journal/",
        "auctions/j-1f0c/journal/000000000007",
        "auctions/j-1f0c/checkpoints/0000000003/",
        "auctions/j-1f0c/checkpoints/0000000003/plan",
        "auctions/j-1f0c/checkpoints/0000000003/_metadata",
        "auctions/j-1f0c/checkpoints/0000000003/answers/",
        "auctions/j-1f0c/checkpoints/0000000003/answers/count_bids.2-a1b2",
        "auctions/j-1f0c/checkpoints/0000000003/declines/",
        "auctions/j-1f0c/checkpoints/0000000003/declines/count_bids/11.2-a1b2",
        "auctions/j-1f0c/shared/a/0000000003-",
        "auctions/j-1f0c/shared/a/0000000003-c0.arrow",
        "auctions/j-1f0c/streams/a/0000000003/",
        "auctions/j-1f0c/streams/a/0000000003/c0.arrow",
        "auctions/tables/results",
        "auctions/side/a.late",
        "auctions/savepoints/mine/",
        "auctions/savepoints/mine/pointers/000000000007",
        "auctions/savepoints/mine/a1b2/_metadata",
        "auctions/savepoints/mine/a1b2/c0.arrow",
        "auctions/probes/t",
    ]


@given(seqs, seqs)
def test_journal_entries_sort_as_their_numbers(one: int, other: int) -> None:
    assert (PATHS.journal_entry(one) < PATHS.journal_entry(other)) == (one < other)


@given(ids, ids)
def test_checkpoints_sort_as_their_ids(one: int, other: int) -> None:
    for key in (PATHS.checkpoint, PATHS.plan, PATHS.metadata):
        assert (key(one) < key(other)) == (one < other)
    assert (PATHS.shared_segments("a", one) < PATHS.shared_segments("a", other)) == (one < other)


@given(seqs)
def test_the_number_of_a_journal_entry_is_read_back(seq: int) -> None:
    assert PATHS.journal_seq(PATHS.journal_entry(seq)) == seq


@given(uids, ids, uids, st.integers(0, 10**6), st.integers(0, 10**6), tokens)
def test_who_answers_what_is_read_back(
    pipeline: str, checkpoint_id: int, stage: str, index: int, attempt: int, plan: str
) -> None:
    paths, subtask = PipelinePaths(pipeline).of_journal("j-1"), SubtaskId(stage, index)
    answer = paths.answer(checkpoint_id, stage, attempt, plan)
    decline = paths.decline(checkpoint_id, subtask, attempt, plan)

    assert (paths.is_answer(answer), paths.is_answer(decline)) == (True, False)
    assert (paths.is_decline(answer), paths.is_decline(decline)) == (False, True)
    assert stage_of_answer(answer) == (stage, attempt, plan)
    assert subtask_of_decline(decline) == (subtask, attempt, plan)


@given(uids, ids, uids, st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,20}", fullmatch=True))
def test_the_checkpoint_that_wrote_a_key_is_read_back(
    pipeline: str, checkpoint_id: int, stage: str, content: str
) -> None:
    paths = PipelinePaths(pipeline).of_journal("j-1")
    built = [
        paths.plan(checkpoint_id),
        paths.metadata(checkpoint_id),
        paths.decline(checkpoint_id, SubtaskId(stage, 3), 1, "a1b2"),
        paths.answer(checkpoint_id, stage, 1, "a1b2"),
        paths.shared_segment(stage, checkpoint_id, content),
        paths.stream_segment(stage, checkpoint_id, content),
    ]

    assert {paths.checkpoint_of(key) for key in built} == {checkpoint_id}
    for other in (PipelinePaths(f"{pipeline}x").of_journal("j-1"), paths.of_journal("j-2")):
        assert {other.checkpoint_of(key) for key in built} == {None}
    assert {paths.savepoint_of(key) for key in built} == {None}


@pytest.mark.parametrize(
    "key",
    [
        "",
        "auctions",
        "auctions/",
        "auctions/begun",
        "auctions/j-1f0c/journal/000000000007",
        "auctions/j-1f0c/checkpoints/0000000003",
        "auctions/j-1f0c/checkpoints/0000000003/",
        "auctions/j-1f0c/checkpoints/3/plan",
        "auctions/j-1f0c/checkpoints/00000000031/plan",
        "auctions/j-1f0c/checkpoints/a/0000000003/plan",
        "auctions/j-1f0c/shared/0000000003-c0.arrow",
        "auctions/j-1f0c/shared/a/0000000003/c0.arrow",
        "auctions/j-1f0c/shared/a/0000000003-",
        "auctions/j-1f0c/shared/a/b/0000000003-c0.arrow",
        "auctions/j-1f0c/streams/a/0000000003-c0.arrow",
        "auctions/j-1f0c/streams/a/\u0661000000003/c0.arrow",
        "auctions/savepoints/mine/a1b2/_metadata",
        "other/auctions/j-1f0c/checkpoints/0000000003/plan",
        "auctions/checkpoints/0000000003/plan",
        "auctions/j-1f0/checkpoints/0000000003/plan",
    ],
)
def test_no_other_name_is_taken_for_a_checkpoints(key: str) -> None:
    assert PATHS.checkpoint_of(key) is None


def test_the_savepoint_of_a_key_is_read_back() -> None:
    built = [PATHS.savepoint_metadata(MINE), PATHS.savepoint_file(MINE, "c0")]
    others = ["auctions/savepoints/", "auctions/savepoints/mine", "auctions/savepoints/mine/"]
    others += ["auctions/savepoints//x", "x/auctions/savepoints/mine/a1b2/x", PATHS.plan(3)]
    others += ["auctions/savepoints/mine/_metadata", "auctions/savepoints/mine/a1b2/"]
    pointer = PATHS.savepoint_pointer("mine", 7)

    assert {PATHS.savepoint_of(key) for key in built} == {MINE}
    assert {PATHS.savepoint_of(key) for key in (*others, pointer)} == {None}
    assert PATHS.savepoint_pointer_of(pointer) == ("mine", 7)
    assert {PATHS.savepoint_pointer_of(key) for key in (*others, *built)} == {None}


def test_a_journals_keys_are_apart_from_every_other_ones() -> None:
    """A listing of one, or from behind one on, has nothing of another, nor of what has a name."""
    one, longer, named = NAMES.of_journal("j-1"), NAMES.of_journal("j-12"), NAMES.savepoints()
    keys = [journal.plan(3) for journal in (one, longer)]

    assert [key.startswith(one.folder) for key in keys] == [True, False]
    assert [key > one.behind() for key in keys] == [False, True]
    assert {key.startswith(NAMES.journals()) for key in keys} == {True}
    assert [NAMES.journal_of(key) for key in keys] == [one, longer]
    for key in ("auctions/j-1", "auctions/j-A/x", "other/j-1/journal/1", NAMES.probe("j-1")):
        assert NAMES.journal_of(key) is None
    for key in (NAMES.begun(), NAMES.journal_without_token(), named, NAMES.table("j")):
        assert not key.startswith(NAMES.journals())


@pytest.mark.parametrize("token", ["", "j-", "a1b2", "j-A", "j-1/2", "tables", "j-" + "a" * 33])
def test_what_is_no_journals_token_is_part_of_no_key(token: str) -> None:
    with pytest.raises(ProtocolViolation, match="is no token of a journal"):
        NAMES.of_journal(token)


@pytest.mark.parametrize("token", ["", "pointers", "A", "a/b", "..", "a" * 33])
def test_a_token_is_the_name_of_a_folder_of_its_own(token: str) -> None:
    with pytest.raises(ConfigurationError, match="is no token of a savepoint"):
        PATHS.incarnation(SavepointId("mine", token))


def test_no_checkpoints_keys_are_anothers() -> None:
    """What aborting one deletes by prefix is nothing of another."""
    prefixes = [
        prefix
        for checkpoint_id in (1, 10, 100)
        for prefix in (
            PATHS.checkpoint(checkpoint_id),
            PATHS.streams("a", checkpoint_id),
            PATHS.shared_segments("a", checkpoint_id),
            PATHS.shared_segments("a_b", checkpoint_id),
        )
    ]

    assert not [(a, b) for a in prefixes for b in prefixes if a != b and a.startswith(b)]


ODD_NAMES = ["", ".", "..", "../../x", "a/b", "/a", "-a", "a b", "a\n", "ä", "a" * 129]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_no_key_is_built_of_a_name_that_a_savepoint_cannot_have(name: str) -> None:
    with pytest.raises(ConfigurationError, match="use up to 128 of A-Z"):
        PATHS.savepoint_metadata(SavepointId(name, "a1b2"))


@pytest.mark.parametrize("uid", [*ODD_NAMES, "Auctions", "1a", "a.b", "a" * 64])
def test_no_key_is_built_of_what_is_no_uid(uid: str) -> None:
    with pytest.raises(ConfigurationError, match="use up to 63 of a-z, 0-9 and _"):
        PipelinePaths(uid)


@pytest.mark.parametrize(
    "key", ["", "/a", "a/", "a//b", "..", "a/../b", "./a", "a/.", "a/.sluice-tmp-1", "../a"]
)
def test_what_leads_elsewhere_is_no_key(key: str) -> None:
    with pytest.raises(ProtocolViolation, match="is no key"):
        check_key(key)


@pytest.mark.parametrize("key", ["a", "..a/.b", "a/...", "a./b..", "a/.sluice-tmp", "a\n/b\n", "ä"])
def test_a_name_with_dots_in_it_is_one(key: str) -> None:
    check_key(key)


def test_a_prefix_ends_anywhere_and_leads_nowhere_else() -> None:
    for prefix in ("", "a", "a/", "a/b", "a/.slu"):
        check_prefix(prefix)

    for prefix in ("../", "a/../b", "/", "//a", "a/./"):
        with pytest.raises(ProtocolViolation, match="is no key"):
            check_prefix(prefix)


@given(ids)
def test_the_checkpoint_of_statistics_is_read_back(checkpoint_id: int) -> None:
    key = PATHS.statistics(checkpoint_id)

    assert PATHS.is_statistics(key)
    assert PATHS.statistics_of(key) == checkpoint_id
    assert PATHS.checkpoint_of(key) is None  # No garbage by its id.


def test_only_what_we_write_is_taken_for_ours() -> None:
    assert PATHS.is_journal_entry(PATHS.journal_entry(7))
    assert PATHS.is_early_publish(PATHS.early_publish(7, "alerts"))
    assert PATHS.is_compaction(PATHS.compaction("a", CheckpointId(7)))
    assert PATHS.savepoint_of(PATHS.savepoint_metadata(MINE)) == MINE

    for key in ("x", "7", "000000000007/x", "00000000000x", "auctions/savepoints/m/_metadata"):
        assert not PATHS.is_journal_entry(PATHS.journal() + key)
    for key in ("auctions/statistics/7", "other/statistics/0000000007", "x"):
        assert not PATHS.is_statistics(key)
    assert not PATHS.is_early_publish(PATHS.early_publishes() + "notes.txt")
    assert not PATHS.is_compaction(PATHS.compactions("a") + "copy/record")
    assert PATHS.savepoint_of(PATHS.savepoints() + "ä/a1b2/_metadata") is None
    for name in (".DS_Store", "count_bids.2", "count_bids.x-a", "count_bids/11.2-a", "a.1-A"):
        assert not PATHS.is_answer(PATHS.answers(3) + name)
    for name in ("count_bids/.DS_Store", "count_bids/11.2", "count_bids.2-a", "a/b/11.2-a"):
        assert not PATHS.is_decline(PATHS.declines(3) + name)
