"""A refusal that no repetition mends, by a subtask, or by who sends it rows.

A Spark task that raises is tried again, as often as ``spark.task.maxFailures`` says: right where
an executor, a worker or a disk is lost, and a waste where the code or the input is at fault.  So a
refusal is not raised.  The task answers with it, in place of its rows or its ack, and succeeds; the
driver raises it.  What is raised is left to Spark, which tries it once more: who then raises an
error that is none of the machine's refuses, too.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator

import pyarrow as pa

from sluice.core.failures import root_cause
from sluice.errors import SluiceError


class Fed:
    """The batches that a task is fed, and the ``error`` that ended them, if one did.

    The feeder reports the error: a reader may only see that the stream has ended too early.
    """

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = batches
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._batches
        except Exception as error:
            self.error = error
            raise


class RefusedError(Exception):
    """The refusal of a part of the stage; its text is a ``refusal_of``."""


def is_final(error: Exception, *, is_retried: bool) -> bool:
    """Whether *error* would be raised again if Spark tried its task again.

    Of an error that is not ours nobody knows it before the task *is_retried*.  What the machine or
    the store raises may pass.
    """
    match error:
        case SluiceError():
            return not error.retryable
        case OSError() | MemoryError():
            return False
        case _:
            return is_retried


def refusal_of(error: Exception) -> str:
    """*error* with its traceback and its notes, from which the driver takes the root cause."""
    return "".join(traceback.format_exception(error))


def reason_of(error: Exception) -> str:
    """*error* in one sentence, which names the place if it was raised by the user's code."""
    return str(error) if isinstance(error, SluiceError) else str(root_cause(refusal_of(error)))
