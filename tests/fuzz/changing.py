"""Changes of a declaration between epochs: one part of a plan, or only how it is written.

Each of ``PARTS`` draws a change of a stage or a sink, or None; what it changes is named as the
table of transitions names it.  Types stay as they are, and columns that others read stay there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

from tests.fuzz.plans import (
    Act,
    Change,
    Checkpoint,
    Feed,
    InputPlan,
    Plan,
    Restore,
    SinkPlan,
    StagePlan,
    changed,
)

DRAWS = "drawn"  # The uid of a stage whose function draws a number for each row.
STATELESS = ("transform", "union")
ALWAYS = ("input", "out of orderness", "rows", "spelling", "parallelism", "place")
# Few plans have a stage with one of these, so what is drawn first is one of them at times.
RARE = ("operator", "unique", "partners", "ties", "n", "by", "mean", "how", "table", "event time")
FOREVER = 10**9  # A TTL, in milliseconds, that no play reaches.
ORDERED = ("int", "long", "huge", "text", "bool", "date", "decimal", "time")
CHANGED_PLANS = 0.3  # A share of those whose checkpoints are aligned: in flight is another subject.
KINDS = {
    "min": "max", "max": "min", "first": "last", "last": "first", "stddev": "variance",
    "variance": "stddev", "count": "count_distinct", "count_distinct": "count",
}  # fmt: skip


def changing(random: Random, plan: Plan, wanted: str = "") -> Plan:
    """The plan, of some seeds with a change of its declaration behind its checkpoints; of the
    *wanted* part, if there is one.
    """
    is_chosen = random.random() < CHANGED_PLANS or bool(wanted)
    if plan.unaligned or not is_chosen or _forgets_in_a_changelog(plan):
        return plan
    acts = [act for act in plan.acts if not (isinstance(act, Checkpoint) and act.drains)]
    drains = acts != [*plan.acts]
    after = plan
    if random.random() < 0.1 and not wanted and (sinks := _may_be_absent(plan)):
        sink = random.choice(sinks).uid
        gone = Change(uid=sink, edits=((sink, "is_absent", True),))
        back = replace(gone, part="rows", difference="absent", edits=((sink, "is_absent", False),))
        back = replace(back, consents=random.choice(("keep", "keep", "begin", "")))
        acts += [gone, *_later(random, plan, acts)]
        acts += [back, *_later(random, plan, acts)]
        return replace(plan, acts=tuple(acts))
    if Random(f"{plan.seed} older").random() < 0.2:
        acts.append(Restore(back=1))
    for _ in range(random.choice((1, 1, 1, 2))):
        change = _drawn(random, after, wanted if after is plan else "")
        if change is None or (change.part == "columns" and after is not plan):
            return plan
        after = changed(after, change.edits)
        acts += [change, *_later(random, plan, acts)]
        if change.part == "columns":
            break
    drained = [Checkpoint(drains=True)] if drains or random.random() < 0.4 else []
    apart = Random(f"{plan.seed} from before")
    *_, last = (act for act in acts if isinstance(act, Change))
    if apart.random() < 0.3:
        undone = Change(uid=last.uid, from_before=True)
        again = replace(last, from_before=True)
        acts += [undone if apart.random() < 0.6 else again, *_later(apart, plan, acts)]
    return replace(plan, acts=(*acts, *drained))


def forgets(stage: StagePlan) -> bool:
    """Whether its state expires while a plan is played."""
    return 0 < (stage.args.get("ttl") or 0) < FOREVER


def _forgets_in_a_changelog(plan: Plan) -> bool:
    """What TTLs forget stays in a changelog, as if it had been another row."""
    forgetful = {stage.uid for stage in plan.stages if forgets(stage)}
    return any(sink.changelog and sink.producer in forgetful for sink in plan.sinks)


def _may_be_absent(plan: Plan) -> list[SinkPlan]:
    """Sinks of rows that are only added, of streams that something else reads, too; not the table
    that knows what was drawn.
    """
    others = [given.producer for stage in plan.stages for given in stage.inputs]
    others += [sink.producer for sink in plan.sinks]
    sinks = [sink for sink in plan.sinks if not (sink.upsert_key or sink.changelog)]
    sinks = [sink for sink in sinks if sink.producer != DRAWS]
    return [sink for sink in sinks if others.count(sink.producer) > 1]


def _later(random: Random, plan: Plan, acts: list[Act]) -> Iterator[Act]:
    """Rows for every source, and a checkpoint or two."""
    from tests.fuzz.world import POINTS

    batch = max((act.batch for act in acts if isinstance(act, Feed)), default=0)
    if random.random() < 0.15:
        yield Restore()
    for _ in range(random.choice((1, 1, 2))):
        for source in plan.sources:
            batch += 1
            count = random.choice((0, 1, 3, 8, 20))
            partition = random.randrange(2) if source.grows else 0
            rows = tuple(range(count))
            yield Feed(source=source.uid, batch=batch, rows=rows, partition=partition)
        dies = random.random() < 0.15
        yield Checkpoint(
            fate=random.choice(POINTS) if dies else "", at=random.randrange(6) if dies else 0
        )


def _drawn(random: Random, plan: Plan, wanted: str) -> Change | None:
    stages = [stage for stage in plan.stages if stage.op not in STATELESS] or [*plan.stages]
    names = random.sample([*PARTS], len(PARTS))
    if random.random() < 0.7:  # These can nearly always be drawn.
        names.sort(key=lambda name: name in ALWAYS)
    if Random(f"{plan.seed} rare").random() < 0.4:
        names.sort(key=lambda name: name not in RARE)
    names.sort(key=lambda name: name != wanted)
    for name in names:
        for stage in random.sample(stages, len(stages)):
            change = PARTS[name](random, plan, stage)
            if change is not None:
                consents = random.choice(("keep", "keep", "begin", "begin", ""))
                if change.part == "event time":
                    consents = ""
                if change.part == "place" and consents == "begin":
                    consents = "keep"
                return replace(change, consents=consents)
    return None


Draw = Callable[[Random, Plan, StagePlan], Change | None]


def _of(
    stage: StagePlan, part: str, *edits: tuple[str, Any], difference: str = "changed"
) -> Change:
    return Change(
        uid=stage.uid,
        part=part,
        difference=difference,
        edits=tuple((stage.uid, path, value) for path, value in edits),
    )


def _argument(part: str, name: str, others: Callable[[Random, Any], Any]) -> Draw:
    """A change of an argument that the stage has."""

    def draw(random: Random, plan: Plan, stage: StagePlan) -> Change | None:
        if name not in stage.args:
            return None
        value = others(random, stage.args[name])
        if value is None or value == stage.args[name]:
            return None
        return _of(stage, part, (f"args/{name}", value))

    return draw


def _n(random: Random, plan: Plan, stage: StagePlan) -> Change | None:
    given, value = stage.args.get("n"), random.choice((1, 2, 3))
    if given is None or value == given or forgets(stage):
        return None
    size = "smaller" if value < given else "larger"
    difference = size if stage.op == "top_n" else "changed"
    return _of(stage, "n", ("args/n", value), difference=difference)


def _window(random: Random, given: Any) -> Any:
    kind, *lengths = given
    if kind == "attached":
        return None
    if kind == "session":
        return ["session", lengths[0] * random.choice((2, 3))]
    return [kind, lengths[0] * 2, *lengths[1:]]


def _how(random: Random, plan: Plan, stage: StagePlan) -> Change | None:
    """The kind of a join, where all that read it take changes of any kind."""
    given, alike = stage.args.get("how"), ("inner", "left", "right", "full")
    if forgets(stage):
        return None
    if stage.op == "window_join" and given in ("inner", "left"):
        return _of(stage, "how", ("args/how", "left" if given == "inner" else "inner"))
    sinks = [sink for sink in plan.sinks if sink.producer == stage.uid]
    is_read = any(given.producer == stage.uid for one in plan.stages for given in one.inputs)
    if stage.op != "join" or is_read or not all(s.changelog for s in sinks):
        return None
    if given not in alike:
        return _of(stage, "how", ("args/how", "anti" if given == "semi" else "semi"))
    value = random.choice([how for how in alike if how != given])
    difference = "inner" if "inner" in (value, given) else "outer"
    return _of(stage, "how", ("args/how", value), difference=difference)


def _bounds(random: Random, plan: Plan, stage: StagePlan) -> Change | None:
    if stage.op != "interval_join" or isinstance(stage.args["upper"], str):
        return None
    upper = stage.args["upper"] + random.choice((1_000, 10_000))
    return _of(stage, "bounds", ("args/upper", upper))


def _ttl(random: Random, plan: Plan, stage: StagePlan) -> Change | None:
    if stage.args.get("ttl") == FOREVER:
        return _of(stage, "ttl", ("args/ttl", 2 * FOREVER))
    if not forgets(stage) or stage.op == "deduplicate":
        return None
    value = random.choice((None, 4_000, 12_000, 40_000))
    if value == stage.args["ttl"]:
        return None
    difference = "removed" if value is None else "changed"
    return _of(stage, "ttl", ("args/ttl", value), difference=difference)


def _partners(random: Random, plan: Plan, stage: StagePlan) -> Change | None:
    """A TTL, which none of its rows lives to see, of a join that goes by partners."""
    goes_by_them = stage.args.get("how") in ("left", "right", "full", "anti")
    if stage.op != "join" or not goes_by_them or forgets(stage):
        return None
    is_added = "ttl" not in stage.args
    difference = "added" if is_added else "removed"
    edit = ("args/ttl", FOREVER if is_added else None)
    return _of(stage, "partners", edit, difference=difference)


def _out_of_orderness(random: Random, plan: Plan, stage: StagePlan) -> Change | None:
    source = plan.source(stage.inputs[0].producer)
    if source is None or source.event_time is None:
        return None
    value = random.choice((0, 1_000, 5_000, 30_000))
    if value == source.out_of_orderness_ms:
        return None
    edit = (source.uid, "out_of_orderness_ms", value)
    return Change(uid=stage.uid, part="out of orderness", edits=(edit,))


def _event_time(random: Random, plan: Plan, stage: StagePlan) -> Change | None:
    """Of a source by another column; nobody consents, as what was measured is of the other."""
    source = plan.source(stage.inputs[0].producer)
    if stage.op not in ("window", "window_top_n") or source is None or stage.inputs[0].select:
        return None
    if source.event_time is None or "u" not in dict(source.columns):
        return None
    reads = [given for one in plan.stages for given in one.inputs if given.producer == source.uid]
    if any(given.select for given in reads):  # It may leave the other out.
        return None
    return Change(uid=stage.uid, part="event time", edits=((source.uid, "event_time", "u"),))


def _keys(random: Random, plan: Plan, stage: StagePlan) -> Change | None:
    """Another expression of a key, at times where it is selected."""
    (given, *_) = stage.inputs
    if len(stage.inputs) > 1 or not given.key_expressions:
        return None
    ((name, text),) = given.key_expressions
    other = text.replace("% 3", "% 2")
    if _may_select_keys(plan, stage) and random.random() < 0.5:
        return _of(stage, "keys", *_selected(name, other))
    return _of(stage, "keys", ("inputs/0/key_expressions", ((name, other),)))


def _may_select_keys(plan: Plan, stage: StagePlan) -> bool:
    """Whether a key may be computed before key_by() as well; what keeps whole rows would have
    another column.
    """
    (given, *_) = stage.inputs
    is_plain = stage.op in ("aggregate", "window") and not given.select
    return is_plain and bool(given.key_expressions) and plan.source(given.producer) is not None


def _selected(name: str, text: str) -> tuple[tuple[str, Any], ...]:
    select = ("*", f"{text} AS {name}")
    return ("inputs/0/select", select), ("inputs/0/key_expressions", ())


def _version(random: Random, plan: Plan, stage: StagePlan) -> Change | None:
    if stage.op not in ("process", "process_keyed"):
        return None
    return _of(stage, "function", ("args/version", random.choice(("2", "3"))))


def _rows(random: Random, plan: Plan, stage: StagePlan) -> Change | None:
    """A filter before the stage, of its own."""
    side = random.randrange(len(stage.inputs))
    given = stage.inputs[side]
    name = _number(plan, given)
    where = () if given.where else (f"{name} >= {random.randrange(1, 3)}",)
    if not given.where and name is None:
        return None
    return _of(stage, "input", (f"inputs/{side}/where", where))


def _behind(random: Random, plan: Plan, stage: StagePlan) -> Change | None:
    """The filter of what the stage before sends, to all its readers."""
    before = [given.producer for given in stage.inputs if plan.source(given.producer) is None]
    filtered = [uid for uid in before if plan.stage(uid).where]
    if not filtered:
        return None
    uid = random.choice(filtered)
    return Change(uid=stage.uid, part="input", edits=((uid, "where", ()),))


def _number(plan: Plan, given: InputPlan) -> str | None:
    source = plan.source(given.producer)
    columns = dict(source.columns) if source is not None else {}
    return next((name for name, kind in columns.items() if kind == "int"), None)


def _column(random: Random, plan: Plan, stage: StagePlan) -> Change | None:
    """An aggregate: another function, argument or filter; one more, or one less."""
    columns = stage.args.get("aggregates")
    if not columns or stage.args.get("lateness") or stage.args.get("ttl") is not None:
        return None  # What was forgotten is not shown anew.
    name = random.choice([*columns])
    sinks = [sink for sink in plan.sinks if sink.producer == stage.uid]
    if any(name in sink.upsert_key for sink in sinks):
        return None
    if any(name in text for where in (stage.where, *(s.where for s in sinks)) for text in where):
        return None  # A row that what it was has let through would stay where it was sent.
    path, (kind, column, where, by) = f"args/aggregates/{name}", columns[name]
    draw = random.choice(("kind", "argument", "where", "where", "added", "removed"))
    if draw == "added" and not stage.select:
        more = [random.choice(("count", "max", "min")), column, None, None]
        more = more if column is not None else ["count", None, where, None]
        more_path = f"args/aggregates/{name}_more"
        return _of(stage, "column", (more_path, more), difference="added")
    if draw == "removed" and len(columns) > 1 and name not in _read_of(plan, stage):
        return _of(stage, "column", (path, None), difference="removed")
    if draw == "kind" and kind in KINDS and column is not None:
        kind = KINDS[kind]
        if kind == "count_distinct" and not _is_ordered(plan, stage, column):
            return None
        return _of(stage, "column", (path, [kind, column, where, by]))
    if draw == "where":
        of = _number(plan, stage.inputs[0]) if not stage.inputs[0].select else None
        text = None if where else f"{of} >= 1"
        return None if text and not of else _of(stage, "column", (path, [kind, column, text, by]))
    if draw == "argument" and kind == "count" and column != "id" and "id" in _known(plan, stage):
        return _of(stage, "column", (path, [kind, "k" if column == "g" else "g", where, by]))
    return None


def _known(plan: Plan, stage: StagePlan) -> set[str]:
    source = plan.source(stage.inputs[0].producer)
    is_whole = source is not None and not stage.inputs[0].select
    return {name for name, _ in source.columns} if source is not None and is_whole else set()


def _is_ordered(plan: Plan, stage: StagePlan, column: str) -> bool:
    source = plan.source(stage.inputs[0].producer)
    kinds = dict(source.columns) if source is not None else {}
    return kinds.get(column) in ("int", "long", "text", "date", "bool")


def _read_of(plan: Plan, stage: StagePlan) -> set[str]:
    """The columns of a stage that its own steps, or others, may read; all, if a stage reads it."""
    if any(given.producer == stage.uid for one in plan.stages for given in one.inputs):
        return {*stage.args["aggregates"]}
    sinks = [sink for sink in plan.sinks if sink.producer == stage.uid]
    texts = [*stage.where, *(text for sink in sinks for text in sink.where)]
    found = {name for name in stage.args["aggregates"] if any(name in text for text in texts)}
    found |= {*stage.select}
    return found.union(*((*sink.upsert_key, *sink.partition_by, *sink.select) for sink in sinks))


def _renamed(random: Random, plan: Plan, stage: StagePlan) -> Change | None:
    """A column of an aggregate that nobody else names."""
    columns = stage.args.get("aggregates", {})
    read = _read_of(plan, stage) if columns else set()
    names = [name for name in columns if name not in read]
    names = [name for name in names if [*columns.values()].count(columns[name]) == 1]
    if not names or stage.args.get("lateness") or stage.args.get("ttl") is not None:
        return None
    name = random.choice(names)
    path = "args/aggregates"
    edits = ((f"{path}/{name}_new", columns[name]), (f"{path}/{name}", None))
    return _of(stage, "column", *edits, difference="renamed")


def _mean(random: Random, plan: Plan, stage: StagePlan) -> Change | None:
    """The mean of what a sum and a count beside it are of."""
    columns = stage.args.get("aggregates", {})
    if stage.op != "aggregate" or stage.select or stage.args.get("ttl") is not None:
        return None
    for kind, column, where, by in columns.values():
        mean = ["avg", column, where, by]
        has_both = kind == "sum" and ["count", column, where, by] in columns.values()
        if has_both and mean not in columns.values():
            edit = ("args/aggregates/fsum_mean_added", mean)
            return _of(stage, "column", edit, difference="mean")
    return None


def _by(random: Random, plan: Plan, stage: StagePlan) -> Change | None:
    given = stage.args.get("by")
    if not given or stage.args.get("ttl") is not None:
        return None
    if stage.args.get("unique") and not takes_back(plan, stage.inputs[0].producer):
        return None  # Which row replaces which is known where what they go by never decreases.
    names = [given] if isinstance(given, str) else [*given]
    others = _others(plan, stage, [*names, *stage.args.get("ties_by", ())])
    if not others:
        return None
    other = random.choice(others)
    return _of(stage, "by", ("args/by", other if isinstance(given, str) else [other]))


def _ties(random: Random, plan: Plan, stage: StagePlan) -> Change | None:
    if stage.op == "window_top_n" and "ties" in stage.args:
        was = stage.args["ties"]
        difference = "removed" if was else "added"
        return _of(stage, "ties", ("args/ties", not was), difference=difference)
    given = stage.args.get("ties_by")
    others = _others(plan, stage, [stage.args["by"], *given]) if given else []
    if not others or stage.args.get("ttl") is not None:
        return None
    return _of(stage, "ties", ("args/ties_by", [random.choice(others)]))


def _unique(random: Random, plan: Plan, stage: StagePlan) -> Change | None:
    """Other rows replace one another, or none; over updates another one decides between equals."""
    given = stage.args.get("unique")
    if stage.op != "top_n" or not given or stage.args.get("ttl") is not None:
        return None
    others = _others(plan, stage, [*given, stage.args["by"]])
    is_append = plan.source(stage.inputs[0].producer) is not None
    value = [] if is_append or not others else [random.choice(others)]
    difference = "changed" if value else "removed"
    return _of(stage, "unique", ("args/unique", value), difference=difference)


def _operator(random: Random, plan: Plan, stage: StagePlan) -> Change | None:
    """Where a table has a row for each key, its first row in the place of the last, or the other
    way round; over updates aggregates in the place of the last row's columns.
    """
    sinks = [sink for sink in plan.sinks if sink.producer == stage.uid]
    by: Any = stage.args.get("by")
    if stage.args.get("ttl"):
        return None
    if stage.op == "latest" and stage.select == ("g", "id", "k") and by == ["id"]:
        last = {"id": ["max", "id", None, None], "k": ["last", "k", None, "id"]}
        return _of(stage, "operator", ("op", "aggregate"), ("args", {"aggregates": last}))
    if not _fills_tables_of_its_keys(plan, stage, sinks):
        return None
    if stage.op == "latest":
        return _of(stage, "operator", ("op", "deduplicate"), ("args", {"by": by[0]}))
    orders = [by] if by else _others(plan, stage, [])
    if stage.op != "deduplicate" or not orders:
        return None
    args = {"by": [random.choice(orders)]}
    return _of(stage, "operator", ("op", "latest"), ("args", args))


def _sender(random: Random, plan: Plan, stage: StagePlan) -> Change | None:
    """The stage before a table of its keys is called otherwise."""
    sinks = [sink for sink in plan.sinks if sink.producer == stage.uid]
    if stage.op not in ("aggregate", "latest") or len(sinks) != 1 or stage.args.get("ttl"):
        return None
    if not _fills_tables_of_its_keys(plan, stage, sinks):
        return None
    (sink,) = sinks
    uid = f"{stage.uid}_anew"
    edits = ((stage.uid, "uid", uid), (sink.uid, "producer", uid))
    return Change(uid=sink.uid, part="rows", difference="sender", edits=edits)


def _fills_tables_of_its_keys(plan: Plan, stage: StagePlan, sinks: list[SinkPlan]) -> bool:
    """Whether nothing else reads the stage, which reads a source, and all its rows are there."""
    (given, *_) = stage.inputs
    is_read = any(one.producer == stage.uid for other in plan.stages for one in other.inputs)
    is_whole = not any(sink.where or sink.partition_by or sink.select for sink in sinks)
    has_its_keys = all(sink.upsert_key == given.keys for sink in sinks)
    is_whole = is_whole and has_its_keys and not (stage.where or stage.select)
    return is_whole and not is_read and plan.source(given.producer) is not None


def takes_back(plan: Plan, uid: str) -> bool:
    """Whether rows of the stream of that uid are taken back."""
    if plan.source(uid) is not None:
        return False
    stage = plan.stage(uid)
    is_outer = stage.op == "join" and stage.args["how"] in ("left", "right", "full", "anti")
    updates = stage.op in ("aggregate", "latest", "top_n") or is_outer or stage.args.get("lateness")
    return bool(updates) or any(takes_back(plan, given.producer) for given in stage.inputs)


def _others(plan: Plan, stage: StagePlan, names: list[str]) -> list[str]:
    """Columns that the stage could order by, beside *names* and its keys."""
    (given, *_) = stage.inputs
    known = {} if given.select else _columns_of(plan, given.producer)
    others = [name for name, kind in known.items() if kind in ORDERED]
    return [name for name in others if name not in (*names, *given.keys)]


def _columns_of(plan: Plan, uid: str) -> dict[str, str]:
    """Those of a stream that are a source's."""
    source = plan.source(uid)
    if source is not None:
        return dict(source.columns)
    stage = plan.stage(uid)
    passes_on = stage.op in ("latest", "deduplicate") and not stage.select
    (given, *_) = stage.inputs
    return _columns_of(plan, given.producer) if passes_on and not given.select else {}


