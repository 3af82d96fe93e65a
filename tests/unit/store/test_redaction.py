"""Secrets are removed from stored texts, as errors quote their input."""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Iterator
from copy import copy
from dataclasses import fields
from typing import Any, NamedTuple, get_args

import pytest

from harness.jobs import a_running_job, keys_of, trigger_one
from sluice.coordinator.failure import fail_checkpoint
from sluice.core.answers import Decline
from sluice.core.configuration import JobStatus
from sluice.core.events import CheckpointFailed, DeclineReceived, Event, JobFailed, JobStopped
from sluice.core.failures import CheckpointFailureReason
from sluice.core.ids import CheckpointId
from sluice.declaration.params import env, value_of
from sluice.job.job import Job
from sluice.store.journal import WORDED
from sluice.store.redaction import masked, redact_logs, redacted
from tests.builders import SUBTASKS

SECRET = "hunter2 of/the@sea"
AWS_SECRET = "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEYab"
assert len(AWS_SECRET) == 40


@pytest.fixture(autouse=True)
def declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_DSN_PART", SECRET)
    env("SHOP_DSN_PART")


@pytest.mark.parametrize(
    ("text", "without"),
    [
        (f"cannot log in with {SECRET}!", "cannot log in with ***!"),
        ("at http://x/?p=hunter2%20of%2Fthe%40sea", "at http://x/?p=***"),
        (
            "postgresql://shop:p@ss/w:rd@db.example:5432/x refused",
            "postgresql://shop:***@db.example:5432/x refused",
        ),
        ("host=db password=s3cr3t user=shop", "host=db password=*** user=shop"),
        ("host=db PASSWORD = 's3 cr3t' user=shop", "host=db PASSWORD = *** user=shop"),
        ('{"sasl.password": "s3,cr3t", "acks": "all"}', '{"sasl.password": ***, "acks": "all"}'),
        ("{'token': 'abc', 'uri': 'x'}", "{'token': ***, 'uri': 'x'}"),
        ("GET /v1?access_token=abc&x=1", "GET /v1?access_token=***&x=1"),
        ("Authorization: Bearer eyJhbGciOi.J9.x", "Authorization: Bearer ***"),
        ("key AKIAIOSFODNN7EXAMPLE is not known", "key *** is not known"),
        (f"signed with {AWS_SECRET}, refused", "signed with ***, refused"),
    ],
)
def test_secrets_are_masked_wherever_they_stand(text: str, without: str) -> None:
    assert redacted(text) == without


@pytest.mark.parametrize(
    "text",
    [
        "auctions/shared/count_bids/0000000003-6a1f0cbb84d3e2f09c5d7e1a2b3c4d5e.arrow is damaged",
        "s3://my-bucket/checkpoints/auctions/journal/000000000042 cannot be read",
        "no S3 server answers for bucket 'x' at http://127.0.0.1:4566; start it",
        "/var/lib/sluice/root/journal/00000000004",
        "unexpected token: FROM at line 3",
        "da39a3ee5e6b4b0d3255bfef95601890afd80709",
        "column 'secretary' was BIGINT and is now STRING",
        "subtask count_bids/1: the input is odd",
    ],
)
def test_what_helps_to_mend_it_stays(text: str) -> None:
    assert redacted(text) == text


def test_a_secret_of_the_environment_goes_by_its_variables_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NOBODYS_API_KEY", "0123456789")
    monkeypatch.setenv("NOBODYS_PASSWORD", "test")

    assert redacted("0123456789 is no key of this test") == "*** is no key of this test"


def test_a_worker_that_was_handed_the_declaration_knows_it_by_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HANDED_OVER", "quiet please")
    handed = copy(env("HANDED_OVER"))
    monkeypatch.setattr("sluice.store.redaction.SECRET_VARIABLES", known := set[str]())
    monkeypatch.setattr("sluice.declaration.params.SECRET_VARIABLES", known)

    assert redacted("quiet please!") == "quiet please!"
    assert value_of(handed, {}) == "quiet please"
    assert known == {"HANDED_OVER"}
    assert redacted("quiet please!") == "***!"


def everything_in(job: Job) -> bytes:
    return b"".join(job.store.get(key) or b"" for key in keys_of(job))


@pytest.mark.parametrize("is_task_failure", [True, False])
def test_no_failure_takes_a_secret_into_the_bucket(*, is_task_failure: bool) -> None:
    job = a_running_job()
    plan = trigger_one(job)
    text = f"FATAL: password authentication failed for {SECRET}"
    decline = Decline(
        checkpoint_id=plan.checkpoint_id,
        subtask=SUBTASKS[0],
        attempt=1,
        message=text,
        reason=CheckpointFailureReason.CHECKPOINT_DECLINED,
        plan=plan.token,
    )
    job.answers.write_decline(decline)

    fail_checkpoint(
        job,
        plan.checkpoint_id,
        CheckpointFailureReason.TASK_FAILURE,
        text,
        is_task_failure=is_task_failure,
    )

    assert b"authentication failed for ***" in everything_in(job)
    assert b"hunter2" not in everything_in(job)


