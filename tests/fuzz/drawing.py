"""Random plans: a seed is a plan, always the same.

``draw`` draws sources and stages, then sinks, then the acts of the play: rows arrive, checkpoints
are taken, processes die, jobs restore.  Each of ``OPERATIONS`` draws a stage over a stream that can
be given to it, or None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Literal

from tests.fuzz.changing import DRAWS, FOREVER, changing, forgets
from tests.fuzz.data import column_sql
from tests.fuzz.growing import dwindling
from tests.fuzz.lines import PACKED
from tests.fuzz.plans import (
    Act,
    Checkpoint,
    Feed,
    InputPlan,
    Plan,
    Restore,
    SinkPlan,
    SourcePlan,
    StagePlan,
    Vacuum,
    only_used,
)
from tests.fuzz.queries import BOUNDS, DRAW
from tests.fuzz.seldom import seldom
from tests.fuzz.tuning import COMPACTS, DRAWN_APART, TUNINGS

OPTIONAL = {
    "v": "long", "w": "huge", "x": "double", "y": "double", "b": "bool", "d": "date",
    "m": "decimal", "u": "time", "s": "struct", "l": "list",
}  # fmt: skip
KEYABLE = ("int", "text", "bool", "date", "long")
ORDERED = ("int", "long", "huge", "double", "text", "bool", "date", "decimal", "time")
TWIN = "twin_one"  # The uid of a stage that reads a stream which another reads otherwise.
DELTA_LOGS = 0.15  # Of the tables that can have one.
FORGETFUL_JOINS = (("join", "inner"), ("join", "semi"))


@dataclass
class Drawing:
    """A plan under way."""

    random: Random
    sources: list[SourcePlan] = field(default_factory=list)
    stages: list[StagePlan] = field(default_factory=list)
    sinks: list[SinkPlan] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    tables: list[SourcePlan] = field(default_factory=list)


@dataclass(slots=True)
class Stream:
    """A stream in a drawing.

    ``updates``: the key by which rows replace earlier ones; ``unique``: columns that no two rows
    share, which ``declared`` says of a stream whose declaration shows it; ``is_retract``: rows are
    taken back, and no key identifies them.
    """

    uid: str
    columns: dict[str, str]
    event_time: str | None = None
    is_source: bool = False
    updates: tuple[str, ...] = ()
    unique: tuple[str, ...] = ()
    declared: bool = False
    is_retract: bool = False

    @property
    def is_append(self) -> bool:
        return not self.updates and not self.is_retract

    def of(self, kinds: Iterable[str]) -> list[str]:
        wanted = set(kinds)
        return [name for name, kind in self.columns.items() if kind in wanted]


Drawn = tuple[StagePlan, Stream] | None


def draw(seed: int) -> Plan:
    drawing = drawn(seed)
    random = drawing.random
    _sinks(drawing)
    _ttls(drawing, seed)
    _operator_lists(drawing, Random(f"{seed} lists"))
    _uniques(drawing, Random(f"{seed} uniques"))
    _broadcasts(drawing, Random(f"{seed} broadcasts"))
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
    plan = _apart(drawing, plan)
    plan = _projected(Random(f"{seed} projected"), drawing, plan)
    plan = _with_twins(Random(f"{seed} twins"), drawing, plan)
    plan = _with_draws(Random(f"{seed} draws"), plan)
    plan = _in_lines(Random(f"{seed} lines of text"), plan)
    plan = replace(plan, acts=draw_acts(random, plan))
    plan = unaligned(Random(f"{seed} unaligned"), plan)
    plan = _with_malformed_lines(Random(f"{seed} malformed"), plan)
    plan, part = seldom(Random(f"{seed} seldom"), plan)
    plan = changing(Random(f"{seed} change"), plan, part)
    plan = dwindling(Random(f"{seed} dwindling"), plan)
    plan = _with_delta_logs(Random(f"{seed} delta logs"), plan)
    return _with_idle_files(Random(f"{seed} idle files"), plan)


def _apart(drawing: Drawing, plan: Plan) -> Plan:
    """*plan* with what is drawn apart, so that the rest of a seed's plan stays as it was."""
    random = Random(f"{plan.seed} apart")
    streams = {stream.uid: stream for stream in drawing.streams}
    sinks = [_with_options(random, sink, streams[sink.producer]) for sink in plan.sinks]
    for stage in plan.stages:
        text = result_condition(random, streams[stage.uid])
        if (
            text and random.random() < 0.2 and not forgets(stage)
        ):  # Another reader of the stream, with its own filter.
            sink = replace(sink_for(random, streams[stage.uid]), uid=f"{stage.uid}_some")
            sinks.append(_with_options(random, replace(sink, where=(text,)), streams[stage.uid]))
    sources = [
        replace(source, format="avro")
        if random.random() < 0.15 and not (source.is_table or source.grows)
        else source
        for source in plan.sources
    ]
    sources = [
        replace(source, idle_after_ms=random.choice((4_000, 15_000, 40_000)))
        if source.grows and random.random() < 0.5
        else source
        for source in sources
    ]
    kinds = {one[0] for stage in plan.stages for one in stage.args.get("aggregates", {}).values()}
    values = ("hostile",) if random.random() < 0.3 else ()
    if random.random() < 0.4 and not kinds & {"stddev", "variance", "percentile"}:
        values = (*values, "wild")
        plan = _adding_floats(random, plan, streams)
    is_compacted = random.random() < 0.3
    return replace(
        plan,
        sinks=(*sinks, *(sink for sink in plan.sinks if sink.uid == "added_out")),
        sources=tuple(sources),
        values=values,
        tuning=(*plan.tuning, COMPACTS) if is_compacted else plan.tuning,
        max_runs=16 if is_compacted else plan.max_runs,
    )