def _place(random: Random, plan: Plan, stage: StagePlan) -> Change | None:
    """The folder of a source has another name; it never begins anew."""
    sources = [plan.source(given.producer) for given in stage.inputs]
    found = [one for one in sources if one is not None and not (one.grows or one.is_table)]
    if not found:
        return None
    source = random.choice(found)
    return Change(uid=source.uid, part="place", edits=((source.uid, "moved", not source.moved),))


def _shown(random: Random, plan: Plan, stage: StagePlan) -> Change | None:
    """What a table shows of an aggregate that has all its rows."""
    columns = stage.args.get("aggregates", {})
    sinks = [s for s in plan.sinks if s.producer == stage.uid and s.upsert_key]
    if stage.op != "aggregate" or stage.args.get("ttl") is not None or stage.select or not sinks:
        return None
    sink, key = random.choice(sinks), stage.inputs[0].keys
    kept = [name for name in columns if name not in (*sink.upsert_key, *sink.partition_by)]
    if not {*sink.upsert_key, *sink.partition_by} <= {*key} or not kept:
        return None
    name = random.choice(kept)
    others = [other for other in columns if other != name and random.random() < 0.7]
    select = (*key, *others, f"{name} AS {name}_shown")
    return Change(uid=sink.uid, part="columns", edits=((sink.uid, "select", select),))


