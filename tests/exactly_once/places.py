"""The servers of sources and sinks, each started at its first use."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

from pyiceberg.catalog import load_catalog

from harness.kafka_cluster import Place, in_memory
from harness.postgres_database import Database, running_postgres
from tests import iceberg_catalog


class Places:
    """*folder* is for places without a server; servers stop with the stack *until_the_end*."""

    def __init__(self, folder: Path, until_the_end: ExitStack) -> None:
        self.folder = folder
        self._until_the_end = until_the_end

    @cached_property
    def database(self) -> Database:
        folder = self.folder / "postgres"
        folder.mkdir()
        return self._until_the_end.enter_context(running_postgres(folder))

    @cached_property
    def schema(self) -> str:
        return self.database.new_schema()

    @cached_property
    def kafka(self) -> Place:
        return self._until_the_end.enter_context(in_memory())

    @property
    def catalog(self) -> dict[str, str]:
        folder = self.folder / "iceberg"
        is_new = not folder.exists()
        found = iceberg_catalog.properties(folder)
        if is_new:
            load_catalog("default", **found).create_namespace("shop")
        return found
