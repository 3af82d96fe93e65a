"""Declarations that must be refused: a random plan with one mistake, which the message has to name.

A mistake that shows in the declaration alone is refused where it is declared; one of types and
columns when the stage is analysed, before a row of it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tests.fuzz.drawing import KEYABLE, Drawing, Stream, drawn
from tests.fuzz.plans import (
    Checkpoint,
    Feed,
    InputPlan,
    Plan,
    SinkPlan,
    SourcePlan,
    StagePlan,
    only_used,
)
from tests.fuzz.play import Failure, play
from tests.fuzz.queries import DRAW

BAD = "bad"
COUNT = {"n": ["count", None, None, None]}


@dataclass(frozen=True, slots=True)
class Mistake:
    """``named``: what the message has to name.  ``when_analysed``: Spark's analyzer says it first,
    and ``sluice check``; a stage that runs all the same fails by name.
    """

    stages: tuple[StagePlan, ...] = ()
    sinks: tuple[SinkPlan, ...] = ()
    named: str = BAD
    when_analysed: bool = False
    keeps_sources: bool = False


def refused(seed: int) -> str | None:
    """None if the mistake is refused by name, or cannot be made of what was drawn."""
    drawing = drawn(seed)
    name = drawing.random.choice([*MISTAKES])
    mistake = MISTAKES[name](drawing, drawing.random)
    if mistake is None:
        return None
    plan = _plan(seed, drawing, mistake)
    failure = play(plan)
    if is_refusal(failure, mistake):
        return None
    message = "nothing" if failure is None else failure.message
    return f"seed {seed}: {name} was not refused by {mistake.named!r}, but: {message}"


def is_refusal(failure: Failure | None, mistake: Mistake) -> bool:
    kinds = ("refused", "StageFailed") if mistake.when_analysed else ("refused",)
    return (
        failure is not None
        and failure.kind.split()[0] in kinds
        and mistake.named in failure.message
    )


def _plan(seed: int, drawing: Drawing, mistake: Mistake) -> Plan:
    """Rows for every source, so that stages have something to analyse."""
    feeds = tuple(
        Feed(source=source.uid, batch=batch, rows=tuple(range(5)))
        for batch, source in enumerate(drawing.sources, start=1)
    )
    stages = (*drawing.stages, *mistake.stages)
    sinks = mistake.sinks or (SinkPlan(uid="bad_out", producer=BAD, changelog=True),)
    plan = Plan(
        seed=seed,
        sources=tuple(drawing.sources),
        stages=stages,
        sinks=sinks,
        acts=(*feeds, Checkpoint()),
    )
    return plan if mistake.keeps_sources else only_used(plan)


def _bad(op: str, *producers: str, keys: tuple[str, ...] = (), **args: Any) -> StagePlan:
    inputs = tuple(InputPlan(producer=one, keys=keys) for one in producers)
    return StagePlan(uid=BAD, op=op, inputs=inputs, args=args)


def _updating(drawing: Drawing, random: Random) -> Stream | None:
    found = [s for s in drawing.streams if not s.is_append and _keys(s)]
    return random.choice(found) if found else None


def _keys(stream: Stream) -> list[str]:
    return [name for name in stream.of(KEYABLE) if "fsum" not in name]


def _source(drawing: Drawing) -> Stream:
    return drawing.streams[0]


def append_of_updates(drawing: Drawing, random: Random) -> Mistake | None:
    stream = _updating(drawing, random)
    if stream is None:
        return None
    return Mistake(sinks=(SinkPlan(uid=BAD, producer=stream.uid),))


def upsert_by_less(drawing: Drawing, random: Random) -> Mistake | None:
    stream = _updating(drawing, random)
    if stream is None:
        return None
    others = [name for name in stream.columns if name not in stream.updates[:1]]
    if not others:
        return None
    key = (random.choice(others),) if not stream.is_retract else (random.choice([*stream.columns]),)
    return Mistake(sinks=(SinkPlan(uid=BAD, producer=stream.uid, upsert_key=key),))


def upsert_of_appended_rows(drawing: Drawing, random: Random) -> Mistake | None:
    """Nothing tells which of a key's rows is the newest, unless a declaration shows it is alone."""
    appended = [one for one in drawing.streams if one.is_append and not one.is_source]
    streams = [one for one in appended if not one.declared]
    if not streams:
        return None
    stream = random.choice(streams)
    key = (random.choice([*stream.columns]),)
    return Mistake(sinks=(SinkPlan(uid=BAD, producer=stream.uid, upsert_key=key),))


