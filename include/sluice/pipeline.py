"""The public declaration: a pipeline reads like the drawing on a whiteboard.

    pipeline = Pipeline("ssh_threats", checkpointing=Checkpointing(interval=timedelta(minutes=1)))
    log = pipeline.source("threat_log", Files(param("input")), event_time="at")
    log.transform("parse", parse_sshd).key_by("source_ip").window(...).sink("alerts", FilesTable())

The uid comes first, everywhere: state is recovered by it, so it is mandatory, unique and stable.
Nothing here imports Spark, Airflow or boto3; a declaration is parsed by all three.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from sluice.aggregates import Aggregate
from sluice.config import Checkpointing
from sluice.core.key_groups import check_parallelism, default_max_parallelism
from sluice.errors import ConfigurationError
from sluice.hooks import MasterHook, RestoreHook, TriggerHook
from sluice.nodes import (
    Keep,
    KeyedAggregate,
    Lookup,
    Operator,
    SinkNode,
    SourceNode,
    StageNode,
    TopN,
    Transform,
    WindowAggregate,
)
from sluice.params import Param
from sluice.sinks import SinkSpec
from sluice.sources import SourceSpec
from sluice.windows import Tumbling

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_UID = re.compile(r"[a-z][a-z0-9_]{0,62}")  # It becomes a key, a task id and a column-safe name.
DEFAULT_PARALLELISM = 2


@dataclass(slots=True)
class Pipeline:
    """A job: sources, stages and sinks by uid, in the order of their declaration."""

    uid: str
    checkpointing: Checkpointing = field(default_factory=Checkpointing)
    parallelism: int = DEFAULT_PARALLELISM
    max_parallelism: int | None = None  # None: as Flink derives it from the first parallelism.
    description: str = ""
    sources: dict[str, SourceNode] = field(default_factory=dict[str, SourceNode])
    stages: dict[str, StageNode] = field(default_factory=dict[str, StageNode])
    sinks: dict[str, SinkNode] = field(default_factory=dict[str, SinkNode])
    hooks: dict[str, MasterHook] = field(default_factory=dict[str, MasterHook])

    def __post_init__(self) -> None:
        self._check_uid(self.uid)
        maximum = self.max_parallelism or default_max_parallelism(self.parallelism)
        check_parallelism(self.uid, self.parallelism, maximum)

    def source(
        self,
        uid: str,
        spec: SourceSpec,
        *,
        event_time: str | None = None,
        out_of_orderness: timedelta = timedelta(0),
        table: bool = False,
        induced: bool = False,
    ) -> Stream:
        """Read *spec*.  ``event_time`` names the timestamp column that the first stage yields;
        the watermark trails its largest value per partition by ``out_of_orderness``.  The barriers
        of an *induced* source are given with the request for a checkpoint: an upstream commit, say.
        """
        self._check_uid(uid)
        self.sources[uid] = SourceNode(
            uid=uid,
            spec=spec,
            event_time=event_time,
            out_of_orderness_ms=out_of_orderness // timedelta(milliseconds=1),
            is_table=table,
            is_induced=induced,
        )
        return Stream(self, uid, event_time)

    def hook(self, uid: str, *, trigger: TriggerHook, restore: RestoreHook) -> None:
        """Have *trigger* called with every checkpoint, and *restore* with every restore."""
        self._check_uid(uid)
        self.hooks[uid] = MasterHook(uid, trigger, restore)

    @property
    def params(self) -> tuple[Param, ...]:
        """Every parameter the declaration mentions, by name."""
        found: dict[str, Param] = {}
        specs = [s.spec.params for s in self.sources.values()]
        specs += [s.spec.params for s in self.sinks.values()]
        for declared in specs:
            found.update({p.name: p for p in declared})
        for stage in self.stages.values():
            if isinstance(stage.operator, Transform):
                arguments = stage.operator.arguments.values()
                found.update({p.name: p for p in arguments if isinstance(p, Param)})
        return tuple(found[name] for name in sorted(found))

    def sinks_of(self, stage: str) -> tuple[SinkNode, ...]:
        return tuple(sink for sink in self.sinks.values() if sink.input == stage)

    def parallelism_of(self, stage: str, override: int | None = None) -> int:
        return self.stages[stage].parallelism or override or self.parallelism

    def stream_sources(self) -> tuple[SourceNode, ...]:
        return tuple(source for source in self.sources.values() if not source.is_table)

    def source_of(self, stage: str) -> SourceNode | None:
        """The source that *stage* reads itself, or None when it reads another stage's stream."""
        return self.sources.get(self.stages[stage].input)

    def add_stage(self, stage: StageNode) -> Stream:
        """Used by Stream; checks what a declaration can get wrong."""
        self._check_uid(stage.uid)
        source = self.sources.get(stage.input)
        if source is not None and source.is_table:
            raise ConfigurationError(
                f"stage {stage.uid!r} streams the table source {source.uid!r}; "
                "pass it to lookup(), or declare it without table=True"
            )
        if isinstance(stage.operator, WindowAggregate) and stage.event_time is None:
            raise ConfigurationError(
                f"window {stage.uid!r} has no event time; name it: source(..., event_time='column')"
            )
        if isinstance(stage.operator, WindowAggregate) and source is not None:
            raise ConfigurationError(
                f"window {stage.uid!r} reads the source {source.uid!r} itself, whose watermark is "
                "known only after a stage has read the rows; put a transform() between them"
            )
        self.stages[stage.uid] = stage
        return Stream(self, stage.uid, None if stage.keys else stage.event_time)

    def _check_uid(self, uid: str) -> None:
        if not _UID.fullmatch(uid):
            raise ConfigurationError(
                f"uid {uid!r} is not usable; use up to 63 of a-z, 0-9 and _, starting with a letter"
            )
        if any(uid in declared for declared in (self.sources, self.stages, self.sinks, self.hooks)):
            raise ConfigurationError(
                f"uid {uid!r} is declared twice in pipeline {self.uid!r}; state is recovered by "
                "uid, so each source, stage, sink and hook needs its own"
            )


