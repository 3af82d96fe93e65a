"""A whole stack of a test module's own: S3, Spark and Airflow, stopped when the block ends."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from sluice.devstack import stack
from sluice.devstack.stack import Stack, StackOptions


@contextmanager
def own_stack(root: Path, options: StackOptions, extra_env: Mapping[str, str]) -> Iterator[Stack]:
    """Meanwhile this process is a client of it, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stack, "AIRFLOW_START_TIMEOUT_S", 1_200)  # Beside all other tests.
        # Its own AIRFLOW_HOME must not be that of another test module.
        for name in [name for name in os.environ if name.startswith("AIRFLOW_")]:
            patch.delenv(name)
        try:
            started = stack.start_stack(root, options=options, extra_env=extra_env)
            for name, value in started.client_env.items():
                patch.setenv(name, value)
            yield started
        finally:
            stack.stop_stack(root)