def append_only_of_updates(drawing: Drawing, random: Random) -> Mistake | None:
    stream = _updating(drawing, random)
    if stream is None:
        return None
    key = (_keys(stream)[0],)
    attached = {"window": ["attached"]}
    given = stream.uid
    return Mistake(
        stages=(
            random.choice(
                [
                    _bad("deduplicate", given, keys=key),
                    _bad("window", given, keys=key, lateness=0, aggregates=COUNT, **attached),
                    _bad("window_top_n", given, keys=key, n=1, by=key[0], **attached),
                    _bad("process", given, keys=key, key=key[0], type="long"),
                ]
            ),
        )
    )


def lookup_of_a_bag(drawing: Drawing, random: Random) -> Mistake | None:
    stream = _updating(drawing, random)
    if stream is None or not drawing.tables or not stream.is_retract:
        return None
    on = {_keys(stream)[0]: "line"}
    return Mistake(stages=(_bad("lookup", stream.uid, table="dim", on=on, keep="matched"),))


def no_such_key(drawing: Drawing, random: Random) -> Mistake:
    stream = random.choice(drawing.streams)
    stage = _bad("aggregate", stream.uid, keys=("nowhere",), aggregates=COUNT)
    return Mistake(stages=(stage,), when_analysed=True)


def no_such_column(drawing: Drawing, random: Random) -> Mistake:
    what = {"n": [random.choice(("sum", "min", "count")), "nowhere", None, None]}
    return Mistake(stages=(_bad("aggregate", "in0", keys=("k",), aggregates=what),))


def sum_of_texts(drawing: Drawing, random: Random) -> Mistake:
    what = {"n": [random.choice(("sum", "avg", "stddev")), "g", None, None]}
    return Mistake(stages=(_bad("aggregate", "in0", keys=("k",), aggregates=what),))


def no_aggregate(drawing: Drawing, random: Random) -> Mistake:
    return Mistake(stages=(_bad("aggregate", "in0", keys=("k",), aggregates={}),))


def window_without_time(drawing: Drawing, random: Random) -> Mistake | None:
    found = [s for s in drawing.streams if s.event_time is None and s.is_append and _keys(s)]
    if not found:
        return None
    stream = random.choice(found)
    keys, window = (_keys(stream)[0],), random.choice((["tumbling", 1_000], ["session", 500]))
    stage = _bad("window", stream.uid, keys=keys, window=window, lateness=0, aggregates=COUNT)
    return Mistake(stages=(stage,))


def hop_of_no_multiple(drawing: Drawing, random: Random) -> Mistake:
    window = ["hopping", 5_000, 2_000]
    stage = _bad("window", "in0", keys=("k",), window=window, lateness=0, aggregates=COUNT)
    return Mistake(stages=(stage,), named="hopping")


def none_of_the_best(drawing: Drawing, random: Random) -> Mistake:
    return Mistake(stages=(_bad("top_n", "in0", keys=("k",), n=0, by="id"),))


def uid_twice(drawing: Drawing, random: Random) -> Mistake:
    twin = _bad("deduplicate", "in0", keys=("k",))
    uid = drawing.stages[0].uid
    return Mistake(stages=(replace(twin, uid=uid),), named=uid)


def uid_unusable(drawing: Drawing, random: Random) -> Mistake:
    uid = random.choice(("", "Bad", "1st", "a-b", "x" * 64))
    stage = replace(_bad("deduplicate", "in0", keys=("k",)), uid=uid)
    return Mistake(stages=(stage,), named=repr(uid))


def keyed_by_nothing(drawing: Drawing, random: Random) -> Mistake:
    left, right = (InputPlan(producer="in0", keys=k) for k in (("k",), ("k", "g")))
    stage = StagePlan(uid=BAD, op="join", inputs=(left, right), args={"how": "inner"})
    return Mistake(stages=(stage,))


def keyed_by_other_types(drawing: Drawing, random: Random) -> Mistake:
    left = InputPlan(producer="in0", select=("k",), keys=("k",))
    right = InputPlan(producer="in0", select=("g AS other",), keys=("other",))
    stage = StagePlan(uid=BAD, op="join", inputs=(left, right), args={"how": "inner"})
    return Mistake(stages=(stage,), named="joins 'k' of 'in0'")


def united_of_other_types(drawing: Drawing, random: Random) -> Mistake:
    left, right = (InputPlan(producer="in0", select=("id", one)) for one in ("k AS x", "g AS x"))
    stage = StagePlan(uid=BAD, op="union", inputs=(left, right))
    return Mistake(stages=(stage,), named="unites column 'x'")


def same_columns_twice(drawing: Drawing, random: Random) -> Mistake:
    return Mistake(stages=(_bad("join", "in0", "in0", keys=("k",), how="inner"),))


