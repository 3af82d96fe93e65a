"""The lineage of a column: the expression that it is computed of, down to the sources.

    rows.select("x + 1 AS a").select("a % 2 AS k").key_by("k")      k is (x + 1) % 2

Filters say which rows there are, and not what a column of them is.  Stages are followed as far as
the declaration tells: a function is taken to pass a column on, as are stages with state, which
compute their keys and aggregates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sluice.declaration.aggregates import Aggregate
from sluice.declaration.column_types import ColumnType
from sluice.declaration.expressions import Filter, Step
from sluice.declaration.nodes import Input, StageNode
from sluice.declaration.operations import (
    KeyedAggregate,
    KeyedLookup,
    Lookup,
    Process,
    ProcessKeyed,
    SparkCode,
    Transform,
    Union,
    WindowAggregate,
)
from sluice.declaration.sql import Sql, parsed
from sluice.declaration.sql_tree import (
    Call,
    Column,
    Expression,
    Literal,
    canonical,
    replaced,
    tokens,
)

_OF_THE_LEFT = ("semi", "anti")  # Joins whose rows are of the left side alone.


@dataclass(frozen=True, slots=True)
class Declared:
    """The stages of a pipeline, and by source what ``columns``, in lower case, are in a record."""

    stages: Mapping[str, StageNode]
    columns: Mapping[str, Mapping[str, str]]


def origin(given: Declared, stream: Input, column: str) -> Expression:
    """The expression that a *column* of an input, or a key of it, is computed of."""
    return _of_input(given, stream, column) or Column((column,))


def is_united(given: Declared, uid: str) -> bool:
    """Whether several streams come together, without state, in what *uid* sends."""
    stage = given.stages.get(uid)
    if stage is None or stage.is_stateful or isinstance(stage.operation, SparkCode):
        return False
    return isinstance(stage.operation, Union) or is_united(given, stage.inputs[0].producer)


def _of_input(given: Declared, stream: Input, column: str) -> Expression | None:
    """The expression of an input's column; None if the input has no such column."""
    name = column.lower()
    stage = given.stages.get(stream.producer)
    steps = stream.steps if stage is None else (*stage.steps, *stream.steps)
    for key, sql in stream.key_expressions.items():
        if key.lower() == name:
            return _traced(given, stream.producer, steps, parsed(sql))
    for old, new in stream.renames.items():
        if new.lower() == name:
            return _behind(given, stream.producer, steps, old)
        if old.lower() == name:
            return None
    return _behind(given, stream.producer, steps, column)


def _behind(given: Declared, uid: str, steps: Sequence[Step], column: str) -> Expression | None:
    """The expression of a *column* behind all the *steps* over what *uid* yields."""
    for number, step in reversed([*enumerate(steps)]):
        if isinstance(step, Filter):
            continue
        items = [*map(parsed, step.columns)]
        own = [item for item in items if (item.name or "").lower() == column.lower()]
        if own:
            return _traced(given, uid, steps[:number], own[-1])
        if not any(item.is_star for item in items):
            return None
    stage = given.stages.get(uid)
    if stage is not None:
        return _of_stage(given, stage, column)
    return Column((given.columns.get(uid, {}).get(column.lower(), column),))


def _traced(given: Declared, uid: str, steps: Sequence[Step], sql: Sql) -> Expression:
    """*sql*, which reads what is behind the *steps*, over columns of the sources."""

    def before(column: Column) -> Expression:
        return _behind(given, uid, steps, column.parts[0]) or column

    if sql.tree is not None:
        return replaced(sql.tree, before)
    words = {token.text.strip("`") for token in tokens(sql.text) if token.kind in _NAMES}
    read = ((Column((word,)), before(Column((word,)))) for word in sorted(words))
    known = [Call("=", pair) for pair in read if canonical(pair[0]) != canonical(pair[1])]
    unnamed = sql.canonical().removesuffix(f" as {(sql.name or '').lower()}")
    return Call("unread", (_text(unnamed), *known))


_NAMES = ("word", "quoted")  # Kinds of tokens.


def _of_stage(given: Declared, stage: StageNode, column: str) -> Expression | None:
    """The expression of a *column* of a stage's result, before its steps."""
    name, operation = column.lower(), stage.operation
    is_key = name in (key.lower() for key in stage.keys)
    match operation:
        case KeyedAggregate(aggregates=columns) | WindowAggregate(aggregates=columns) if not is_key:
            found = next((of for key, of in columns.items() if key.lower() == name), None)
            return Column((column,)) if found is None else _aggregated(given, stage, found)
        case Process() | ProcessKeyed() if not is_key:
            return Column((column,))
        case SparkCode():
            return Column((column,))
        case (Lookup() as lookup) | KeyedLookup(lookup=lookup):
            for added, sql in lookup.add.items():
                if added.lower() == name:
                    on = ", ".join(f"{parsed(at).canonical()}" for _, at, _ in lookup.compared)
                    text = f"{parsed(sql).canonical()} of {lookup.table} by {on}"
                    by = (origin(given, stage.inputs[0], key) for key, _, _ in lookup.compared)
                    return Call("looked_up", (_text(text), *by))
        case _:
            pass
    if isinstance(operation, Union | Transform) or len(stage.inputs) == 1:
        return _any_of(_of_input(given, stream, column) for stream in stage.inputs)
    if is_key:
        place = [key.lower() for key in stage.keys].index(name)
        # A row without a partner has its own side's, and all others one that is equal in both.
        is_of_the_left = getattr(operation, "how", "") in _OF_THE_LEFT
        sides = stage.shuffled[:1] if is_of_the_left else stage.shuffled
        return _any_of(_of_input(given, side, side.keys[place]) for side in sides)
    found_of = [_of_input(given, stream, column) for stream in stage.shuffled]
    computed = [
        of for of in found_of if of is not None and canonical(of) != canonical(Column((column,)))
    ]
    return _any_of(computed or found_of)  # One side has it: where both do, a join is refused.


def _aggregated(given: Declared, stage: StageNode, aggregate: Aggregate) -> Expression:
    texts = (aggregate.column, aggregate.by, aggregate.where)
    (stream,) = stage.inputs
    before = given.stages.get(stream.producer)
    steps = stream.steps if before is None else (*before.steps, *stream.steps)
    read = [_traced(given, stream.producer, steps, parsed(text)) for text in texts if text]
    options = (aggregate.fraction, aggregate.separator)
    return Call(
        aggregate.kind.value, (*read, *(_text(repr(one)) for one in options if one is not None))
    )


def _any_of(found: Iterable[Expression | None]) -> Expression | None:
    by_text = {canonical(of): of for of in found if of is not None}
    if len(by_text) < 2:
        return next(iter(by_text.values()), None)
    return Call("any_of", tuple(by_text[text] for text in sorted(by_text)))


def _text(value: str) -> Literal:
    return Literal(value, ColumnType("string"))