def _sink(random: Random, plan: Plan, stage: StagePlan) -> Change | None:
    """Of a sink of updates the mode."""
    updating = {one.uid for one in plan.stages if one.op in ("aggregate", "latest", "top_n")}
    sinks = [sink for sink in plan.sinks if sink.upsert_key and sink.producer in updating]
    if not sinks:
        return None
    sink = random.choice(sinks)
    edits = ((sink.uid, "changelog", True), (sink.uid, "upsert_key", ()))
    return Change(uid=sink.uid, part="rows", edits=edits)


def _keep(random: Random, plan: Plan, stage: StagePlan) -> Change | None:
    """Of a lookup of rows that are updated; what others look up is of their input."""
    if stage.op != "lookup" or stage.args.get("add") or stage.args["keep"] == "all":
        return None
    other = "unmatched" if stage.args["keep"] == "matched" else "matched"
    return _of(stage, "table", ("args/keep", other))


def _spelling(random: Random, plan: Plan, stage: StagePlan) -> Change | None:
    """Blanks, the case of words and of columns that nobody else names, the order of operands and
    where a key is computed; nothing is another.
    """
    edits: list[tuple[str, str, Any]] = []
    for one in plan.stages:
        for side, given in enumerate(one.inputs):
            if given.where:
                texts = tuple(_otherwise(random, text) for text in given.where)
                edits.append((one.uid, f"inputs/{side}/where", texts))
        if _may_select_keys(plan, one):
            ((key, text),) = one.inputs[0].key_expressions
            edits += [(one.uid, path, value) for path, value in _selected(key, text)]
        if columns := one.args.get("aggregates"):
            read = _read_of(plan, one)
            turned = {
                name if name in read else name.replace("_a", "_A"): [
                    kind, column, where and _otherwise(random, where), by
                ]
                for name, (kind, column, where, by) in reversed(columns.items())
            }  # fmt: skip
            edits.append((one.uid, "args/aggregates", turned))
    return Change(uid=stage.uid, edits=tuple(edits)) if edits else None


