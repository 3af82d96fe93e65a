"""Consistent checkpoints, savepoints and restore for chains of Spark stages on Airflow.

What a declaration is written with: ``from sluice import Pipeline, Tumbling, aggregates``, beside
the places of ``sluice.sources`` and ``sluice.sinks``.  A name is imported when it is first used, so
that ``import sluice`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sluice.declaration import aggregates
    from sluice.declaration.accumulating_states import (
        AggregateFunction,
        AggregatingState,
        ReducingState,
    )
    from sluice.declaration.broadcast_state import (
        BroadcastContext,
        BroadcastState,
        KeyedBroadcastProcessFunction,
    )
    from sluice.declaration.checkpointed_function import CheckpointedFunction, SubtaskContext
    from sluice.declaration.config import (
        Checkpointing,
        StateBackend,
        exponential_delay,
        failure_rate,
        fixed_delay,
        no_restart,
    )
    from sluice.declaration.hooks import MasterHook, RestoreHook, TriggerHook
    from sluice.declaration.keyed_process import (
        Context,
        KeyedProcessFunction,
        OnTimerContext,
    )
    from sluice.declaration.keyed_states import ListState, MapState, ValueState
    from sluice.declaration.keyed_streams import KeyedStream
    from sluice.declaration.operator_states import OperatorListState, UnionListState
    from sluice.declaration.params import Env, Param, env, param
    from sluice.declaration.pipeline import Pipeline
    from sluice.declaration.schedules import (
        Continuous,
        Cron,
        OnAsset,
        Orchestration,
        Submit,
        Watcher,
    )
    from sluice.declaration.state_ttl import StateTtlConfig
    from sluice.declaration.streams import Stream
    from sluice.declaration.windows import Attached, Hopping, Session, Tumbling
    from sluice.errors import CheckpointDeclined

_MODULES = {
    "accumulating_states": ("AggregateFunction", "AggregatingState", "ReducingState"),
    "broadcast_state": ("BroadcastContext", "BroadcastState", "KeyedBroadcastProcessFunction"),
    "checkpointed_function": ("CheckpointedFunction", "SubtaskContext"),
    "config": (
        "Checkpointing",
        "StateBackend",
        "exponential_delay",
        "failure_rate",
        "fixed_delay",
        "no_restart",
    ),
    "hooks": ("MasterHook", "RestoreHook", "TriggerHook"),
    "keyed_process": (
        "Context",
        "KeyedProcessFunction",
        "OnTimerContext",
    ),
    "keyed_states": ("ListState", "MapState", "ValueState"),
    "keyed_streams": ("KeyedStream",),
    "operator_states": ("OperatorListState", "UnionListState"),
    "params": ("Env", "Param", "env", "param"),
    "pipeline": ("Pipeline",),
    "schedules": ("Continuous", "Cron", "OnAsset", "Orchestration", "Submit", "Watcher"),
    "state_ttl": ("StateTtlConfig",),
    "streams": ("Stream",),
    "windows": ("Attached", "Hopping", "Session", "Tumbling"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "AggregateFunction",
    "AggregatingState",
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
    "ValueState",
    "Watcher",
    "aggregates",
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
    if name == "CheckpointDeclined":
        return getattr(import_module("sluice.errors"), name)
    if name in _MODULE_OF:
        return getattr(import_module(f"sluice.declaration.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module 'sluice' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
