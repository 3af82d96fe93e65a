"""The counter of failed checkpoints, the root cause of a failure, and the pages that messages name.

Flink's cases of the counter are in ``tests/conformance``; that the pages exist, in ``tests/house``.
``spark_messages.json`` has messages of Spark 4.3, of a session and of a Connect server, as they
came; of the JVM's traces only the first frames of each.
"""

from __future__ import annotations

import json
import traceback
from pathlib import Path

import pytest

from sluice.core.failures import (
    LONGEST,
    LONGEST_STACK,
    MAX_COUNTED_IDS,
    STORES,
    Cause,
    FailureCount,
    code_place,
    is_equal_cause,
    note_of_stage,
    page_of,
    root_cause,
    stack_of,
    stage_in,
)
from sluice.core.failures import CheckpointFailureReason as Reason

EXPIRED = Reason.CHECKPOINT_EXPIRED


def job_failures(tolerable: int | None, history: list[tuple[Reason, int]]) -> int:
    count, failures = FailureCount(), 0
    for reason, checkpoint_id in history:
        count, over = count.fail(checkpoint_id, reason, tolerable=tolerable)
        failures += over
    return failures


@pytest.mark.parametrize(
    ("tolerable", "history", "failures"),
    [
        (0, [(EXPIRED, 1)], 1),
        (0, [(EXPIRED, 1), (EXPIRED, 2)], 2),
        (None, [(EXPIRED, n) for n in range(1, 50)], 0),
    ],
    ids=["default", "starts again", "unlimited"],
)
def test_the_job_fails_as_often_as_it_is_not_tolerated(
    tolerable: int | None, history: list[tuple[Reason, int]], failures: int
) -> None:
    assert job_failures(tolerable, history) == failures


def test_only_what_a_checkpoint_did_itself_counts() -> None:
    counted = {reason for reason in Reason if job_failures(0, [(reason, 1)])}

    assert counted == {
        Reason.IO_EXCEPTION,
        Reason.CHECKPOINT_ASYNC_EXCEPTION,
        Reason.CHECKPOINT_DECLINED,
        Reason.CHECKPOINT_EXPIRED,
        Reason.FINALIZE_CHECKPOINT_FAILURE,
    }
    assert counted == {reason for reason in Reason if reason.counts}


def test_a_tolerant_job_remembers_a_bounded_number_of_ids() -> None:
    count = FailureCount()

    for checkpoint_id in range(1, MAX_COUNTED_IDS + 5):
        count, _ = count.fail(checkpoint_id, EXPIRED, tolerable=None)

    assert len(count.counted_ids) == MAX_COUNTED_IDS
    assert count.continuous == MAX_COUNTED_IDS + 4


CAPTURED: dict[str, str] = json.loads(Path(__file__).with_name("spark_messages.json").read_text())
CODE = "pipelines/clicks.py line"
NO_UPPER = "AttributeError: 'NoneType' object has no attribute 'upper'"
CHANGED = (
    "clicks.csv of file:///data has 3 lines between bytes 0 and 10 where it had 4; it was changed: "
    "restore it"
)
NOT_AN_INT = (
    'CAST_INVALID_INPUT: The value \'x\' of the type "STRING" cannot be cast to "INT" because '
    "it is malformed"
)
NO_CITTY = (
    "UNRESOLVED_COLUMN: A column, variable, or function parameter with name `citty` cannot be "
    "resolved. Did you mean one of the following? [`city`, `name`]"
)
DIED = "a Python worker was killed, or crashed; had it enough memory?"
NO_PRICE = "ValueError: row has no price: see the schema of 'clicks'"