def table_as_a_stream(drawing: Drawing, random: Random) -> Mistake | None:
    if not drawing.tables:
        return None
    return Mistake(stages=(_bad("deduplicate", "dim", keys=("line",)),))


def stream_as_a_table(drawing: Drawing, random: Random) -> Mistake:
    stage = _bad("lookup", "in0", table="in0", on={"k": "k"}, keep="matched")
    return Mistake(stages=(stage,))


def interval_backwards(drawing: Drawing, random: Random) -> Mistake | None:
    if _source(drawing).event_time is None:
        return None
    stage = _bad("interval_join", "in0", "in0", keys=("k",), lower=1_000, upper=0, how="inner")
    return Mistake(stages=(stage,))


def many_rows_in_a_row(drawing: Drawing, random: Random) -> Mistake:
    what = random.choice(("max(id)", "sum(id)", "count(*)", "row_number() OVER (ORDER BY id)"))
    stage = _bad("deduplicate", "in0", keys=("k",))
    given = replace(stage.inputs[0], where=(f"{what} > 0",))
    return Mistake(stages=(replace(stage, inputs=(given,)),), named="in0")


def drawn_key(drawing: Drawing, random: Random) -> Mistake:
    stage = _bad("deduplicate", "in0", keys=("drawn",))
    given = replace(stage.inputs[0], key_expressions=(("drawn", DRAW),))
    return Mistake(stages=(replace(stage, inputs=(given,)),), named="computes the key 'drawn'")


def drawn_over_updates(drawing: Drawing, random: Random) -> Mistake | None:
    stream = _updating(drawing, random)
    if stream is None:
        return None
    stage = _bad("latest", stream.uid, keys=(_keys(stream)[0],), by=[[*stream.columns][-1]])
    given = replace(stage.inputs[0], where=(f"{DRAW} > 0.5",))
    named = "answers otherwise when a row is taken back"
    return Mistake(stages=(replace(stage, inputs=(given,)),), named=named)


def drawn_for_two(drawing: Drawing, random: Random) -> Mistake:
    stage = _bad("deduplicate", "in0", keys=("k",))
    given = replace(stage.inputs[0], where=(f"{DRAW} > 0.5",))
    one = replace(stage, inputs=(given,))
    other = replace(one, uid=f"{BAD}_too")
    return Mistake(stages=(one, other), named="answers otherwise for each reader")


def drawn_table(drawing: Drawing, random: Random) -> Mistake | None:
    if not drawing.tables:
        return None
    stage = _bad("lookup", "in0", table="dim", on={"k": DRAW}, keep="matched")
    return Mistake(stages=(stage,), named="answers otherwise each time")


def drawn_time(drawing: Drawing, random: Random) -> Mistake | None:
    if _source(drawing).event_time is None:
        return None
    stage = _bad(
        "window", "in0", keys=("k",), window=["session", 500], lateness=0, aggregates=COUNT
    )
    given = replace(stage.inputs[0], select=("k", f"timestamp_seconds({DRAW}) AS ts"))
    return Mistake(stages=(replace(stage, inputs=(given,)),), named="the event time 'ts'")


def sink_of_a_source(drawing: Drawing, random: Random) -> Mistake:
    uid = next(
        one.uid for one in drawing.sources if one.uid == drawing.stages[0].inputs[0].producer
    )
    return Mistake(sinks=(SinkPlan(uid=BAD, producer=uid),))


def source_for_nobody(drawing: Drawing, random: Random) -> Mistake:
    drawing.sources.append(SourcePlan(uid=BAD, columns=(("id", "long"),), event_time=None))
    sink = SinkPlan(uid="bad_out", producer=drawing.stages[0].uid, changelog=True)
    return Mistake(sinks=(sink,), named="is read by no stage", keeps_sources=True)


def too_parallel(drawing: Drawing, random: Random) -> Mistake:
    stage = replace(_bad("deduplicate", "in0", keys=("k",)), parallelism=9)
    return Mistake(stages=(stage,))


MISTAKES: dict[str, Callable[[Drawing, Random], Mistake | None]] = {
    function.__name__: function
    for function in (
        append_of_updates, upsert_by_less, upsert_of_appended_rows, append_only_of_updates,
        lookup_of_a_bag, no_such_key,
        no_such_column, sum_of_texts, no_aggregate, window_without_time, hop_of_no_multiple,
        none_of_the_best, uid_twice, uid_unusable, keyed_by_nothing, same_columns_twice,
        keyed_by_other_types, united_of_other_types,
        table_as_a_stream, stream_as_a_table, interval_backwards, many_rows_in_a_row,
        sink_of_a_source, source_for_nobody, too_parallel,
        drawn_key, drawn_over_updates, drawn_for_two, drawn_table, drawn_time,
    )
}  # fmt: skip
