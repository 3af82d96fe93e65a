"""Random plans: a seed is a plan, always the same."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from tests.fuzz import drawing_acts, drawing_stages
from tests.fuzz.drawing_streams import Stream
from tests.fuzz.plans import Plan, SinkPlan, SourcePlan, StagePlan, only_used
from tests.fuzz.tuning import DRAWN_APART, TUNINGS

OPTIONAL = {
    "v": "long", "w": "huge", "x": "double", "y": "double", "b": "bool", "d": "date",
    "m": "decimal", "u": "time", "s": "struct", "l": "list",
}  # fmt: skip


@dataclass
class Drawing:
    """A plan under way."""

    random: Random
    sources: list[SourcePlan] = field(default_factory=list)
    stages: list[StagePlan] = field(default_factory=list)
    sinks: list[SinkPlan] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    tables: list[SourcePlan] = field(default_factory=list)


def drawn(seed: int) -> Drawing:
    """Sources and stages; at least one of these."""
    random = Random(seed)
    drawing = Drawing(random)
    for number in range(random.choice((1, 1, 2, 2, 3))):
        _source(drawing, number)
    _table(drawing)
    wanted = random.choice((1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 6))
    for _ in range(wanted * 4):
        if len(drawing.stages) >= wanted:
            break
        drawing_stages.add_stage(drawing)
    return drawing if drawing.stages else drawn(seed + 2**32)


def draw(seed: int) -> Plan:
    drawing = drawn(seed)
    random = drawing.random
    _sinks(drawing)
    _ttls(drawing, Random(f"{seed} ttl"))
    _operator_lists(drawing, Random(f"{seed} lists"))
    plan = Plan(
        seed=seed,
        sources=tuple(drawing.sources),
        stages=tuple(drawing.stages),
        sinks=tuple(drawing.sinks),
        acts=(),
        parallelism=random.choice((1, 1, 1, 1, 2, 2, 3)),
        max_parallelism=random.choice((4, 8, 128)),
        max_records=random.choice((None, None, 5, 20)),
        max_runs=random.choice((1, 2, 16, 16, 16, 16)),
        spills=random.random() < 0.08,
        way=random.choice(("plain", "plain", "jvm")),
        tuning=tuple(t for t in TUNINGS if random.random() < 0.15),
    )
    apart = (name for name in DRAWN_APART if Random(f"{seed} {name}").random() < 0.5)
    plan = replace(plan, tuning=(*plan.tuning, *apart))  # The rest of a plan stays as it was.
    plan = only_used(plan)
    plan = replace(plan, acts=drawing_acts.draw_acts(random, plan))
    return drawing_acts.unaligned(Random(f"{seed} unaligned"), plan)


def _source(drawing: Drawing, number: int) -> None:
    random = drawing.random
    uid = f"in{number}"
    columns = {"id": "long", "k": "int", "g": "text", "ts": "time"}
    columns |= dict(random.sample([*OPTIONAL.items()], random.randrange(1, 6)))
    if random.random() < 0.3 and drawing.sources:
        columns = dict(drawing.sources[0].columns)  # For a union.
    event_time = "ts" if random.random() < 0.9 else None
    drawing.sources.append(
        SourcePlan(
            uid=uid,
            columns=tuple((n, k) for n, k in columns.items()),
            event_time=event_time,
            out_of_orderness_ms=random.choice((0, 0, 1_000, 5_000, 30_000)),
            grows=random.random() < 0.35,
        )
    )
    drawing.streams.append(
        Stream(uid=uid, columns=columns, event_time=event_time, is_source=True, unique=("id",))
    )


def _table(drawing: Drawing) -> None:
    if drawing.random.random() < 0.4:
        columns = (("tk", "int"), ("tg", "text"), ("name", "text"), ("n", "long"))
        table = SourcePlan(uid="dim", columns=columns, event_time=None, is_table=True)
        drawing.sources.append(table)
        drawing.tables.append(table)


def _sinks(drawing: Drawing) -> None:
    """Draw the sinks: every stage without readers has one, others have one at times."""
    random = drawing.random
    read: set[Any] = {given.producer for stage in drawing.stages for given in stage.inputs}
    for stage in drawing.stages:
        stream = next(one for one in drawing.streams if one.uid == stage.uid)
        if stage.uid not in read or random.random() < 0.5:
            sink = drawing_stages.sink_for(random, stream)
            drawing.sinks.append(sink)


def _ttls(drawing: Drawing, random: Random) -> None:
    """State that is forgotten, where that shows in a sink alone: what went out of it stays."""
    read = {given.producer for stage in drawing.stages for given in stage.inputs}
    streams = {stream.uid: stream for stream in drawing.streams}
    keyed = {sink.producer for sink in drawing.sinks if sink.upsert_key == _keys(drawing, sink)}
    for place, stage in enumerate(drawing.stages):
        given = streams[stage.inputs[0].producer]
        is_last = stage.uid in keyed and stage.uid not in read and not stage.where
        kinds = {kind for kind, *_ in stage.args.get("aggregates", {}).values()}
        if (
            stage.op in ("aggregate", "latest")
            and given.is_append
            and is_last
            and not (
                kinds & {"count_distinct", "percentile", "string_agg"}  # Each value has its own.
            )
        ):
            ttl = random.choice((None, None, 4_000, 12_000, 40_000))
            if ttl is not None:
                drawing.stages[place] = replace(stage, args={**stage.args, "ttl": ttl})


def _operator_lists(drawing: Drawing, random: Random) -> None:
    """Of functions of a key's state some have lists that belong to a subtask."""
    for place, stage in enumerate(drawing.stages):
        lists = random.choice(("", "union", "split"))
        if stage.op == "process_keyed" and lists:
            drawing.stages[place] = replace(stage, args={**stage.args, "lists": lists})


def _keys(drawing: Drawing, sink: SinkPlan) -> tuple[str, ...]:
    return next(one for one in drawing.stages if one.uid == sink.producer).inputs[0].keys
