"""A source of partitions that grow, in this process: what a log is, and files are not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

import pyarrow as pa

from sluice.connectors.offsets import OffsetSource, Readable
from sluice.core.plan import Slice
from tests.fuzz.plans import (
    Act,
    Checkpoint,
    Feed,
    InputPlan,
    Plan,
    Restore,
    SinkPlan,
    StagePlan,
    only_used,
)
from tests.fuzz.tuning import COMPACTS


@dataclass(eq=False)
class Growing(OffsetSource):
    """A ``SourceSpec`` and its ``Source`` in one; ``rows`` are those of each partition."""

    given: pa.Schema
    rows: dict[str, pa.Table] = field(default_factory=dict)

    @property
    def params(self) -> tuple[()]:
        return ()

    def open(self, params: Mapping[str, str], endpoint_url: str | None) -> Growing:
        return self

    @property
    def bounded(self) -> bool:
        return False

    @property
    def name(self) -> str:
        return "growing"

    def schema(self) -> pa.Schema:
        return self.given

    def readable(self) -> Mapping[str, Readable]:
        return {name: Readable(0, rows.num_rows) for name, rows in self.rows.items()}

    def read(self, piece: Slice, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        yield from self.rows[piece.partition].slice(piece.start, piece.records).to_batches()

    def __hash__(self) -> int:
        return id(self)


DWINDLING_PLANS = 0.03
ENTITIES = 12
DWINDLES = "dwindles"  # The uid of the stage whose groups do.


def dwindling(random: Random, plan: Plan) -> Plan:
    """The plan, of some seeds another one, of the first of its sources alone."""
    if random.random() >= DWINDLING_PLANS:
        return plan
    source = next(source for source in plan.sources if not source.is_table)
    of_entity = (("xk", f"id % {ENTITIES}"),)
    given = InputPlan(producer=source.uid, keys=("xk",), key_expressions=of_entity)
    newest = StagePlan(uid="newest", op="latest", inputs=(given,), args={"by": ["id"]})
    aggregates = {
        "n": ["count", None, None, None],
        "k_sum": ["sum", "k", None, None],
        "edge": [random.choice(("min", "max")), "k", None, None],
        "outer": [random.choice(("first", "last")), "k", None, "id"],
    }
    grouped = StagePlan(
        uid=DWINDLES,
        op="aggregate",
        inputs=(InputPlan(producer="newest", keys=("g",)),),
        args={"aggregates": aggregates},
    )
    tuning = tuple(name for name in plan.tuning if name != COMPACTS)
    plan = replace(
        plan,
        stages=(newest, grouped),
        sinks=(SinkPlan(uid=f"{DWINDLES}_out", producer=DWINDLES, upsert_key=("g",)),),
        acts=tuple(_acts(random, source.uid)),
        max_records=None,
        parallelism=1,
        max_runs=random.choice((2, 16, 16)),
        unaligned="",
        tuning=(*tuning, COMPACTS),
    )
    return only_used(plan)


def _acts(random: Random, source: str) -> list[Act]:
    acts: list[Act] = [Feed(source=source, batch=1, rows=tuple(range(2 * ENTITIES))), Checkpoint()]
    for batch in range(2, random.choice((6, 7, 8))):
        rows = random.sample(range(ENTITIES), random.choice((1, 1, 2)))
        acts += [Feed(source=source, batch=batch, rows=tuple(sorted(rows))), Checkpoint()]
        if random.random() < 0.05:
            acts.append(Restore(parallelism=random.choice((None, 2))))
    return acts