def _otherwise(random: Random, text: str) -> str:
    words = text.split(" AND ")
    if len(words) == 2 and "BETWEEN" not in text and random.random() < 0.5:
        return f"{words[1]} and {words[0]}"
    for word in ("IS", "NOT", "NULL", "IN", "LIKE", "BETWEEN", "AND"):
        text = text.replace(f" {word} ", f"  {word.lower()}   ")
    return f"({text})" if random.random() < 0.5 else f" {text} "


def _parallelism(random: Random, plan: Plan, stage: StagePlan) -> Change | None:
    return _of(stage, "", ("parallelism", random.choice((1, 2, 3))))


PARTS: dict[str, Draw] = {
    "column": _column,
    "another column": _column,
    "renamed": _renamed,
    "mean": _mean,
    "by": _by,
    "ties": _ties,
    "unique": _unique,
    "operator": _operator,
    "sender": _sender,
    "place": _place,
    "columns": _shown,
    "keys": _keys,
    "input": _rows,
    "behind": _behind,
    "function": _version,
    "event time": _event_time,
    "out of orderness": _out_of_orderness,
    "window": _argument("window", "window", _window),
    "allowed lateness": _argument("allowed lateness", "lateness", lambda r, n: n and n + 9_000),
    "ttl": _ttl,
    "partners": _partners,
    "n": _n,
    "how": _how,
    "bounds": _bounds,
    "table": _keep,
    "rows": _sink,
    "spelling": _spelling,
    "parallelism": _parallelism,
}
