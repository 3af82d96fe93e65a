"""A declaration as data: it prints as JSON, it shrinks, and ``declaring`` makes a pipeline of it.

A ``Plan`` is everything that one play needs: sources, stages, sinks and acts.  Nothing here is
random; the rows of a batch follow from the plan's seed, the batch's number and the row's number, so
leaving one out changes no other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

Columns = tuple[tuple[str, str], ...]  # Name and the name of a type, see ``data.TYPES``.


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlan:
    """Files in a folder, of a ``format``, ``packed`` as the end of their names says, by another
    path where it is ``moved``; where it ``grows``, partitions in memory that grow.  Each line of
    an ``id`` that ``malformed`` divides has one behind it that is no row.
    """

    uid: str
    columns: Columns
    event_time: str | None = "ts"
    out_of_orderness_ms: int = 0
    is_table: bool = False
    grows: bool = False
    format: Literal["parquet", "avro", "json", "csv"] = "parquet"
    packed: str = ""
    has_header: bool = False
    idle_after_ms: int | None = None
    moved: bool = False
    malformed: int = 0

    @property
    def has_lines(self) -> bool:
        return self.format in ("json", "csv")

    @property
    def has_files_that_grow(self) -> bool:
        return self.has_lines and not self.packed


@dataclass(frozen=True, slots=True, kw_only=True)
class InputPlan:
    producer: str
    where: tuple[str, ...] = ()
    select: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    key_expressions: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """``op`` is a method of the streams; ``args`` are its own arguments, plain data."""

    uid: str
    op: str
    inputs: tuple[InputPlan, ...]
    args: Mapping[str, Any] = field(default_factory=dict)
    parallelism: int | None = None
    where: tuple[str, ...] = ()
    select: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkPlan:
    uid: str
    producer: str
    upsert_key: tuple[str, ...] = ()
    changelog: bool = False
    format: str = "parquet"
    where: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    compact_when_files: int = 0
    select: tuple[str, ...] = ()
    is_absent: bool = False  # It is not declared.
    delta_log: bool = False  # Then it lies in a folder, not below the job's root.


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """A new file, or more rows of a partition: these rows of the batch of that number."""

    source: str
    batch: int
    rows: tuple[int, ...]
    partition: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """``fate``: where it dies, a point of ``world.POINTS``; ``at`` counts to the place there.

    ``overtakes``: the stage, counted from 1, for which the aligned checkpoint timeout passes.
    """

    fate: str = ""
    at: int = 0
    drains: bool = False
    overtakes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """``back``: 0 the latest checkpoint, 1 the one before, ...; with another parallelism."""

    back: int = 0
    parallelism: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The declaration becomes another: ``edits`` are each a uid, a path in its part and a value.

    ``part`` is what differs of the stage, source or sink ``uid``, as ``sluice.core.transitions``
    calls it; "column" is one of an aggregate; empty if all means what it did.  ``difference`` is
    how.
    ``consents``: what is chosen where a restore asks, to "keep" or to "begin"; empty to go back.
    ``from_before``: the edits are of the declaration before the last change, and the job goes on
    from the newest checkpoint of that.
    """

    uid: str
    edits: tuple[tuple[str, str, Any], ...] = ()
    part: str = ""
    difference: str = "changed"
    consents: str = ""
    from_before: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacuum:
    """Of each table what no retained checkpoint needs is deleted."""