def _with_idle_files(random: Random, plan: Plan) -> Plan:
    """Of some folders of files those that are silent do not hold event time back."""
    sources = [
        replace(source, idle_after_ms=random.choice((4_000, 15_000, 40_000)))
        if random.random() < 0.2 and not (source.is_table or source.grows)
        else source
        for source in plan.sources
    ]
    return replace(plan, sources=tuple(sources))


def _projected(random: Random, drawing: Drawing, plan: Plan) -> Plan:
    """Of stages some with another reader, of some of their columns."""
    streams = {stream.uid: stream for stream in drawing.streams}
    sinks = list(plan.sinks)
    for stage in plan.stages:
        stream = streams.get(stage.uid)
        if stream is not None and random.random() < 0.15 and not forgets(stage):
            sink = replace(sink_for(random, stream), uid=f"{stage.uid}_part")
            names = [n for n in stream.columns if n in sink.upsert_key or random.random() < 0.6]
            sinks.append(replace(sink, select=tuple(names or stream.columns)))
    return replace(plan, sinks=tuple(sinks))


def _with_twins(random: Random, drawing: Drawing, plan: Plan) -> Plan:
    """Of some plans a stream is read by two stages more, each with a filter and a projection of its
    own; what they aggregate has other names.
    """
    wanted = {"id": "long", "k": "int"}
    of_stages = {stage.uid for stage in plan.stages if not forgets(stage)}
    found = [one for one in drawing.streams if one.uid in of_stages]
    found = [one for one in found if wanted.items() <= one.columns.items()]
    if not found or random.random() >= 0.3:
        return plan
    producer = random.choice(found).uid
    stages, sinks = list(plan.stages), list(plan.sinks)
    for uid, of in ((TWIN, "id"), ("twin_two", "other")):
        where = (random.choice(("k >= 1", "k < 1", "k IS NULL", "id IS NOT NULL")),)
        select = ("k", "id") if of == "id" else ("k", "id AS other")
        given = InputPlan(producer=producer, where=where, select=select, keys=("k",))
        aggregates = {"n": ["count", of, None, None], "most": ["max", of, None, None]}
        args = {"aggregates": aggregates}
        stages.append(StagePlan(uid=uid, op="aggregate", inputs=(given,), args=args))
        sinks.append(SinkPlan(uid=f"{uid}_out", producer=uid, upsert_key=("k",)))
    return replace(plan, stages=tuple(stages), sinks=tuple(sinks))


def _with_draws(random: Random, plan: Plan) -> Plan:
    """Of some plans a function draws a number for each row, which a table, the last row of a key
    and an aggregate have to agree about.
    """
    sources = [source for source in plan.sources if not source.is_table]
    if random.random() >= 0.1:
        return plan
    source = random.choice(sources)
    names = ["id", "k", *([source.event_time] if source.event_time else []), f"{DRAW} AS drawn"]
    args = {"columns": "\n".join(names)}
    drawn = StagePlan(
        uid=DRAWS, op="transform", inputs=(InputPlan(producer=source.uid),), args=args
    )
    given = InputPlan(producer=DRAWS, keys=("k",))
    latest = StagePlan(uid="drawn_last", op="latest", inputs=(given,), args={"by": ["drawn"]})
    some = replace(given, where=("drawn >= 0.5",))
    aggregates = {"n": ["count", None, None, None], "most": ["max", "drawn", None, None]}
    of_some = {"aggregates": aggregates}
    counted = StagePlan(uid="drawn_most", op="aggregate", inputs=(some,), args=of_some)
    out = SinkPlan(uid=f"{DRAWS}_out", producer=DRAWS)
    of_k = (SinkPlan(uid=f"{one.uid}_out", producer=one.uid) for one in (latest, counted))
    return replace(
        plan,
        stages=(*plan.stages, drawn, latest, counted),
        sinks=(*plan.sinks, out, *(replace(sink, upsert_key=("k",)) for sink in of_k)),
    )


def _in_lines(random: Random, plan: Plan) -> Plan:
    """Of sources in files some in lines of text; not where rows have to come in their order."""
    ordered = {one.inputs[0].producer for one in plan.stages if one.args.get("unique")}
    sources = list(plan.sources)
    for place, source in enumerate(sources):
        kinds = {kind for _, kind in source.columns}
        is_nested = bool(kinds & {"struct", "list"})
        is_file = source.format == "parquet" and not (source.is_table or source.grows)
        if is_file and source.uid not in ordered and random.random() < 0.2:
            packed = random.choice(("", *PACKED))
            is_csv = not is_nested and random.random() < 0.5
            has_header = is_csv and Random(f"{plan.seed} header").random() < 0.5
            format_: Literal["csv", "json"] = "csv" if is_csv else "json"
            sources[place] = replace(source, format=format_, packed=packed, has_header=has_header)
    return replace(plan, sources=tuple(sources))


def _with_malformed_lines(random: Random, plan: Plan) -> Plan:
    """Of sources of lines most with some that are no rows; each line is read in one epoch, then."""
    if plan.unaligned:
        return plan
    return replace(
        plan,
        sources=tuple(
            replace(source, malformed=random.choice((1, 3, 5)))
            if source.has_lines and random.random() < 0.6
            else source
            for source in plan.sources
        ),
    )


def _with_delta_logs(random: Random, plan: Plan) -> Plan:
    """Of tables without a key some are read by a Delta log; tables are vacuumed at times."""
    sinks = [
        replace(sink, delta_log=random.random() < DELTA_LOGS)
        if not sink.upsert_key and sink.format == "parquet"
        else sink
        for sink in plan.sinks
    ]
    acts = list(plan.acts)
    if random.random() < (0.4 if any(sink.delta_log for sink in sinks) else 0.05):
        acts = [
            one
            for act in acts
            for one in (act, *([Vacuum()] if isinstance(act, Checkpoint) else []))
            if not isinstance(one, Vacuum) or random.random() < 0.4
        ]
    return replace(plan, sinks=tuple(sinks), acts=tuple(acts))


