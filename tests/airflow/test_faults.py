"""A fault is read exactly, or refused with the form it should have."""

from __future__ import annotations

import pytest

from sluice.errors import ConfigurationError
from sluice.faults import Fault, fault_from_environment, parse_fault


@pytest.mark.parametrize(
    "fault",
    [
        Fault(kind="kill-task", stage="window_rule"),
        Fault(kind="kill-worker", stage="parse", checkpoint_id=3),
    ],
)
def test_a_fault_is_read_as_it_is_written(fault: Fault) -> None:
    assert parse_fault(str(fault)) == fault


@pytest.mark.parametrize("text", ["", "  \n"])
def test_no_text_is_no_fault(text: str) -> None:
    assert parse_fault(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "kill stage=parse",
        "kill-task",
        "kill-task parse",
        "kill-task stage=",
        "kill-task stage=parse checkpoint=soon",
        "kill-task stage=parse when=later",
        "kill-task stage=parse stage=parse checkpoint=1",
    ],
)
def test_another_form_is_refused_with_the_right_one(text: str) -> None:
    with pytest.raises(ConfigurationError, match="write 'kill-worker stage=UID'"):
        parse_fault(text)


def test_a_fault_strikes_only_its_stage_and_checkpoint() -> None:
    fault = Fault(kind="kill-task", stage="parse", checkpoint_id=3)

    struck = [
        (kind, stage, checkpoint_id)
        for kind in ("kill-task", "kill-worker")
        for stage in ("parse", "window")
        for checkpoint_id in (2, 3)
        if fault.strikes(kind, stage, checkpoint_id)
    ]

    assert struck == [("kill-task", "parse", 3)]


def test_the_environment_may_ask_for_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_FAULT", "kill-task stage=parse")

    assert fault_from_environment() == Fault(kind="kill-task", stage="parse")
