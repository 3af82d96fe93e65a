"""Keys: as the layout says, sorted as the numbers in them, and read back without loss."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluice.core.ids import SubtaskId
from sluice.protocol.paths import ID_DIGITS, SEQ_DIGITS, PipelinePaths, subtask_of_answer

PATHS = PipelinePaths("auctions")
SUBTASK = SubtaskId("count_bids", 11)

seqs = st.integers(0, 10**SEQ_DIGITS - 1)
ids = st.integers(0, 10**ID_DIGITS - 1)
uids = st.from_regex(r"[a-z][a-z0-9_]{0,20}", fullmatch=True)


def test_keys_are_those_of_the_layout() -> None:
    built = [
        PATHS.journal(),
        PATHS.journal_entry(7),
        PATHS.checkpoint(3),
        PATHS.plan(3),
        PATHS.metadata(3),
        PATHS.acks(3),
        PATHS.acks(3, "count_bids"),
        PATHS.ack(3, SUBTASK, 2),
        PATHS.declines(3),
        PATHS.decline(3, SUBTASK, 2),
        PATHS.shared_segments("a", 3),
        PATHS.shared_segment("a", 3, "c0"),
        PATHS.streams("a", 3),
        PATHS.stream_segment("a", 3, "c0"),
        PATHS.table("results"),
        PATHS.side_output("a.late"),
        PATHS.savepoint("mine"),
        PATHS.savepoint_metadata("mine"),
        PATHS.savepoint_file("mine", "c0"),
        PATHS.probe("t"),
    ]

    assert built == [
        "auctions/journal/",
        "auctions/journal/000000000007",
        "auctions/checkpoints/0000000003/",
        "auctions/checkpoints/0000000003/plan",
        "auctions/checkpoints/0000000003/_metadata",
        "auctions/checkpoints/0000000003/acks/",
        "auctions/checkpoints/0000000003/acks/count_bids/",
        "auctions/checkpoints/0000000003/acks/count_bids/11.2",
        "auctions/checkpoints/0000000003/declines/",
        "auctions/checkpoints/0000000003/declines/count_bids/11.2",
        "auctions/shared/a/0000000003-",
        "auctions/shared/a/0000000003-c0.arrow",
        "auctions/streams/a/0000000003/",
        "auctions/streams/a/0000000003/c0.arrow",
        "auctions/tables/results",
        "auctions/side/a.late",
        "auctions/savepoints/mine/",
        "auctions/savepoints/mine/_metadata",
        "auctions/savepoints/mine/c0.arrow",
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


@given(uids, ids, uids, st.integers(0, 10**6), st.integers(0, 10**6))
def test_the_subtask_and_attempt_of_an_answer_are_read_back(
    pipeline: str, checkpoint_id: int, stage: str, index: int, attempt: int
) -> None:
    paths, subtask = PipelinePaths(pipeline), SubtaskId(stage, index)

    assert subtask_of_answer(paths.ack(checkpoint_id, subtask, attempt)) == (subtask, attempt)
    assert subtask_of_answer(paths.decline(checkpoint_id, subtask, attempt)) == (subtask, attempt)


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