CAUSES = {
    "udf_none": Cause(NO_UPPER, f"{CODE} 15"),
    "map_value_error": Cause(NO_PRICE, f"{CODE} 19"),
    "map_configuration_error": Cause(CHANGED),
    "map_store_unavailable": Cause("s3://b: no answer in 30 s", is_transient=True),
    "worker_killed": Cause(DIED),
    "worker_exits": Cause("SystemExit: 3", f"{CODE} 44"),
    "cast_invalid": Cause(NOT_AN_INT, "in 'cast(city as int) n'"),
    "divide_by_zero": Cause("DIVIDE_BY_ZERO: Division by zero", "in '1 / (length(name) - 3) n'"),
    "overflow": Cause("BINARY_ARITHMETIC_OVERFLOW: 3S * 100S caused overflow"),
    "raise_error": Cause("USER_RAISED_EXCEPTION: price is negative"),
    "unresolved_column": Cause(NO_CITTY),
    "unresolved_column_api": Cause(NO_CITTY),
    "unresolved_where": Cause(NO_CITTY),
    "parse_error": Cause("PARSE_SYNTAX_ERROR: Syntax error at or near end of input", "in 'city +'"),
    "unresolved_routine": Cause(
        "UNRESOLVED_ROUTINE: Cannot resolve routine `uper` on search path [`system`.`builtin`, "
        "`system`.`session`, `spark_catalog`.`default`]"
    ),
    "bad_schema": Cause("PARSE_SYNTAX_ERROR: Syntax error at or near 'strng': extra input 'strng'"),
    "missing_file": Cause("PATH_NOT_FOUND: Path does not exist: file:/nowhere/x"),
    "pandas_udf": Cause("AttributeError: 'Series' object has no attribute 'foo'", f"{CODE} 62"),
    "import_error": Cause("ModuleNotFoundError: No module named 'nowhere_module'", f"{CODE} 66"),
    "assertion": Cause("AssertionError", f"{CODE} 71"),
    "polars": Cause(
        'ComputeError: strict integer parsing failed for 1 value(s): ["x"]; error message for the '
        "first shown value: 'invalid digit found in string' (consider non-strict parsing)",
        f"{CODE} 77",
    ),
    "memory": Cause("MemoryError", f"{CODE} 81"),
    "collect_too_big": Cause(
        "INVALID_ARRAY_INDEX_IN_ELEMENT_AT: The index 5 is out of bounds. The array has 1 elements",
        "in 'element_at(array(1), int(id)) e'",
    ),
}


@pytest.mark.parametrize("message", CAPTURED)
def test_the_cause_is_found_in_a_message_of_spark(message: str) -> None:
    expected = CAUSES.get(message.partition(".")[2])

    cause = root_cause(CAPTURED[message])

    assert expected is None or cause == expected
    assert "\n" not in str(cause)
    assert len(cause.summary) <= LONGEST
    assert not any(
        noise in str(cause) for noise in ("org.apache", "\tat ", "SQLSTATE", "Traceback")
    )


def test_every_expected_cause_was_captured_at_least_once() -> None:
    assert {name.partition(".")[2] for name in CAPTURED} >= CAUSES.keys()


@pytest.mark.parametrize("message", CAPTURED)
def test_a_cause_that_was_found_stays_as_it_is(message: str) -> None:
    cause = str(root_cause(CAPTURED[message]))

    assert str(root_cause(cause)) == cause


@pytest.mark.parametrize(
    "sentence",
    [
        "stage 'bids' failed over records 1 to 4 of a.csv: pipelines/shop.py line 5: KeyError: 'n'",
        "watchdog: it did not acknowledge in time",
        "DAG run x ended, or was deleted, before its checkpoint did",
    ],
)
def test_one_sentence_is_its_own_cause(sentence: str) -> None:
    assert str(root_cause(sentence)) == sentence


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", Cause("no reason was given"), id="nothing"),
        pytest.param(
            "org.apache.spark.SparkException\n\tat a.b(C.scala:1)\nCaused by: java.io.IOException: "
            "No space left on device\n\tat d.e(F.java:2)\n",
            Cause("No space left on device"),
            id="only the innermost speaks",
        ),
        pytest.param(
            "org.apache.spark.SparkException: outer\nCaused by: java.io.EOFException\n\t... 2 more",
            Cause("outer"),
            id="the innermost says nothing",
        ),
        pytest.param(
            "\n\nJVM stacktrace:\njava.lang.IllegalStateException: closed\n\tat a.b(C.scala:1)",
            Cause("closed"),
            id="only the trace speaks",
        ),
        pytest.param("java.io.EOFException", Cause("java.io.EOFException"), id="a name alone"),
        pytest.param(
            f"begin{'-' * 1_000}end",
            Cause(f"begin{'-' * 194}…{'-' * 196}end"),
            id="too long",
        ),
        pytest.param(
            "Traceback (most recent call last):\n  no exception at all",
            Cause("no exception at all"),
            id="a broken traceback",
        ),
        pytest.param(
            "Traceback (most recent call last):\n"
            '  File "/x/shop/own.py", line 3, in f\n    1 / 0\n'
            "ZeroDivisionError: division by zero\n"
            "\nDuring handling of the above exception, another exception occurred:\n\n"
            "Traceback (most recent call last):\n"
            '  File "/x/shop/own.py", line 5, in f\n    raise Bad from None\nown.errors.Bad\n',
            Cause("Bad", "shop/own.py line 5"),
            id="one exception while another was handled",
        ),
        pytest.param(
            "Traceback (most recent call last):\nsluice.errors.SluiceError",
            Cause("SluiceError"),
            id="an error of ours without words",
        ),
    ],
)
def test_a_text_without_a_cause_stays_as_it_is(text: str, expected: Cause) -> None:
    assert root_cause(text) == expected


