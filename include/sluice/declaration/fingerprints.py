"""The fingerprints of a declaration: what the state of each of its operators would be the state of.

Made of the declared nodes, not of how they are written: names of stages without state, of Python's
variables, blanks, the case of SQL and columns that an operator does not read play no part.  What a
stage reads is described down to the sources and stages with state whose rows it gets: the filters,
projections, functions and lookups on the way, with the values of the parameters that enter them.
Types are no part: those of keys and columns are in the state itself, which is read by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from sluice.core.transitions import AGGREGATE, ROWS, SHOWN, SINK, SOURCE, Fingerprint
from sluice.declaration import operations as ops
from sluice.declaration.aggregates import Aggregate, AggregateKind
from sluice.declaration.changelog import Append, Retract
from sluice.declaration.column_types import row_schema
from sluice.declaration.declared_states import VALUES, declared_states, table_of, ttl_of_table
from sluice.declaration.durations import MS, from_words, in_words
from sluice.declaration.expressions import Filter, Projection, Step, origin_of, result_name
from sluice.declaration.functions import described_function
from sluice.declaration.nodes import Input, SinkNode, StageNode
from sluice.declaration.origins import Declared, is_united, origin
from sluice.declaration.params import Param
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.places import DescribedSourceSpec, SourceMeaning
from sluice.declaration.results import Replace, Upsert
from sluice.declaration.sql import parsed
from sluice.declaration.sql_tree import Column, canonical, tokens

_ORDERED_BY_TIME = (AggregateKind.FIRST, AggregateKind.LAST)


def fingerprints(pipeline: Pipeline, params: Mapping[str, str]) -> dict[str, Fingerprint]:
    """The fingerprints by uid: of each operator with state, of each source that is streamed, and of
    each sink, with the values of *params*.
    """
    meanings = {
        uid: source.spec.meaning(params)
        for uid, source in pipeline.sources.items()
        if isinstance(source.spec, DescribedSourceSpec)
    }
    made = _Maker(pipeline, params, meanings)
    found = {
        uid: made.of_stage(stage) for uid, stage in pipeline.stages.items() if stage.is_stateful
    }
    for source in pipeline.stream_sources():
        places = meanings[source.uid].places if source.uid in meanings else ()
        found[source.uid] = Fingerprint(operator=SOURCE, places=places)
    return found | {uid: made.of_sink(sink) for uid, sink in pipeline.sinks.items()}


def shorter_ttls_ms(
    stage: StageNode, before: Fingerprint | None, now: Fingerprint | None
) -> dict[str, int]:
    """The TTLs of a *stage*'s state *before* that are longer *now*, or none: by table those of the
    states that its function has, and by "" its own.
    """
    ttls = {table: (ttl, _ttls(now).get(table)) for table, ttl in _ttls(before).items()}
    return {
        table: was // MS
        for table, (was, is_now) in ttls.items()
        if table in ("", *_tables_with_ttl(stage)) and (is_now is None or was < is_now)
    }


def _ttls(of: Fingerprint | None) -> dict[str, timedelta]:
    told = "" if of is None else of.parts.get("ttl", "")
    words = (one.partition(" of ") for one in filter(None, told.split("; ")))
    return {table: from_words(ttl) for ttl, _, table in words}


def meaning(sql: str) -> str:
    """The meaning of *sql*, without its spelling, and without the name that it gives its value."""
    return parsed(sql).canonical()


@dataclass(frozen=True, slots=True)
class _Maker:
    pipeline: Pipeline
    params: Mapping[str, str]
    meanings: Mapping[str, SourceMeaning]

    @property
    def declared(self) -> Declared:
        columns = {
            uid: {name.lower(): text for name, text in of.columns.items()}
            for uid, of in self.meanings.items()
        }
        return Declared(self.pipeline.stages, columns)

    def of_stage(self, stage: StageNode) -> Fingerprint:
        by_time = _goes_by_time(stage)
        times = [stream.event_time for stream in stage.inputs if by_time and stream.event_time]
        columns_read = _columns_read(stage, times)
        read = None if columns_read is None else frozenset[str]().union(*columns_read.values())
        parts = {
            "keys": " | ".join(filter(None, map(self._keys, stage.shuffled))),
            "input": self._inputs(stage, read),
            "ttl": _told_ttls(stage),
            "event time": " | ".join(times).lower(),
            "out of orderness": " | ".join(map(self._bound, stage.inputs)) if times else "",
        }
        operator, own, columns = _operation(stage, self)
        return Fingerprint(
            operator=operator,
            parts={name: text for name, text in (parts | own).items() if text},
            columns=columns,
            reads=self._reads(stage, columns_read or {}),
            updates_from=self._updates_from(stage.inputs),
            holds=tuple(name.lower() for name in _held_by(stage)),
            recomputed_from=self._recomputed_from(stage),
        )

    def of_sink(self, sink: SinkNode) -> Fingerprint:
        spec, kind = sink.spec, self.pipeline.kind_of(sink.input, sink.steps)
        given = Input(producer=sink.input, kind=kind, steps=sink.steps)
        mode = "as changelog" if spec.changelog else "appended"
        if spec.upsert_key:
            mode = f"as upsert by {', '.join(spec.upsert_key).lower()}"
        # A row of a table is replaced by its key, whatever else is in it.
        key = _lowered(spec.upsert_key) if spec.upsert_key else None
        if kind != Append():
            rows = f"{self._rows(given, key)} {mode}"
        else:  # No row is taken back, so the filters may be others.
            rows = f"{self._lineage(given, key)} {mode}" if key else mode
        parts = {ROWS: rows}
        if key and self._is_published_anew(sink):
            parts[SHOWN] = self._rows(given, None)
        return Fingerprint(
            operator=SINK,
            parts=parts,
            updates_from=self._updates_from([given]),
            sent_by=tuple(sorted({*self._sent_by(given)})),
            keeps_changes=kind != Append() and spec.changelog,
            leaves_rows_of=self._leaves_rows_of(sink) if key else (),
            deletes_by_key=bool(key) and self._deletes_by_key(sink),
        )

    def lookup(self, lookup: ops.Lookup) -> str:
        on = ", ".join(f"{column} = {meaning(sql)}" for column, sql in sorted(lookup.on.items()))
        add = ", ".join(f"{name} = {meaning(sql)}" for name, sql in sorted(lookup.add.items()))
        table = f"{lookup.table}{_described_steps(lookup.steps, None)}"
        text = f"{lookup.keep} of {table} on {on}" + (f" add {add}" if add else "")
        if (of := lookup.versions) is not None:
            text += f" as of {of.time.lower()} by {meaning(of.valid_from)}"
        return text

    def _keys(self, stream: Input) -> str:
        """The keys of an input, each with what it is computed of: state is kept by its value."""
        texts = {key: canonical(origin(self.declared, stream, key)) for key in stream.keys}
        names = {key: canonical(Column((key,))) for key in stream.keys}
        return ", ".join(
            names[key] if text == names[key] else f"{names[key]} = {text}"
            for key, text in texts.items()
        )

    def _reads(self, stage: StageNode, read: Mapping[str, frozenset[str]]) -> dict[str, str]:
        """See ``Fingerprint``; *read* is what ``_columns_read`` finds."""
        texts = {name: self._inputs(stage, columns) for name, columns in read.items()}
        return {name: text for name, text in texts.items() if not name or text != texts[""]}

    def _inputs(self, stage: StageNode, read: frozenset[str] | None) -> str:
        return " | ".join(self._input(stream, read) for stream in stage.inputs)

    def _input(self, stream: Input, read: frozenset[str] | None) -> str:
        """The rows of an input, of which an operator has the columns *read* beside its keys."""
        if read is not None and is_united(self.declared, stream.producer):
            # The keys do not say which of the streams has which.
            plain = (key for key in stream.keys if key not in stream.key_expressions)
            read |= _lowered(plain) | _words(stream.key_expressions.values())
        return self._rows(stream, read)

    def _rows(self, stream: Input, wanted: frozenset[str] | None) -> str:
        """The rows of an input, or only its columns *wanted*, down to what sends them."""
        renames = [
            f"{new} = {old}".lower()
            for old, new in sorted(stream.renames.items())
            if wanted is None or new.lower() in wanted
        ]
        if wanted is not None:
            names = {new.lower(): old.lower() for old, new in stream.renames.items()}
            wanted = frozenset(names.get(name, name) for name in wanted)
        text = self._stream(stream.producer, stream.steps, wanted)
        return text + (f".rename({', '.join(renames)})" if renames else "")

    def _stream(self, uid: str, steps: Sequence[Step], wanted: frozenset[str] | None) -> str:
        stage = self.pipeline.stages.get(uid)
        if stage is None:
            read = self._read(uid, _read_before(steps, wanted))
            return read + _described_steps(steps, wanted)
        behind = (*stage.steps, *steps)
        text = _described_steps(behind, wanted)
        wanted = _read_before(behind, wanted)
        match stage.operation:
            case ops.Transform(function=function, arguments=arguments, version=version):
                given = ", ".join(
                    f"{name}={self._value(value)!r}" for name, value in sorted(arguments.items())
                )
                what = described_function(function, version) + (f", {given}" if given else "")
                return f"{self._rows(stage.inputs[0], None)}.transform({what}){text}"
            case ops.Lookup() as lookup:
                on = (
                    None
                    if wanted is None
                    else wanted | _lowered(column for column, _, _ in lookup.compared)
                )
                return f"{self._rows(stage.inputs[0], on)}.lookup({self.lookup(lookup)}){text}"
            case ops.SparkCode() as code if not stage.is_stateful:
                read = " + ".join(
                    f"{name}={self._rows(given, None)}"
                    for name, given in zip(code.names, stage.inputs, strict=True)
                )
                read += "".join(f", {name}={of}" for name, of in _tables(code).items())
                what = described_function(code.function, code.version)
                return f"spark({read}, {what}){text}"
            case ops.Union():
                united = " + ".join(sorted(self._rows(given, wanted) for given in stage.inputs))
                return f"({united}){text}"
            case _:
                return uid + text

    def _read(self, uid: str, wanted: frozenset[str] | None) -> str:
        """A source, how its records are read, and what the columns *wanted* are in them."""
        meaning = self.meanings.get(uid)
        if meaning is None:
            return uid
        named = [
            f"{name.lower()} = {text}"
            for name, text in sorted(meaning.columns.items())
            if wanted is None or name.lower() in wanted
        ]
        read = f".read({', '.join(named)})" if named else ""
        return uid + (f".{meaning.decoding}" if meaning.decoding else "") + read

    def _updates_from(self, inputs: Iterable[Input]) -> tuple[str, ...]:
        """The stages with state that send the updates of *inputs*."""
        found: dict[str, None] = {}
        for stream in inputs:
            stage = self.pipeline.stages.get(stream.producer)
            if stage is None or stream.kind == Append():
                continue
            of = (stage.uid,) if stage.is_stateful else self._updates_from(stage.inputs)
            found |= dict.fromkeys(of)
        return tuple(sorted(found))

    def _sent_by(self, stream: Input) -> Iterator[str]:
        """The stages with state that send the rows of *stream*, whatever is between."""
        stage = self.pipeline.stages.get(stream.producer)
        if stage is None:
            return
        if stage.is_stateful:
            yield stage.uid
        else:
            for given in stage.inputs:
                yield from self._sent_by(given)

    def _lineage(self, stream: Input, wanted: frozenset[str]) -> str:
        """The origin of the columns *wanted* of an input, down to what sends them, but for filters.
        A function is taken to pass them on, as it passes on what is a key.
        """
        names = {new.lower(): old.lower() for old, new in stream.renames.items()}
        wanted = frozenset(names.get(name, name) for name in wanted)
        stage, steps = self.pipeline.stages.get(stream.producer), stream.steps
        projections = [step for step in steps if isinstance(step, Projection)]
        text = _described_steps(projections, wanted)
        wanted = _read_before(projections, wanted) or frozenset()
        if stage is None:
            return stream.producer + text
        projections = [step for step in stage.steps if isinstance(step, Projection)]
        text = _described_steps(projections, wanted) + text
        wanted = _read_before(projections, wanted) or frozenset()
        if stage.is_stateful:
            return stream.producer + text
        return " + ".join(sorted(self._lineage(given, wanted) for given in stage.inputs)) + text

    def _leaves_rows_of(self, sink: SinkNode) -> tuple[str, ...]:
        """See ``Fingerprint``; *sink* has a row a key."""
        key = {*sink.spec.upsert_key}
        steps, uid, found = sink.steps, sink.input, list[str]()
        in_place = {*getattr(sink.spec, "partition_by", ())} <= key
        waiting = [(uid, steps, in_place)]
        while waiting:
            uid, steps, in_place = waiting.pop()
            stage = self.pipeline.stages.get(uid)
            if stage is None:
                continue
            steps = (*stage.steps, *steps)
            kind = stage.kind_behind(())
            if not stage.is_stateful:  # A function, or a lookup, may leave out rows.
                waiting += [
                    (given.producer, (*given.steps, *steps), False) for given in stage.inputs
                ]
            elif not _comes_once(stage):
                held = _lowered(() if isinstance(kind, Retract) else kind.key)
                by_key = _origins(key, steps) <= held and _filtered_by(steps) <= held
                if not (in_place and by_key) or isinstance(stage.operation, ops.KeyedLookup):
                    found.append(uid)
        return tuple(sorted({*found}))

    def _deletes_by_key(self, sink: SinkNode) -> bool:
        """See ``Fingerprint``; the sink of an aggregate's rows, by its key."""
        stage = self.pipeline.stages.get(sink.input)
        return (
            stage is not None
            and isinstance(stage.operation, ops.KeyedAggregate)
            and _is_by_key(sink, stage, stage.keys)
        )

    def _is_published_anew(self, sink: SinkNode) -> bool:
        """Whether all rows that *sink* shows are in the state of the stage before it."""
        stage = self.pipeline.stages.get(sink.input)
        return stage is not None and bool(_held_by(stage))

    def _recomputed_from(self, stage: StageNode) -> str:
        """The stage whose rows may be sent to this one again; empty if it, or another that they
        reach, or one behind it, could not follow.
        """
        sender = stage.inputs[0].producer
        together = [*self.pipeline.consumers_of(sender), *self.pipeline.consumers_of(stage.uid)]
        return sender if all(map(self._can_be_recomputed, together)) else ""

    def _can_be_recomputed(self, stage: StageNode) -> bool:
        """Whether all rows that *stage* reads are held before it, and all tables of its rows have
        them by what it holds of each.
        """
        sender = self.pipeline.stages.get(stage.inputs[0].producer)
        is_alone = len(stage.inputs) == 1 and sender is not None and _is_sent_again(sender)
        held = _held_by(stage)
        return (
            is_alone
            and bool(held)
            and all(
                not sink.spec.changelog and _is_by_key(sink, stage, held)
                for sink in self.pipeline.sinks_of(stage.uid)
            )
        )

    def _bound(self, stream: Input) -> str:
        """The bounds of out-of-orderness of all sources of *stream*, and its own, in words."""
        source = self.pipeline.sources.get(stream.producer)
        if source is not None:
            return _duration(source.out_of_orderness_ms)
        before = self.pipeline.stages[stream.producer].inputs
        bounds = ", ".join(dict.fromkeys(self._bound(given) for given in before))
        own = _duration(stream.out_of_orderness_ms)
        return f"{bounds} and {own}" if stream.out_of_orderness_ms else bounds

    def _value(self, given: str | int | Param) -> str | int:
        if isinstance(given, Param):
            return self.params.get(given.name, given.default or "")
        return given