Act = Feed | Checkpoint | Restore | Change | Vacuum
ACTS = (Feed, Checkpoint, Restore, Change, Vacuum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``way``: how rows reach keyed subtasks, ``plain`` past the JVM where that can be, or ``jvm``.

    ``values``: what columns may hold beside the usual: ``wild`` numbers, ``hostile`` texts.
    ``tuning``: sizes that are small for once, see ``tuning.TUNINGS``.  ``unaligned``: whether
    checkpoints are, from the ``start`` or behind a ``timeout``.
    """

    seed: int
    sources: tuple[SourcePlan, ...]
    stages: tuple[StagePlan, ...]
    sinks: tuple[SinkPlan, ...]
    acts: tuple[Act, ...]
    parallelism: int = 2
    max_parallelism: int = 8
    max_records: int | None = None
    max_runs: int = 16
    spills: bool = False
    way: str = "plain"
    tuning: tuple[str, ...] = ()
    unaligned: str = ""
    values: tuple[str, ...] = ()

    @property
    def is_chained(self) -> bool:
        """Whether stages may be chained; of the seed, as a draw would make all plans others."""
        return self.seed % 4 != 0

    def source(self, uid: str) -> SourcePlan | None:
        return next((source for source in self.sources if source.uid == uid), None)

    def stage(self, uid: str) -> StagePlan:
        return next(stage for stage in self.stages if stage.uid == uid)


def to_json(plan: Plan) -> str:
    """All of it, one line for each part: what a failure prints, and ``--plan`` reads."""
    parts = _compact(plan)
    lines = []
    for name, value in parts.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            inner = ",\n".join("    " + json.dumps(item) for item in value)
            lines.append(f'  "{name}": [\n{inner}\n  ]')
        else:
            lines.append(f'  "{name}": {json.dumps(value)}')
    return "{\n" + ",\n".join(lines) + "\n}"


def from_json(text: str) -> Plan:
    given = json.loads(text)
    given["sources"] = tuple(SourcePlan(**_tuples(one)) for one in given["sources"])
    given["stages"] = tuple(_stage(one) for one in given["stages"])
    given["sinks"] = tuple(SinkPlan(**_tuples(one)) for one in given["sinks"])
    given["acts"] = tuple(_act(one) for one in given["acts"])
    return Plan(**_tuples(given))


def without(plan: Plan, uid: str) -> Plan:
    """The plan without a stage, its readers, and all that is not needed any more."""
    gone = {uid}
    for stage in plan.stages:  # In topological order.
        if any(given.producer in gone for given in stage.inputs):
            gone.add(stage.uid)
    stages = tuple(stage for stage in plan.stages if stage.uid not in gone)
    sinks = tuple(s for s in plan.sinks if s.producer not in gone and s.uid not in gone)
    return only_used(replace(plan, stages=stages, sinks=sinks))


def changed(plan: Plan, edits: tuple[tuple[str, str, Any], ...]) -> Plan:
    """The plan with *edits*; one of a part that it does not have changes nothing."""
    for uid, path, value in edits:
        names = path.split("/")
        stages = [_edited(s, names, value) if s.uid == uid else s for s in plan.stages]
        sources = [replace(s, **{path: value}) if s.uid == uid else s for s in plan.sources]
        sinks = [replace(s, **{path: value}) if s.uid == uid else s for s in plan.sinks]
        plan = replace(plan, stages=tuple(stages), sources=tuple(sources), sinks=tuple(sinks))
    return plan


def _edited(stage: StagePlan, path: list[str], value: Any) -> StagePlan:
    whole = _with(asdict(stage), path, value)
    inputs = tuple(InputPlan(**given) for given in whole.pop("inputs"))
    return StagePlan(**whole, inputs=inputs)


def _with(whole: Any, path: list[str], value: Any) -> Any:
    """*whole* with *value* at *path*; None is no column of an aggregate any more."""
    name, *rest = path
    if isinstance(whole, tuple):
        return tuple(
            _with(one, rest, value) if place == int(name) else one
            for place, one in enumerate(whole)
        )
    if rest:
        is_gone = rest[1:] == [] and name == "aggregates" and value is None
        inner = {k: v for k, v in whole[name].items() if k != rest[0]} if is_gone else None
        return {**whole, name: _with(whole[name], rest, value) if inner is None else inner}
    return {**whole, name: value}


def only_used(plan: Plan) -> Plan:
    """The plan without unread sources, and their rows."""
    used = set(producers_of(plan))
    return replace(
        plan,
        sources=tuple(source for source in plan.sources if source.uid in used),
        acts=tuple(a for a in plan.acts if not isinstance(a, Feed) or a.source in used),
    )


def producers_of(plan: Plan) -> Iterator[str]:
    for stage in plan.stages:
        yield from (given.producer for given in stage.inputs)
        if "table" in stage.args:
            yield stage.args["table"]


def _compact(plan: Plan) -> dict[str, Any]:
    """Without what is as it always is."""
    whole = asdict(plan)
    whole["acts"] = [{"act": type(act).__name__, **asdict(act)} for act in plan.acts]
    for name in ("sources", "stages", "sinks", "acts"):
        whole[name] = [
            {
                k: v
                for k, v in one.items()
                if v not in ((), None, False, "", {}) or k == "event_time"
            }
            for one in whole[name]
        ]
        for one in whole[name]:
            for given in one.get("inputs", ()):
                for key in [key for key, value in given.items() if value == ()]:
                    del given[key]
    return whole


def _stage(given: dict[str, Any]) -> StagePlan:
    inputs = tuple(InputPlan(**_tuples(one)) for one in given.pop("inputs"))
    args = given.pop("args", {})
    return StagePlan(inputs=inputs, args=args, **_tuples(given))


def _act(given: dict[str, Any]) -> Act:
    kind: type[Act] = {one.__name__: one for one in ACTS}[given.pop("act")]
    if kind is Feed:
        given.setdefault("rows", [])
        given.setdefault("batch", 0)
    return kind(**_tuples(given))


def _tuples(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _tuple(value) for name, value in given.items()}


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list) else value
