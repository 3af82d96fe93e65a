"""The pages that messages name; tests/house checks that they exist."""

from __future__ import annotations

from sluice.core.failures import STORES, CheckpointFailureReason, page_of


def test_a_message_names_a_page_by_its_title() -> None:
    assert str(STORES) == '"Which stores can hold a journal" in Sluice\'s documentation'


def test_a_message_names_a_failure_reason_by_its_section() -> None:
    page = page_of(CheckpointFailureReason.CHECKPOINT_EXPIRED)

    assert str(page) == (
        'CHECKPOINT_EXPIRED in "Why a checkpoint or a command failed" in Sluice\'s documentation'
    )