def _adding_floats(random: Random, plan: Plan, streams: Mapping[str, Stream]) -> Plan:
    """*plan* with sums of floats over rows that are taken back, if there are floats to add."""
    used = {source.uid for source in plan.sources} | {stage.uid for stage in plan.stages}
    wanted = {"id": "long", "k": "int", "g": "text", "y": "double"}
    found = [one for one in streams.values() if one.uid in used]
    found = [one for one in found if wanted.items() <= one.columns.items()]
    if not found:
        return plan
    given = InputPlan(producer=random.choice(found).uid, keys=("k",))
    newest = StagePlan(uid="newest", op="latest", inputs=(given,), args={"by": ("id",)})
    aggregates = {"fsum_added": ["sum", "y", None, None], "n": ["count", None, None, None]}
    if random.random() < 0.5:
        aggregates["fsum_mean"] = ["avg", "y", None, None]
    else:  # To which the mean may be added.
        aggregates["known"] = ["count", "y", None, None]
    read = InputPlan(producer="newest", keys=("g",))
    added = StagePlan(uid="added", op="aggregate", inputs=(read,), args={"aggregates": aggregates})
    sink = SinkPlan(uid="added_out", producer="added", upsert_key=("g",))
    return replace(plan, stages=(*plan.stages, newest, added), sinks=(*plan.sinks, sink))


def _with_options(random: Random, sink: SinkPlan, stream: Stream) -> SinkPlan:
    if random.random() < 0.25:
        sink = replace(sink, compact_when_files=2)
    if random.random() < 0.15:
        sink = replace(sink, format="json")
    names = [n for n in stream.of(("int", "text", "bool", "date")) if "fsum" not in n]
    names = [n for n in names if not (stream.columns[n] == "text" and "_a" in n)]  # It may be long.
    if names and random.random() < 0.2:
        sink = replace(sink, partition_by=(random.choice(names),))
    return sink


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
        add_stage(drawing)
    return drawing if drawing.stages else drawn(seed + 2**32)


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
    read = {given.producer for stage in drawing.stages for given in stage.inputs}
    for stage in drawing.stages:
        stream = next(one for one in drawing.streams if one.uid == stage.uid)
        if stage.uid not in read or random.random() < 0.5:
            drawing.sinks.append(sink_for(random, stream))


def sink_for(random: Random, stream: Stream) -> SinkPlan:
    """A drawn sink, of those that accept the stream's kind of changes."""
    sink = SinkPlan(uid=f"{stream.uid}_out", producer=stream.uid)
    if stream.is_retract or random.random() < 0.15:
        return replace(sink, changelog=True)
    if stream.updates:
        others = [n for n in stream.columns if n not in stream.updates and "fsum" not in n]
        more = random.sample(others, 1) if others and random.random() < 0.15 else []
        return replace(sink, upsert_key=(*stream.updates, *more))
    is_keyed = stream.unique and set(stream.unique) <= set(stream.columns)
    if is_keyed and random.random() < 0.3 and stream.declared:
        return replace(sink, upsert_key=stream.unique)
    return sink


def _ttls(drawing: Drawing, seed: int) -> None:
    """State that is forgotten, where that shows in a sink alone: what went out of it stays."""
    random = Random(f"{seed} ttl")
    read = {given.producer for stage in drawing.stages for given in stage.inputs}
    streams = {stream.uid: stream for stream in drawing.streams}
    keyed = {sink.producer for sink in drawing.sinks if sink.upsert_key == _keys(drawing, sink)}
    upserted = {sink.producer for sink in drawing.sinks if sink.upsert_key}
    for place, stage in enumerate(drawing.stages):
        if stage.op == "deduplicate" and stage.uid not in read | upserted:
            streams[stage.uid].declared = False  # A key that is forgotten comes again.
            more = {"ttl": random.choice((2_000, 8_000, 30_000))} if random.random() < 0.6 else {}
            drawing.stages[place] = replace(stage, args={**stage.args, **more})
            continue
        given = streams[stage.inputs[0].producer]
        if stage.op in ("top_n", "join", "process") and random.random() < 0.2:
            drawing.stages[place] = replace(stage, args={**stage.args, "ttl": FOREVER})
            continue
        apart = Random(f"{seed} ttl of {stage.uid}")
        if _may_forget(drawing, stage, read) and apart.random() < 0.5:
            more = {"ttl": apart.choice((2_000, 4_000, 12_000, 40_000))}
            drawing.stages[place] = replace(stage, args={**stage.args, **more})
            continue
        is_last = stage.uid in keyed and stage.uid not in read and not stage.where
        kinds = {kind for kind, *_ in stage.args.get("aggregates", {}).values()}
        has_own_ttls = kinds & {"count_distinct", "percentile", "string_agg"}  # For each value.
        is_forgotten = stage.op in ("aggregate", "latest") and given.is_append
        if is_forgotten and is_last and not has_own_ttls:
            ttl = random.choice((None, None, 4_000, 12_000, 40_000))
            if ttl is not None:
                drawing.stages[place] = replace(stage, args={**stage.args, "ttl": ttl})


def _may_forget(drawing: Drawing, stage: StagePlan, read: set[str]) -> bool:
    """Whether rows that only come are all that its state may forget, and what it sends is not taken
    back, or is in tables of its keys and ranks alone.
    """
    producers = {given.producer for given in stage.inputs}
    if not all(one.is_append for one in drawing.streams if one.uid in producers):
        return False
    if stage.op == "top_n":
        keys = (*stage.inputs[0].keys, "rank")
        sinks = [sink for sink in drawing.sinks if sink.producer == stage.uid]
        is_read = stage.uid in read or stage.where or stage.select
        return not is_read and all(sink.upsert_key == keys for sink in sinks)
    return stage.op == "process" or (stage.op, stage.args.get("how")) in FORGETFUL_JOINS


