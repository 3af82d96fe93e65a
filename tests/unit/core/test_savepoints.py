"""What people call a savepoint, and what its name's pointer says of it."""

from __future__ import annotations

import pytest

from sluice.core.ids import CheckpointId, SavepointId
from sluice.core.savepoints import PointerPhase, SavepointPointer


def test_people_call_an_incarnation_by_its_name() -> None:
    assert str(SavepointId("nightly", "9c2e")) == "nightly"


@pytest.mark.parametrize(
    ("phase", "is_complete", "is_gone"),
    [
        (PointerPhase.WRITING, False, False),
        (PointerPhase.COMPLETE, True, False),
        (PointerPhase.GONE, False, True),
    ],
)
def test_a_savepoint_can_be_restored_between_its_last_file_and_its_disposal(
    phase: PointerPhase, is_complete: bool, is_gone: bool
) -> None:
    token = "9c2e"
    pointer = SavepointPointer(token=token, phase=phase, checkpoint_id=CheckpointId(1))

    assert (pointer.is_complete, pointer.is_gone) == (is_complete, is_gone)