EVENTS: list[tuple[type, dict[str, Any]]] = [
    (JobFailed, {}),
    (JobStopped, {"status": JobStatus.FAILED}),
    (
        CheckpointFailed,
        {"checkpoint_id": CheckpointId(1), "reason": CheckpointFailureReason.TASK_FAILURE},
    ),
]


@pytest.mark.parametrize(("kind", "given"), EVENTS)
def test_whatever_is_journaled_with_a_message_is_journaled_without_secrets(
    kind: Any, given: dict[str, Any]
) -> None:
    job = a_running_job()
    trigger_one(job)

    job.journal.append(
        lambda state: kind(at_ms=1, generation=state.generation, message=SECRET, **given)
    )

    event: Any = next(iter(job.journal.entries(1))).event
    assert event.message == "***"
    assert b"hunter2" not in everything_in(job)


def test_every_event_with_a_message_is_known_to_the_journal() -> None:
    """A new one with a message would be journaled as it is: this fails until it is listed."""
    with_words = {
        cls
        for cls in get_args(Event)
        if {"message", "decline"} & {field.name for field in fields(cls)}
    }

    assert with_words == {DeclineReceived, *WORDED}


# A secret in each place that a record of a log has: 12 secrets, each of another spelling.
SPELLED = [f"password=s3cr3t-{place}" for place in range(12)]


def raised_with_causes(first: str, cause: str, context: str) -> Exception:
    failure, before = RuntimeError(first), OSError(cause)
    before.__context__ = KeyError(context)
    failure.__cause__ = before
    return failure


@pytest.fixture
def _logging_as_before() -> Iterator[None]:
    before = logging.getLogRecordFactory()
    yield
    logging.setLogRecordFactory(before)


@pytest.mark.usefixtures("_logging_as_before")
def test_what_a_process_logs_has_no_secret_wherever_it_stands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    redact_logs()
    redact_logs()  # Once more is harmless.
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log = logging.getLogger("a.client.of.ours")
    log.propagate = False
    log.addHandler(handler)

    log.error(SPELLED[0])
    log.error("refused: %s, %d times", SPELLED[1], 3)
    log.error("of %(place)s", {"place": SPELLED[2]})
    log.error("badly given %s %s", SPELLED[3])  # noqa: PLE1206 - a client may
    log.error(ValueError(SPELLED[4]))
    error = raised_with_causes(SPELLED[5], SPELLED[6], SPELLED[7])
    log.error("GRPC Error received", exc_info=error)
    log.error("with %s", SPELLED[8], exc_info=raised_with_causes(SPELLED[9], "plain", SECRET))
    log.error("none of them: %s", 7, exc_info=ValueError("no secret"))
    log.removeHandler(handler)

    text = written.getvalue()
    assert "s3cr3t" not in text + capsys.readouterr().err
    assert "badly given %s %s ('password=***',)" in text
    assert SECRET not in text
    assert "refused: password=***, 3 times" in text
    assert "RuntimeError: password=***" in text
    assert "KeyError" in text
    assert "none of them: 7\nValueError: no secret" in text


def test_masked_reaches_every_text_of_a_value() -> None:
    value = {"a": [SPELLED[0], {"b": (SPELLED[1], 7, None)}], SPELLED[2]: True}

    assert masked(value) == {
        "a": ["password=***", {"b": ("password=***", 7, None)}],
        SPELLED[2]: True,
    }


def test_masked_keeps_a_named_tuple_what_it_is() -> None:
    class Run(NamedTuple):
        dag: str
        note: str

    assert masked(Run("orders", SPELLED[0])) == Run("orders", "password=***")


@pytest.mark.parametrize(
    "piece",
    [
        "a.b-",
        "http://",
        "password",
        "password='",
        "a://b:c",
        "secret = ",
        "Basic ",
        "Aa1/",
        "x" * 64,
    ],
)
def test_a_text_is_searched_in_time_that_is_linear_in_its_length(piece: str) -> None:
    """Twenty times the text takes at most sixty times as long: four hundred would be a square."""

    def seconds(length: int) -> float:
        text = (piece * (length // len(piece) + 1))[:length]
        times = []
        for _ in range(3):
            begun = time.process_time()
            redacted(text)
            times.append(time.process_time() - begun)
        return min(times)

    assert seconds(200_000) < 60 * max(seconds(10_000), 0.001)


def test_a_long_name_before_the_word_hides_no_secret() -> None:
    name = "x" * 500 + "_password"

    assert redacted(f"{name}=s3cr3t") == f"{name}=***"
