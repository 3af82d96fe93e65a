"""Says in the run's note that something a task needs does not answer, while the task still waits.

    asks, every 3 s --no answer within 4 s, or an error--> "the store s3://… does not answer"
                    <--answers again---------------------- the sentence goes

The task itself waits as it always did: its client repeats what failed, and decides whether that is
an error.  This only looks, from threads of its own, so that people know after seconds what a
client tells when its patience is over.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sluice.core.pages import Page

log = logging.getLogger(__name__)

ASK_EVERY_S = 3.0  # With PATIENCE_S it is said within 7 s, which leaves Airflow the rest of ten.
PATIENCE_S = 4.0  # What works answers in milliseconds, on a busy machine within a second.
MAX_PROBLEM = 200  # Characters of an error; the task's log has all of it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """What a task waits for.  ``ask`` returns once it answers, and raises what is wrong with it.

    ``first_s`` is the time after which it is asked first: many tasks are over by then.
    """

    name: str
    ask: Callable[[], object]
    page: Page
    first_s: float = ASK_EVERY_S


@contextmanager
def silence_said(say: Callable[[str], None], needed: Sequence[Needed]) -> Iterator[None]:
    """Within the block *say* is called, from a thread, with what does not answer; "" when all do.

    An error of *say* is logged: it must not fail the task.
    """
    said = _Said(say)
    over = threading.Event()
    for one in needed:
        watch = threading.Thread(target=_watch, args=(one, said, over), daemon=True)
        watch.start()
    try:
        yield
    finally:
        over.set()
        said.end()


@dataclass(slots=True)
class _Said:
    """The sentences of all that is silent, said as one; nothing is said once the block ended."""

    say: Callable[[str], None]
    silent: dict[str, str] = field(default_factory=dict[str, str])
    last: str = ""
    is_over: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def set(self, name: str, sentence: str) -> None:
        with self.lock:
            self.silent[name] = sentence
            if not self.is_over:
                self._tell("; ".join(one for one in self.silent.values() if one))

    def end(self) -> None:
        with self.lock:
            self.is_over = True
            self._tell("")

    def _tell(self, sentence: str) -> None:
        if sentence == self.last:
            return
        try:
            self.say(sentence)
            self.last = sentence
        except Exception:  # It is for people; the task has work to do.
            log.warning("a silence was not said: %s", sentence, exc_info=True)


def _watch(needed: Needed, said: _Said, over: threading.Event) -> None:
    pause_s, since = needed.first_s, ""
    question: _Question | None = None
    while not over.wait(pause_s):
        pause_s = ASK_EVERY_S
        question = _Question(needed.ask) if question is None or question.is_answered else question
        problem = question.problem()
        if problem:
            since = since or f"{datetime.now(UTC):%H:%M:%S} UTC"
            said.set(needed.name, _sentence(needed, since, problem))
        elif since:
            log.info("%s answers again", needed.name)
            since = ""
            said.set(needed.name, "")


def _sentence(needed: Needed, since: str, problem: str) -> str:
    return f"{needed.name} does not answer since {since} ({problem}); see {needed.page}"


class _Question:
    """One call of *ask*, in a thread, as a server may keep it for minutes."""

    def __init__(self, ask: Callable[[], object]) -> None:
        self._ask = ask
        self._error = ""
        self._thread = threading.Thread(target=self._put, daemon=True)
        self._thread.start()

    @property
    def is_answered(self) -> bool:
        return not self._thread.is_alive()

    def problem(self) -> str:
        """What is wrong, once it is known or PATIENCE_S is over; empty if nothing is."""
        self._thread.join(PATIENCE_S)
        return self._error if self.is_answered else f"no answer within {PATIENCE_S:.0f} s"

    def _put(self) -> None:
        try:
            self._ask()
        except Exception as error:  # noqa: BLE001 - whatever a client raises
            self._error = f"{type(error).__name__}: {error}"[:MAX_PROBLEM]