def _operation(  # noqa: C901 - a case for each operation
    stage: StageNode, made: _Maker
) -> tuple[str, dict[str, str], dict[str, str]]:
    """The operator's name, the meanings of its own parts, and those of its columns."""
    match stage.operation:
        case ops.KeyedAggregate(aggregates=aggregates):
            return AGGREGATE, {}, _columns(aggregates)
        case ops.WindowAggregate(window=window, aggregates=aggregates, allowed_lateness_ms=late_ms):
            parts = {"window": _window(window), "allowed lateness": _duration(late_ms)}
            return "window", parts, _columns(aggregates)
        case ops.WindowTopN(window=window, n=n, by=by, has_ties=has_ties):
            ties = "all of a rank" if has_ties else ""
            parts = {"window": _window(window), "n": str(n), "by": meaning(by), "ties": ties}
            return "window_top_n", parts, {}
        case ops.TopN(n=n, by=by, ties_by=ties_by, unique=unique):
            parts = {"n": str(n), "by": meaning(by)}
            return "top_n", parts | {"ties": _listed(ties_by), "unique": _listed(unique)}, {}
        case ops.Latest(by=by):
            return "latest", {"by": _listed(by)}, {}
        case ops.ChangelogNormalize(by=by, images=images, columns=columns):
            # A row is one hash, so that other columns are another state.
            hashed = sorted(f"{name.lower()} {_hashed(columns[name])}" for name in images)
            of = f" by image of {', '.join(hashed)}" if images else ""
            return f"changelog_normalize{of}", {"by": _listed(by)}, {}
        case ops.Deduplicate(by=by):
            return "deduplicate", {"by": meaning(by or "")}, {}
        case ops.WindowJoin(window=window, how=how):
            return "window_join", {"window": _window(window), "how": how}, {}
        case ops.IntervalJoin(lower_ms=lower, upper_ms=upper, upper_column=column, how=how):
            last = meaning(column) if column else _duration(upper)
            return "interval_join", {"bounds": f"{_duration(lower)} to {last}", "how": how}, {}
        case ops.RegularJoin(how=how):
            goes_by_partners = how != "inner" and (how != "semi" or stage.reads_updates)
            partners = "remembered" if goes_by_partners and stage.ttl_ms is not None else ""
            return "join", {"how": how, "partners": partners}, {}
        case ops.KeyedLookup(lookup=lookup):
            return "lookup", {"table": made.lookup(lookup)}, {}
        case ops.Process() | ops.ProcessKeyed() | ops.SparkCode() as own:
            return _with_function(own)
        case other:
            raise AssertionError(f"{other} keeps no state")


