"""What does not answer is said while a task waits for it, and no longer."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event

import pytest

from sluice.core.failures import FAILURE_REASONS
from sluice_airflow.notes import Needed, _Question, report_unanswered


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice_airflow.notes.PROBE_INTERVAL_S", 0.02)
    monkeypatch.setattr("sluice_airflow.notes.PATIENCE_S", 60)


def needed(name: str, ask: Callable[[], object]) -> Needed:
    return Needed(name=name, ask=ask, page=FAILURE_REASONS, first_s=0.0)


def wait_for(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_what_answers_is_not_spoken_of() -> None:
    said: list[str] = []
    asked: list[int] = []

    with report_unanswered(said.append, [needed("the store", lambda: asked.append(1))]):
        wait_for(lambda: len(asked) > 3)

    assert said == []


def test_an_error_is_said_once_and_taken_back_when_it_is_over() -> None:
    said: list[str] = []
    is_down = Event()
    is_down.set()

    def ask() -> None:
        if is_down.is_set():
            raise ConnectionRefusedError("port 1")

    with report_unanswered(said.append, [needed("the store", ask)]):
        wait_for(lambda: bool(said))
        time.sleep(0.1)
        once = len(said)
        is_down.clear()
        wait_for(lambda: said[-1] == "")

    assert once == 1
    assert said[0].startswith("the store fails since ")
    assert "UTC: ConnectionRefusedError: port 1; see " in said[0]
    assert len(said) == 2


def test_a_server_that_keeps_the_question_is_asked_only_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sluice_airflow.notes.PATIENCE_S", 0.1)
    said: list[str] = []
    asked: list[int] = []
    answers = Event()

    def ask() -> None:
        asked.append(1)
        answers.wait(60)

    with report_unanswered(said.append, [needed("Spark", ask)]):
        wait_for(lambda: bool(said))
        time.sleep(0.2)
    answers.set()

    assert len(asked) == 1
    assert "no answer within" in said[0]
    assert said[1:] == [""]


def test_what_was_answered_is_said_once_though_the_next_answer_takes_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    asked: list[int] = []
    answers, is_waited_in_vain = Event(), Event()
    wait_for_answer = _Question.wait

    def ask() -> None:
        asked.append(1)
        if len(asked) > 1:
            answers.wait(60)
        raise OSError("503 SlowDown")

    def say(sentence: str) -> None:  # Between two questions, in the thread that asks them.
        said.append(sentence)
        monkeypatch.setattr("sluice_airflow.notes.PATIENCE_S", 0.1)

    def wait(question: _Question) -> str | None:
        error = wait_for_answer(question)
        if error is None:
            is_waited_in_vain.set()
        return error

    monkeypatch.setattr(_Question, "wait", wait)
    with report_unanswered(say, [needed("the store", ask)]):
        assert is_waited_in_vain.wait(60)
        answers.set()
        wait_for(lambda: len(asked) > 2)

    assert "UTC: OSError: 503 SlowDown; see " in said[0]
    assert said[1:] == [""]


def test_two_that_are_silent_are_said_together_and_nothing_after_the_end() -> None:
    said: list[str] = []

    def ask() -> None:
        raise OSError("gone")

    with report_unanswered(said.append, [needed("Spark", ask), needed("the store", ask)]):
        wait_for(lambda: any("Spark" in one and "the store" in one for one in said))
    ended = len(said)
    time.sleep(0.1)

    assert said[-1] == ""
    assert len(said) == ended


def test_a_sentence_that_cannot_be_stored_fails_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def ask() -> None:
        raise OSError("gone")

    def say(sentence: str) -> None:
        raise RuntimeError("no API server")

    with report_unanswered(say, [needed("Spark", ask)]):
        wait_for(lambda: "a silence was not said" in caplog.text)
