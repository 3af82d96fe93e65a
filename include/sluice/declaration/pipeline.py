"""The public declaration: a pipeline reads like the drawing on a whiteboard.

    pipeline = Pipeline("ssh_threats", checkpointing=Checkpointing(interval=timedelta(minutes=1)))
    log = pipeline.source("threat_log", Files(param("input")), event_time="at")
    log.transform("parse", parse_sshd).key_by("source_ip").window(...).sink("alerts", FilesTable())

The uid comes first, everywhere: state is recovered by it, so it is mandatory, unique and stable.
Nothing here imports Spark, Airflow or boto3; a declaration is parsed by all three.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import timedelta

from sluice.core.key_groups import check_parallelism, default_max_parallelism
from sluice.declaration.changelog import Append, Kind, Read, check_sink
from sluice.declaration.config import Checkpointing, StateBackend
from sluice.declaration.hooks import (
    HOOK_TIMEOUT,
    MasterHook,
    NotificationHook,
    RestoreHook,
    TriggerHook,
)
from sluice.declaration.nodes import SinkNode, SourceNode, StageNode
from sluice.declaration.operations import Process, Transform
from sluice.declaration.operator_states import refuse_operator_lists
from sluice.declaration.params import Param
from sluice.declaration.schedules import Orchestration
from sluice.declaration.source_spec import SourceSpec
from sluice.declaration.streams import Stream, uid_first
from sluice.errors import ConfigurationError
from sluice.protocol.names import check_uid

_MS = timedelta(milliseconds=1)
DEFAULT_PARALLELISM = 2


@uid_first
@dataclass(slots=True)
class Pipeline:
    """A job: sources, stages and sinks by uid, in the order of their declaration."""

    uid: str
    checkpointing: Checkpointing = field(default_factory=Checkpointing)
    parallelism: int = DEFAULT_PARALLELISM
    max_parallelism: int | None = None  # None: as Flink derives it from the first parallelism.
    state_backend: StateBackend = field(default_factory=StateBackend)
    orchestration: Orchestration = field(default_factory=Orchestration)
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
        idle_after: timedelta | None = None,
        table: bool = False,
        induced: bool = False,
    ) -> Stream:
        """Read *spec*.  ``event_time`` names the timestamp column that the first stage yields, or
        reads; the watermark trails its largest value per partition by ``out_of_orderness``.  A
        partition without records for ``idle_after`` does not hold the watermark back.  The barriers
        of an *induced* source are given with the request for a checkpoint: an upstream commit, say.
        """
        self._check_uid(uid)
        if idle_after is not None and idle_after < _MS:
            raise ConfigurationError(
                f"source {uid!r} has idle_after {idle_after}; use 1 ms or more"
            )
        refuse_operator_lists(uid, spec, "what a source has read is its position in the plan")
        self.sources[uid] = SourceNode(
            uid=uid,
            spec=spec,
            event_time=event_time,
            out_of_orderness_ms=out_of_orderness // _MS,
            is_table=table,
            is_induced=induced,
            idle_after_ms=None if idle_after is None else idle_after // _MS,
        )
        return Stream(self, uid, event_time)

    def hook(
        self,
        uid: str,
        *,
        trigger: TriggerHook,
        restore: RestoreHook,
        prepare_snapshot_pre_barrier: NotificationHook | None = None,
        notify_checkpoint_complete: NotificationHook | None = None,
        notify_checkpoint_aborted: NotificationHook | None = None,
        timeout: timedelta = HOOK_TIMEOUT,
    ) -> None:
        """Have *trigger* called with every checkpoint, and *restore* with every restore.

        The others, if given, are called before the barrier is cut, when the checkpoint is
        published, and when it was aborted; see ``hooks``.  Each call may take *timeout*.
        """
        self._check_uid(uid)
        if timeout <= timedelta(0):
            raise ConfigurationError(f"hook {uid!r} has timeout {timeout}; give it some time")
        self.hooks[uid] = MasterHook(
            uid,
            trigger,
            restore,
            prepare_snapshot_pre_barrier,
            notify_checkpoint_complete,
            notify_checkpoint_aborted,
            timeout,
        )

    @property
    def params(self) -> tuple[Param, ...]:
        """Every parameter the declaration mentions, by name."""
        found: dict[str, Param] = {}
        specs = [s.spec.params for s in self.sources.values()]
        specs += [s.spec.params for s in self.sinks.values()]
        for declared in specs:
            found.update({p.name: p for p in declared})
        for stage in self.stages.values():
            if isinstance(stage.operation, Transform):
                arguments = stage.operation.arguments.values()
                found.update({p.name: p for p in arguments if isinstance(p, Param)})
        return tuple(found[name] for name in sorted(found))

    def sinks_of(self, stage: str) -> tuple[SinkNode, ...]:
        return tuple(sink for sink in self.sinks.values() if sink.input == stage)

    def consumers_of(self, producer: str) -> tuple[StageNode, ...]:
        return tuple(stage for stage in self.stages.values() if producer in stage.producers)

    def is_consumed(self, stage: str) -> bool:
        return bool(self.consumers_of(stage) or self.sinks_of(stage))

    def parallelism_of(self, stage: str, override: int | None = None) -> int:
        return self.stages[stage].parallelism or override or self.parallelism

    def stream_sources(self) -> tuple[SourceNode, ...]:
        return tuple(source for source in self.sources.values() if not source.is_table)

    def sources_of(self, stage: str) -> tuple[SourceNode, ...]:
        """The sources that *stage* reads itself."""
        producers = dict.fromkeys(self.stages[stage].producers)
        return tuple(self.sources[uid] for uid in producers if uid in self.sources)

    def upstream_of(self, stage: str) -> tuple[str, ...]:
        """The stages whose streams *stage* reads."""
        producers = dict.fromkeys(self.stages[stage].producers)
        return tuple(uid for uid in producers if uid in self.stages)

    def kind_of(self, producer: str) -> Kind:
        """What the rows of a source or stage mean."""
        return self.stages[producer].kind if producer in self.stages else Append()

    def add_stage(self, stage: StageNode, *, event_time: str | None) -> Stream:
        """Used by streams; checks what a declaration can get wrong.

        *event_time* is that of the stage's result.
        """
        self._check_uid(stage.uid)
        for uid in stage.producers:
            if uid in self.sources and self.sources[uid].is_table:
                raise ConfigurationError(
                    f"stage {stage.uid!r} streams the table source {uid!r}; "
                    "pass it to lookup(), or declare it without table=True"
                )
        if isinstance(stage.operation, Transform | Process):
            why = "its rows are computed without a subtask of its own"
            refuse_operator_lists(stage.uid, stage.operation.function, why)
        _ = stage.kind  # Refused, if it cannot read what it reads.
        self.stages[stage.uid] = stage
        return Stream(self, stage.uid, event_time)

    def amend_stage(self, stage: StageNode) -> None:
        """Used by streams: the same stage with a filter or a projection."""
        assert stage.uid in self.stages
        self.stages[stage.uid] = stage

    def add_sink(self, sink: SinkNode) -> None:
        """Used by streams."""
        self._check_uid(sink.uid)
        check_sink(sink.uid, sink.spec, Read(sink.input, self.kind_of(sink.input)))
        self.sinks[sink.uid] = sink

    def _check_uid(self, uid: str) -> None:
        check_uid(uid)
        kinds: dict[str, Collection[str]] = {
            "source": self.sources,
            "stage": self.stages,
            "sink": self.sinks,
            "hook": self.hooks,
        }
        for kind, declared in kinds.items():
            if uid in declared:
                raise ConfigurationError(
                    f"uid {uid!r} is declared twice in pipeline {self.uid!r}: it is that of a "
                    f"{kind} already; state and tables are recovered by uid, so give this one "
                    f"another, such as {uid + '_2'!r}"
                )