def _operator_lists(drawing: Drawing, random: Random) -> None:
    """Of functions of a key's state some have lists that belong to a subtask."""
    for place, stage in enumerate(drawing.stages):
        lists = random.choice(("", "union", "split"))
        if stage.op == "process_keyed" and lists:
            drawing.stages[place] = replace(stage, args={**stage.args, "lists": lists})


def _broadcasts(drawing: Drawing, random: Random) -> None:
    """Of functions of a key's state some hear the rows of a stream as well, all of them."""
    sources = [source for source in drawing.sources if not source.is_table]
    for place, stage in enumerate(drawing.stages):
        if stage.op == "process_keyed" and "lists" not in stage.args and random.random() < 0.6:
            source = random.choice(sources)
            names = ["id", "k", *([source.event_time] if source.event_time else [])]
            told = StagePlan(
                uid="told",
                op="transform",
                inputs=(InputPlan(producer=source.uid),),
                args={"columns": "\n".join(names)},
            )
            columns = {name: dict(source.columns)[name] for name in names}
            drawing.streams.append(Stream("told", columns, source.event_time))
            inputs = (*stage.inputs, InputPlan(producer="told"))
            heard = replace(stage, inputs=inputs, args={**stage.args, "hears": True})
            drawing.stages[place] = heard
            drawing.stages.insert(0, told)
            return


def _uniques(drawing: Drawing, random: Random) -> None:
    """Of rankings of rows that only come some where a row replaces an earlier one: what they go by
    never decreases, as files are read in the order in which they came.
    """
    files = {one.uid for one in drawing.sources if not (one.is_table or one.grows)}
    for place, stage in enumerate(drawing.stages):
        (given, *_) = stage.inputs
        is_wanted = random.random() < 0.6
        if stage.op == "top_n" and given.producer in files and not given.select and is_wanted:
            unique = [name for name in ("k", "g") if name not in given.keys][:1]
            args = {**stage.args, "by": "id", "unique": unique}
            if unique and "id" not in stage.args.get("ties_by", ()):
                drawing.stages[place] = replace(stage, args=args)


def _keys(drawing: Drawing, sink: SinkPlan) -> tuple[str, ...]:
    return next(one for one in drawing.stages if one.uid == sink.producer).inputs[0].keys


def draw_acts(random: Random, plan: Plan) -> tuple[Act, ...]:
    from tests.fuzz.world import POINTS

    acts: list[Act] = []
    batch = 0
    is_quiet = random.random() < 0.4
    for _ in range(random.choice((1, 2, 2, 3, 3, 4, 6))):
        for source in plan.sources:
            for _ in range(random.choice((0, 1, 1, 1, 2))):
                batch += 1
                count = random.choice((0, 1, 3, 8, 8, 20, 40))
                if source.is_table:
                    count = min(count, 8)
                acts.append(
                    Feed(
                        source=source.uid,
                        batch=batch,
                        rows=tuple(range(count)),
                        partition=random.randrange(2) if source.grows else 0,
                    )
                )
        dies = not is_quiet and random.random() < 0.3
        acts.append(
            Checkpoint(
                fate=random.choice(POINTS) if dies else "",
                at=random.randrange(6) if dies else 0,
            )
        )
        if not is_quiet and random.random() < 0.2:
            parallelism = random.choice((None, 1, 2, 3, 4))
            acts.append(Restore(back=random.choice((0, 0, 1, 2)), parallelism=parallelism))
    if random.random() < 0.5:
        acts.append(Checkpoint(drains=True))
    return tuple(acts)


def unaligned(random: Random, plan: Plan) -> Plan:
    """The plan, of some seeds with unaligned checkpoints; *random* is not that of all else."""
    kind = random.choice(("", "", "start", "timeout"))
    if not kind:
        return plan
    for _ in range(random.choice((0, 1, 1, 2))):
        plan = _farther(random, plan)
    acts = [
        replace(act, overtakes=random.randrange(len(plan.stages) + 1))
        if isinstance(act, Checkpoint) and kind == "timeout"
        else act
        for act in plan.acts
    ]
    return replace(plan, unaligned=kind, acts=tuple(acts))


def _farther(random: Random, plan: Plan) -> Plan:
    """One stage more between a source, or what was put there before, and a reader of it: inputs of
    different depth are what unaligned checkpoints are about.
    """
    columns = {one.uid: one.columns for one in plan.sources if not one.is_table}
    columns |= {one.uid: columns[one.inputs[0].producer] for one in plan.stages if _is_put(one)}
    readers = [
        (place, side)
        for place, stage in enumerate(plan.stages)
        for side, given in enumerate(stage.inputs)
        if given.producer in columns
    ]
    if not readers:
        return plan
    place, side = random.choice(readers)
    reader = plan.stages[place]
    given = reader.inputs[side]
    names = "\n".join(name for name, _ in columns[given.producer])
    number = sum(map(_is_put, plan.stages))
    put = StagePlan(
        uid=f"far{number}",
        op="transform",
        inputs=(InputPlan(producer=given.producer),),
        args={"columns": names},
    )
    inputs = list(reader.inputs)
    inputs[side] = replace(given, producer=put.uid)
    behind = replace(reader, inputs=tuple(inputs))
    return replace(plan, stages=(*plan.stages[:place], put, behind, *plan.stages[place + 1 :]))


def _is_put(stage: StagePlan) -> bool:
    return stage.uid.startswith("far")


def add_stage(drawing: Drawing) -> None:
    """Add one more stage, if the drawn parts fit together."""
    random = drawing.random
    uid = f"s{len(drawing.stages)}"
    source = random.random() < 0.3
    newest = [stream for stream in drawing.streams if stream.is_source == source]
    stream = random.choice(newest[-3:] or drawing.streams)
    operation = random.choice(OPERATIONS)
    drawn = operation(drawing, uid, stream)
    if drawn is None:
        return
    stage, result = drawn
    if len(result.columns) > 30:
        return
    stage, result = _narrowed(random, stage, result)
    stage = replace(stage, parallelism=random.choice((None, None, None, None, None, None, 1, 2, 3)))
    drawing.stages.append(stage)
    drawing.streams.append(result)


