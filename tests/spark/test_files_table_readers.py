"""Spark reads ``_latest`` as the documentation says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from sluice.connectors.files_table.table import ManifestTable
from sluice.core.answers import Attempt
from sluice.store.open import StoreLocation, open_store
from tests.builders import ATTEMPTED, PLANNED
from tests.contract.sink_case import JOB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCS = Path(__file__).parents[2] / "docs/connectors/files_table.md"


def snippet(name: str) -> str:
    found = re.search(rf"<!-- {name} -->\n```\w+\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("partition_by", [(), ("kind",)], ids=["flat", "partitioned"])
def test_spark_sees_what_is_committed(
    spark: SparkSession, tmp_path: Path, partition_by: tuple[str, ...]
) -> None:
    store = open_store(StoreLocation(root=f"file://{tmp_path}/a table"))
    table = ManifestTable("alerts", store, latest=True, partition_by=partition_by)
    for version in (1, 2, 3):
        batch = pa.table({"id": [version, -version], "kind": ["a/b c", None]})
        staged = table.stage(
            batch,
            Attempt(
                checkpoint_id=version, subtask=0, checkpoint_token=PLANNED, attempt_token=ATTEMPTED
            ),
        )
        if version < 3 and staged is not None:
            table.commit(JOB, version, version - 1 or None, [staged])
    code = "".join(snippet(name) for name in ("polars-files", "spark-append"))
    names: dict[str, Any] = {"spark": spark}

    exec(code.replace("TABLE", f"{tmp_path}/a table"), names)  # noqa: S102

    assert sorted((row.id, row.kind) for row in names["rows"].collect()) == [
        (-2, None),
        (-1, None),
        (1, "a/b c"),
        (2, "a/b c"),
    ]
