"""After any two restores readers see what the job stands for: every pair of targets, either way."""

from __future__ import annotations

import itertools

import pytest

from sluice.coordinator.restore import restore
from sluice.coordinator.restore_plan import plan_restore
from sluice.core.restoring import Stop
from sluice.errors import RestoreError
from tests.subtasks import take_checkpoint, take_checkpoints
from tests.table_cases import PLAIN, ROLL_BACK, a_case, absorbed, complete, to


@pytest.mark.parametrize("kind", ["files", "noted"])
@pytest.mark.parametrize("has_commit", [True, False], ids=["committed", "not committed"])
@pytest.mark.parametrize("targets", [*itertools.permutations((1, 2, 3), 2), (1, 1), (3, 3)])
@pytest.mark.parametrize("rolls_back", [*itertools.product((True, False), repeat=2)])
def test_after_two_restores_and_one_checkpoint_readers_see_what_the_job_stands_for(
    kind: str, has_commit: bool, targets: tuple[int, int], rolls_back: tuple[bool, bool]
) -> None:
    """A files table shows just that.  Another may show rows twice if it was not rolled back, but
    lacks none: a restore that cannot see to it is refused, as its dry run says, and changes
    nothing.
    """
    case = a_case(kind)
    take_checkpoints(case.job, 2)
    (take_checkpoint if has_commit else complete)(case.job)

    for target, rolling in zip(targets, rolls_back, strict=True):
        options = ROLL_BACK if rolling else PLAIN
        planned = plan_restore(case.job, to(target), options)
        before = (case.job.state(), case.seen())
        if isinstance(planned, Stop):
            with pytest.raises(RestoreError, match="lacks checkpoint"):
                restore(case.job, to(target), options)
            assert (case.job.state(), case.seen()) == before
            assert kind == "noted"
        else:
            restore(case.job, to(target), options)
            if rolling:
                assert case.seen() == absorbed(case.job)
    take_checkpoint(case.job)

    if kind == "files" or all(rolls_back):
        assert case.seen() == absorbed(case.job)
    assert set(case.seen()) >= {*absorbed(case.job)}
