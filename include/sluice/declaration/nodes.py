"""The nodes of a declaration: sources, stages with their inputs, and sinks.

Plain frozen data; ``sluice.declaration.pipeline`` builds it, Spark's workers receive it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sluice.declaration import operations as ops
from sluice.declaration.arguments import user_line
from sluice.declaration.changelog import Append, Kind, StreamRead, after, result_kind
from sluice.declaration.expressions import Projection, Step
from sluice.declaration.places import SinkSpec, SourceSpec
from sluice.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceNode:
    """A source.  One that ``is_table`` is not streamed: lookups read all of it at every barrier.
    One that ``is_induced`` gets its barriers from outside: a checkpoint without one reads nothing.
    """

    uid: str
    spec: SourceSpec
    event_time: str | None
    out_of_orderness_ms: int
    is_table: bool
    is_induced: bool = False
    idle_after_ms: int | None = None  # After so long without records, a partition is idle.
    line: str = user_line()


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """An input of a stage: the stream of a source or of another stage; ``kind`` is the stream's.

    ``steps`` apply in their order as the rows are read: Spark SQL over a source's rows, and over a
    stage's those that not all of its readers have in common (``StageNode.steps``).  ``renames`` are
    columns that the stage knows by another name, old -> new, and ``names`` those that it names: in
    any case, and from there on as it spells them.  Rows of a stage's stream may be older
    than the watermark behind that stage by ``out_of_orderness_ms``.  The keys are on ``line``.
    """

    producer: str
    kind: Kind = field(default_factory=Append)
    event_time: str | None = None
    out_of_orderness_ms: int = 0
    steps: tuple[Step, ...] = ()
    renames: Mapping[str, str] = field(default_factory=dict[str, str])
    names: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    key_expressions: Mapping[str, str] = field(default_factory=dict[str, str])  # Spark SQL.
    is_broadcast: bool = False  # Each subtask reads all of its rows.
    line: str = user_line()

    @property
    def is_projected(self) -> bool:
        return any(isinstance(step, Projection) for step in self.steps)

    @property
    def spellings(self) -> dict[str, str]:
        """Columns in small letters -> as the stage spells them, or knows them."""
        named = {name.lower(): name for name in self.names}
        return named | {old.lower(): new for old, new in self.renames.items()}

    def spelt(self, columns: Iterable[str]) -> list[str]:
        """*columns* of the rows that are read, as the stage spells them.

        Raises:
            ConfigurationError: two would have one name.
        """
        spellings = self.spellings
        found = [spellings.get(name.lower(), name) for name in columns]
        for old, new in self.renames.items():
            if found.count(new) > 1:
                raise ConfigurationError(
                    f"{self.producer!r} has a column {new!r}, which is what its {old!r} is called "
                    f"behind the join; rename it before, select('*', ...) with '{new} AS ...'"
                )
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class StageNode:
    """Flink's operator chain of one operator with its filter, projection and sinks.

    ``steps`` are SQL over the operation's result, applied in their order: those with which every
    reader of the stream begins, so that nothing is written that none reads.
    """

    uid: str
    operation: ops.Operation
    inputs: tuple[Input, ...]
    parallelism: int | None = None
    ttl_ms: int | None = None  # Of a key's state, since its last write.
    # By table of a function's states the TTL that was shorter, in the one epoch that drops by it.
    former_ttls_ms: Mapping[str, int] = field(default_factory=dict[str, int])
    steps: tuple[Step, ...] = ()
    chained: bool = True  # It may run in one Spark job with the stages before and behind it.
    line: str = user_line()

    @property
    def kind(self) -> Kind:
        """The meaning of the result's rows.

        Raises:
            ConfigurationError: the operation cannot read an input of its kind.
        """
        return self.kind_behind(self.steps)

    def kind_behind(self, steps: Sequence[Step]) -> Kind:
        """The meaning of the operation's rows behind *steps*; raises as ``kind`` does."""
        reads = [StreamRead(stream.producer, stream.kind) for stream in self.inputs]
        kind = result_kind(self.uid, self.operation, self.keys, reads)
        if self.ttl_ms is not None and kind == Append():
            kind = Append()  # A key that was forgotten comes again.
        return after(steps, kind)

    @property
    def reads_updates(self) -> bool:
        """Whether rows of an input are taken back."""
        return any(stream.kind != Append() for stream in self.inputs)

    @property
    def is_stateful(self) -> bool:
        match self.operation:
            case ops.Transform() | ops.Lookup() | ops.Union():
                return False
            case ops.SparkCode(key=key):
                return bool(key)
            case _:
                return True

    @property
    def is_projected(self) -> bool:
        return any(isinstance(step, Projection) for step in self.steps)

    @property
    def keeps_event_time(self) -> bool:
        """Whether a row leaves in the epoch in which it came, so that it is not late behind it."""
        if isinstance(self.operation, ops.SparkCode):
            return False  # Whatever it makes of the rows.
        return not self.is_stateful or isinstance(self.operation, ops.Deduplicate)

    @property
    def goes_by_event_time(self) -> bool:
        """Whether a row without event time has no place in the result."""
        window = getattr(self.operation, "window", None)
        is_windowed = window is not None and not isinstance(window, ops.Attached)
        return is_windowed or isinstance(self.operation, ops.IntervalJoin)

    @property
    def keys(self) -> tuple[str, ...]:
        """The key columns, under the names they have in the state: those of the first input, or of
        the result of Spark code.
        """
        if isinstance(self.operation, ops.SparkCode):
            return self.operation.key
        return self.inputs[0].keys

    def names_of(self, side: int) -> tuple[str, ...]:
        """The columns that the stage names of its input *side*, beside those in expressions."""
        given = self.inputs[side]
        keys = [key for key in given.keys if key not in given.key_expressions]
        times = [] if given.event_time is None else [given.event_time]
        others = ops.named_by(self.operation) if side == 0 else ()
        hidden = {name.lower() for name in given.key_expressions}
        return tuple(
            name for name in dict.fromkeys((*keys, *times, *others)) if name.lower() not in hidden
        )

    def out_of_orderness_ms(self, producer: str) -> int:
        """The time by which rows of *producer* may be older than the watermark behind it."""
        return max(s.out_of_orderness_ms for s in self.inputs if s.producer == producer)

    @property
    def shuffled(self) -> tuple[Input, ...]:
        """The inputs of which each row goes to one subtask."""
        return tuple(stream for stream in self.inputs if not stream.is_broadcast)

    @property
    def broadcast(self) -> Input | None:
        """The input whose rows every subtask sees."""
        return next((stream for stream in self.inputs if stream.is_broadcast), None)

    @property
    def producers(self) -> tuple[str, ...]:
        return tuple(stream.producer for stream in self.inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkNode:
    """A sink of the stage ``input``; ``steps`` are SQL over that stage's stream."""

    uid: str
    spec: SinkSpec
    input: str
    steps: tuple[Step, ...] = ()
    line: str = user_line()
