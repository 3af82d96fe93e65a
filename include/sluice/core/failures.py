"""The reasons why a checkpoint ended without completing, and the root cause of any failure.

``CheckpointFailureReason`` is Flink's as far as its reasons can occur here; ``FailureCount`` is
Flink's CheckpointFailureManager.

``root_cause`` finds one sentence that names what a person has to mend, in what Spark, a Python
worker or a library reports: the innermost Python exception, or else the error that Spark names.  A
worker's traceback comes wrapped by the JVM, several times, and Spark Connect adds the JVM's own.
Pure: text in, text out.

A message names a ``Page`` of the documentation where a sentence has no room for the advice.  An
installed package has no docs folder, so a page is named by its title and section, which are the
same wherever it is read.  ``tests/house`` holds that each of them exists, and that no message names
a path instead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from sluice.core.configuration import CheckpointType


class CheckpointFailureReason(Enum):
    """The reason that logs, the journal, notes and the failure counter use; see ``page_of``."""

    PERIODIC_SCHEDULER_SHUTDOWN = "PERIODIC_SCHEDULER_SHUTDOWN"
    TOO_MANY_CHECKPOINT_REQUESTS = "TOO_MANY_CHECKPOINT_REQUESTS"
    MINIMUM_TIME_BETWEEN_CHECKPOINTS = "MINIMUM_TIME_BETWEEN_CHECKPOINTS"
    NOT_ALL_REQUIRED_TASKS_RUNNING = "NOT_ALL_REQUIRED_TASKS_RUNNING"
    IO_EXCEPTION = "IO_EXCEPTION"
    CHECKPOINT_ASYNC_EXCEPTION = "CHECKPOINT_ASYNC_EXCEPTION"
    CHECKPOINT_EXPIRED = "CHECKPOINT_EXPIRED"
    CHECKPOINT_SUBSUMED = "CHECKPOINT_SUBSUMED"
    CHECKPOINT_DECLINED = "CHECKPOINT_DECLINED"
    CHECKPOINT_DECLINED_TASK_NOT_READY = "CHECKPOINT_DECLINED_TASK_NOT_READY"
    CHECKPOINT_DECLINED_TASK_CLOSING = "CHECKPOINT_DECLINED_TASK_CLOSING"
    CHECKPOINT_DECLINED_INPUT_END_OF_STREAM = "CHECKPOINT_DECLINED_INPUT_END_OF_STREAM"
    CHECKPOINT_COORDINATOR_SUSPEND = "CHECKPOINT_COORDINATOR_SUSPEND"
    JOB_FAILOVER_REGION = "JOB_FAILOVER_REGION"
    TASK_FAILURE = "TASK_FAILURE"
    FINALIZE_CHECKPOINT_FAILURE = "FINALIZE_CHECKPOINT_FAILURE"
    TRIGGER_CHECKPOINT_FAILURE = "TRIGGER_CHECKPOINT_FAILURE"
    CHECKPOINT_ABORTED_BY_USER = "CHECKPOINT_ABORTED_BY_USER"  # Ours: Flink aborts no single one.

    @property
    def counts(self) -> bool:
        """Whether CheckpointFailureManager counts it against ``tolerable_failed_checkpoints``."""
        return self in _COUNTED

    @property
    def is_of_a_task(self) -> bool:
        """Whether a subtask may answer with it: it declines (DeclineCheckpoint), or has failed."""
        return self in _OF_A_TASK


_OF_A_TASK = frozenset(
    {
        CheckpointFailureReason.CHECKPOINT_DECLINED,
        CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_NOT_READY,
        CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_CLOSING,
        CheckpointFailureReason.CHECKPOINT_DECLINED_INPUT_END_OF_STREAM,
        CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION,
        CheckpointFailureReason.TASK_FAILURE,
    }
)

_COUNTED = frozenset(
    {
        CheckpointFailureReason.IO_EXCEPTION,
        CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION,
        CheckpointFailureReason.CHECKPOINT_DECLINED,
        CheckpointFailureReason.CHECKPOINT_EXPIRED,
        CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE,
    }
)

NO_SUCCESS = 0  # Below every checkpoint's id.
UNKNOWN_CHECKPOINT_ID = -1  # It failed before it had an id; every such failure counts.
MAX_COUNTED_IDS = 1_000  # Bounds the journal entry; the job has failed long before.


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCount:
    """Failures since the last success.  Each id counts once; a newer success resets."""

    last_succeeded_id: int = NO_SUCCESS
    counted_ids: tuple[int, ...] = ()
    continuous: int = 0

    def succeed(self, checkpoint_id: int) -> FailureCount:
        if checkpoint_id <= self.last_succeeded_id:
            return self
        return FailureCount(last_succeeded_id=checkpoint_id)

    def fail(
        self,
        checkpoint_id: int,
        reason: CheckpointFailureReason,
        *,
        tolerable: int | None,
        type: CheckpointType = CheckpointType.CHECKPOINT,  # noqa: A002 - Flink's word
        is_task_level: bool = False,
    ) -> tuple[FailureCount, bool]:
        """Return the new count, and whether the job must fail; then the count starts again.

        A savepoint's failure at the coordinator never counts; a task that fails a stopping one
        always fails the job, or it would wait for ever (CheckpointFailureManager's javadoc).
        """
        if is_task_level and type.stops_the_job:
            return FailureCount(last_succeeded_id=self.last_succeeded_id), True
        if not reason.counts or (type.is_savepoint and not is_task_level):
            return self, False
        if checkpoint_id != UNKNOWN_CHECKPOINT_ID and (
            self._has_succeeded_since(checkpoint_id) or checkpoint_id in self.counted_ids
        ):
            return self, False
        if tolerable is not None and self.continuous + 1 > tolerable:
            return FailureCount(last_succeeded_id=self.last_succeeded_id), True
        counted = replace(
            self,
            counted_ids=(*self.counted_ids, checkpoint_id)[-MAX_COUNTED_IDS:],
            continuous=self.continuous + 1,
        )
        return counted, False

    def _has_succeeded_since(self, checkpoint_id: int) -> bool:
        """Whether that checkpoint or a newer one succeeded.

        Before the first success every failure counts, whatever its id: Flink's
        lastSucceededCheckpointId begins at Long.MIN_VALUE.
        """
        return self.last_succeeded_id != NO_SUCCESS and checkpoint_id <= self.last_succeeded_id


LONGEST = 400  # Characters of a sentence; some libraries print the rows, too.
LONGEST_STACK = 6_000  # Characters: about forty frames, with their lines of code.

_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in .*$')
_RAISED = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: ?(?P<message>.*))?$")
# A frame of the JVM, or a line of the plan that Spark could not analyse.
_NO_WORDS = re.compile(r"^\s*(?:at [\w$.<>/@-]+\(|\.\.\. \d+ more)|^(?:'?[A-Z]\w* \[|\+- |:- |== )")
_JVM_FRAME = re.compile(r"^\s+at [\w$.<>/@-]+\(")
_NOTE = re.compile(r"^\(in stage '([\w.-]+)'\)$", re.MULTILINE)
_JVM_TRACE = "JVM stacktrace:"
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w{5}\s*;?")
_SQL = re.compile(r"^== SQL(?: \(.*\))? ==\n(?P<sql>.+?)\n[-^ ]*\^", re.MULTILINE | re.DOTALL)
_POSITION = re.compile(r"[;,]?\s*\(?line \d+,? pos(?:ition)? \d+\)?;?\s*$")
_ERROR_CLASS = re.compile(r"^\[(?P<name>[A-Z0-9_.]+)\]\s*")
_CLASS_NAME = re.compile(r"^(?:[a-z]\w*\.)+[A-Z][\w$]*(?:Exception|Error)?(?::\s*|\s*\n|$)")
_WRAPPERS = re.compile(
    r"^(?:An error occurred while calling [\w.]+\.?\s*:?\s*"
    r"|:\s+"
    r"|Job aborted due to stage failure:\s*"
    r"|Task \d+ in stage [\d.]+ failed \d+ times, most recent failure:\s*"
    r"|Lost task [\d.]+ in stage [\d.]+ \(TID \d+\) \([^)]*\):\s*"
    r"|Exception thrown in awaitResult:?\s*"
    r"|An exception was thrown from the Python worker[^:\n]*[.:]\s*"
    r"|Job aborted\.\s*)"
)
_ADVICE = re.compile(
    r"\s*(?:Correct the value as per the syntax|Use `|If necessary set|Consider |To tolerate )"
    r".*?(?:\.(?=\s|$)|$)"
)
_OURS = r"`_(?:source|malformed|raw|weight|hash)`"
_OURS_AMONG_SUGGESTED = re.compile(rf"{_OURS}, |(?:, )?{_OURS}")
_WORKER_DIED = re.compile(r"Python worker exited unexpectedly|ExecutorLostFailure")
_MAY_PASS = frozenset({"sluice.errors.StoreUnavailable", "sluice.errors.StoreFull"})
# Code of libraries, whose lines in a traceback do not help a pipeline's author.
_LIBRARIES = re.compile(r"/(?:site-packages|dist-packages|lib/python[\d.]+|sluice)/|\.zip/|^<")


@dataclass(frozen=True, slots=True)
class Cause:
    """The cause of a failure; ``place`` is the line of the user's code, or the SQL, if known.

    ``is_transient``: the cause may pass, and the same call succeed later.
    """

    summary: str
    place: str = ""
    is_transient: bool = False

    def __str__(self) -> str:
        return f"{self.place}: {self.summary}" if self.place else self.summary


def root_cause(text: str) -> Cause:
    """The cause of a failure that *text* describes at any length; one sentence stays as it is."""
    if _TRACEBACK in text:
        return _of_python(text.rpartition(_TRACEBACK)[2])
    return _of_spark(text)


def stack_of(text: str) -> str:
    """The frames of the error that *text* describes, the user's first, behind what was raised.

    It has at most ``LONGEST_STACK`` characters, and is empty where *text* has no traceback.
    """
    _, found, last = text.rpartition(_TRACEBACK)
    if not found:
        return ""
    raised: list[str] = []
    own: list[str] = []
    libraries: list[str] = []
    part = libraries
    for line in filter(str.strip, last.partition(_JVM_TRACE)[0].splitlines()):
        frame = _FRAME.match(line)
        if frame is not None:
            part = own if code_place(frame["file"], frame["line"]) else libraries
        elif line[:1].strip():
            part = raised
        if not _JVM_FRAME.match(line):
            part.append(line.rstrip())
    shown = [*raised, *own, *(["  Libraries:"] if own and libraries else []), *libraries]
    return "\n".join(shown)[:LONGEST_STACK]


def code_place(file: str, line: int | str) -> str:
    """A line of the user's code, as a person finds it; empty for code that is not the user's."""
    path = file.replace("\\", "/")
    if _LIBRARIES.search(path):
        return ""
    return f"{'/'.join(path.split('/')[-2:])} line {line}"


def note_of_stage(stage: str) -> str:
    """A note for an exception, a paragraph that names the stage whose subtask raised it."""
    return f"\n(in stage {stage!r})"


def stage_in(text: str) -> str:
    """The stage that the last note in *text* names; empty without one."""
    stages = _NOTE.findall(text)
    return stages[-1] if stages else ""


def is_equal_cause(one: str, other: str) -> bool:
    """Whether two failures are equal, whichever row, subtask or checkpoint they name."""
    return _without_values(one) == _without_values(other)


def _without_values(sentence: str) -> str:
    return re.sub(r"0x[0-9a-f]+|\d+|'[^']*'|\"[^\"]*\"", "#", sentence)


def _of_python(traceback: str) -> Cause:
    """The exception at the end of a traceback, and the innermost line of the user's code."""
    place, raised_lines = "", [""]
    lines = traceback.splitlines()
    for number, line in enumerate(lines):
        frame = _FRAME.match(line)
        if frame is not None:
            place = code_place(frame["file"], frame["line"]) or place
        elif line[:1].strip() and _RAISED.match(line):
            raised_lines = lines[number:]
            break
    raised = _RAISED.match(raised_lines[0])
    if raised is None:
        return Cause(_sentence(" ".join(lines)), place)
    name = raised["type"].rpartition(".")[2]
    message = _sentence("\n".join([raised["message"] or "", *raised_lines[1:]]))
    if raised["type"].startswith("sluice.") and message:
        # Its message is written to be read alone.
        return Cause(message, is_transient=raised["type"] in _MAY_PASS)
    return Cause(f"{name}: {message}" if message else name, place)


def _of_spark(text: str) -> Cause:
    if _WORKER_DIED.search(text):
        return Cause("a Python worker was killed, or crashed; had it enough memory?")
    head, _, rest = text.strip().partition(_JVM_TRACE)
    causes = [_unwrapped(part) for part in re.split(r"^Caused by: ", head, flags=re.MULTILINE)]
    innermost = next((cause for cause in reversed(causes) if _sentence(cause)), _unwrapped(rest))
    sql = _SQL.search(innermost)
    place = "" if sql is None else f"in {_collapsed(sql['sql'])!r}"
    error_class = _ERROR_CLASS.match(innermost)
    body = innermost if sql is None else innermost[: sql.start()]
    sentence = _sentence(_ERROR_CLASS.sub("", body))
    if error_class is not None:
        sentence = _POSITION.sub("", _ADVICE.sub("", sentence)).rstrip(" ;.")
        sentence = f"{error_class['name'].partition('.')[0]}: {sentence}"
    return Cause(sentence or _shortened(_collapsed(text)) or "no reason was given", place)


def _unwrapped(text: str) -> str:
    """*text* without the words of the layers that only passed the error on."""
    before = None
    text = text.strip()
    while text != before:
        before = text
        text = _CLASS_NAME.sub("", _WRAPPERS.sub("", text, count=1), count=1).lstrip()
    return text


def _sentence(text: str) -> str:
    """The first paragraph on one line, without frames, plans and codes."""
    kept: list[str] = []
    for line in _SQLSTATE.sub("\n\n", text).lstrip().splitlines():
        if not line.strip() or _NO_WORDS.match(line):
            break
        kept.append(line)
    return _shortened(_collapsed(_OURS_AMONG_SUGGESTED.sub("", " ".join(kept))))


def _shortened(sentence: str) -> str:
    """*sentence* without its middle if it is too long: it begins with the layer that reports the
    error, and ends with the cause.
    """
    half = LONGEST // 2 - 1
    return sentence if len(sentence) <= LONGEST else f"{sentence[:half]}…{sentence[-half:]}"


def _collapsed(text: str) -> str:
    return " ".join(text.split())


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the documentation, or one ``section`` of it, as messages name it."""

    title: str
    section: str = ""

    def __str__(self) -> str:
        page = f'"{self.title}" in Sluice\'s documentation'
        return f"{self.section} in {page}" if self.section else page


FAILURE_REASONS: Final = Page("Why a checkpoint or a command failed")
STORES: Final = Page("Which stores can hold a journal")
KAFKA: Final = Page("Kafka")


def page_of(reason: CheckpointFailureReason) -> Page:
    """The section about *reason*: what it means, what Sluice did, what to look at, what to do."""
    return Page(FAILURE_REASONS.title, section=reason.value)
