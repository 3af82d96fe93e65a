"""Everything sluice raises.

    SluiceError
    ├── ConfigurationError    the declaration, an option or the machine is wrong: fix it
    │   ├── SourceUnreadable   a source is not as it was declared, or as it was read
    │   └── StoreRefuses       a store has no right, bucket or folder for us: mend that there
    ├── ProtocolViolation     the bucket holds the impossible: stop, page a person
    │   ├── CorruptSegment    a file does not match its checksum: restore another checkpoint
    │   └── DamagedRecord     an object's bytes are not those of a record that was written
    ├── FencedError           a newer coordinator owns the job: stop quietly
    ├── RestoreError          there is nothing to restore, or something it needs is missing
    ├── TableMismatch         a table does not show what the job continues: a person decides
    ├── CheckpointDeclined    a subtask cannot take part in this checkpoint: perhaps in the next one
    ├── CheckpointFailure     a checkpoint was refused, or could not be completed
    │   └── StageFailed       a stage's execution attempt failed: the job fails over
    ├── NotYetAcknowledged    nothing failed: a stage that is waited for still runs; ask again
    └── StoreUnavailable      the store could not answer: retry
        ├── ObjectVanished    an object was deleted between two requests
        └── StoreFull         it has no space left: a person makes some, and then retry

Expected outcomes (a duplicate ack, a lost race, a dropped request) are return values, not errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Final, Literal, Self, TypeAlias, get_args

_FRESH = "sluice run {} --fresh"
_OF_ANY = _FRESH.format("PIPELINE")
BEGIN_ANEW: Final = f"begin anew ('{_OF_ANY}')"  # As every message says it.


def fresh_run(uid: str) -> str:
    """The command that begins the job *uid* anew, whatever its status is."""
    return _FRESH.format(uid)


def of_pipeline(message: str, uid: str) -> str:
    """*message* of a place that did not know its pipeline, with the command of *uid*."""
    return message.replace(_OF_ANY, fresh_run(uid))


class SluiceError(Exception):
    """Base class.  ``retryable`` is read by the Airflow binding, nowhere else."""

    retryable: ClassVar[bool] = False


class ConfigurationError(SluiceError):
    """Something a person wrote is wrong; the message names it and the fix, and ends with the *line*
    (``pipelines/shop.py:12``) if that is known.
    """

    line = ""

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message} ({self.line})" if self.line else message


class SourceUnreadable(ConfigurationError):
    """A source cannot be read as it is declared, or on from where it was read; the message names
    what is missing.
    """


class StoreRefuses(ConfigurationError):
    """A store answers, and not as it was asked: rights, bucket, region, folder; also a store that
    cannot be asked with the credentials that there are.
    """


class ProtocolViolation(SluiceError):
    """An object in the bucket contradicts the protocol; nothing may be built on it."""


class CorruptSegment(ProtocolViolation):
    """A segment's bytes do not match the checksum its ack recorded."""


class DamagedRecord(ProtocolViolation):
    """A record's bytes cannot be those that were written; one of another version is not damaged."""


class FencedError(SluiceError):
    """A newer generation owns the job; the process that gets this error must stop."""


class RestoreError(SluiceError):
    """The requested checkpoint cannot be restored; the message names what is missing."""


class TableMismatch(SluiceError):
    """A sink's table does not show what the job continues; the message says how to go on."""


DeclineReason: TypeAlias = Literal[
    "CHECKPOINT_DECLINED",
    "CHECKPOINT_DECLINED_TASK_NOT_READY",
    "CHECKPOINT_DECLINED_TASK_CLOSING",
    "CHECKPOINT_DECLINED_INPUT_END_OF_STREAM",
]


class CheckpointDeclined(SluiceError):
    """A subtask cannot take part in this checkpoint, and says why: the checkpoint is aborted, and
    the job goes on with the next one.

    For functions of ``process`` and ``process_keyed``, and for a sink's staging.  Only the reason
    CHECKPOINT_DECLINED counts against ``tolerable_failed_checkpoints`` (CheckpointFailureManager).

    Raises:
        ConfigurationError: there is no such reason.
    """

    def __init__(self, message: str, *, reason: DeclineReason = "CHECKPOINT_DECLINED") -> None:
        if reason not in get_args(DeclineReason):
            raise ConfigurationError(
                f"a checkpoint cannot be declined for {reason!r}; use one of "
                f"{', '.join(get_args(DeclineReason))}"
            )
        super().__init__(message)
        self.reason = reason


class CheckpointFailure(SluiceError):
    """A checkpoint was not triggered, or failed; the message ends with ``cause``.

    ``stage`` is the one that failed, if one did.  ``is_transient``: the cause may pass, and the
    same call succeed later.  ``is_refused``: there is no checkpoint, and none failed.
    """

    def __init__(
        self,
        message: str,
        *,
        stage: str = "",
        cause: str = "",
        is_transient: bool = False,
        is_refused: bool = False,
    ) -> None:
        super().__init__(message)
        self.stage = stage
        self.cause = cause or message
        self.is_transient = is_transient
        self.is_refused = is_refused

    def retold(self, message: str) -> Self:
        """The same failure, of the same stage and cause, in the words of whoever passes it on."""
        return type(self)(message, stage=self.stage, cause=self.cause)


class StageFailed(CheckpointFailure):
    """A stage's execution attempt failed; the message names the stage.

    ``is_declined``: a subtask declined the checkpoint, which ends the checkpoint, and not yet the
    job.
    """

    def __init__(
        self,
        message: str,
        *,
        stage: str = "",
        cause: str = "",
        is_transient: bool = False,
        is_declined: bool = False,
    ) -> None:
        super().__init__(message, stage=stage, cause=cause, is_transient=is_transient)
        self.is_declined = is_declined


class NotYetAcknowledged(SluiceError):
    """A stage was asked for before all its subtasks had acknowledged.  Nothing failed.

    The same call succeeds once they have; if they never do, the checkpoint's timeout ends it.
    """


class StoreUnavailable(SluiceError):
    """The store did not answer, or answered that it cannot; the same call may succeed later."""

    retryable: ClassVar[bool] = True


class ObjectVanished(StoreUnavailable):
    """An object was in the way of a create, and was deleted before it could be read."""


class StoreFull(StoreUnavailable):
    """The store has no space left.  Its client does not repeat the call, as waiting makes none; the
    task that made it is tried again as after any failure.
    """


@contextmanager
def written_on(line: str) -> Iterator[None]:
    """What is wrong within the block is written on *line*, unless a nearer line is known."""
    try:
        yield
    except ConfigurationError as error:
        error.line = error.line or line
        raise


def require(holds: bool, what: str) -> None:  # noqa: FBT001 - it reads as an assertion
    """Raises ValueError with the text *what* unless it *holds*; also under ``python -O``.

    For invariants of values that may be read from the bucket, where ``assert`` could be missing:
    the decoder turns the ValueError into a ``ProtocolViolation`` that names the object.
    """
    if not holds:
        raise ValueError(what)