def _hashed(column_type: str) -> str:
    """The type as which a value is part of a row's hash."""
    of = row_schema("a column", f"c {column_type}")["c"]
    match of.name:
        case "tinyint" | "smallint" | "int" | "bigint":
            return "integer"
        case "decimal":
            return f"decimal of scale {of.arguments[-1] if len(of.arguments) > 1 else 0}"
        case _:
            return str(of)


def _with_function(
    own: ops.Process | ops.ProcessKeyed | ops.SparkCode,
) -> tuple[str, dict[str, str], dict[str, str]]:
    function = {"function": described_function(own.function, own.version)}
    match own:
        case ops.Process():
            return "process", function, {}
        case ops.ProcessKeyed():
            return "process_keyed", function, {}
        case ops.SparkCode(result=result, key=key, identity=identity) as code:
            rest = ", ".join(name for name in identity if name not in key)
            keys = ", ".join(key) + (f" with {rest}" if rest else "")
            parts = {"keys": keys.lower(), **function}
            tables = ", ".join(f"{name}={of}" for name, of in _tables(code).items())
            return f"spark {result}", {**parts, "table": tables}, {}


def _held_by(stage: StageNode) -> tuple[str, ...]:
    """The columns by which a stage has each row that it has sent in its state; with a ttl it has
    forgotten some.
    """
    match stage.operation:
        case ops.KeyedAggregate() | ops.Latest() if stage.ttl_ms is None:
            return stage.keys
        case ops.ChangelogNormalize(images=images) if stage.ttl_ms is None and not images:
            return stage.keys
        case ops.TopN() if stage.ttl_ms is None:
            return (*stage.keys, "rank")
        case ops.SparkCode(result=Upsert() | Replace(), identity=identity):
            return identity
        case _:
            return ()


