"""Faults that a person injects: read from their text, and strike only where they were told."""

from __future__ import annotations

import pytest

from sluice.errors import ConfigurationError
from sluice.exchange.faults import Fault, fault_from_environment, parse_fault


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "hang-worker stage=parse seconds=60",
            Fault(kind="hang-worker", stage="parse", seconds=60),
        ),
        ("kill-worker stage=parse", Fault(kind="kill-worker", stage="parse")),
        ("kill-task  stage=b checkpoint=3", Fault(kind="kill-task", stage="b", checkpoint_id=3)),
        ("kill-task checkpoint=0 stage=a", Fault(kind="kill-task", stage="a", checkpoint_id=0)),
        ("fail-task task=commit tries=1", Fault(kind="fail-task", task="commit", tries=1)),
        ("hang task=a.b seconds=9 when=after",
         Fault(kind="hang", task="a.b", seconds=9, is_after=True)),
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
        "kill-task stage=a task=b",
        "decline task=trigger",
        "hang task=trigger",
        "hang task=trigger seconds=3601",
        "fail-task task=trigger seconds=3",
        "kill-task stage=a checkpoint=1 checkpoint=2",
    ],
)
def test_another_text_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"the fault '{text}' cannot be read; write 'KIND"):
        parse_fault(text)


def test_a_fault_of_a_task_strikes_only_there() -> None:
    once = Fault(kind="kill-task", stage="parse", checkpoint_id=3)
    first = Fault(kind="hang", task="finalize", seconds=1, tries=1, is_after=True)

    def strikes(fault: Fault, task: str, checkpoint_id: int, try_number: int = 1) -> list[bool]:
        return [
            fault.strikes_task(task, checkpoint_id, is_after=is_after, try_number=try_number)
            for is_after in (False, True)
        ]

    assert strikes(once, "parse.snapshot", 3) == [True, False]
    assert strikes(once, "parse.snapshot", 4) == [False, False]
    assert strikes(once, "join.snapshot", 3) == [False, False]
    assert strikes(first, "finalize", 7) == [False, True]
    assert strikes(first, "finalize", 7, try_number=2) == [False, False]
    assert not once.strikes_subtask("parse", 3)


def test_a_fault_of_a_subtask_strikes_only_there() -> None:
    fault = Fault(kind="decline", stage="parse", checkpoint_id=3)

    assert fault.strikes_subtask("parse", 3)
    assert not fault.strikes_subtask("parse", 4)
    assert not fault.strikes_subtask("join", 3)
    assert not fault.strikes_task("parse.snapshot", 3, is_after=False, try_number=1)


def test_the_environment_asks_for_nothing_unless_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLUICE_FAULT", raising=False)
    assert fault_from_environment() is None

    monkeypatch.setenv("SLUICE_FAULT", "kill-worker stage=parse")
    assert fault_from_environment() == Fault(kind="kill-worker", stage="parse")
