"""What Catalyst knows to answer otherwise when it is asked again: also functions in Python, if they
were declared with ``asNondeterministic()``, and ``Column``s.

Where it is refused ``declaration/determinism.py`` says.  Of a remote session only the plan as it is
printed is known, which does not say how a function in Python was declared.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from sluice.declaration.changelog import Append
from sluice.declaration.determinism import (
    CLOCKS,
    DRAWS,
    PLACES,
    TEXTS,
    Reader,
    refuse_key,
    refuse_over_updates,
    refuse_two_readers,
    shared_steps,
    why_of_spark,
)
from sluice.declaration.nodes import Input, StageNode
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.sql import parsed
from sluice.declaration.sql_tree import Column
from sluice.errors import ConfigurationError
from sluice.spark.frames import projected
from sluice.spark.row_wise import all_columns_shown, analysed_plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Calls in a printed plan; what is followed by # is a column of that name.
_DRAW = re.compile(rf"\b(?:{'|'.join(sorted(DRAWS))})\((?![^()\n]*\)#)", re.IGNORECASE)
_CLOCK = re.compile(
    rf"\b(?:{'|'.join(sorted(CLOCKS))})\((?:\d+, )?(?:Some\([^()]*\)|\d*)\)(?!#)", re.IGNORECASE
)
# Texts that are made days or instants, and what computes one without columns.  Of a remote session
# BETWEEN and NULLIF are printed without the cast, beside texts, too.
_NESTED = r"(?:[^()\n]|\((?:[^()\n]|\((?:[^()\n]|\([^()\n]*\))*\))*\))*?"
_TEXT = re.compile(
    rf"\b(?:(?:try_)?cast\(|(?:between|nullif)\({_NESTED}, |(?:try_)?to_(?:date|timestamp)\w*\()"
    r"\s*(now|today|tomorrow|yesterday)\s*(?:\)|,| as (?:date|timestamp))",
    re.IGNORECASE,
)
_COMPUTED = re.compile(
    rf"\bcast\(((?:{'|'.join(sorted(TEXTS))})\({_NESTED}\)) as (?:date|timestamp)",
    re.IGNORECASE,
)
# Letters of a text, and no column.
_LETTERS = re.compile(r"(?=(?:\w+\(|\bNone\b|[^A-Za-z])*+[A-Za-z])[^#]*")
_PLACE = re.compile(rf"\b(?:{'|'.join(sorted(PLACES))})\(\)(?!#)", re.IGNORECASE)
_DECLARED = "a function that is declared with asNondeterministic()"


def check_function(stage: StageNode, result: DataFrame) -> None:
    """Check the *result* of the function of *stage*.

    Raises:
        ConfigurationError: it tells how Spark cut its rows, or it answers otherwise next time, and
            rows are taken back.
    """
    plan = analysed_plan(result)
    owner = f"the function of stage {stage.uid!r}"
    place = _PLACE.search(plan)
    if place is not None:
        name = place[0].lower()
        raise ConfigurationError(f"{owner} has {name}, {why_of_spark(name)}")
    updating = next((given for given in stage.inputs if given.kind != Append()), None)
    found = _nondeterministic(result, plan) if updating is not None else None
    if updating is not None and found is not None:
        refuse_over_updates(owner, updating.producer, found)


def check_computed(
    stage: StageNode, inputs: Sequence[DataFrame], sides: Sequence[DataFrame]
) -> None:
    """Check the keys of *stage* over its *inputs*, and what is computed of them in its *sides*.

    Raises:
        ConfigurationError: a key answers otherwise next time, or rows are taken back, and something
            else does.
    """
    for given, rows in zip(stage.inputs, inputs, strict=True):
        for name, sql in given.key_expressions.items():
            alone = _bare(rows).selectExpr(sql)
            found = _nondeterministic(alone) if _may_be_drawn(sql, rows.columns) else None
            if found is not None:
                refuse_key(f"stage {stage.uid!r}", name, sql, found)
    updating = next((given for given in stage.inputs if given.kind != Append()), None)
    if updating is not None:
        for side in sides:
            found = _nondeterministic(side)
            if found is not None:
                refuse_over_updates(f"stage {stage.uid!r}", updating.producer, found)


def check_shared_steps(pipeline: Pipeline, source: str, rows: DataFrame) -> None:
    """Check the steps that several readers of *source* apply to its *rows*, each for itself.

    Raises:
        ConfigurationError: a step answers otherwise for each of them.
    """
    readers = [
        Reader(f"stage {stage.uid!r}", given.steps)
        for stage in pipeline.consumers_of(source)
        for given in stage.inputs
        if given.producer == source
    ]
    for one, other in combinations(readers, 2):
        steps = shared_steps(one.steps, other.steps)
        if not steps:
            continue
        found = _nondeterministic(projected(_bare(rows), Input(producer=source, steps=steps)))
        if found is not None:
            refuse_two_readers(source, (one, other), steps, found)


def _may_be_drawn(sql: str, columns: Sequence[str]) -> bool:
    """Whether *sql* is more than the columns that there are."""
    known = {column.lower() for column in columns}
    parts = parsed(sql).parts
    return not all(isinstance(of, Column) and of.parts[0].lower() in known for of in parts)


def _bare(rows: DataFrame) -> DataFrame:
    """Rows of that schema, which nothing has computed."""
    return rows.sparkSession.createDataFrame([], rows.schema)


def _nondeterministic(rows: DataFrame, plan: str | None = None) -> str | None:
    """What of *rows* answers otherwise when they are computed again; None if nothing does."""
    plan = analysed_plan(rows) if plan is None else plan
    execution = getattr(rows, "_jdf", None)
    if execution is None or not execution.queryExecution().analyzed().deterministic():
        drawn = _DRAW.search(plan)
        if drawn is not None:
            return _call(drawn)
        if execution is not None:
            return _DECLARED
    read = _CLOCK.search(plan)  # To Catalyst a clock is a constant of the query.
    if read is not None:
        return _call(read)
    plan = plan if execution is None else _replaced(rows)
    computed = (found[1] for found in _COMPUTED.finditer(plan) if _LETTERS.fullmatch(found[1]))
    text = _TEXT.search(plan)
    found = next(computed, None) if text is None else f"{text[1].lower()!r}"
    return None if found is None else f"{found} as a day or an instant"


def _replaced(rows: DataFrame) -> str:
    """The analysed plan of *rows* with the casts of BETWEEN, NULLIF and the like."""
    jvm = rows.sparkSession._jvm  # noqa: SLF001 - no API has it
    assert jvm is not None
    with all_columns_shown(rows):
        analysed = rows._jdf.queryExecution().analyzed()  # noqa: SLF001 - as above
        rule = jvm.org.apache.spark.sql.catalyst.optimizer.ReplaceExpressions
        return str(rule.apply(analysed).toString())


def _call(found: re.Match[str]) -> str:
    return f"{found[0].partition('(')[0].lower()}()"