def _tables(code: ops.SparkCode) -> dict[str, str]:
    """The tables that a function is given, by its parameters."""
    return {
        name: f"{table.uid}{_described_steps(table.steps, None)}"
        for name, table in sorted(code.tables.items())
    }


def _is_sent_again(stage: StageNode) -> bool:
    """Whether a stage has all rows of its result in its state: by columns of these, or as the two
    sides of a join, of which an anti join lacks rows without a key.
    """
    match stage.operation:
        case ops.RegularJoin(how=how):
            return stage.ttl_ms is None and how != "anti" and stage.kind_behind(()) != Append()
        case _:
            return bool(_held_by(stage))


def _is_by_key(sink: SinkNode, stage: StageNode, key: Iterable[str]) -> bool:
    """Whether the rows of a *stage* are found in the table of its *sink* by its *key* alone."""
    return {*getattr(sink.spec, "partition_by", ())} <= {*sink.spec.upsert_key} and _origins(
        sink.spec.upsert_key, (*stage.steps, *sink.steps)
    ) <= _lowered(key)


def _comes_once(stage: StageNode) -> bool:
    """Whether the key of a row that a stage with state has sent never comes again, even to empty
    state, as its window has passed.
    """
    is_windowed = isinstance(stage.operation, ops.WindowAggregate | ops.WindowTopN)
    return is_windowed and stage.kind_behind(()) == Append()


