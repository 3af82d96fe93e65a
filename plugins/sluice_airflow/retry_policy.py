"""Airflow's retry policy for the errors of sluice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from sluice.errors import FencedError, SluiceError


@contextmanager
def airflow_failures() -> Iterator[None]:
    """Retry what may succeed later, skip what a newer coordinator owns, fail the rest."""
    try:
        yield
    except FencedError as error:
        raise AirflowSkipException(str(error)) from error
    except SluiceError as error:
        if error.retryable:
            raise  # Airflow's own retry policy applies.
        raise AirflowFailException(str(error)) from error
