"""The root cause of a failure, found in what Spark, a Python worker or a library says of it.

A traceback of a worker comes wrapped by the JVM, several times, and Spark Connect adds the JVM's
own.  Of all that one sentence says what a person has to mend: the innermost Python exception, or
else the error that Spark names.  Pure: text in, text out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LONGEST = 400  # Characters of a sentence; some libraries print the rows, too.

_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in .*$')
_RAISED = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: ?(?P<said>.*))?$")
# A frame of the JVM, or a line of the plan that Spark could not analyse.
_NO_WORDS = re.compile(r"^\s*(?:at [\w$.<>/@-]+\(|\.\.\. \d+ more)|^(?:'?[A-Z]\w* \[|\+- |:- |== )")
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
_OURS_AMONG_SUGGESTED = re.compile(r"`_(?:source|malformed|raw|weight|hash)`(?:, )?")
_WORKER_DIED = re.compile(r"Python worker exited unexpectedly|ExecutorLostFailure")
_STORE_UNAVAILABLE = "sluice.errors.StoreUnavailable"
# Code of libraries, whose lines in a traceback do not help a pipeline's author.
_LIBRARIES = re.compile(r"/(?:site-packages|dist-packages|lib/python[\d.]+|sluice)/|\.zip/|^<")


@dataclass(frozen=True, slots=True)
class Cause:
    """The cause of a failure; ``place`` is the line of the user's code, or the SQL, if known.

    ``is_transient``: the cause may pass, and the same call succeed later.
    """

    said: str
    place: str = ""
    is_transient: bool = False

    def __str__(self) -> str:
        return f"{self.place}: {self.said}" if self.place else self.said


def root_cause(text: str) -> Cause:
    """The cause of a failure that is described by *text*, of whatever length.

    What is one sentence already stays as it is.
    """
    if _TRACEBACK in text:
        return _of_python(text.rpartition(_TRACEBACK)[2])
    return _of_spark(text)


def code_place(file: str, line: int | str) -> str:
    """Where in the user's code, as a person finds it; empty if it is not the user's."""
    path = file.replace("\\", "/")
    if _LIBRARIES.search(path):
        return ""
    return f"{'/'.join(path.split('/')[-2:])} line {line}"


def note_of_stage(stage: str) -> str:
    """A note for an exception, in a paragraph of its own: the stage whose subtask raised it."""
    return f"\n(in stage {stage!r})"


def stage_in(text: str) -> str:
    """The stage that a note in *text* names; empty without one."""
    found = _NOTE.findall(text)
    return found[-1] if found else ""


def is_equal_cause(one: str, other: str) -> bool:
    """Whether two failures are one: whichever row, subtask or checkpoint they name."""
    return _without_values(one) == _without_values(other)


def _without_values(said: str) -> str:
    return re.sub(r"0x[0-9a-f]+|\d+|'[^']*'|\"[^\"]*\"", "#", said)


def _of_python(traceback: str) -> Cause:
    """The exception at the end of a traceback, and the innermost line of the user's code."""
    place, said = "", [""]
    lines = traceback.splitlines()
    for number, line in enumerate(lines):
        frame = _FRAME.match(line)
        if frame is not None:
            place = code_place(frame["file"], frame["line"]) or place
        elif line[:1].strip() and _RAISED.match(line):
            said = lines[number:]
            break
    raised = _RAISED.match(said[0])
    if raised is None:
        return Cause(_sentence(" ".join(lines)), place)
    name = raised["type"].rpartition(".")[2]
    message = _sentence("\n".join([raised["said"] or "", *said[1:]]))
    if raised["type"].startswith("sluice.") and message:
        is_transient = raised["type"] == _STORE_UNAVAILABLE
        return Cause(message, is_transient=is_transient)  # Written to be read alone.
    return Cause(f"{name}: {message}" if message else name, place)


def _of_spark(text: str) -> Cause:
    if _WORKER_DIED.search(text):
        return Cause("a Python worker was killed, or crashed; had it enough memory?")
    head, _, rest = text.strip().partition(_JVM_TRACE)
    told = [_unwrapped(part) for part in re.split(r"^Caused by: ", head, flags=re.MULTILINE)]
    spoken = [part for part in told if _sentence(part)] or [_unwrapped(rest)]
    innermost = spoken[-1]
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
    """Without the words of those that only passed the error on."""
    before = None
    text = text.strip()
    while text != before:
        before = text
        text = _CLASS_NAME.sub("", _WRAPPERS.sub("", text, count=1), count=1).lstrip()
    return text


def _sentence(text: str) -> str:
    """The first paragraph, on one line: without frames, plans and codes."""
    kept: list[str] = []
    for line in _SQLSTATE.sub("\n\n", text).lstrip().splitlines():
        if not line.strip() or _NO_WORDS.match(line):
            break
        kept.append(line)
    return _shortened(_collapsed(_OURS_AMONG_SUGGESTED.sub("", " ".join(kept))))


def _shortened(said: str) -> str:
    """*said* without its middle where it is too long: the speaker is first, the cause last."""
    half = LONGEST // 2 - 1
    return said if len(said) <= LONGEST else f"{said[:half]}…{said[-half:]}"


def _collapsed(text: str) -> str:
    return " ".join(text.split())
