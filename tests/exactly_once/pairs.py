"""A source and a sink with a keyed stage between them, and the rows that a stranger must see.

The source has ``RECORDS`` records, ids 0 and up, one event each.  Where rows are appended the stage
passes the first row of each id on: an epoch that is read twice, or state that is lost, shows as a
row too many or too few.  Where they are upserted it counts the records of each of five groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing, fixed_delay
from sluice.declaration.pipeline import Pipeline
from sluice.sinks import SinkSpec
from sluice.sources import SourceSpec

RECORDS = 35
GROUPS = 5
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """``ids`` are the columns that identify a record, ``group`` the one with few values."""

    name: str
    spec: SourceSpec
    ids: tuple[str, ...]
    group: str
    expected: tuple[Row, ...]  # The values of ``ids`` and ``group`` of each record.


@dataclass(frozen=True, slots=True)
class SinkPlace:
    """A table that is empty yet; ``read`` is how a stranger sees it."""

    name: str
    spec: SinkSpec
    read: Callable[[], list[Row]]
    upserts: bool = False
    is_at_least_once: bool = False


@dataclass(frozen=True, slots=True)
class Declared:
    """Picklable: a process builds its own pipeline of it."""

    source: SourceSpec
    ids: tuple[str, ...]
    group: str
    sink: SinkSpec
    upserts: bool

    def __call__(self) -> Pipeline:
        checkpointing = Checkpointing(
            restart_strategy=fixed_delay(attempts=1_000, delay=timedelta(0)),
            data_inline_threshold=0,
        )
        pipeline = Pipeline("pairs", checkpointing=checkpointing, parallelism=2)
        rows = pipeline.source("events", self.source)
        if self.upserts:
            rows.key_by(self.group).aggregate("count", n=agg.count()).sink("result", self.sink)
        else:
            rows.key_by(*self.ids).deduplicate("once", by=self.ids[-1]).sink("result", self.sink)
        return pipeline


def declared(source: SourcePlace, sink: SinkPlace) -> Declared:
    return Declared(source.spec, source.ids, source.group, sink.spec, sink.upserts)


def check(source: SourcePlace, sink: SinkPlace) -> None:
    """Check, from outside, that each record's effect is there exactly once."""
    rows = sink.read()
    if sink.upserts:
        counts = Counter(row[source.group] for row in source.expected)
        assert {row[source.group]: row["n"] for row in rows} == dict(counts)
        assert len(rows) == len(counts)
        return
    expected = Counter(tuple(row[name] for name in source.ids) for row in source.expected)
    seen = Counter(tuple(row[name] for name in source.ids) for row in rows)
    if sink.is_at_least_once:
        assert set(seen) == set(expected)
        return
    assert seen == expected, f"too many {seen - expected}, too few {expected - seen}"
