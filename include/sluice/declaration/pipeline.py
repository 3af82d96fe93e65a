"""The public declaration: a pipeline reads like the drawing on a whiteboard.

    pipeline = Pipeline("ssh_threats", checkpointing=Checkpointing(interval=timedelta(minutes=1)))
    log = pipeline.source("threat_log", Files(param("input")), event_time="at")
    log.transform("parse", parse_sshd).key_by("source_ip").window(...).sink("alerts", FilesTable())

Each method of a stream declares the stage that reads it.  The uid comes first, everywhere: state is
recovered by it, so it is mandatory, unique and stable.  Nothing here imports Spark, Airflow or
boto3; a declaration is parsed by all three.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import timedelta
from difflib import get_close_matches
from functools import partial
from itertools import takewhile
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeAlias

from sluice.core.key_groups import (
    UPPER_BOUND_MAX_PARALLELISM,
    check_parallelism,
    default_max_parallelism,
)
from sluice.declaration import operations as ops
from sluice.declaration import results
from sluice.declaration.aggregates import Aggregate
from sluice.declaration.arguments import (
    NumberLimits,
    checked_arguments,
    checked_methods,
    user_line,
)
from sluice.declaration.changelog import (
    Append,
    Kind,
    Retract,
    StreamRead,
    Upsert,
    check_sink,
)
from sluice.declaration.checkpointing import (
    HOOK_TIMEOUT,
    Checkpointing,
    MasterHook,
    NotificationHook,
    RestoreHook,
    StateBackend,
    TriggerHook,
)
from sluice.declaration.column_types import row_schema
from sluice.declaration.columns import OF_RECORDS, check_columns, check_reads
from sluice.declaration.declared_states import declared_broadcasts
from sluice.declaration.determinism import (
    Reader,
    arguments_of,
    check_key_expressions,
    check_readers,
    check_stage,
    check_step,
    columns_named_by,
)
from sluice.declaration.durations import (
    Duration,
    PositiveDuration,
    SignedDuration,
    in_words,
    milliseconds,
)
from sluice.declaration.expressions import (
    Filter,
    Projection,
    Step,
    check_one_value,
    check_row_wise,
    keeps,
    result_name,
    written,
)
from sluice.declaration.keyed_functions import KeyedBroadcastProcessFunction, refuse_operator_lists
from sluice.declaration.nodes import Input, SinkNode, SourceNode, StageNode
from sluice.declaration.params import Param
from sluice.declaration.places import (
    DUE,
    ReadBySparkSpec,
    SinkSpec,
    SourceSpec,
    SparkReading,
    params_of,
    takes_rows_back,
)
from sluice.declaration.results import keeps_any, packed_schema, result_named
from sluice.declaration.schedules import Orchestration
from sluice.declaration.spark_columns import SparkColumn, sql_text
from sluice.declaration.spark_sql import answer_of_text, read_by_text
from sluice.declaration.sql import parsed
from sluice.declaration.sql_functions import only_sparks
from sluice.declaration.sql_tree import Column, spelled
from sluice.errors import ConfigurationError
from sluice.protocol.keys import check_uid

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import DataFrame

    from sluice.declaration.keyed_functions import KeyedProcessFunction

DEFAULT_PARALLELISM = 2

# The side outputs of a stage: rows that are kept apart, each kind published as a table of its own.
MALFORMED = "malformed"  # Rows that could not be read, with where they came from.
NO_EVENT_TIME = "no_event_time"  # Rows that have none, where a stage goes by it.
LATE = "late"  # Rows behind the watermark.
LATE_RIGHT = "late_right"  # The same of a join's second input.

PREVIOUS = "previous"  # The parameter of Spark code that gets the previous result.
_NO_STREAMS: Mapping[str, Stream] = MappingProxyType({})
_ADDED = results.Append()

Parallelism: TypeAlias = Annotated[int, NumberLimits(1, UPPER_BOUND_MAX_PARALLELISM)]
# Of rows that a stage keeps; a rank is an int.
Number: TypeAlias = Annotated[int, NumberLimits(1, 2**31 - 1)]


@checked_methods("source", "spark", "spark_results", "spark_sql", "hook")
@dataclass(slots=True)
class Pipeline:
    """A job: sources, stages and sinks by uid, in the order of their declaration."""

    uid: str
    checkpointing: Checkpointing = field(default_factory=Checkpointing)
    parallelism: Parallelism = DEFAULT_PARALLELISM
    # None: as Flink derives it from the first parallelism.
    max_parallelism: Parallelism | None = None
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
        out_of_orderness: Duration = timedelta(0),
        idle_after: PositiveDuration | None = None,
        table: bool = False,
        induced: bool = False,
    ) -> Stream:
        """Read *spec*.

        ``event_time`` names the timestamp column that the first stage yields, or reads; the
        watermark trails its largest value per partition by ``out_of_orderness``.  A partition
        without records for ``idle_after`` does not hold the watermark back.  A request for a
        checkpoint gives the barriers of an *induced* source, for example an upstream commit.
        """
        self._check_uid(uid)
        if isinstance(spec, ReadBySparkSpec):
            if event_time is not None or idle_after is not None or table or induced:
                raise ConfigurationError(
                    f"source {uid!r} is a SparkRead, which takes no other argument of source(); "
                    "name its event time behind it, with .event_time('column')"
                )
            return self._read_by_spark(uid, spec, spec.reading())
        check_columns([] if event_time is None else [event_time], f"the event time of {uid!r}")
        refuse_operator_lists(uid, spec, "what a source has read is its position in the plan")
        if takes_rows_back(spec) and (table or induced):
            raise ConfigurationError(
                f"source {uid!r} takes rows back, and is declared with "
                f"{'table' if table else 'induced'}=True, "
                + (
                    "which reads all there is at every barrier anyway: leave out what takes rows "
                    "back (replaced=, changes=)"
                    if table
                    else "whose barriers cannot name rows that are gone: leave one of the two out"
                )
            )
        of_streams = {
            "event_time": event_time,
            "out_of_orderness": out_of_orderness,
            "idle_after": idle_after,
            "induced": induced,
        }
        _check_effects(uid, [name for name, given in of_streams.items() if given], is_table=table)
        self._check_params(uid, spec.params)
        self.sources[uid] = SourceNode(
            uid=uid,
            spec=spec,
            event_time=event_time,
            out_of_orderness_ms=milliseconds(out_of_orderness),
            is_table=table,
            is_induced=induced,
            idle_after_ms=None if idle_after is None else milliseconds(idle_after),
        )
        return Stream(self, uid, event_time)

    def spark(
        self,
        uid: str,
        function: Callable[..., DataFrame],
        *,
        reads: Mapping[str, Stream | Current] = _NO_STREAMS,
        schema: str,
        result: results.Result,
        changes: Mapping[str, Stream] = _NO_STREAMS,
        tables: Mapping[str, Stream] = _NO_STREAMS,
        parallelism: Parallelism | None = None,
        version: str | None = None,
    ) -> Stream:
        """Spark code as it is: *function(**increments, **tables, previous)* makes a DataFrame of
        the rows that came in the epoch, and of its own result so far.

        *reads* are the streams by the names of the parameters that get their rows; of
        ``current(stream)`` it gets all rows that are there behind the epoch.  Those of
        *changes* may take rows back: their rows have a column ``_change``, 'insert' or 'delete', of
        what is left of the epoch's changes, and a row that is updated is deleted and inserted.
        *tables* are table sources, of which the parameters get all rows as of the barrier.  A
        parameter ``previous`` gets the result as the checkpoint before has it, empty in the first
        epoch; it is read only if there is such a parameter.  *schema*, Spark's DDL, has the columns
        of the answer, by name and with these types, and *result* says what the answer does: see
        ``sluice.Append``, ``Upsert``, ``Replace`` and ``ReplacePartitions``.

        The function runs on the driver, once for each attempt, and may do what Spark can: group,
        join, use window functions and functions in Python.  Two rows of a key, a null in a key and
        other columns than those of the schema fail the stage, and nothing is published.  *version*
        is that of ``transform``.
        """
        given = _given_by_name(uid, reads, changes, tables)
        code = ops.SparkCode(
            function=function,
            names=tuple(sorted((*reads, *changes))),  # The order of their writing means nothing.
            schema=schema,
            result=result,
            takes_previous=_takes_previous(uid, function, given),
            tables=_table_reads(tables),
            changes=frozenset(changes),
            version=version,
        )
        return self._add_code(uid, code, given, parallelism)

    def spark_results(
        self,
        uid: str,
        function: Callable[..., Mapping[str, DataFrame]],
        *,
        reads: Mapping[str, Stream | Current] = _NO_STREAMS,
        results: Mapping[str, tuple[str, results.Result]],
        changes: Mapping[str, Stream] = _NO_STREAMS,
        tables: Mapping[str, Stream] = _NO_STREAMS,
        parallelism: Parallelism | None = None,
        version: str | None = None,
    ) -> dict[str, Stream]:
        """``spark`` whose function returns several DataFrames, a dict of them by name.

        *results* are the schema and the result of each, ``{"good": ("id bigint", Upsert("id"))}``,
        and each becomes a stream by that name.  A parameter ``previous`` gets a dict of the results
        that are kept.  The rows of the stage *uid* are all answers; a stage ``{uid}_{name}`` keeps
        each result.
        """
        given = _given_by_name(uid, reads, changes, tables)
        takes_previous = _takes_previous(uid, function, given)
        code = ops.SparkCode(
            function=function,
            names=tuple(sorted((*reads, *changes))),
            schema=packed_schema(uid, results),
            result=_ADDED,
            takes_previous=takes_previous,
            tables=_table_reads(tables),
            changes=frozenset(changes),
            results={name: f"{uid}_{name}" for name in sorted(results)},
            version=version,
        )
        if takes_previous and not keeps_any(results):
            raise _keeps_nothing(uid)
        answers = self._add_code(uid, code, given, parallelism)
        return {
            name: self._add_code(
                f"{uid}_{name}",
                ops.SparkCode(
                    function=partial(result_named, name),
                    names=("answers",),
                    schema=schema,
                    result=result,
                    takes_previous=False,
                    version="1",
                ),
                {"answers": answers},
                parallelism,
            )
            for name, (schema, result) in results.items()
        }

    def spark_sql(
        self,
        uid: str,
        text: str,
        *,
        reads: Mapping[str, Stream | Current] = _NO_STREAMS,
        schema: str,
        result: results.Result,
        changes: Mapping[str, Stream] = _NO_STREAMS,
        tables: Mapping[str, Stream] = _NO_STREAMS,
        parallelism: Parallelism | None = None,
        version: str | None = None,
    ) -> Stream:
        """``spark`` whose function is one query, *text* in Spark's SQL.

        The names of *reads*, *changes* and *tables* are tables in it, and so is ``previous``, which
        is read only if the text has that word.  Another table is Spark's, and is not pinned.
        """
        given = _given_by_name(uid, reads, changes, tables)
        named = read_by_text(uid, text, (*given, PREVIOUS))
        unread = [name for name in given if name not in named]
        if unread:
            raise ConfigurationError(
                f"stage {uid!r} is given {unread[0]!r}, which its text does not name; name it, as "
                "a table, or leave it out"
            )
        code = ops.SparkCode(
            function=partial(answer_of_text, text),
            names=tuple(sorted((*reads, *changes))),
            schema=schema,
            result=result,
            takes_previous=PREVIOUS in named,
            tables=_table_reads(tables),
            changes=frozenset(changes),
            version=version,
        )
        return self._add_code(uid, code, given, parallelism)

    def _read_by_spark(self, uid: str, spec: SourceSpec, reading: SparkReading) -> Stream:
        """The stage *uid*, which reads *spec*, behind a source that says when."""
        name = f"due_{uid}"
        self._check_uid(name)
        self._check_params(name, spec.params)
        self.sources[name] = SourceNode(
            uid=name, spec=spec, event_time=DUE, out_of_orderness_ms=0, is_table=False
        )
        code = ops.SparkCode(
            function=reading.function,
            names=(DUE,),
            schema=reading.schema,
            result=reading.result,
            takes_previous=reading.takes_previous,
            version=reading.version,
        )
        return self._add_code(uid, code, {DUE: Stream(self, name, DUE)}, None)

    def _add_code(
        self,
        uid: str,
        operation: ops.SparkCode,
        declared: Mapping[str, Stream | Current],
        parallelism: int | None,
    ) -> Stream:
        schema, result = operation.schema, operation.result
        is_kept = operation.results or not isinstance(result, results.Append)
        if operation.takes_previous and not is_kept:
            raise _keeps_nothing(uid)
        columns = row_schema(f"stage {uid!r}", schema)
        check_columns(columns, f"the schema of stage {uid!r}")
        for name, of in columns.items():
            if of.name in ("char", "varchar"):
                raise ConfigurationError(
                    f"stage {uid!r} declares {name!r} as {of}, and no column of a DataFrame is of "
                    "that type; declare it as string"
                )
        for key in (*operation.key, *operation.identity):
            if key not in columns:
                raise ConfigurationError(
                    f"stage {uid!r} keeps its result by {key!r}, which its schema does not have; "
                    f"it has {', '.join(columns)}"
                )
        by = (*operation.key, *operation.identity)
        with_map = [name for name in by if columns[name].has_map]
        if with_map or (is_kept and not operation.results and not operation.key):
            name = (with_map or [*columns])[0]
            raise ConfigurationError(
                f"stage {uid!r} keeps its result by {name!r}, which is {columns[name]}, and Spark "
                "does not tell maps apart; keep it by another column, or declare an array of "
                "structs, map_entries()"
            )
        if self.checkpointing.unaligned:
            raise ConfigurationError(
                f"stage {uid!r} is Spark code, which is given all rows of an epoch at once, and "
                f"pipeline {self.uid!r} declares unaligned=True, in which a stage does not wait "
                "for them; leave unaligned out"
            )
        given = {
            name: of.stream if isinstance(of, Current) else of for name, of in declared.items()
        }
        for name, stream in given.items():
            self._check_read_by_spark(uid, stream, is_table=name in operation.tables)
        current = {name for name, of in declared.items() if isinstance(of, Current)}
        given |= {name: self._kept_as_table(uid, name, given[name]) for name in sorted(current)}
        operation = replace(operation, current=frozenset(current))
        inputs = tuple(given[name].as_input() for name in operation.names)
        node = StageNode(uid=uid, operation=operation, inputs=inputs, parallelism=parallelism)
        return self.add_stage(node, event_time=None)

    def _kept_as_table(self, uid: str, name: str, stream: Stream) -> Stream:
        """The stage ``{uid}_{name}``, whose state has the rows of *stream* that are there."""
        match stream.kind:
            case Upsert(key=key):
                # A key has one row: by which column it is the latest means nothing.
                return stream.key_by(*key).latest(f"{uid}_{name}", by=key[0])
            case kind:
                what = "only adds rows" if kind == Append() else "has no key"
                raise ConfigurationError(
                    f"stage {uid!r} is given current({stream.producer}), and {stream.producer!r} "
                    f"{what}; name the key and which of its rows is there: "
                    "current(stream.key_by('id').latest('newest', by='updated_at'))"
                )

    def hook(
        self,
        uid: str,
        *,
        trigger: TriggerHook,
        restore: RestoreHook,
        prepare_snapshot_pre_barrier: NotificationHook | None = None,
        notify_checkpoint_complete: NotificationHook | None = None,
        notify_checkpoint_aborted: NotificationHook | None = None,
        notify_checkpoint_subsumed: NotificationHook | None = None,
        timeout: PositiveDuration = HOOK_TIMEOUT,
    ) -> None:
        """Have *trigger* called with every checkpoint, and *restore* with every restore.

        The others, if given, are called before the barrier is cut, when the checkpoint is
        published, when it was aborted, and when a newer one took its place; see ``MasterHook``.
        Each call may take *timeout*.
        """
        self._check_uid(uid)
        self.hooks[uid] = MasterHook(
            uid,
            trigger,
            restore,
            prepare_snapshot_pre_barrier,
            notify_checkpoint_complete,
            notify_checkpoint_aborted,
            notify_checkpoint_subsumed,
            timeout,
        )

    @property
    def params(self) -> tuple[Param, ...]:
        """Every parameter of the declaration, in the order of their names."""
        declared = [p for node in self.sources.values() for p in node.spec.params]
        declared += [p for node in self.sinks.values() for p in node.spec.params]
        for stage in self.stages.values():
            if isinstance(stage.operation, ops.Transform):
                declared += params_of(*stage.operation.arguments.values())
        by_name = {p.name: p for p in declared}
        return tuple(by_name[name] for name in sorted(by_name))

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

    def timeless_source(self, stage: str) -> str | None:
        """A source that *stage* reads, directly or not, and that holds event time back for ever."""
        for given in self.stages[stage].inputs:
            if given.producer in self.stages:
                found = self.timeless_source(given.producer)
                if found is not None:
                    return found
            elif given.event_time is None:
                spec = self.sources[given.producer].spec
                if not getattr(spec, "bounded", True):
                    return given.producer
        return None

    def loses_event_time(self, producer: str) -> str:
        """The source or stage because of which the stream of *producer* has no event time."""
        stage = self.stages.get(producer)
        if stage is None or not stage.keeps_event_time:
            return producer
        return self.loses_event_time(stage.inputs[0].producer)

    def kind_of(self, producer: str, steps: Sequence[Step]) -> Kind:
        """The kind of the stream of a source or stage behind *steps*."""
        stage = self.stages.get(producer)
        if stage is not None:
            return stage.kind_behind(steps)
        return Retract() if takes_rows_back(self.sources[producer].spec) else Append()

    def add_stage(self, stage: StageNode, *, event_time: str | None) -> Stream:
        """Used by streams: declare *stage*, whose result has *event_time*, if its inputs fit."""
        self._check_uid(stage.uid)
        for uid in stage.producers:
            if uid in self.sources and self.sources[uid].is_table:
                raise ConfigurationError(
                    f"stage {stage.uid!r} streams the table source {uid!r}; "
                    "pass it to lookup(), or declare it without table=True"
                )
        if isinstance(stage.operation, ops.Transform | ops.Process | ops.SparkCode):
            why = "its rows are computed without a subtask of its own"
            refuse_operator_lists(stage.uid, stage.operation.function, why)
        if isinstance(stage.operation, ops.Transform):
            self._check_params(stage.uid, params_of(*stage.operation.arguments.values()))
        _ = stage.kind  # Raises unless the operation can read its inputs.
        _check_reads(stage)
        check_stage(stage, {uid: source.event_time for uid, source in self.sources.items()})
        inputs = [
            replace(given, names=_spelt_once(stage.uid, stage.names_of(side)))
            for side, given in enumerate(stage.inputs)
        ]
        for producer in self.stages.keys() & {*stage.producers}:
            places = [place for place, uid in enumerate(stage.producers) if uid == producer]
            left = self._left_to(producer, [inputs[place].steps for place in places])
            for place, steps in zip(places, left, strict=True):
                inputs[place] = replace(inputs[place], steps=steps)
        self.stages[stage.uid] = replace(stage, inputs=tuple(inputs))
        self._check_readers(*stage.producers)
        return Stream(self, stage.uid, event_time)

    def disable_chaining(self, stage: str) -> None:
        """Used by streams."""
        self.stages[stage] = replace(self.stages[stage], chained=False)

    def add_sink(self, sink: SinkNode) -> None:
        """Used by streams."""
        self._check_uid(sink.uid)
        kind = self.kind_of(sink.input, sink.steps)
        sink = replace(sink, spec=_spelt_as_keys(sink.spec, kind))
        check_sink(sink.uid, sink.spec, StreamRead(sink.input, kind))
        self._check_params(sink.uid, sink.spec.params)
        (steps,) = self._left_to(sink.input, [sink.steps])
        self.sinks[sink.uid] = replace(sink, steps=steps)
        self._check_readers(sink.input)

    def check_answers(self, producer: str, columns: Collection[str]) -> None:
        """Check what the readers of *producer* compute, whose *columns* are known now.

        Raises:
            ConfigurationError: they need an answer twice that is not the same the second time.
        """
        readers = self._readers_of(producer)
        stage = self.stages.get(producer)
        own = () if stage is None else stage.steps
        known = {*columns, *columns_named_by(step for reader in readers for step in reader.steps)}
        check_readers(producer, readers, known)
        if stage is not None and self.kind_of(producer, ()) != Append():
            for step in (*own, *(step for reader in readers for step in reader.steps)):
                owner = written([step]).partition("(")[0]
                check_step(
                    f"{owner}() of {producer!r}", producer, step, is_append=False, columns=known
                )

    def _check_read_by_spark(self, uid: str, stream: Stream, *, is_table: bool) -> None:
        if stream.pipeline is not self:
            raise ConfigurationError(
                f"stage {uid!r} reads {stream.producer!r} of pipeline {stream.pipeline.uid!r}; "
                "declare both in one"
            )
        source = self.sources.get(stream.producer)
        if is_table and (source is None or not source.is_table):
            raise ConfigurationError(
                f"stage {uid!r} is given {stream.producer!r} as one of tables={{...}}, and it is "
                "no table source; declare it as a source with table=True, or give the function its "
                "rows as they come, reads={...}"
            )
        if source is not None and source.is_table and not is_table:
            raise ConfigurationError(
                f"stage {uid!r} is Spark code, and {source.uid!r} is a table source, of which "
                "there are no rows of an epoch; give it as one of tables={...}"
            )

    def _check_readers(self, *producers: str) -> None:
        for producer in dict.fromkeys(producers):
            check_readers(producer, self._readers_of(producer))

    def _readers_of(self, producer: str) -> list[Reader]:
        readers = [
            Reader(f"stage {stage.uid!r}", given.steps)
            for stage in self.consumers_of(producer)
            for given in stage.inputs
            if given.producer == producer
        ]
        return readers + [
            Reader(f"sink {sink.uid!r}", sink.steps) for sink in self.sinks_of(producer)
        ]

    def _left_to(self, producer: str, added: Sequence[tuple[Step, ...]]) -> list[tuple[Step, ...]]:
        """The steps that are left to each of the *added* readers of a stage's stream.

        The stage itself carries out the steps with which all of its readers begin: those of its
        first reader, less what a later one does not share, which is then left to each reader.
        """
        stage = self.stages[producer]
        begins = [*added, stage.steps] if self.is_consumed(producer) else added
        shared = tuple(of[0] for of in takewhile(_are_equal, zip(*begins, strict=False)))
        left = stage.steps[len(shared) :]
        if left:
            for reader in self.consumers_of(producer):
                inputs = tuple(_read_behind(left, given, producer) for given in reader.inputs)
                self.stages[reader.uid] = replace(reader, inputs=inputs)
            for sink in self.sinks_of(producer):
                self.sinks[sink.uid] = replace(sink, steps=(*left, *sink.steps))
        self.stages[producer] = replace(stage, steps=shared)
        return [steps[len(shared) :] for steps in added]

    def _check_params(self, uid: str, given: Iterable[Param]) -> None:
        """Raises ConfigurationError: one is declared before with another default, or otherwise."""
        declared = {one.name: one for one in self.params}
        for one in given:
            before = declared.setdefault(one.name, one)
            if replace(before, help=one.help) != one:
                raise ConfigurationError(
                    f"parameter {one.name!r} of {uid!r} is declared before, otherwise: one value "
                    "is given for both; declare it once, and use it twice"
                )

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


@checked_methods()
@dataclass(frozen=True, slots=True)
class Stream:
    """The rows of a source or stage behind ``steps``: a value, which its methods do not change."""

    pipeline: Pipeline
    producer: str
    time_column: str | None  # Its event time.
    steps: tuple[Step, ...] = ()
    out_of_orderness_ms: int = 0  # Of an event time that is assigned behind a stage.
    lost_time: str = ""  # Which select() left its event time out, in words,
    lost_column: str = ""  # and the column, if a further one may compute it anew.

    if not TYPE_CHECKING:  # To which a name that is not there is an error already.

        def __getattr__(self, name: str) -> NoReturn:
            raise _no_method(self, name, KeyedStream, f"key_by('column').{name}(...)")

    @property
    def kind(self) -> Kind:
        """The meaning of the rows."""
        return self.pipeline.kind_of(self.producer, self.steps)

    def transform(
        self,
        uid: str,
        function: Callable[..., DataFrame],
        *,
        parallelism: Parallelism | None = None,
        version: str | None = None,
        **arguments: str | int | Param,
    ) -> Stream:
        """Apply *function(rows, **arguments)*, which must not shuffle: it sees a row at a time.

        An argument may be a ``param(...)``; the function gets its text.  The function must keep the
        columns ``_source`` and ``_weight`` of rows that have them.  A *version* says that the
        function means the same for as long as it stays the same, whatever its source; without one
        another source may mean anything, and state behind it is kept by consent only.
        """
        operation = ops.Transform(function=function, arguments=arguments, version=version)
        return self._stage(uid, operation, (self.as_input(),), parallelism)

    def lookup(
        self,
        uid: str,
        table: Stream,
        *,
        on: str | Mapping[str, str],
        keep: ops.Keep = "matched",
        add: Mapping[str, str] | tuple[str, ...] = (),
        valid_from: str | None = None,
        parallelism: Parallelism | None = None,
    ) -> Stream:
        """Look each row up in *table*; go on with the ``"matched"``, ``"unmatched"`` or all rows.

        ``add`` names columns that the table gives to a row: ``{"city": "upper(town)"}``, SQL over
        the table.  A row that several of the table's rows match then leaves once for each.  A row
        is looked up when it comes; if rows replace earlier ones, the stage remembers the rows that
        it sent, and takes back those.

        ``valid_from``, SQL over the table, makes its rows versions: a row matches the newest one of
        its key that is not newer than its event time, as Flink's temporal join; older rows, and
        those without event time, match none.  No row waits for a version that is added later.
        """
        node = table.pipeline.sources.get(table.producer)
        if node is None or not node.is_table:
            raise ConfigurationError(
                f"lookup {uid!r} needs a table source; declare {table.producer!r} with table=True"
            )
        _check_pipeline(f"lookup {uid!r}", self, table)
        if keep == "unmatched" and add:
            raise ConfigurationError(
                f"lookup {uid!r} keeps the rows that the table has not, so it cannot add "
                f"{', '.join(add)}; use keep='matched' or 'all'"
            )
        if keep == "all" and not add:
            raise ConfigurationError(
                f"lookup {uid!r} keeps all rows and adds nothing; name the columns: add=('name',)"
            )
        columns = {on: on} if isinstance(on, str) else dict(on)
        if not columns:
            raise ConfigurationError(f"lookup {uid!r} compares no column; name one: on='id'")
        added = dict(add) if isinstance(add, Mapping) else {name: name for name in add}
        check_columns(added, f"add= of lookup {uid!r}")
        for name, sql in (*columns.items(), *added.items(), ("valid_from", valid_from)):
            if sql is not None and not sql.strip():
                raise ConfigurationError(
                    f"lookup {uid!r} has an empty text for {name!r}; name a column of the table"
                )
        operation = ops.Lookup(
            table=table.producer,
            on=columns,
            keep=keep,
            add=added,
            steps=table.steps,
            versions=None
            if valid_from is None
            else ops.Versions(valid_from=valid_from, time=_time_of(f"lookup {uid!r}", self)),
        )
        kind = self.kind
        if not isinstance(kind, Upsert):
            return self._stage(uid, operation, (self.as_input(),), parallelism)
        remembering = ops.KeyedLookup(lookup=operation)
        return self._stage(uid, remembering, (self.as_input(kind.key),), parallelism)

    def union(self, uid: str, *others: Stream, parallelism: Parallelism | None = None) -> Stream:
        """All rows of this stream and of *others*, which have the same columns."""
        streams = (self, *others)
        for other in others:
            _check_pipeline(f"union {uid!r}", self, other)
            if other.time_column != self.time_column:
                lost = self.lost_time if self.time_column is None else other.lost_time
                fix = "give them one name, behind a stage with event_time('column')"
                raise ConfigurationError(
                    f"union {uid!r} reads streams of different event time, {self.time_column!r} "
                    f"and {other.time_column!r}; {lost + '; select it, too' if lost else fix}"
                )
        inputs = tuple(stream.as_input() for stream in streams)
        return self._stage(uid, ops.Union(), inputs, parallelism)

    def key_by(self, *columns: str | SparkColumn, **expressions: str | SparkColumn) -> KeyedStream:
        """Key by *columns*, and by new ones computed by SQL: ``key_by(day="date(at)")``."""
        if not columns and not expressions:
            raise ConfigurationError("key_by() needs at least one column")
        computed = {name: sql_text(expression) for name, expression in expressions.items()}
        keys = (*map(sql_text, columns), *computed)
        check_columns(keys, f"key_by() of {self.producer!r}")
        check_key_expressions(f"key_by() of {self.producer!r}", computed)
        return KeyedStream(self, keys, computed)

    def window_top_n(
        self,
        uid: str,
        window: ops.RankedWindow,
        n: Number,
        *,
        by: str,
        ties: bool = False,
        parallelism: Parallelism | None = None,
    ) -> Stream:
        """The *n* rows with the largest ``by`` of each window, over all keys, with their ``rank``.

        With *ties* all rows that share a rank are kept (SQL's RANK), else exactly *n* (ROW_NUMBER).
        """
        keyless = KeyedStream(self, (), {})
        return keyless.window_top_n(uid, window, n, by=by, ties=ties, parallelism=parallelism)

    def where(self, condition: str | SparkColumn) -> Stream:
        """The rows for which the SQL *condition* is true: another stream, which costs no stage.

        A column of ``pyspark.sql.connect.functions`` is taken, too, here and in ``select``.

        Spark SQL under ANSI; over a stage's result that part of it that is computed without Spark,
        as Spark does (``sql_functions``).  Calls of ``where`` and ``select`` apply in the order in
        which they are written, and see a row at a time.  This stream stays as it is: several may
        be derived of it, each with readers of its own.
        """
        text = sql_text(condition)
        return self._step(Filter(text), text)

    def select(self, *columns: str | SparkColumn) -> Stream:
        """The rows with these columns, in this order: names, SQL or ``*``.  Another stream.

        ``"bid.price AS price"`` is SQL as that of ``where``.  A source whose event time is left out
        has none.
        """
        if not columns:
            raise ConfigurationError(f"select() of {self.producer!r} needs at least one column")
        texts = tuple(map(sql_text, columns))
        named = [name for name in map(result_name, texts) if name is not None]
        check_columns(named, f"select() of {self.producer!r}")
        return self._step(Projection(texts), *texts)

    def event_time(self, column: str, *, out_of_orderness: Duration = timedelta(0)) -> Stream:
        """The same rows, whose event time is *column*: another stream, which may be windowed.

        Behind a stage that does not keep it (a join, an aggregate, a function).  Event time goes by
        the sources: behind this stream the watermark is that of what the stage read, less
        ``out_of_orderness``, by which a row may be older, for example as it waited in a join.
        Rows that are older yet are late.  A column that is computed is selected before:
        ``select("*", "coalesce(paid, ordered) AS at").event_time("at")``.
        """
        if self.producer in self.pipeline.sources:
            raise ConfigurationError(
                f"{self.producer!r} is a source, which measures its event time; name it there: "
                f"source(..., event_time={column!r})"
            )
        timeless = self.pipeline.timeless_source(self.producer)
        if timeless is not None:
            own = self.pipeline.sources[timeless].event_time
            fix = f"give it one: source({timeless!r}, ..., event_time='column', idle_after=...)"
            raise ConfigurationError(
                f"{self.producer!r} reads {timeless!r} without event time, and that source never "
                f"ends, so it would hold back {column!r} for ever; "
                f"{fix if own is None else f'its select() leaves out {own!r}: select it, too'}"
            )
        check_columns([column], f"event_time() of {self.producer!r}")
        bound_ms = milliseconds(out_of_orderness)
        timed = replace(self, time_column=column, out_of_orderness_ms=bound_ms)
        return replace(timed, lost_time="", lost_column="")

    def disable_chaining(self) -> Stream:
        """Never run this stage in one Spark job with the one before or behind it, as in Flink.

        The results are the same; only, a chained stage saves a Spark job, and its input is not in
        the bucket.
        """
        if self.producer not in self.pipeline.stages:
            raise ConfigurationError(
                f"{self.producer!r} is a source, and is never chained; call disable_chaining() "
                "behind a stage"
            )
        self.pipeline.disable_chaining(self.producer)
        return self

    def sink(self, uid: str, spec: SinkSpec) -> None:
        """Publish this stream exactly once: staged with the epoch, visible on commit."""
        if self.producer not in self.pipeline.stages:
            raise ConfigurationError(
                f"sink {uid!r} reads the source {self.producer!r} itself; put a stage between them"
            )
        self.pipeline.add_sink(SinkNode(uid=uid, spec=spec, input=self.producer, steps=self.steps))

    def as_input(
        self, keys: tuple[str, ...] = (), expressions: Mapping[str, str] | None = None
    ) -> Input:
        return Input(
            producer=self.producer,
            kind=self.kind,
            event_time=self.time_column,
            out_of_orderness_ms=self.out_of_orderness_ms,
            steps=self.steps,
            keys=keys,
            key_expressions=expressions or {},
        )

    def _stage(
        self, uid: str, operation: ops.Operation, inputs: tuple[Input, ...], parallelism: int | None
    ) -> Stream:
        """A stage that passes on the event time of what it reads."""
        node = StageNode(uid=uid, operation=operation, inputs=inputs, parallelism=parallelism)
        stream = self.pipeline.add_stage(node, event_time=self.time_column)
        return replace(stream, lost_time=self.lost_time)

    def _step(self, step: Step, *texts: str) -> Stream:
        method = "where()" if isinstance(step, Filter) else "select()"
        check = check_one_value if isinstance(step, Filter) else check_row_wise
        for text in texts:
            check(f"{method} of {self.producer!r}", text)
        is_source = self.producer in self.pipeline.sources
        ours = OF_RECORDS if is_source else ()
        check_reads(f"{method} of {self.producer!r}", texts, may_read=ours)
        is_append = self.kind == Append()
        check_step(f"{method} of {self.producer!r}", self.producer, step, is_append=is_append)
        if self.producer in self.pipeline.stages:
            for text in texts:
                _check_compiled(f"{method} of {self.producer!r}", text, step)
        stream = replace(self, steps=(*self.steps, step))
        if isinstance(step, Filter):
            return stream
        column = self.time_column
        if column is not None and not keeps(step, column):
            lost = f"{written([step])} of {self.producer!r} leaves out {column!r}"
            return replace(stream, time_column=None, lost_time=lost, lost_column=column)
        named = {name.lower() for name in map(result_name, step.columns) if name is not None}
        if self.lost_column and self.lost_column.lower() in named:
            return replace(stream, time_column=self.lost_column, lost_time="", lost_column="")
        return stream


@checked_methods()
@dataclass(frozen=True, slots=True)
class KeyedStream:
    """A stream whose rows of equal key meet in one subtask: what keyed state can compute.

    ``expressions`` are the ``keys`` that Spark SQL computes.  ``ttl`` forgets the state of a key
    that has not been written for so long.  It is counted between barriers, by when they were
    triggered (Flink's StateTtlConfig: processing time, updated on write).
    """

    stream: Stream
    keys: tuple[str, ...]
    expressions: Mapping[str, str]
    line: str = user_line()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise _no_method(self, name, Stream, f"{name}(...) before key_by()")

    def aggregate(
        self,
        uid: str,
        *,
        ttl: PositiveDuration | None = None,
        parallelism: Parallelism | None = None,
        **aggregates: Aggregate,
    ) -> Stream:
        """Running result per key; the output holds the current row of every key that changed."""
        operation = ops.KeyedAggregate(aggregates=self._checked(uid, aggregates))
        return self.stage(uid, operation, ttl=ttl, parallelism=parallelism)

    def window(
        self,
        uid: str,
        window: ops.Window,
        *,
        allowed_lateness: Duration = timedelta(0),
        parallelism: Parallelism | None = None,
        **aggregates: Aggregate,
    ) -> Stream:
        """Result per key and event-time window, once the watermark passed the window's end.

        A row that comes later, but within ``allowed_lateness``, replaces the result; one that comes
        after that goes to the side output ``late``.
        """
        operation = ops.WindowAggregate(
            window=window,
            aggregates=self._checked(uid, aggregates),
            allowed_lateness_ms=milliseconds(allowed_lateness),
        )
        return self.stage(uid, operation, parallelism=parallelism)

    def window_top_n(
        self,
        uid: str,
        window: ops.RankedWindow,
        n: Number,
        *,
        by: str,
        ties: bool = False,
        parallelism: Parallelism | None = None,
    ) -> Stream:
        """The *n* rows with the largest ``by`` per key and window, with their ``rank``."""
        operation = ops.WindowTopN(window=window, n=n, by=by, has_ties=ties)
        return self.stage(uid, operation, parallelism=parallelism)

    def top_n(
        self,
        uid: str,
        n: Number,
        *,
        by: str,
        ties_by: str | tuple[str, ...] = (),
        unique: str | tuple[str, ...] = (),
        ttl: PositiveDuration | None = None,
        parallelism: Parallelism | None = None,
    ) -> Stream:
        """The *n* best rows per key, with their ``rank``; the output has the ranks that changed.

        Best is the largest ``by``, of equal ones the smallest ``ties_by``.  Where rows are updated,
        ``unique`` says which columns identify one.
        """
        ties, identity = (
            _once(f"top_n {uid!r}", name, of)
            for name, of in (("ties_by", ties_by), ("unique", unique))
        )
        operation = ops.TopN(n=n, by=by, ties_by=ties, unique=identity)
        return self.stage(uid, operation, ttl=ttl, parallelism=parallelism)

    def latest(
        self,
        uid: str,
        *,
        by: str | tuple[str, ...],
        ttl: PositiveDuration | None = None,
        parallelism: Parallelism | None = None,
    ) -> Stream:
        """The row of each key with the largest ``by``; null is the smallest.

        Of rows that are equal in it the one wins that is larger in the first of the other columns
        in which they differ, whatever the order in which they came.
        """
        if by == ():
            raise ConfigurationError(f"latest {uid!r} goes by no column; name one: by='at'")
        operation = ops.Latest(by=_once(f"latest {uid!r}", "by", by))
        return self.stage(uid, operation, ttl=ttl, parallelism=parallelism)

    def deduplicate(
        self,
        uid: str,
        *,
        by: str | None = None,
        ttl: PositiveDuration | None = None,
        parallelism: Parallelism | None = None,
    ) -> Stream:
        """The first row of each key.

        Of several in one epoch it is the one with the smallest ``by``, by default the event time,
        then the one with the smallest other columns.  With a *ttl* a key is forgotten when no row
        of it came for that long (in Flink: that long behind the row that was sent).
        """
        if by is None and self.stream.lost_time:
            raise ConfigurationError(
                f"deduplicate {uid!r} takes the first row by event time, and the select() of "
                f"{self.stream.producer!r} leaves that out; select it, or name a column: by=..."
            )
        return self.stage(uid, ops.Deduplicate(by=by), ttl=ttl, parallelism=parallelism)

    def join(
        self,
        uid: str,
        other: KeyedStream,
        *,
        how: ops.RegularJoinKind = "inner",
        ttl: PositiveDuration | None = None,
        parallelism: Parallelism | None = None,
    ) -> Stream:
        """Every row with every row of *other* that has its key, whenever they come.

        ``left``, ``right`` and ``full`` also yield the rows of that side, or of both, that have no
        partner, with nulls for the other's columns; ``semi`` the rows that have one, ``anti`` those
        that have none, once each and without columns of *other*.  A null key has no partner.  A
        row without a partner is taken back when one comes, and comes again when the last one goes:
        except for ``inner`` and ``semi`` of two append-only streams, the result is a changelog.

        Both sides are kept for ever, or for the *ttl* of each row.  The results of a row that is
        forgotten then stay as they are.
        """
        return self.stage(
            uid, ops.RegularJoin(how=how), others=(other,), ttl=ttl, parallelism=parallelism
        )

    def interval_join(
        self,
        uid: str,
        other: KeyedStream,
        *,
        lower: SignedDuration = timedelta(0),
        upper: SignedDuration | str,
        how: ops.IntervalJoinKind = "inner",
        parallelism: Parallelism | None = None,
    ) -> Stream:
        """Each row with the rows of *other* from ``lower`` to ``upper`` after its event time.

        If the event time of both is called ``at``, that of *other* is ``right_at`` in the result.
        *upper* may name a column of this stream that holds the instant.
        """
        operation = ops.IntervalJoin(
            lower_ms=milliseconds(lower),
            upper_ms=0 if isinstance(upper, str) else milliseconds(upper),
            upper_column=upper if isinstance(upper, str) else None,
            how=how,
        )
        if not isinstance(upper, str) and upper < lower:
            raise ConfigurationError(
                f"interval join {uid!r} goes from {in_words(lower)} to {in_words(upper)}; the "
                "upper bound comes first"
            )
        return self.stage(uid, operation, others=(other,), parallelism=parallelism)

    def window_join(
        self,
        uid: str,
        other: KeyedStream,
        window: ops.Window,
        *,
        how: ops.JoinKind = "inner",
        parallelism: Parallelism | None = None,
    ) -> Stream:
        """Each row with the rows of *other* of its key and window, once the window has ended."""
        operation = ops.WindowJoin(window=window, how=how)
        return self.stage(uid, operation, others=(other,), parallelism=parallelism)

    def process(
        self,
        uid: str,
        function: Callable[[pl.DataFrame, pl.DataFrame], tuple[pl.DataFrame, pl.DataFrame]],
        *,
        state: Mapping[str, object],
        result: Mapping[str, object],
        ttl: PositiveDuration | None = None,
        parallelism: Parallelism | None = None,
        version: str | None = None,
    ) -> Stream:
        """Apply *function(rows, state)* to the epoch's rows and the state of the keys they touch.

        ``state`` and ``result`` name columns and types, ``{"visits": int}``; see ``Process``.
        *version* is that of ``transform``.
        """
        check_columns(dict.fromkeys((*self.keys, *state)), f"the state of stage {uid!r}")
        check_columns(result, f"the result of stage {uid!r}")
        if not result:
            raise ConfigurationError(
                f"stage {uid!r} has no column in its result, which no sink could write; name one: "
                "result={'visits': int}"
            )
        _check_types(uid, {**state, **result})
        operation = ops.Process(function=function, state=state, result=result, version=version)
        return self.stage(uid, operation, ttl=ttl, parallelism=parallelism)

    def process_keyed(
        self,
        uid: str,
        function: KeyedProcessFunction,
        *,
        result: Mapping[str, object],
        broadcast: Stream | None = None,
        ttl: PositiveDuration | None = None,
        parallelism: Parallelism | None = None,
        version: str | None = None,
    ) -> Stream:
        """Run *function* a row and a timer at a time; each subtask sees all rows of *broadcast*.

        *version* is that of ``transform``.
        """
        check_columns(result, f"the result of stage {uid!r}")
        _check_types(uid, result)
        operation = ops.ProcessKeyed(function=function, result=result, version=version)
        _check_broadcast(uid, function, self, broadcast)
        return self.stage(uid, operation, ttl=ttl, parallelism=parallelism, broadcast=broadcast)

    def stage(
        self,
        uid: str,
        operation: ops.Stateful,
        *,
        others: tuple[KeyedStream, ...] = (),
        broadcast: Stream | None = None,
        ttl: PositiveDuration | None = None,
        parallelism: Parallelism | None = None,
    ) -> Stream:
        """Declare the stage that computes *operation*; the methods above are its short forms."""
        inputs = [self._input(), *(self._right_input(other) for other in others)]
        if broadcast is not None:
            inputs.append(replace(broadcast.as_input(), is_broadcast=True))
        node = StageNode(
            uid=uid,
            operation=operation,
            inputs=tuple(inputs),
            parallelism=parallelism,
            ttl_ms=None if ttl is None else milliseconds(ttl),
        )
        _ = node.kind  # Refuse updates by name, before they are refused for lack of event time.
        for side in (self, *others):
            _check_side(node, self, side)
        if not node.keeps_event_time:
            return self.stream.pipeline.add_stage(node, event_time=None)
        stream = self.stream.pipeline.add_stage(node, event_time=self.stream.time_column)
        return replace(stream, lost_time=self.stream.lost_time)

    def _input(self) -> Input:
        return replace(self.stream.as_input(self.keys, self.expressions), line=self.line)

    def _right_input(self, other: KeyedStream) -> Input:
        """*other* as an input; its event time gets another name if both have the same."""
        right = other._input()
        name = right.event_time
        own = self.stream.time_column
        keys = {key.lower() for key in right.keys}
        if name is None or own is None or name.lower() != own.lower() or name.lower() in keys:
            return right
        return replace(right, event_time=f"right_{name}", renames={name: f"right_{name}"})

    def _checked(self, uid: str, aggregates: Mapping[str, Aggregate]) -> dict[str, Aggregate]:
        if not aggregates:
            raise ConfigurationError(f"stage {uid!r} computes nothing; pass name=count(), ...")
        check_columns(dict.fromkeys((*self.keys, *aggregates)), f"the result of stage {uid!r}")
        return dict(aggregates)


@dataclass(frozen=True, slots=True)
class Current:
    """See ``current``."""

    stream: Stream


@checked_arguments
def current(stream: Stream) -> Current:
    """All rows of a stream as of the end of the epoch, for the ``reads`` of Spark code, where rows
    replace earlier ones; ``changes`` are those that came and went in it.

    The stage ``{uid}_{name}`` keeps them.  The stream needs a key: see ``Pipeline.spark``.
    """
    return Current(stream)


# Spark's and Flink's names of what a stream has under another one.
_INSTEAD = {
    **dict.fromkeys(("group_by", "groupBy", "keyBy", "partitionBy"), "key_by('column')"),
    "filter": "where('price > 3')",
    **dict.fromkeys(("withColumn", "selectExpr"), "select('*', 'price * 2 AS twice')"),
    **dict.fromkeys(("map", "mapInPandas", "mapInArrow", "flatMap"), "transform('uid', function)"),
    **dict.fromkeys(("unionByName", "unionAll"), "union('uid', others)"),
    "withWatermark": "event_time('column')",
    **dict.fromkeys(("dropDuplicates", "distinct"), "key_by('column').deduplicate('uid')"),
}


def _no_method(stream: object, name: str, other: type, there: str) -> AttributeError:
    """The error for *name*; *there* is how it is written if *other*, the other class, has it."""
    own = [method for method in dir(type(stream)) if not method.startswith("_")]
    close = get_close_matches(name, own, n=1)
    fix = f"; did you mean {close[0]}?" if close else f"; it has {', '.join(own)}"
    instead = there if name in vars(other) else _INSTEAD.get(name)
    fix = f"; write {instead}" if instead else fix
    return AttributeError(f"a {type(stream).__name__} has no {name!r}{fix}")


def side_output(stage: str, name: str) -> str:
    """The uid under which a stage's side output is published."""
    return f"{stage}.{name}"


def side_outputs(pipeline: Pipeline) -> tuple[str, ...]:
    """The uids of all side outputs that the stages of *pipeline* may have."""
    return tuple(
        side_output(stage.uid, name)
        for stage in pipeline.stages.values()
        for name in (
            MALFORMED,
            *([NO_EVENT_TIME] if stage.goes_by_event_time else []),
            LATE,
            *([LATE_RIGHT] if _may_be_late(stage) and len(stage.inputs) > 1 else []),
        )
    )


def _may_be_late(stage: StageNode) -> bool:
    return stage.is_stateful and not isinstance(stage.operation, ops.SparkCode)


def _check_effects(uid: str, given: Sequence[str], *, is_table: bool) -> None:
    """Raises ConfigurationError if an option that is *given* of the source *uid* has no effect."""
    if given and is_table:
        names = " and ".join(filter(None, (", ".join(given[:-1]), given[-1])))
        have, them = ("has", "it") if len(given) == 1 else ("have", "them")
        raise ConfigurationError(
            f"source {uid!r} is a table, of which all is read at every barrier, so {names} {have} "
            f"no effect: leave {them} out, or table=True"
        )
    if "out_of_orderness" in given and "event_time" not in given:
        raise ConfigurationError(
            f"source {uid!r} has out_of_orderness, and no event_time that could be out of order; "
            "name the column: event_time='at'"
        )


def _given_by_name(
    uid: str, *groups: Mapping[str, Stream | Current]
) -> dict[str, Stream | Current]:
    """The arguments of Spark code by its parameters: streams, streams of changes, and tables.

    Raises:
        ConfigurationError: there are no streams, or two of them have one name.
    """
    given: dict[str, Stream | Current] = {}
    for name, stream in (pair for group in groups for pair in group.items()):
        if name in given:
            raise ConfigurationError(
                f"stage {uid!r} gives {name!r} two streams; give each a name of its own"
            )
        if name == PREVIOUS:
            raise ConfigurationError(
                f"stage {uid!r} gives {PREVIOUS!r} a stream, and the parameter of that name gets "
                "the stage's own result; give the stream another name"
            )
        given[name] = stream
    if not any(groups[:2]):
        raise ConfigurationError(
            f"stage {uid!r} reads nothing; name the streams by the function's parameters: "
            "reads={'orders': orders}"
        )
    return given


def _keeps_nothing(uid: str) -> ConfigurationError:
    return ConfigurationError(
        f"the function of stage {uid!r} takes {PREVIOUS!r}, and a result of Append() is kept "
        "nowhere; give the result a key, Upsert('id') or Replace('id')"
    )


def _table_reads(tables: Mapping[str, Stream]) -> dict[str, ops.TableRead]:
    return {name: ops.TableRead(uid=of.producer, steps=of.steps) for name, of in tables.items()}


def _takes_previous(uid: str, function: Callable[..., object], reads: Iterable[str]) -> bool:
    """Whether *function* takes the previous result beside what it *reads*.

    Raises:
        ConfigurationError: it cannot be called with what the stage gives it.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:
        raise ConfigurationError(
            f"the function of stage {uid!r} does not say what it takes; write one in Python that "
            "calls it"
        ) from None
    takes_previous = PREVIOUS in signature.parameters
    given = [*reads, *([PREVIOUS] if takes_previous else [])]
    try:
        signature.bind(**dict.fromkeys(given))
    except TypeError as error:
        raise ConfigurationError(
            f"the function of stage {uid!r} takes {', '.join(signature.parameters) or 'nothing'}, "
            f"and is given {', '.join(given)}: {error}; name its parameters in reads={{...}}"
        ) from None
    return takes_previous


def _check_types(uid: str, columns: Mapping[str, object]) -> None:
    """Refuse a column that is declared by a text; the operator refuses what else is no type."""
    for name, declared in columns.items():
        if isinstance(declared, str):
            raise ConfigurationError(
                f"stage {uid!r} declares column {name!r} as the text {declared!r}; write a type: "
                "int, float, str, bool, bytes, date, datetime, or one of Polars, such as "
                "pl.Int32() or pl.List(pl.String())"
            )


def _check_compiled(owner: str, text: str, step: Step) -> None:
    """Raises ConfigurationError if *text*, behind a stage, is SQL that Spark alone knows."""
    sql = parsed(text)
    only = only_sparks(sql)
    if only is not None:
        why = f" ({only.why})" if only.why else ""
        raise ConfigurationError(
            f"{owner} has {only.piece!r} in {text!r}, which only Spark knows{why}; behind a stage "
            "compute it in a transform(), or before, in what is read of the source"
        )
    if isinstance(step, Projection) and sql.name is None and not sql.is_star:
        raise ConfigurationError(
            f"{owner} computes {text!r} without a name; write {text.strip() + ' AS name'!r}"
        )


def _are_equal(steps: tuple[Step, ...]) -> bool:
    return all(step == steps[0] for step in steps)


def _read_behind(steps: tuple[Step, ...], given: Input, producer: str) -> Input:
    if given.producer != producer:
        return given
    return replace(given, steps=(*steps, *given.steps))


def _check_reads(stage: StageNode) -> None:
    """Raises ConfigurationError if *stage* says that it reads a column of ours."""
    owner = f"stage {stage.uid!r}"
    for side, given in enumerate(stage.inputs):
        names = [spelled(Column((name,))) for name in stage.names_of(side)]
        check_reads(owner, [*names, *given.key_expressions.values()])
    check_reads(owner, [sql for _, sql in arguments_of(stage)])
    match stage.operation:
        case (ops.Lookup() as lookup) | ops.KeyedLookup(lookup=lookup):
            check_reads(owner, [*(sql for _, sql, _ in lookup.compared), *lookup.add.values()])
        case _:
            pass


def _spelt_once(uid: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """*names*, which are those of different columns."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise ConfigurationError(
                f"stage {uid!r} names one column {other!r} and {name!r}; spell it one way, as its "
                "result has that name"
            )
    return names


def _spelt_as_keys(spec: SinkSpec, kind: Kind) -> SinkSpec:
    """*spec*, whose key is spelt as that of the stream."""
    if isinstance(kind, Retract) or not is_dataclass(spec) or isinstance(spec, type):
        return spec
    spelt = {name.lower(): name for name in kind.key}
    key = tuple(spelt.get(name.lower(), name) for name in spec.upsert_key)
    is_declared = any(one.name == "upsert_key" for one in fields(spec))
    return replace(spec, upsert_key=key) if is_declared and key != spec.upsert_key else spec


def _once(owner: str, argument: str, columns: str | tuple[str, ...]) -> tuple[str, ...]:
    """Raises ConfigurationError if a name in *columns* is empty, or there twice."""
    names = (columns,) if isinstance(columns, str) else columns
    lowered = [name.lower() for name in names]
    if "" in names or len({*lowered}) < len(names):
        raise ConfigurationError(
            f"{owner} has {argument}={columns!r}, which names "
            f"{'no column' if '' in names else 'a column twice'}; name each once"
        )
    return names


def _check_pipeline(owner: str, one: Stream, other: Stream) -> None:
    """Raises ConfigurationError unless both streams that *owner* reads are of one pipeline."""
    if other.pipeline is not one.pipeline:
        raise ConfigurationError(
            f"{owner} reads streams of two pipelines, {one.pipeline.uid!r} and "
            f"{other.pipeline.uid!r}; declare both in one"
        )


def _check_side(stage: StageNode, first: KeyedStream, side: KeyedStream) -> None:
    """Raises ConfigurationError unless *side* fits the *first* input of *stage*."""
    uid, stream = stage.uid, side.stream
    _check_pipeline(f"stage {uid!r}", first.stream, stream)
    if len(side.keys) != len(first.keys):
        raise ConfigurationError(
            f"stage {uid!r} joins {len(first.keys)} key columns with {len(side.keys)}; "
            "key both sides by as many"
        )
    if stage.goes_by_event_time:
        _time_of(f"stage {uid!r}", stream)


def _time_of(owner: str, stream: Stream) -> str:
    """Raises ConfigurationError if *stream*, which *owner* reads by event time, has none."""
    if stream.lost_time:
        raise ConfigurationError(
            f"{owner} goes by event time, and {stream.lost_time}; select it, too"
        )
    if stream.time_column is None:
        loses = stream.pipeline.loses_event_time(stream.producer)
        if loses in stream.pipeline.sources:
            fix = f"name it: source({loses!r}, ..., event_time='column')"
        else:
            fix = (
                "say which column is, and by how much a row may come after the watermark of what "
                f"{loses!r} read: event_time('column', out_of_orderness=...)"
            )
        raise ConfigurationError(
            f"{owner} reads {stream.producer!r}, which has no event time; {fix}"
        )
    return stream.time_column


def _check_broadcast(
    uid: str, function: KeyedProcessFunction, first: KeyedStream, broadcast: Stream | None
) -> None:
    """Raises ConfigurationError unless *function* can read *broadcast* beside the *first* input."""
    name = type(function).__name__
    if not isinstance(function, KeyedBroadcastProcessFunction):
        if broadcast is not None:
            raise ConfigurationError(
                f"stage {uid!r} reads the broadcast stream {broadcast.producer!r}, but {name} has "
                "no process_broadcast(); derive it from KeyedBroadcastProcessFunction"
            )
        states = declared_broadcasts(function)
        if states:
            raise ConfigurationError(
                f"stage {uid!r}: {name} declares broadcast state {', '.join(map(repr, states))}, "
                "which nothing writes; derive it from KeyedBroadcastProcessFunction"
            )
        return
    if broadcast is None:
        raise ConfigurationError(
            f"stage {uid!r}: {name} is a KeyedBroadcastProcessFunction; say which stream it sees "
            "whole: process_keyed(..., broadcast=stream)"
        )
    _check_pipeline(f"stage {uid!r}", first.stream, broadcast)
    if broadcast.producer not in broadcast.pipeline.stages:
        raise ConfigurationError(
            f"stage {uid!r} broadcasts the source {broadcast.producer!r} itself; put a stage "
            'between them, such as transform("rules", lambda rows: rows)'
        )