@dataclass(frozen=True, slots=True)
class Stream:
    """The output of a source or stage; each method declares the next stage."""

    pipeline: Pipeline
    producer: str
    event_time: str | None

    def transform(
        self,
        uid: str,
        function: Callable[..., DataFrame],
        *,
        parallelism: int | None = None,
        **arguments: str | int | Param,
    ) -> Stream:
        """Apply *function(rows, **arguments)*, which must not shuffle: it sees a row at a time.

        An argument may be a ``param(...)``; the function gets its text.
        """
        operator = Transform(function=function, arguments=arguments)
        return self._stage(uid, operator, parallelism)

    def lookup(
        self,
        uid: str,
        table: Stream,
        *,
        on: str | Mapping[str, str],
        keep: Keep = "matched",
        parallelism: int | None = None,
    ) -> Stream:
        """Keep the rows that the table has (``matched``) or has not (``unmatched``)."""
        node = self.pipeline.sources.get(table.producer)
        if node is None or not node.is_table:
            raise ConfigurationError(
                f"lookup {uid!r} needs a table source; declare {table.producer!r} with table=True"
            )
        columns = {on: on} if isinstance(on, str) else dict(on)
        return self._stage(uid, Lookup(table=table.producer, on=columns, keep=keep), parallelism)

    def key_by(self, *columns: str, **expressions: str) -> KeyedStream:
        """Key by *columns*, and by new ones computed by SQL: ``key_by(day="date(at)")``."""
        if not columns and not expressions:
            raise ConfigurationError("key_by() needs at least one column")
        return KeyedStream(self, (*columns, *expressions), expressions)

    def where(self, condition: str) -> Stream:
        """Keep only the rows of this stage's result for which the SQL *condition* is true."""
        return self._amend(where=condition)

    def select(self, *columns: str) -> Stream:
        """Keep only these columns of this stage's result, in this order."""
        return self._amend(select=columns)

    def sink(self, uid: str, spec: SinkSpec) -> None:
        """Publish this stage's result exactly once: staged with the epoch, visible on commit."""
        self.pipeline._check_uid(uid)  # noqa: SLF001 - Stream is Pipeline's own builder
        if self.producer not in self.pipeline.stages:
            raise ConfigurationError(
                f"sink {uid!r} reads the source {self.producer!r} itself; put a stage between them"
            )
        self.pipeline.sinks[uid] = SinkNode(uid=uid, spec=spec, input=self.producer)

    def _stage(self, uid: str, operator: Operator, parallelism: int | None) -> Stream:
        return self.pipeline.add_stage(
            StageNode(
                uid=uid,
                operator=operator,
                input=self.producer,
                event_time=self.event_time,
                parallelism=parallelism,
            )
        )

    def _amend(self, *, where: str | None = None, select: tuple[str, ...] = ()) -> Stream:
        stage = self.pipeline.stages.get(self.producer)
        consumers = [s.uid for s in self.pipeline.stages.values() if s.input == self.producer]
        if stage is None or consumers or self.pipeline.sinks_of(self.producer):
            raise ConfigurationError(
                f"where() and select() belong directly behind a stage, before its consumers; "
                f"{self.producer!r} is {'a source' if stage is None else 'already consumed'}"
            )
        amended = replace(
            stage,
            where=stage.where if where is None else (*stage.where, where),
            select=select or stage.select,
        )
        self.pipeline.stages[self.producer] = amended
        return self


