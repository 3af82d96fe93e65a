"""A real PostgreSQL for each module of tests that asks for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.postgres_database import Database, running_postgres


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """For the ``conftest`` of a folder whose tests need one; each module starts its own."""
    with running_postgres(tmp_path_factory.mktemp("postgres")) as server:
        yield server
