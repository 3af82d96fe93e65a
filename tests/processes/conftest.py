"""What tests in processes of their own share: a PostgreSQL, and how a program is run."""

from __future__ import annotations

import subprocess
import sys

from tests.contract.conftest import environment_with_sluice
from tests.postgres_database import database  # noqa: F401 - a fixture


def run_python(
    program: str, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run *program* in a Python that finds what this one finds."""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        check=False,
        env=environment_with_sluice() | environment,
        capture_output=True,
        text=True,
    )