@pytest.mark.parametrize(
    "suggested", ["`_source`, `name`", "`name`, `_source`", "`_raw`, `name`, `_malformed`, `_hash`"]
)
def test_columns_of_ours_are_not_suggested(suggested: str) -> None:
    text = f"[UNRESOLVED_COLUMN.WITH_SUGGESTION] No `n`. Did you mean one of [{suggested}]."

    assert str(root_cause(text)) == "UNRESOLVED_COLUMN: No `n`. Did you mean one of [`name`]"


@pytest.mark.parametrize(
    ("one", "other", "is_equal"),
    [
        ("The value 'x3' is no INT", "The value 'x4' is no INT", True),
        ("subtask 3 at 0x7f3a", "subtask 4 at 0x11", True),
        ("KeyError: 'n'", "ValueError: 'n'", False),
    ],
)
def test_failures_are_equal_whatever_row_they_name(one: str, other: str, is_equal: bool) -> None:
    assert is_equal_cause(one, other) is is_equal


def test_a_line_of_a_library_is_no_place_to_look() -> None:
    assert code_place("/opt/venv/lib/python3.11/site-packages/polars/frame.py", 3) == ""
    assert code_place("/home/ann/shop/pipelines/clicks.py", 3) == "pipelines/clicks.py line 3"


def test_a_note_names_the_stage_and_is_no_part_of_the_cause() -> None:
    error = ValueError("no such row\nin here")
    error.add_note(note_of_stage("best-2.of_all"))

    text = "".join(traceback.format_exception(error))

    assert stage_in(text) == "best-2.of_all"
    assert stage_in("ValueError: (in stage 'x') is what it said") == ""
    assert root_cause(text) == Cause("ValueError: no such row in here")


def test_a_message_names_a_page_by_its_title() -> None:
    assert str(STORES) == '"Which stores can hold a journal" in Sluice\'s documentation'


def test_a_message_names_a_failure_reason_by_its_section() -> None:
    page = page_of(Reason.CHECKPOINT_EXPIRED)

    assert str(page) == (
        'CHECKPOINT_EXPIRED in "Why a checkpoint or a command failed" in Sluice\'s documentation'
    )


STACK = """An error occurred while calling o1.collect.
: org.apache.spark.SparkException: Job aborted.
Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/polars/frame.py", line 7, in map
    return function(row)
  File "/home/ann/shop/pipelines/clicks.py", line 3, in price
    return row["price"]
           ~~~^^^^^^^^^
KeyError: 'price'
(in stage 'clicks')

\tat org.apache.spark.api.python.BasePythonRunner.run(PythonRunner.scala:1)

JVM stacktrace:
java.lang.IllegalStateException: closed"""


def test_a_stack_begins_with_what_was_raised_and_the_frames_of_the_user() -> None:
    assert stack_of(STACK).splitlines() == [
        "KeyError: 'price'",
        "(in stage 'clicks')",
        '  File "/home/ann/shop/pipelines/clicks.py", line 3, in price',
        '    return row["price"]',
        "           ~~~^^^^^^^^^",
        "  Libraries:",
        '  File "/opt/venv/lib/python3.11/site-packages/polars/frame.py", line 7, in map',
        "    return function(row)",
    ]


def test_a_stack_of_libraries_alone_needs_no_word_of_them() -> None:
    text = STACK.replace("/home/ann/shop/pipelines/", "/opt/venv/lib/python3.11/")

    assert "Libraries:" not in stack_of(text)
    assert "clicks.py" in stack_of(text)


def test_a_stack_has_a_bound_and_a_sentence_has_none() -> None:
    assert stack_of("checkpoint 3 took longer than 10 s") == ""
    assert len(stack_of(STACK.replace("'price'", "x" * 10_000))) == LONGEST_STACK
