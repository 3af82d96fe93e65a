"""Faults that a person injects: read from their text, and strike only where they were told."""

from __future__ import annotations

import pytest

from sluice.errors import ConfigurationError
from sluice.faults import Fault, fault_from_environment, parse_fault


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("kill-worker stage=parse", Fault(kind="kill-worker", stage="parse")),
        ("kill-task  stage=b checkpoint=3", Fault(kind="kill-task", stage="b", checkpoint_id=3)),
        ("kill-task checkpoint=0 stage=a", Fault(kind="kill-task", stage="a", checkpoint_id=0)),
        ("", None),
        ("  ", None),
    ],
)  # fmt: skip
def test_a_fault_is_read_from_its_text(text: str, fault: Fault | None) -> None:
    assert parse_fault(text) == fault
    if fault is not None:
        assert parse_fault(str(fault)) == fault


@pytest.mark.parametrize(
    "text",
    [
        "kill",
        "kill-driver stage=a",
        "kill-task",
        "kill-task stage=",
        "kill-task stage",
        "kill-task a",
        "kill-task stage=a checkpoint=",
        "kill-task stage=a checkpoint=three",
        "kill-task stage=a checkpoint=-1",
        "kill-task stage=a when=now",
        "kill-task stage=a checkpoint=1 checkpoint=2",
    ],
)
def test_another_text_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"the fault '{text}' cannot be read; write 'kill"):
        parse_fault(text)


def test_a_fault_strikes_only_its_kind_stage_and_checkpoint() -> None:
    once = Fault(kind="kill-task", stage="parse", checkpoint_id=3)
    always = Fault(kind="kill-task", stage="parse")

    assert once.strikes("kill-task", "parse", 3)
    assert not once.strikes("kill-task", "parse", 4)
    assert not once.strikes("kill-task", "join", 3)
    assert not once.strikes("kill-worker", "parse", 3)
    assert always.strikes("kill-task", "parse", 4)


def test_the_environment_asks_for_nothing_unless_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLUICE_FAULT", raising=False)
    assert fault_from_environment() is None

    monkeypatch.setenv("SLUICE_FAULT", "kill-worker stage=parse")
    assert fault_from_environment() == Fault(kind="kill-worker", stage="parse")
