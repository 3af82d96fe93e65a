"""The streams of a declaration: each method declares the stage that reads them.

The uid comes first, everywhere: state is recovered by it, so it is mandatory, unique and stable.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from sluice.declaration.changelog import Upsert
from sluice.declaration.nodes import Input, SinkNode, StageNode
from sluice.declaration.operations import (
    Keep,
    KeyedLookup,
    Lookup,
    Operation,
    Transform,
    Union,
    WindowTopN,
)
from sluice.declaration.params import Param
from sluice.declaration.sink_spec import SinkSpec
from sluice.declaration.steps import Filter, Projection, Step, check_row_wise, keeps
from sluice.declaration.windows import Session, Window
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sluice.declaration.keyed_streams import KeyedStream
    from sluice.declaration.pipeline import Pipeline

T = TypeVar("T")


def uid_first(declaring: type[T]) -> type[T]:
    """Have every method of the class that takes a ``uid`` first say so, when it is forgotten.

    Python would complain of whatever argument is then missing, or take a function for the uid.
    """
    for name, method in inspect.getmembers(declaring, inspect.isfunction):
        parameters = [*inspect.signature(method).parameters.values()]
        takes_uid = len(parameters) > 1 and parameters[1].name == "uid"
        if takes_uid and (name == "__init__" or not name.startswith("_")):
            setattr(declaring, name, _refusing(declaring, method, parameters[2:]))
    return declaring


def _refusing(
    declaring: type, method: Callable[..., Any], others: list[inspect.Parameter]
) -> Callable[..., Any]:
    is_init = method.__name__ == "__init__"
    name = declaring.__name__ if is_init else method.__name__
    needed = [p.name for p in others if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    rest = [] if len(needed) == len(others) else ["..."]
    arguments = ", ".join([f'"my_{name.lower()}"', *needed, *rest])
    fix = f"{name} needs a uid first: {'' if is_init else '.'}{name}({arguments})"

    @wraps(method)
    def refusing(self: object, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the method's
        uid = args[0] if args else kwargs.get("uid")
        if not isinstance(uid, str):
            raise ConfigurationError(f"{fix}; state is recovered by it")
        return method(self, *args, **kwargs)

    return refusing


@uid_first
@dataclass(frozen=True, slots=True)
class Stream:
    """The output of a source or stage."""

    pipeline: Pipeline
    producer: str
    event_time: str | None
    steps: tuple[Step, ...] = ()  # Of a source's rows, as they are read.

    def transform(
        self,
        uid: str,
        function: Callable[..., DataFrame],
        *,
        parallelism: int | None = None,
        **arguments: str | int | Param,
    ) -> Stream:
        """Apply *function(rows, **arguments)*, which must not shuffle: it sees a row at a time.

        An argument may be a ``param(...)``; the function gets its text.  Whatever columns it keeps,
        ``_source`` and ``_weight``, where they are there, have to be among them.
        """
        operation = Transform(function=function, arguments=arguments)
        return self._stage(uid, operation, (self.as_input(),), parallelism)

    def lookup(
        self,
        uid: str,
        table: Stream,
        *,
        on: str | Mapping[str, str],
        keep: Keep = "matched",
        add: Mapping[str, str] | tuple[str, ...] = (),
        parallelism: int | None = None,
    ) -> Stream:
        """Look each row up in *table*; go on with the ``"matched"``, ``"unmatched"`` or all rows.

        ``add`` names columns that the table gives to a row: ``{"city": "upper(town)"}``, SQL over
        the table.  A row that several of the table's rows match then leaves once for each.  A row
        is looked up when it comes; of rows that replace earlier ones the stage remembers what it
        sent, to take back just that.
        """
        node = self.pipeline.sources.get(table.producer)
        if node is None or not node.is_table:
            raise ConfigurationError(
                f"lookup {uid!r} needs a table source; declare {table.producer!r} with table=True"
            )
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
        added = dict(add) if isinstance(add, Mapping) else {name: name for name in add}
        operation = Lookup(table=table.producer, on=columns, keep=keep, add=added)
        kind = self.pipeline.kind_of(self.producer)
        if not isinstance(kind, Upsert):
            return self._stage(uid, operation, (self.as_input(),), parallelism)
        remembering = KeyedLookup(lookup=operation)
        return self._stage(uid, remembering, (self.as_input(kind.key),), parallelism)

    def union(self, uid: str, *others: Stream, parallelism: int | None = None) -> Stream:
        """All rows of this stream and of *others*, which have the same columns."""
        streams = (self, *others)
        for other in others:
            if other.event_time != self.event_time:
                raise ConfigurationError(
                    f"union {uid!r} reads streams of different event time, {self.event_time!r} and "
                    f"{other.event_time!r}; give them one name"
                )
        inputs = tuple(stream.as_input() for stream in streams)
        return self._stage(uid, Union(), inputs, parallelism)

    def key_by(self, *columns: str, **expressions: str) -> KeyedStream:
        """Key by *columns*, and by new ones computed by SQL: ``key_by(day="date(at)")``."""
        from sluice.declaration.keyed_streams import KeyedStream

        if not columns and not expressions:
            raise ConfigurationError("key_by() needs at least one column")
        return KeyedStream(self, (*columns, *expressions), expressions)

    def window_top_n(
        self,
        uid: str,
        window: Window,
        n: int,
        *,
        by: str,
        ties: bool = False,
        parallelism: int | None = None,
    ) -> Stream:
        """The *n* rows with the largest ``by`` of each window, over all keys, with their ``rank``.

        With *ties* all rows that share a rank are kept (SQL's RANK), else exactly *n* (ROW_NUMBER).
        """
        from sluice.declaration.keyed_streams import KeyedStream

        if isinstance(window, Session):
            raise ConfigurationError(f"stage {uid!r}: a session is of a key; use key_by() first")
        keyless = KeyedStream(self, (), {})
        operation = WindowTopN(window=window, n=n, by=by, has_ties=ties)
        return keyless.stage(uid, operation, parallelism=parallelism)

    def where(self, condition: str) -> Stream:
        """Keep only the rows for which the SQL *condition* is true.

        Spark SQL over a source's rows, which costs no stage; over a stage's result the SQL that
        Polars knows.  Calls of ``where`` and ``select`` apply in the order in which they are
        written, and see a row at a time.
        """
        return self._step(Filter(condition), condition)

    def select(self, *columns: str) -> Stream:
        """Keep only these columns, in this order: names or SQL, ``"bid.price AS price"``, or ``*``.

        The SQL is that of ``where``.  A source whose event time is left out has none.
        """
        if not columns:
            raise ConfigurationError(f"select() of {self.producer!r} needs at least one column")
        return self._step(Projection(columns), *columns)

    def disable_chaining(self) -> Stream:
        """Never run this stage in one Spark job with the one before or behind it, as Flink's.

        It changes no result: a chained stage saves a Spark job, and its input is not in the bucket.
        """
        stage = self.pipeline.stages.get(self.producer)
        if stage is None:
            raise ConfigurationError(
                f"{self.producer!r} is a source, and is never chained; call disable_chaining() "
                "behind a stage"
            )
        self.pipeline.amend_stage(replace(stage, chained=False))
        return self

    def sink(self, uid: str, spec: SinkSpec) -> None:
        """Publish this stage's result exactly once: staged with the epoch, visible on commit."""
        if self.producer not in self.pipeline.stages:
            raise ConfigurationError(
                f"sink {uid!r} reads the source {self.producer!r} itself; put a stage between them"
            )
        self.pipeline.add_sink(SinkNode(uid=uid, spec=spec, input=self.producer))

    def as_input(
        self, keys: tuple[str, ...] = (), expressions: Mapping[str, str] | None = None
    ) -> Input:
        return Input(
            producer=self.producer,
            kind=self.pipeline.kind_of(self.producer),
            event_time=self.event_time,
            steps=self.steps,
            keys=keys,
            key_expressions=expressions or {},
        )

    def _stage(
        self, uid: str, operation: Operation, inputs: tuple[Input, ...], parallelism: int | None
    ) -> Stream:
        """A stage that passes on the event time of what it reads."""
        return self.pipeline.add_stage(
            StageNode(
                uid=uid,
                operation=operation,
                inputs=inputs,
                parallelism=parallelism,
            ),
            event_time=self.event_time,
        )

    def _step(self, step: Step, *texts: str) -> Stream:
        method = "where()" if isinstance(step, Filter) else "select()"
        for text in texts:
            check_row_wise(f"{method} of {self.producer!r}", text)
        source = self.pipeline.sources.get(self.producer)
        if source is None:
            return self._amend(step)
        event_time = self.event_time
        if isinstance(step, Projection):
            has_it = source.event_time is not None and keeps(step, source.event_time)
            event_time = source.event_time if has_it else None
        return replace(self, steps=(*self.steps, step), event_time=event_time)

    def _amend(self, step: Step) -> Stream:
        stage = self.pipeline.stages.get(self.producer)
        if stage is None or self.pipeline.is_consumed(self.producer):
            raise ConfigurationError(
                f"where() and select() belong directly behind a stage, before its consumers; "
                f"{self.producer!r} is already consumed"
            )
        self.pipeline.amend_stage(replace(stage, steps=(*stage.steps, step)))
        return self