def _narrowed(random: Random, stage: StagePlan, stream: Stream) -> tuple[StagePlan, Stream]:
    """At times with a filter or a projection of the result."""
    chance = random.random()
    if chance < 0.12 and (text := result_condition(random, stream)):
        return replace(stage, where=(text,)), stream
    if chance < 0.22:
        needed = {*stream.updates, *stream.unique, stream.event_time}
        if random.random() < 0.3:
            needed = {stream.event_time}
        kept = [n for n in stream.columns if n in needed or random.random() < 0.6]
        if kept:
            columns = {name: stream.columns[name] for name in kept}
            result = replace(stream, columns=columns)
            if not set(stream.updates) <= set(kept):
                result = replace(result, updates=(), unique=(), is_retract=True)
            elif not set(stream.unique) <= set(kept):
                result = replace(result, unique=())
            return replace(stage, select=tuple(kept)), result
    return stage, stream


def read(drawing: Drawing, stream: Stream) -> tuple[InputPlan, Stream]:
    """An input that reads the stream, at times filtered, and projected if it is a source."""
    random = drawing.random
    given = InputPlan(producer=stream.uid)
    if not stream.is_source:
        if random.random() < 0.15 and (text := result_condition(random, stream)):
            given = replace(given, where=(text,))  # Others read the stream without it.
        return given, replace(stream, columns=dict(stream.columns))
    where: tuple[str, ...] = ()
    if random.random() < 0.35:
        where = tuple(c for c in (condition(random, stream),) if c)
    if random.random() < 0.3:
        kept = [n for n in stream.columns if n in ("id", "k", "ts") or random.random() < 0.6]
        select = [n if random.random() < 0.8 or n in ("id", "ts") else f"{n} AS {n}2" for n in kept]
        names = [text.rpartition(" AS ")[2] for text in select]
        columns = {new: stream.columns[old] for new, old in zip(names, kept, strict=True)}
        stream = replace(stream, columns=columns)
        given = replace(given, select=tuple(select))
    given = replace(given, where=where)
    return given, replace(stream, columns=dict(stream.columns), is_source=False)


def transform(drawing: Drawing, uid: str, stream: Stream) -> Drawn:
    random = drawing.random
    given, stream = read(drawing, stream)
    expressions, columns = [*stream.columns], dict(stream.columns)
    for name, kind in stream.columns.items():
        more = _expression(random, name, kind)
        if more and random.random() < 0.2 and f"{name}_t" not in columns:
            text, new_kind = more
            expressions.append(f"{text} AS {name}_t")
            columns[f"{name}_t"] = new_kind
    is_filter = random.random() < 0.3
    args = {"columns": "\n".join(expressions)}
    if is_filter and (where := condition(random, stream)):
        args["condition"] = where
    stage = StagePlan(uid=uid, op="transform", inputs=(given,), args=args)
    return stage, replace(stream, uid=uid, columns=columns)


def _expression(random: Random, name: str, kind: str) -> tuple[str, str] | None:
    match kind:
        case "int":
            return f"coalesce({name}, 7)", "int"
        case "long":
            return random.choice((f"{name} + 1", f"{name} * 2", f"-{name}")), "long"
        case "text":
            return f"{name} || 'x'", "text"
        case "double" if "fsum" not in name:
            return f"-{name}", "double"
        case "bool":
            return f"NOT {name}", "bool"
        case "struct":
            return f"{name}.b", "text"
        case _:
            return None


def union(drawing: Drawing, uid: str, stream: Stream) -> Drawn:
    alike = [
        one
        for one in drawing.streams
        if one.columns == stream.columns and one.event_time == stream.event_time
    ]
    if len(alike) < 2:
        return None
    chosen = drawing.random.sample(alike, drawing.random.choice((2, 2, min(3, len(alike)))))
    inputs = tuple(InputPlan(producer=one.uid) for one in chosen)
    result = replace(chosen[0], uid=uid, is_source=False, unique=())
    if not all(one.is_append for one in chosen):
        result = replace(result, updates=(), is_retract=True)
    return StagePlan(uid=uid, op="union", inputs=inputs), result


def lookup(drawing: Drawing, uid: str, stream: Stream) -> Drawn:
    random = drawing.random
    if not drawing.tables or stream.is_retract or (stream.updates and has_sums(stream)):
        return None
    given, stream = read(drawing, stream)
    pairs = [(n, "tk") for n in stream.of(["int"])] + [(n, "tg") for n in stream.of(["text"])]
    if not pairs or {"name", "n"} & set(stream.columns):
        return None
    column, of_table = random.choice(pairs)
    keep = random.choice(("matched", "unmatched", "all"))
    table = drawing.tables[0]
    name, n = column_sql(table, "name"), column_sql(table, "n")
    add: dict[str, str] = {}
    if keep == "all" or (keep == "matched" and random.random() < 0.6):
        add = random.choice(({"name": name}, {"n": n}, {"name": name, "n": f"{n} + 1"}))
    args: dict[str, Any] = {
        "table": table.uid, "on": {column: column_sql(table, of_table)}, "keep": keep
    }  # fmt: skip
    kinds = {"name": "text", "n": "long"}
    if add:
        args["add"] = add
    columns = {**stream.columns, **{name: kinds[name] for name in add}}
    result = replace(stream, uid=uid, columns=columns, unique=() if add else stream.unique)
    if add and stream.updates:
        result = replace(result, updates=(), is_retract=True)
    return StagePlan(uid=uid, op="lookup", inputs=(given,), args=args), result


