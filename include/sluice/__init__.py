"""Consistent checkpoints, savepoints and restore for chains of Spark stages on Airflow.

A declaration is written with these names: ``from sluice import Pipeline, Tumbling, aggregates``;
``sluice.sources`` and ``sluice.sinks`` have the places.  A name is imported when it is first used,
so that ``import sluice`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sluice.declaration import aggregates
    from sluice.declaration.checkpointing import (
        Checkpointing,
        MasterHook,
        RestoreHook,
        StateBackend,
        TriggerHook,
        exponential_delay,
        failure_rate,
        fixed_delay,
        no_restart,
    )
    from sluice.declaration.keyed_functions import (
        BroadcastContext,
        BroadcastState,
        CheckpointedFunction,
        Context,
        KeyedBroadcastProcessFunction,
        KeyedProcessFunction,
        OnTimerContext,
        OperatorListState,
        SubtaskContext,
        UnionListState,
    )
    from sluice.declaration.keyed_states import (
        AggregateFunction,
        AggregatingState,
        ListState,
        MapState,
        ReducingState,
        StateTtlConfig,
        ValueState,
    )
    from sluice.declaration.operations import Attached, Hopping, Session, Tumbling
    from sluice.declaration.params import Env, Param, env, param
    from sluice.declaration.pipeline import KeyedStream, Pipeline, Stream, current
    from sluice.declaration.results import Append, Replace, ReplacePartitions, Upsert
    from sluice.declaration.schedules import (
        Continuous,
        Cron,
        OnAsset,
        Orchestration,
        Submit,
        Watcher,
    )
    from sluice.errors import CheckpointDeclined

_MODULES = {
    "sluice.declaration.checkpointing": (
        "Checkpointing",
        "MasterHook",
        "RestoreHook",
        "StateBackend",
        "TriggerHook",
        "exponential_delay",
        "failure_rate",
        "fixed_delay",
        "no_restart",
    ),
    "sluice.declaration.keyed_functions": (
        "BroadcastContext",
        "BroadcastState",
        "CheckpointedFunction",
        "Context",
        "KeyedBroadcastProcessFunction",
        "KeyedProcessFunction",
        "OnTimerContext",
        "OperatorListState",
        "SubtaskContext",
        "UnionListState",
    ),
    "sluice.declaration.keyed_states": (
        "AggregateFunction",
        "AggregatingState",
        "ListState",
        "MapState",
        "ReducingState",
        "StateTtlConfig",
        "ValueState",
    ),
    "sluice.declaration.operations": ("Attached", "Hopping", "Session", "Tumbling"),
    "sluice.declaration.params": ("Env", "Param", "env", "param"),
    "sluice.declaration.pipeline": ("KeyedStream", "Pipeline", "Stream", "current"),
    "sluice.declaration.results": ("Append", "Replace", "ReplacePartitions", "Upsert"),
    "sluice.declaration.schedules": (
        "Continuous",
        "Cron",
        "OnAsset",
        "Orchestration",
        "Submit",
        "Watcher",
    ),
    "sluice.errors": ("CheckpointDeclined",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "AggregateFunction",
    "AggregatingState",
    "Append",
    "Attached",
    "BroadcastContext",
    "BroadcastState",
    "CheckpointDeclined",
    "CheckpointedFunction",
    "Checkpointing",
    "Context",
    "Continuous",
    "Cron",
    "Env",
    "Hopping",
    "KeyedBroadcastProcessFunction",
    "KeyedProcessFunction",
    "KeyedStream",
    "ListState",
    "MapState",
    "MasterHook",
    "OnAsset",
    "OnTimerContext",
    "OperatorListState",
    "Orchestration",
    "Param",
    "Pipeline",
    "ReducingState",
    "Replace",
    "ReplacePartitions",
    "RestoreHook",
    "Session",
    "StateBackend",
    "StateTtlConfig",
    "Stream",
    "Submit",
    "SubtaskContext",
    "TriggerHook",
    "Tumbling",
    "UnionListState",
    "Upsert",
    "ValueState",
    "Watcher",
    "aggregates",
    "current",
    "env",
    "exponential_delay",
    "failure_rate",
    "fixed_delay",
    "no_restart",
    "param",
]


def __getattr__(name: str) -> object:
    if name == "aggregates":
        return import_module("sluice.declaration.aggregates")
    if name in _MODULE_OF:
        return getattr(import_module(_MODULE_OF[name]), name)
    raise AttributeError(f"module 'sluice' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
