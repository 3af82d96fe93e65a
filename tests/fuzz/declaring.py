"""Declares the pipeline that a plan describes, with the public API alone."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl

from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing, StateBackend, fixed_delay
from sluice.declaration.operations import Attached, Hopping, Session, Tumbling, Window
from sluice.declaration.pipeline import Pipeline
from sluice.sinks import FilesTable
from sluice.sources import SourceSpec
from tests.fuzz import functions
from tests.fuzz.plans import InputPlan, Plan, SinkPlan, StagePlan
from tests.fuzz.tuning import COMPACTS

# The declared type of a key column in the result of process().
DECLARED: dict[str, Any] = {"int": pl.Int32(), "long": int, "text": str, "bool": bool}
PERCENTILE = 0.3
DATA_INLINE_THRESHOLD = Checkpointing().data_inline_threshold


def declare(plan: Plan, specs: Mapping[str, SourceSpec], tables: Path) -> Pipeline:
    """*specs*: where the rows of each source are; *tables*: the folder of tables with a Delta log.

    Raises:
        ConfigurationError: the plan is to be refused.
    """
    pipeline = Pipeline(
        "fuzz",
        Checkpointing(
            interval=None,
            num_retained=3,
            num_retained_versions=1,
            tolerable_failed_checkpoints=99,
            max_records_per_epoch=plan.max_records,
            data_inline_threshold=0 if COMPACTS in plan.tuning else DATA_INLINE_THRESHOLD,
            unaligned=bool(plan.unaligned),
            aligned_checkpoint_timeout=(
                timedelta(hours=1) if plan.unaligned == "timeout" else timedelta()
            ),
            restart_strategy=fixed_delay(attempts=None, delay=timedelta(milliseconds=1)),
        ),
        parallelism=plan.parallelism,
        max_parallelism=plan.max_parallelism,
        state_backend=StateBackend(max_runs=plan.max_runs),
    )
    streams: dict[str, Any] = {}
    for source in plan.sources:
        streams[source.uid] = pipeline.source(
            source.uid,
            specs[source.uid],
            event_time=source.event_time,
            out_of_orderness=timedelta(
                milliseconds=source.out_of_orderness_ms if source.event_time else 0
            ),
            idle_after=_duration(source.idle_after_ms),
            table=source.is_table,
        )
    for stage in plan.stages:
        streams[stage.uid] = _stage(stage, streams)
        if not plan.is_chained:
            streams[stage.uid].disable_chaining()
    for sink in plan.sinks:
        if sink.is_absent:
            continue
        stream = streams[sink.producer]
        for condition in sink.where:
            stream = stream.where(condition)
        if sink.select:
            stream = stream.select(*sink.select)
        stream.sink(sink.uid, spec_of(sink, tables))
    return pipeline


def spec_of(sink: SinkPlan, tables: Path) -> FilesTable:
    return FilesTable(
        f"file://{tables / sink.uid}" if sink.delta_log else "",
        upsert_key=sink.upsert_key,
        format=sink.format,
        changelog=sink.changelog,
        partition_by=sink.partition_by,
        compact_when_files=sink.compact_when_files,
        delta_log=sink.delta_log,
    )


def window_of(given: tuple[Any, ...] | list[Any]) -> Window:
    kind, *lengths = given
    sizes = [timedelta(milliseconds=length) for length in lengths]
    kinds: dict[str, type[Window]] = {
        "tumbling": Tumbling,
        "hopping": Hopping,
        "session": Session,
        "attached": Attached,
    }
    return kinds[kind](*sizes)


def aggregates_of(given: Mapping[str, Any]) -> dict[str, agg.Aggregate]:
    """Name -> (kind, column, condition, by)."""
    made = {}
    for name, (kind, column, where, by) in given.items():
        arguments = {"where": where} | ({"by": by} if kind in ("first", "last") else {})
        columns = [] if column is None else [column]
        if kind == "percentile":
            columns.append(PERCENTILE)
        made[name] = getattr(agg, kind)(*columns, **arguments)
    return made


def _stage(stage: StagePlan, streams: Mapping[str, Any]) -> Any:
    stream = _OPERATIONS[stage.op](stage, streams)
    for condition in stage.where:
        stream = stream.where(condition)
    return stream.select(*stage.select) if stage.select else stream


def _read(given: InputPlan, streams: Mapping[str, Any]) -> Any:
    stream = streams[given.producer]
    for condition in given.where:
        stream = stream.where(condition)
    return stream.select(*given.select) if given.select else stream


def _keyed(given: InputPlan, streams: Mapping[str, Any]) -> Any:
    stream = _read(given, streams)
    if not given.keys:
        return stream
    plain = [key for key in given.keys if key not in dict(given.key_expressions)]
    return stream.key_by(*plain, **dict(given.key_expressions))


def _transform(stage: StagePlan, streams: Mapping[str, Any]) -> Any:
    return _read(stage.inputs[0], streams).transform(
        stage.uid, functions.project, parallelism=stage.parallelism, **stage.args
    )


def _lookup(stage: StagePlan, streams: Mapping[str, Any]) -> Any:
    args = dict(stage.args)
    table = streams[args.pop("table")]
    return _read(stage.inputs[0], streams).lookup(
        stage.uid, table, parallelism=stage.parallelism, **args
    )


def _union(stage: StagePlan, streams: Mapping[str, Any]) -> Any:
    first, *others = (_read(given, streams) for given in stage.inputs)
    return first.union(stage.uid, *others, parallelism=stage.parallelism)


def _aggregate(stage: StagePlan, streams: Mapping[str, Any]) -> Any:
    keyed = _keyed(stage.inputs[0], streams)
    aggregates = aggregates_of(stage.args["aggregates"])
    return keyed.aggregate(
        stage.uid, ttl=_ttl_of(stage), parallelism=stage.parallelism, **aggregates
    )


def _ttl_of(stage: StagePlan) -> timedelta | None:
    return _duration(stage.args.get("ttl"))


def _duration(length_ms: int | None) -> timedelta | None:
    return None if length_ms is None else timedelta(milliseconds=length_ms)


def _window(stage: StagePlan, streams: Mapping[str, Any]) -> Any:
    lateness = timedelta(milliseconds=stage.args["lateness"])
    return _keyed(stage.inputs[0], streams).window(
        stage.uid,
        window_of(stage.args["window"]),
        allowed_lateness=lateness,
        parallelism=stage.parallelism,
        **aggregates_of(stage.args["aggregates"]),
    )


def _window_top_n(stage: StagePlan, streams: Mapping[str, Any]) -> Any:
    args = dict(stage.args)
    window = window_of(args.pop("window"))
    return _keyed(stage.inputs[0], streams).window_top_n(
        stage.uid, window, parallelism=stage.parallelism, **args
    )


def _one_input(stage: StagePlan, streams: Mapping[str, Any]) -> Any:
    args = {name: _tuple(value) for name, value in stage.args.items()}
    if "ttl" in args:
        args["ttl"] = _ttl_of(stage)
    method = getattr(_keyed(stage.inputs[0], streams), stage.op)
    return method(stage.uid, parallelism=stage.parallelism, **args)


def _join(stage: StagePlan, streams: Mapping[str, Any]) -> Any:
    left, right = (_keyed(given, streams) for given in stage.inputs)
    args = dict(stage.args)
    for name in ("lower", "upper"):
        if name in args and not isinstance(args[name], str):
            args[name] = timedelta(milliseconds=args[name])
    if "window" in args:
        args["window"] = window_of(args["window"])
    if "ttl" in args:
        args["ttl"] = _ttl_of(stage)
    return getattr(left, stage.op)(stage.uid, right, parallelism=stage.parallelism, **args)


def _process(stage: StagePlan, streams: Mapping[str, Any]) -> Any:
    key, kind = stage.args["key"], DECLARED[stage.args["type"]]
    return _keyed(stage.inputs[0], streams).process(
        stage.uid,
        functions.count_rows(key),
        state={"total": int},
        result={key: kind, "rows": int, "total": int},
        version=stage.args.get("version"),
        ttl=_ttl_of(stage),
        parallelism=stage.parallelism,
    )


def _process_keyed(stage: StagePlan, streams: Mapping[str, Any]) -> Any:
    key, kind = stage.args["key"], DECLARED[stage.args["type"]]
    heard = stage.inputs[1:]
    return _keyed(stage.inputs[0], streams).process_keyed(
        stage.uid,
        functions.number_rows(key, stage.uid, stage.args.get("lists", ""), hears=bool(heard)),
        result={key: kind, "number": int, "fired_at": datetime},
        broadcast=_read(heard[0], streams) if heard else None,
        version=stage.args.get("version"),
        parallelism=stage.parallelism,
    )


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


_OPERATIONS = {
    "transform": _transform,
    "lookup": _lookup,
    "union": _union,
    "aggregate": _aggregate,
    "window": _window,
    "window_top_n": _window_top_n,
    "top_n": _one_input,
    "latest": _one_input,
    "deduplicate": _one_input,
    "join": _join,
    "interval_join": _join,
    "window_join": _join,
    "process": _process,
    "process_keyed": _process_keyed,
}