def aggregate(drawing: Drawing, uid: str, stream: Stream) -> Drawn:
    random = drawing.random
    given, stream = read(drawing, stream)
    given, stream, key = keyed(random, given, stream)
    if not key:
        return None
    aggregates, columns = draw_aggregates(random, uid, stream)
    stage = StagePlan(uid=uid, op="aggregate", inputs=(given,), args={"aggregates": aggregates})
    columns = {**{name: stream.columns[name] for name in key}, **columns}
    return stage, Stream(uid=uid, columns=columns, updates=key)


def latest(drawing: Drawing, uid: str, stream: Stream) -> Drawn:
    random = drawing.random
    given, stream = read(drawing, stream)
    given, stream, key = keyed(random, given, stream)
    orders = [n for n in stream.of(ORDERED) if "fsum" not in n and n not in key]
    if not key or not orders or has_sums(stream):
        return None
    by = random.sample(orders, min(len(orders), random.choice((1, 1, 2))))
    stage = StagePlan(uid=uid, op="latest", inputs=(given,), args={"by": by})
    return stage, Stream(uid=uid, columns=stream.columns, updates=key)


def top_n(drawing: Drawing, uid: str, stream: Stream) -> Drawn:
    random = drawing.random
    if "rank" in stream.columns:
        return None
    given, stream = read(drawing, stream)
    given, stream, key = keyed(random, given, stream)
    orders = [n for n in stream.of(ORDERED) if "fsum" not in n and n not in key]
    if not key or not orders or has_sums(stream):
        return None
    args: dict[str, Any] = {"n": random.choice((1, 2, 3)), "by": random.choice(orders)}
    if len(orders) > 1 and random.random() < 0.4:
        args["ties_by"] = [random.choice([n for n in orders if n != args["by"]])]
    if stream.updates and random.random() < 0.5:
        args["unique"] = [*stream.updates]
    columns = {name: stream.columns[name] for name in key}
    columns |= {"rank": "int"}
    columns |= {n: k for n, k in stream.columns.items() if n not in key}
    stage = StagePlan(uid=uid, op="top_n", inputs=(given,), args=args)
    return stage, Stream(uid=uid, columns=columns, updates=(*key, "rank"))


def deduplicate(drawing: Drawing, uid: str, stream: Stream) -> Drawn:
    random = drawing.random
    if not stream.is_append:
        return None
    given, stream = read(drawing, stream)
    given, stream, key = keyed(random, given, stream)
    orders = [n for n in stream.of(ORDERED) if "fsum" not in n and n not in key]
    if not key or has_sums(stream):
        return None
    args = {"by": random.choice(orders)} if orders and random.random() < 0.5 else {}
    stage = StagePlan(uid=uid, op="deduplicate", inputs=(given,), args=args)
    return stage, replace(stream, uid=uid, unique=key, declared=True)


def process(drawing: Drawing, uid: str, stream: Stream) -> Drawn:
    if not stream.is_append:
        return None
    given, stream = read(drawing, stream)
    names = [n for n in stream.of(("int", "text", "long")) if n not in ("id", "rows", "total")]
    if not names or has_sums(stream):
        return None
    key = drawing.random.choice(names)
    kind = stream.columns[key]
    given = replace(given, keys=(key,))
    args = {"key": key, "type": kind}
    if drawing.random.random() < 0.5:
        columns = {key: kind, "rows": "long", "total": "long"}
        stage = StagePlan(uid=uid, op="process", inputs=(given,), args=args)
        return stage, Stream(uid=uid, columns=columns, unique=(key, "total"))
    if key in ("number", "fired_at"):
        return None
    columns = {key: kind, "number": "long", "fired_at": "time"}
    stage = StagePlan(uid=uid, op="process_keyed", inputs=(given,), args=args)
    return stage, Stream(uid=uid, columns=columns)


def window(drawing: Drawing, uid: str, stream: Stream) -> Drawn:
    random = drawing.random
    if not stream.is_append:
        return None
    given, stream = read(drawing, stream)
    found = draw_window(random, stream)
    given, stream, key = keyed(random, given, stream)
    if found is None or not key:
        return None
    if found != ["attached"] and random.random() < 0.3:
        found = ["session", random.choice((500, 2_000, 7_000))]
    lateness = random.choice((0, 0, 0, 2_000, 20_000))
    aggregates, columns = draw_aggregates(random, uid, stream)
    args = {"window": found, "lateness": lateness, "aggregates": aggregates}
    stage = StagePlan(uid=uid, op="window", inputs=(given,), args=args)
    result = {name: stream.columns[name] for name in key}
    result |= dict.fromkeys(BOUNDS, "bound") | columns
    unique = (*key, "window_start")
    if found == ["attached"]:
        unique = (*key, *BOUNDS)  # Windows of other stages' making: several may begin together.
    updates = unique if lateness else ()
    declared = not lateness
    return stage, Stream(uid=uid, columns=result, updates=updates, unique=unique, declared=declared)


def window_top_n(drawing: Drawing, uid: str, stream: Stream) -> Drawn:
    random = drawing.random
    if not stream.is_append:
        return None
    given, stream = read(drawing, stream)
    found = draw_window(random, stream)
    if found is None or "rank" in stream.columns or has_sums(stream):
        return None
    key = keys(random, stream) if random.random() < 0.7 else ()
    orders = [n for n in stream.of(ORDERED) if n not in key]
    if not orders:
        return None
    args = {
        "window": found,
        "n": random.choice((1, 2, 3)),
        "by": random.choice(orders),
        "ties": random.random() < 0.3,
    }
    columns = {**stream.columns, **dict.fromkeys(BOUNDS, "bound"), "rank": "int"}
    stage = StagePlan(uid=uid, op="window_top_n", inputs=(replace(given, keys=key),), args=args)
    return stage, Stream(uid=uid, columns=columns)


