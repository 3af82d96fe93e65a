"""The engines, and the role of each in the comparison."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Literal, cast

from bench.protocol import Engine

Role = Literal["ours", "peer", "limit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An engine: a ``peer`` is exactly-once, as ours is; the ``limit`` has no guarantees."""

    module: str
    role: Role
    environment: dict[str, str] = field(default_factory=dict[str, str])


ENGINES = {
    "sluice": Entry(module="bench.engines.sluice", role="ours"),
    "sluice_run": Entry(module="bench.engines.sluice", role="ours"),
    "sluice_s3": Entry(module="bench.engines.sluice", role="ours"),
    "sluice_cluster": Entry(module="bench.engines.sluice", role="ours"),
    "spark_hdfs": Entry(module="bench.engines.spark_streaming", role="peer"),
    "spark_rocksdb": Entry(module="bench.engines.spark_streaming", role="peer"),
    "flink_hashmap": Entry(module="bench.engines.flink", role="peer"),
    "flink_rocksdb": Entry(module="bench.engines.flink", role="peer"),
    "duckdb": Entry(module="bench.engines.duckdb_table", role="peer"),
    "polars": Entry(
        module="bench.engines.polars_alone",
        role="limit",
        environment={"POLARS_MAX_THREADS": "2"},
    ),
}


def engine_of(name: str) -> Engine:
    return cast("Engine", importlib.import_module(ENGINES[name].module))
