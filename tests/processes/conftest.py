"""The shared fixture of the connectors' tests: a real PostgreSQL."""

from __future__ import annotations

from tests.postgres_database import database  # noqa: F401 - a fixture