def join(drawing: Drawing, uid: str, stream: Stream) -> Drawn:
    how = drawing.random.choice(("inner", "semi", "left", "right", "full", "anti"))
    return _two_inputs(drawing, uid, stream, "join", {"how": how})


def interval_join(drawing: Drawing, uid: str, stream: Stream) -> Drawn:
    random = drawing.random
    lower = random.choice((-10_000, -1_000, 0, 0, 500))
    upper: Any = lower + random.choice((0, 1_000, 5_000, 30_000))
    if "u" in stream.columns and random.random() < 0.3:
        upper = "u"
    args = {"lower": lower, "upper": upper, "how": random.choice(("inner", "left"))}
    drawn = _two_inputs(drawing, uid, stream, "interval_join", args)
    if drawn is not None and upper == "u":
        select = drawn[0].inputs[0].select
        return None if select and "u" not in select else drawn
    return drawn


def window_join(drawing: Drawing, uid: str, stream: Stream) -> Drawn:
    random = drawing.random
    slide = random.choice((1_000, 5_000, 10_000))
    found = random.choice([["tumbling", slide], ["hopping", slide * random.choice((2, 3)), slide]])
    args = {"window": found, "how": random.choice(("inner", "left", "semi", "anti"))}
    return _two_inputs(drawing, uid, stream, "window_join", args)


OPERATIONS: list[Callable[[Any, str, Stream], Drawn]] = [
    transform, transform, union, lookup, aggregate, aggregate, aggregate, latest, top_n,
    deduplicate, process, window, window, window,
    window_top_n, join, join,
    interval_join, window_join,
]  # fmt: skip


def draw_window(random: Random, stream: Stream) -> list[Any] | None:
    """None if there is none that the stream could be cut into."""
    if stream.event_time is None or stream.event_time not in stream.columns:
        has_bounds = all(stream.columns.get(name) == "bound" for name in BOUNDS)
        return ["attached"] if has_bounds else None
    if any(name in stream.columns for name in BOUNDS):
        return None
    slide = random.choice((1_000, 2_000, 5_000, 10_000))
    return random.choice(
        [["tumbling", slide], ["hopping", slide * random.choice((2, 3, 10)), slide]]
    )


def _two_inputs(drawing: Drawing, uid: str, stream: Stream, op: str, args: dict[str, Any]) -> Drawn:
    sides = _sides(drawing, stream, op)
    if sides is None:
        return None
    left, left_stream, right, right_stream = sides
    if "window" in args or op == "interval_join":
        for one in (left_stream, right_stream):
            if one.event_time is None or one.event_time not in one.columns:
                return None
            if op == "window_join" and any(name in one.columns for name in BOUNDS):
                return None
    found = _joined(drawing, left_stream, right_stream, (left, right), args["how"])
    if found is None:
        return None
    right, columns = found
    if op == "window_join":
        if any(name in columns for name in BOUNDS):
            return None
        columns |= dict.fromkeys(BOUNDS, "bound")
    stage = StagePlan(uid=uid, op=op, inputs=(left, right), args=args)
    is_append = left_stream.is_append and right_stream.is_append
    is_outer = op == "join" and args["how"] not in ("inner", "semi")
    return stage, Stream(uid=uid, columns=columns, is_retract=is_outer or not is_append)


def _sides(drawing: Drawing, stream: Stream, op: str) -> Any:
    """Two inputs whose other columns have names of their own, keyed by columns of one type."""
    random = drawing.random
    takes_all = op == "join"
    others = [one for one in drawing.streams if one.is_append or takes_all]
    if not (stream.is_append or takes_all) or not others:
        return None
    other = random.choice(others)
    left, left_stream = read(drawing, stream)
    right, right_stream = read(drawing, other)
    pairs = [
        (a, b)
        for a, kind in left_stream.columns.items()
        for b, of in right_stream.columns.items()
        if kind == of and kind in KEYABLE and a != "id" != b
    ]
    if not pairs:
        return None
    a, b = random.choice(pairs)
    return replace(left, keys=(a,)), left_stream, replace(right, keys=(b,)), right_stream


def _joined(
    drawing: Drawing, left: Stream, right: Stream, keys_of: tuple[InputPlan, InputPlan], how: str
) -> tuple[InputPlan, dict[str, str]] | None:
    """The right input with new names where both have one, and the columns of the result."""
    a, b = (given.keys[0] for given in keys_of)
    given = keys_of[1]
    if how in ("semi", "anti"):
        return given, dict(left.columns)
    columns = dict(left.columns)
    select, is_renamed = [], False
    source = next((s for s in drawing.sources if s.uid == given.producer), None)
    for name, kind in right.columns.items():
        new = name
        is_same_key = name == b and a == b
        if name == right.event_time and name == left.event_time and name != b:
            new = f"right_{name}"  # As the product calls it.
        elif name in left.columns and not is_same_key:
            new, is_renamed = f"r_{name}", True
        if new in columns and not is_same_key:
            return None
        if is_renamed and name == right.event_time and new not in (name, f"right_{name}"):
            return None
        is_plain = new == name or new == f"right_{name}"
        select.append((name, name if is_plain else new))
        if not is_same_key:
            columns[new] = kind
    if is_renamed:
        if source is None or given.select:
            return None
        given = replace(
            given,
            select=tuple(old if old == new else f"{old} AS {new}" for old, new in select),
            keys=(dict(select)[b],),
        )
    return given, columns


def draw_aggregates(
    random: Random, uid: str, stream: Stream
) -> tuple[dict[str, Any], dict[str, str]]:
    """Name -> (kind, column, condition, by), and the columns of the result."""
    aggregates: dict[str, Any] = {}
    columns: dict[str, str] = {}
    for number in range(random.choice((1, 2, 2, 3, 4))):
        kind, column, by = _one(random, stream)
        of = stream.columns.get(column or "", "")
        name, result = _named(f"{uid}_a{number}", kind, of)
        if column is not None and "fsum" in column and kind != "count":
            name = f"fsum_{name}"
        where = condition(random, stream) if random.random() < 0.25 else None
        if where is not None and "xk" in where:
            where = None
        aggregates[name] = [kind, column, where, by]
        columns[name] = result
    return aggregates, columns