@dataclass(frozen=True, slots=True)
class KeyedStream:
    """A stream whose rows of equal key meet in one subtask."""

    stream: Stream
    keys: tuple[str, ...]
    expressions: Mapping[str, str]

    def aggregate(
        self, uid: str, *, parallelism: int | None = None, **aggregates: Aggregate
    ) -> Stream:
        """Running result per key; the output holds the current row of every key that changed."""
        operator = KeyedAggregate(keys=self.keys, aggregates=self._checked(uid, aggregates))
        return self._stage(uid, operator, parallelism, event_time=None)

    def window(
        self, uid: str, window: Tumbling, *, parallelism: int | None = None, **aggregates: Aggregate
    ) -> Stream:
        """Result per key and event-time window, once the watermark passed the window's end."""
        operator = WindowAggregate(
            keys=self.keys, window=window, aggregates=self._checked(uid, aggregates)
        )
        return self._stage(uid, operator, parallelism, event_time=self.stream.event_time)

    def top_n(
        self,
        uid: str,
        n: int,
        *,
        by: str,
        unique: str | tuple[str, ...],
        parallelism: int | None = None,
    ) -> Stream:
        """The *n* best rows per key, with their ``rank``; output are the ranks that changed."""
        if n < 1:
            raise ConfigurationError(f"top_n {uid!r} has n = {n}; use 1 or more")
        columns = (unique,) if isinstance(unique, str) else unique
        operator = TopN(keys=self.keys, n=n, by=by, unique=columns)
        return self._stage(uid, operator, parallelism, event_time=None)

    def _checked(self, uid: str, aggregates: Mapping[str, Aggregate]) -> dict[str, Aggregate]:
        if not aggregates:
            raise ConfigurationError(f"stage {uid!r} computes nothing; pass name=count(), ...")
        return dict(aggregates)

    def _stage(
        self, uid: str, operator: Operator, parallelism: int | None, *, event_time: str | None
    ) -> Stream:
        return self.stream.pipeline.add_stage(
            StageNode(
                uid=uid,
                operator=operator,
                input=self.stream.producer,
                event_time=event_time,
                parallelism=parallelism,
                key_expressions=self.expressions,
            )
        )