def _filtered_by(steps: Sequence[Step]) -> frozenset[str]:
    """The columns before *steps* by which these filter, in lower case; "" for any other."""
    found = frozenset[str]()
    for number, step in enumerate(steps):
        if isinstance(step, Filter):
            columns = parsed(step.condition).columns
            found |= {""} if columns is None else _origins(columns, steps[:number])
    return found


def _origins(columns: Iterable[str], steps: Sequence[Step]) -> frozenset[str]:
    """The names of *columns* before *steps*, in lower case; "" for one that is computed."""
    return _lowered(origin_of(column, steps) or "" for column in columns)


def _columns(aggregates: Mapping[str, Aggregate]) -> dict[str, str]:
    return {name: _aggregate(aggregate) for name, aggregate in aggregates.items()}


def _aggregate(aggregate: Aggregate) -> str:
    of = [meaning(aggregate.column or "")]
    if aggregate.fraction is not None:
        of.append(repr(aggregate.fraction))
    if aggregate.separator is not None:
        of.append(repr(aggregate.separator))
    text = f"{aggregate.kind.value}({', '.join(filter(None, of))})"
    if aggregate.by is not None:
        text += f" by {meaning(aggregate.by)}"
    return text + (f" where {meaning(aggregate.where)}" if aggregate.where is not None else "")