def _one(random: Random, stream: Stream) -> tuple[str, str | None, str | None]:
    kinds: tuple[str, ...] = (
        "count", "sum", "avg", "min", "max", "first", "last", "count_distinct", "collect", "stddev",
        "variance", "percentile", "string_agg",
    )  # fmt: skip
    kind = random.choice(kinds)
    if kind in ("sum", "avg"):
        exact = ["int", "long", "decimal"]
        numbers = [n for n in stream.of(exact) if n != "id"]
        numbers += [n for n in stream.columns if n == "y"]
        return (kind, random.choice(numbers), None) if numbers else ("count", None, None)
    if kind in ("stddev", "variance", "percentile"):
        numbers = [n for n in stream.columns if n in ("y", "v", "k")]
        return (kind, random.choice(numbers), None) if numbers else ("count", None, None)
    if kind == "string_agg":
        texts = stream.of(["text"])
        return (kind, random.choice(texts), None) if texts else ("count", None, None)
    ordered = [n for n in stream.of(ORDERED) if "fsum" not in n]
    if kind == "count":
        return kind, random.choice([None, *stream.columns]), None
    if not ordered:
        return "count", None, None
    column, by = random.choice(ordered), None
    if kind in ("first", "last") and (
        stream.event_time not in stream.columns or random.random() < 0.5
    ):
        by = random.choice(ordered)
    return kind, column, by


def _named(name: str, kind: str, of: str) -> tuple[str, str]:
    match kind:
        case "count" | "count_distinct":
            return name, "long"
        case "sum" if of == "double":
            return f"fsum_{name}", "double"
        case "sum":
            return name, {"int": "long", "long": "long"}.get(of, "wide")
        case "avg" | "stddev" | "variance" | "percentile":
            return f"fsum_{name}", "double"
        case "collect":
            return name, "values"
        case "string_agg":
            return name, "text"
        case _:
            return name, of


def simple_condition(random: Random, stream: Stream) -> str | None:
    """A condition of comparisons."""
    parts = []
    for name in random.sample([*stream.columns], min(len(stream.columns), 4)):
        kind = stream.columns[name]
        if kind in ("int", "long"):
            operator = random.choice((">=", "<", "=", "!=", ">", "<="))
            parts.append(f"{name} {operator} {random.randrange(-2, 4)}")
        elif kind == "text" and "fsum" not in name:
            parts.append(f"{name} {random.choice(('=', '!=', '>'))} '{random.choice('abä')}'")
        elif random.random() < 0.3:
            parts.append(f"{name} IS {random.choice(('', 'NOT '))}NULL")
    if not parts:
        return None
    return " AND ".join(parts[: random.choice((1, 1, 2))])


def rich_condition(random: Random, stream: Stream) -> str | None:
    """A condition of other functions, which means the same in DuckDB."""
    choices = []
    for name, kind in stream.columns.items():
        if kind in ("int", "long"):
            choices += [f"{name} % 2 = 0", f"coalesce({name}, 1) > 0", f"{name} BETWEEN 0 AND 3"]
        elif kind == "double" and "fsum" not in name:
            choices += [f"{name} > 1.0", f"{name} <= 0.0", f"NOT ({name} = 1.5)"]
        elif kind == "text":
            choices += [f"{name} IN ('a', 'b', '')", f"{name} LIKE 'a%'", f"length({name}) > 1"]
        elif kind == "bool":
            choices += [name, f"NOT {name}"]
        elif kind == "struct":
            choices += [f"{name}.a = 1"]
    return random.choice(choices) if choices else None


def condition(random: Random, stream: Stream) -> str | None:
    draw = simple_condition if random.random() < 0.5 else rich_condition
    return draw(random, stream)


def result_condition(random: Random, stream: Stream) -> str | None:
    """Over a stage's result: what Polars reads."""
    choices = []
    for name, kind in stream.columns.items():
        if kind in ("int", "long"):
            choices += [f"{name} >= {random.randrange(0, 3)}", f"{name} IS NOT NULL"]
        elif kind == "text":
            choices += [f"{name} = 'a'", f"{name} <> 'b'"]
        elif kind == "bool":
            choices += [name]
    return random.choice(choices) if choices else None


def keys(random: Random, stream: Stream, kinds: Iterable[str] = KEYABLE) -> tuple[str, ...]:
    found = [n for n in stream.of(kinds) if n != "id" and "fsum" not in n]
    if not found:
        return ()
    return tuple(random.sample(found, min(len(found), random.choice((1, 1, 1, 2)))))


def keyed(
    random: Random, given: InputPlan, stream: Stream
) -> tuple[InputPlan, Stream, tuple[str, ...]]:
    """Keyed by some columns, at times by one that is computed, or of a type that few key by."""
    more = ("double", "decimal") if random.random() < 0.1 else ()
    key = keys(random, stream, (*KEYABLE, *more))
    if random.random() < 0.12 and "xk" not in stream.columns:
        numbers = [n for n in stream.of(["int", "long"]) if "fsum" not in n]
        if numbers:
            expression = f"coalesce({random.choice(numbers)}, 0) % 3"
            stream = replace(stream, columns={**stream.columns, "xk": "key"})
            key = (*key[:1], "xk")
            return replace(given, keys=key, key_expressions=(("xk", expression),)), stream, key
    return replace(given, keys=key), stream, key


def has_sums(stream: Stream) -> bool:
    """Sums of floats may differ in the last bits, and so decide nothing."""
    return any("fsum" in name for name in stream.columns)
