"""The counter of failed checkpoints: the cases of Flink's CheckpointFailureManagerTest."""

from __future__ import annotations

import pytest

from sluice.core.failures import MAX_COUNTED_IDS, UNKNOWN_CHECKPOINT_ID, FailureCount
from sluice.core.failures import CheckpointFailureReason as Reason

EXPIRED, DECLINED, IO = Reason.CHECKPOINT_EXPIRED, Reason.CHECKPOINT_DECLINED, Reason.IO_EXCEPTION
FAILOVER = Reason.JOB_FAILOVER_REGION
OK = None  # A success, in the place of a reason.


def job_failures(tolerable: int | None, history: list[tuple[Reason | None, int]]) -> int:
    count, failures = FailureCount(), 0
    for reason, checkpoint_id in history:
        if reason is OK:
            count = count.succeed(checkpoint_id)
            continue
        count, over = count.fail(checkpoint_id, reason, tolerable=tolerable)
        failures += over
    return failures


@pytest.mark.parametrize(
    ("tolerable", "history", "failures"),
    [
        (2, [(EXPIRED, 1), (EXPIRED, 2), (OK, 2), (EXPIRED, 1), (EXPIRED, 3), (EXPIRED, 4)], 0),
        (2, [(IO, 1), (DECLINED, 2), (FAILOVER, 3), (OK, 4), (EXPIRED, 5)], 0),
        (2, [(DECLINED, 1), (DECLINED, 2), (FAILOVER, 3), (DECLINED, 2)], 0),
        (1, [(EXPIRED, 1), (EXPIRED, 2)], 1),
        (1, [(IO, UNKNOWN_CHECKPOINT_ID), (IO, UNKNOWN_CHECKPOINT_ID)], 1),
        (1, [(OK, 5), (EXPIRED, 6), (OK, 4), (EXPIRED, 7)], 1),
        (0, [(EXPIRED, 1)], 1),
        (0, [(EXPIRED, 1), (EXPIRED, 2)], 2),
        (None, [(EXPIRED, n) for n in range(1, 50)], 0),
    ],
    ids=["F01", "F03", "F04", "F07", "F08", "F13", "default", "starts again", "unlimited"],
)
def test_the_job_fails_as_often_as_flinks(
    tolerable: int | None, history: list[tuple[Reason | None, int]], failures: int
) -> None:
    assert job_failures(tolerable, history) == failures


def test_only_what_a_checkpoint_did_itself_counts() -> None:
    counted = {reason for reason in Reason if job_failures(0, [(reason, 1)])}

    assert counted == {
        Reason.IO_EXCEPTION,
        Reason.CHECKPOINT_ASYNC_EXCEPTION,
        Reason.CHECKPOINT_DECLINED,
        Reason.CHECKPOINT_EXPIRED,
        Reason.FINALIZE_CHECKPOINT_FAILURE,
    }
    assert counted == {reason for reason in Reason if reason.counts}


def test_a_tolerant_job_remembers_a_bounded_number_of_ids() -> None:
    count = FailureCount()

    for checkpoint_id in range(1, MAX_COUNTED_IDS + 5):
        count, _ = count.fail(checkpoint_id, EXPIRED, tolerable=None)

    assert len(count.counted_ids) == MAX_COUNTED_IDS
    assert count.continuous == MAX_COUNTED_IDS + 4