def _window(window: ops.Window) -> str:
    match window:
        case ops.Tumbling(size=size):
            return f"tumbling {in_words(size)}"
        case ops.Hopping(size=size, slide=slide):
            return f"hopping {in_words(size)} every {in_words(slide)}"
        case ops.Session(gap=gap):
            return f"session {in_words(gap)}"
        case ops.Attached():
            return "that of the rows"


def _duration(ms: int | None) -> str:
    return "" if ms is None else in_words(timedelta(milliseconds=ms))


def _told_ttls(stage: StageNode) -> str:
    """The TTL of the stage, and those of the tables that have one."""
    own = {table: ttl_of_table(stage, table) for table in _tables_with_ttl(stage)}
    texts = [f"{_duration(ms)} of {table}" for table, ms in own.items() if ms is not None]
    return "; ".join(filter(None, (_duration(stage.ttl_ms), *texts)))


def _tables_with_ttl(stage: StageNode) -> list[str]:
    """The tables of a function's states that may have a TTL of their own."""
    if not isinstance(stage.operation, ops.ProcessKeyed):
        return []
    tables = map(table_of, declared_states(stage.operation.function).values())
    return sorted({*tables} - {VALUES})


def _listed(columns: Iterable[str]) -> str:
    return ", ".join(map(meaning, columns))


def _goes_by_time(stage: StageNode) -> bool:
    """Whether the state depends on the event times of the rows."""
    match stage.operation:
        case ops.KeyedAggregate(aggregates=aggregates):
            return any(a.kind in _ORDERED_BY_TIME and a.by is None for a in aggregates.values())
        case ops.Deduplicate(by=by):
            return by is None
        case ops.ProcessKeyed():
            return True
        case _:
            return stage.goes_by_event_time or hasattr(stage.operation, "window")


def _columns_read(stage: StageNode, times: Iterable[str]) -> dict[str, frozenset[str]] | None:
    """By column of an aggregate the columns that it reads beside the keys, in lower case, and
    perhaps more; by "" what all of them read.  None: whole rows.  The event *times* are those by
    which it goes.
    """
    match stage.operation:
        case ops.KeyedAggregate(aggregates=aggregates):
            whole = frozenset[str]()
        case ops.WindowAggregate(aggregates=aggregates):
            whole = _lowered(times) | {"window_start", "window_end"}
        case _:
            return None
    found = {"": whole}
    for name, of in aggregates.items():
        by_time = of.kind in _ORDERED_BY_TIME and of.by is None
        found[name] = whole | _words(filter(None, (of.column, of.where, of.by)))
        found[name] |= _lowered(times) if by_time else frozenset()
    return found


def _lowered(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.lower() for name in names)


def _words(texts: Iterable[str]) -> frozenset[str]:
    """Every word of the *texts*: the columns in them, and more."""
    found = (token for text in texts for token in tokens(text))
    return frozenset(t.text.strip('`"').lower() for t in found if t.kind in ("word", "quoted"))


def _described_steps(steps: Sequence[Step], wanted: frozenset[str] | None) -> str:
    """The *steps* as far as they say which rows there are, and what is in the columns *wanted*."""
    texts: list[str] = []
    for step in reversed(steps):
        if isinstance(step, Filter):
            texts.append(f".where({meaning(step.condition)})")
        else:
            items = _items(step.columns, wanted)
            is_whole = wanted is None and "*" not in map(str.strip, step.columns)
            named = [f"{name} = {sql}" for name, sql in items.items() if name != sql]
            kept = [name for name, sql in items.items() if name == sql] if is_whole else []
            if named or kept:
                texts.append(f".select({', '.join(sorted((*kept, *named)))})")
        wanted = _read_before((step,), wanted)
    return "".join(reversed(texts))


def _read_before(steps: Sequence[Step], wanted: frozenset[str] | None) -> frozenset[str] | None:
    """The columns that are read before *steps*, if those *wanted* are read behind them."""
    for step in reversed(steps):
        if isinstance(step, Filter):
            wanted = None if wanted is None else wanted | _words([step.condition])
            continue
        is_whole = wanted is None and "*" in map(str.strip, step.columns)
        items = _items(step.columns, wanted)
        kept = (wanted or frozenset()) - items.keys()
        wanted = None if is_whole else kept | _words(items.values())
    return wanted


def _items(columns: Iterable[str], wanted: frozenset[str] | None) -> dict[str, str]:
    """The selected columns that are *wanted*: name -> what it is."""
    named = {name.lower(): text for text in columns if (name := result_name(text)) is not None}
    return {name: meaning(text) for name, text in named.items() if wanted is None or name in wanted}
