"""The oracle: the expected rows of every sink at a barrier, by batch SQL in DuckDB.

A table for each source and stage, computed anew from the rows at every barrier.  A row that is only
ever added has the ``_epoch`` in which it came, for what depends on it: who was late, which rows a
key had first.  The query of each operation is in ``queries``.
"""

# ruff: noqa: S608 - queries are made of what a drawing named
from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from sluice.core.transitions import Consent
from sluice.declaration.pipeline import side_output
from tests.fuzz.changing import STATELESS, takes_back
from tests.fuzz.data import schema_of
from tests.fuzz.past import MIN_WATERMARK, Past
from tests.fuzz.plans import InputPlan, SinkPlan, SourcePlan, StagePlan
from tests.fuzz.queries import EPOCH, QUERIES, left_out, listed, q
from tests.fuzz.session import duck


@dataclass
class Oracle:
    """``past`` is what was played so far."""

    past: Past
    sql: duckdb.DuckDBPyConnection = field(default_factory=partial(duck, "oracle"))

    def __post_init__(self) -> None:
        self._columns: dict[str, dict[str, str]] = {}
        # By the checkpoints up to a barrier, and by stream: its rows, with when each came.
        self._remembered: dict[tuple[tuple[int, ...], str], pa.Table] = {}
        self._changed_at = 0  # The epoch behind which the declaration changed last.
        self._sent: dict[str, pa.Table] = {}  # By then, of each stage.
        self._shown: dict[str, pa.Table] = {}  # By then, of each sink.
        self._aside: dict[str, pa.Table] = {}  # By then, of each side output.
        # Of a stage and side whose state is not that of all rows: the rows that it was of up to
        # that epoch.
        self._memory: dict[tuple[str, int], tuple[int, pa.Table]] = {}
        # The epochs behind which stages, and columns of them, began anew.
        self._anew: dict[str, int] = {}
        self._columns_anew: dict[tuple[str, str], int] = {}
        self._came: dict[str, set[str]] = {}  # Of sinks of such: the keys that came since.
        # Behind which epoch, and up to which, sinks were not declared.
        self._absent: dict[str, list[tuple[int, int]]] = {}

    def sinks(self) -> dict[str, pa.Table]:
        """The rows of every sink at the last barrier."""
        self._compute()
        sinks = (sink for sink in self.past.plan.sinks if not sink.is_absent)
        return {sink.uid: self._selected(sink, self._sink(sink)) for sink in sinks}

    def _compute(self) -> None:
        self._columns.clear()
        for source in self.past.plan.sources:
            self._source(source)
        self._watermarks()
        for stage in self.past.plan.stages:
            text = _narrowed(stage, QUERIES[stage.op](self, stage))
            self._columns.pop(stage.uid, None)
            self.make(stage.uid, text)
            # Rows that only came may be taken back by now.
            is_sent = stage.uid in self._sent and not takes_back(self.past.plan, stage.uid)
            if is_sent and _has_epochs(self._sent[stage.uid]):
                name = f"{stage.uid}_now"
                self.make(name, f"SELECT * FROM {q(stage.uid)}")
                later = self._later(name, self._changed_at, self._sent[stage.uid])
                self.make(stage.uid, f"SELECT * FROM {q(later)}")
            given = [one.producer for one in stage.inputs if one.producer in self._anew]
            if stage.op in STATELESS and any(self.is_updating(uid) for uid in given):
                self._anew[stage.uid] = self._anew[given[0]]
            if self.past.plan.unaligned:  # Others may read it later than at this barrier.
                self._remembered[self._barriers(), stage.uid] = self._whole(stage.uid)

    def changes(self, consent: Consent, names: Mapping[str, str]) -> None:
        """From the next epoch on the plan is another: what is sent and published stays, and state
        is of all rows, but for what begins anew, or is kept as it is of the rows so far.  *names*
        are the new uids of stages, by what they were.
        """
        shown, epoch = self.sinks(), len(self.past.epochs)
        is_published = not self._shown or not self.has_completed_none()
        self._shown = shown if is_published else self._shown
        self._aside = self._left_out()
        for stage in self.past.plan.stages:
            self._sent[stage.uid] = self._whole(stage.uid)
            uid = names.get(stage.uid, stage.uid)
            for side in range(len(stage.inputs)):
                if uid in consent.begun or uid in consent.kept:
                    rows = self._whole(self.given(stage, side))
                    rows = rows if uid in consent.kept else rows.slice(0, 0)
                    self._memory[uid, side] = (epoch, rows)
        for target in consent.begun:
            uid, _, column = target.partition(".")
            if column:
                self._columns_anew[uid, column.lower()] = epoch
            else:
                self._anew[uid] = epoch
        for sink in self.past.plan.sinks:
            if self._anew.get(names.get(sink.producer, sink.producer)) == epoch:
                self._came[sink.uid] = set()
            if sink.is_absent:
                self._absent.setdefault(sink.uid, []).append((self._changed_at, epoch))
        self._changed_at = epoch

    def as_it_is(self) -> Oracle:
        """What it knows of the changes so far."""
        same = copy(self)
        same.__dict__ |= {
            "_sent": {**self._sent},
            "_memory": {**self._memory},
            "_anew": {**self._anew},
            "_columns_anew": {**self._columns_anew},
            "_came": {uid: {*keys} for uid, keys in self._came.items()},
            "_absent": {uid: [*ranges] for uid, ranges in self._absent.items()},
        }
        return same

    def has_completed_none(self) -> bool:
        """Whether no checkpoint that counts has completed since the declaration changed."""
        return self._changed_at == len(self.past.epochs)

    def knows_drawn(self, rows: pa.Table) -> None:
        """The numbers that a function has drawn are those of *rows*, of its table."""
        empty = pa.table({"id": pa.array([], pa.int64()), "drawn": pa.array([], pa.float64())})
        self.make("_drawn", "FROM _given", _given=rows if rows.column_names else empty)

    def since_when(self, stage: StagePlan, column: str) -> int:
        """The epoch behind which a column of the stage began anew."""
        return self._columns_anew.get((stage.uid, column.lower()), 0)

    def _later(self, name: str, epoch: int, before: pa.Table) -> str:
        """The name of a table: the rows of the table *name* that are of epochs behind *epoch*, and
        the rows *before*.
        """
        found = f"{name}_later"
        known = {EPOCH, *(column.lower() for column in self.columns(name))}
        names = [column for column in before.column_names if column.lower() in known]
        self.make(
            found,
            f"SELECT * FROM {q(name)} WHERE {EPOCH} > {epoch} "
            f"UNION ALL BY NAME SELECT {listed(names)} FROM _before",
            _before=before,
        )
        return found

    def sides(self) -> dict[str, pa.Table]:
        """The rows of the side outputs of late rows, of those without event time and of malformed
        lines, by their uid; to be called behind ``sinks``.
        """
        return {uid: rows.drop_columns([EPOCH]) for uid, rows in self._left_out().items()}

    def _left_out(self) -> dict[str, pa.Table]:
        """Those rows, each with the epoch in which it was read; of before the declaration changed,
        what they were then.
        """
        found = {
            side_output(stage.uid, name): self.sql.sql(text).to_arrow_table()
            for stage in self.past.plan.stages
            for name, text in left_out(self, stage)
        }
        for source in self.past.malformed:
            readers = [
                stage.uid
                for stage in self.past.plan.stages
                if any(given.producer == source for given in stage.inputs)
            ]
            lines = [*self.past.malformed_of(source)]
            uid = side_output(readers[0], "malformed")
            columns = {
                EPOCH: pa.array([epoch for epoch, _ in lines], pa.int64()),
                "line": pa.array([line for _, line in lines], pa.string()),
            }
            tables = [found[uid]] if uid in found else []
            found[uid] = pa.concat_tables([*tables, pa.table(columns)])
        if not self._changed_at:
            return found
        return {
            uid: pa.concat_tables(
                [rows.filter(pc.greater(rows.column(EPOCH), self._changed_at)), *before],
                promote_options="permissive",
            )
            for uid, rows in found.items()
            for before in [[self._aside[uid]] if uid in self._aside else []]
        }

    def make(self, name: str, text: str, **tables: pa.Table) -> None:
        """A table of the rows of a query, which may name *tables*."""
        for given, table in tables.items():
            self.sql.register(given, table)
        self.sql.execute(f"CREATE OR REPLACE TEMP TABLE {q(name)} AS {text}")
        for given in tables:
            self.sql.unregister(given)
        self._columns.pop(name, None)

    def columns(self, name: str) -> dict[str, str]:
        """Of a table or view, but ``_epoch``: name -> DuckDB's type."""
        if name not in self._columns:
            found = self.sql.execute(f"DESCRIBE {q(name)}").fetchall()
            self._columns[name] = {row[0]: row[1] for row in found if row[0] != EPOCH}
        return self._columns[name]

    def given(self, stage: StagePlan, side: int = 0, *, since: str | None = None) -> str:
        """The name of a view of an input as the stage knows it, with its key expressions; of the
        table *since*, where that has its rows.
        """
        given = stage.inputs[side]
        text = self._input(given, since or self.seen_by(stage, given.producer))
        name = f"{stage.uid}_in{side}"
        renamed = self._renames(stage, side)
        if renamed:
            columns = ", ".join(f"{q(old)} AS {q(new)}" for old, new in renamed.items())
            text = f"SELECT * EXCLUDE ({listed([*renamed])}), {columns} FROM ({text})"
        self.sql.execute(f"CREATE OR REPLACE TEMP VIEW {q(name)} AS {text}")
        self._columns.pop(name, None)
        if (stage.uid, side) not in self._memory:
            return name
        epoch, rows = self._memory[stage.uid, side]
        if not rows.num_rows and self.is_updating(given.producer):
            return name  # It began anew with what sends it updates.
        self.make(f"{name}_now", f"SELECT * FROM {q(name)}")
        later = self._later(f"{name}_now", epoch, rows)
        self.sql.execute(f"CREATE OR REPLACE TEMP VIEW {q(name)} AS SELECT * FROM {q(later)}")
        return name

    def seen_by(self, stage: StagePlan, producer: str) -> str:
        """The table of what *stage* has read of a stream at the last barrier.

        The epoch of a row is that in which it was read: later, where checkpoints are unaligned.
        """
        if not self.past.plan.unaligned or not self.past.is_stream(producer):
            return producer
        name, reads, last = f"{producer} for {stage.uid}", [], 0
        for number, up_to in enumerate(self.past.read_up_to()[stage.uid], start=1):
            if up_to is not None:
                reads += [(sent, number) for sent in range(last + 1, up_to + 1)]
                last = up_to
        if not last:
            self.make(name, f"SELECT * FROM {q(producer)} WHERE false")
            return name
        epochs = ", ".join(map(str, reads))
        self.make(
            name,
            f"SELECT s.* REPLACE (CAST(coalesce(e.read_in, 0) AS BIGINT) AS {EPOCH}) FROM _sent s "
            f"LEFT JOIN (VALUES {epochs}) e(sent_in, read_in) ON e.sent_in = s.{EPOCH}",
            _sent=self._remembered[self._barriers()[:last], producer],
        )
        return name

    def event_time(self, stage: StagePlan, side: int = 0) -> str | None:
        """The column of event time of an input, by the name that the stage knows it by."""
        own = self._event_time_of(stage.inputs[side].producer)
        return self._renames(stage, side).get(own or "", own)

    def of(self, name: str, others: Sequence[str]) -> list[str]:
        """The columns of a table that are none of *others*."""
        return [column for column in self.columns(name) if column not in others]

    def is_updating(self, stream: str) -> bool:
        """Rows that may be taken back have no epoch in which they came."""
        if self.past.plan.source(stream) is not None:
            return False
        ((least,),) = self.sql.execute(f"SELECT min({EPOCH}) FROM {q(stream)}").fetchall()
        return least in (0, None)

    def since(self, stream: str) -> str:
        """A table of the rows of an updating stream, each with the epoch since which it is as it
        is: what was there at the barrier before, and was not replaced, came earlier.
        """
        checkpoints, name = self._barriers(), f"{stream}_since"
        before = self._remembered.get((checkpoints[:-1], name))
        assert before is not None or len(checkpoints) == 1, "no barrier is left out"
        columns = [*self.columns(stream)]
        now = f"SELECT {listed(columns)}, CAST({len(checkpoints)} AS BIGINT) AS {EPOCH}"
        if before is None:
            self.make(name, f"{now} FROM {q(stream)}")
        else:
            same = " AND ".join(f"n.{q(one)} IS NOT DISTINCT FROM b.{q(one)}" for one in columns)
            came = f"coalesce(b.{EPOCH}, CAST({len(checkpoints)} AS BIGINT)) AS {EPOCH}"
            joined = f"{q(stream)} n LEFT JOIN _before b ON {same}"
            text = f"SELECT {listed(columns, 'n.')}, {came} FROM {joined}"
            self.make(name, text, _before=before)
        self._remembered[checkpoints, name] = self._whole(name)
        return name

    def _barriers(self) -> tuple[int, ...]:
        return tuple(epoch.checkpoint_id for epoch in self.past.epochs)

    def _whole(self, name: str) -> pa.Table:
        return self.sql.sql(f"SELECT * FROM {q(name)}").to_arrow_table()

    def _event_time_of(self, producer: str) -> str | None:
        source = self.past.plan.source(producer)
        if source is not None:
            return source.event_time
        stage = self.past.plan.stage(producer)
        keeps = stage.op in ("transform", "lookup", "union", "deduplicate")
        return self._event_time_of(stage.inputs[0].producer) if keeps else None

    def _renames(self, stage: StagePlan, side: int) -> dict[str, str]:
        """Two sides of a join call their event time alike: the right one's gets another name."""
        if side == 0 or stage.op in ("union", "process_keyed"):
            return {}
        left, right = (self._event_time_of(given.producer) for given in stage.inputs)
        given = stage.inputs[1]
        is_left_out = bool(given.select) and right not in given.select
        if right is None or right != left or right in given.keys or is_left_out:
            return {}
        return {right: f"right_{right}"}

    def _input(self, given: InputPlan, read: str) -> str:
        text = f"SELECT * FROM {q(read)}"
        for condition in given.where:
            text = f"SELECT * FROM ({text}) WHERE {condition}"
        if given.select:
            with_epoch = given.select if "*" in given.select else (*given.select, EPOCH)
            text = f"SELECT {', '.join(with_epoch)} FROM ({text})"
        if given.key_expressions:
            keys = ", ".join(f"({sql}) AS {q(name)}" for name, sql in given.key_expressions)
            text = f"SELECT *, {keys} FROM ({text})"
        return text

    def _source(self, source: SourcePlan) -> None:
        """A table source has a copy for each epoch: what it was at that barrier."""
        schema = schema_of(source).append(pa.field(EPOCH, pa.int64()))
        parts = [schema.empty_table()]
        for epoch in range(1, len(self.past.epochs) + 1):
            if source.is_table:
                read = [self.past.epochs[epoch - 1].tables[source.uid]]
            else:
                read = [rows for _, rows in self.past.rows_of(source.uid, epoch)]
            for rows in read:
                epochs = pa.array([epoch] * rows.num_rows, pa.int64())
                parts.append(rows.append_column(EPOCH, epochs))
        self.make(source.uid, "SELECT * FROM _given", _given=pa.concat_tables(parts))

    def _watermarks(self) -> None:
        """``_watermarks``: of each stage and epoch, with that before it."""
        rows = [
            (stage, epoch, now, before)
            for stage, found in self.past.watermarks().items()
            for epoch, (before, now) in enumerate(
                zip([MIN_WATERMARK, *found], found, strict=False), start=1
            )
        ]
        columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
        types = (pa.string(), pa.int64(), pa.int64(), pa.int64())
        names = ["stage", "epoch", "now", "before"]
        table = pa.table([pa.array(c, t) for c, t in zip(columns, types, strict=True)], names=names)
        self.make("_watermarks", "SELECT * FROM _given", _given=table)

    def _sink(self, sink: SinkPlan) -> pa.Table:
        text = f"SELECT * FROM {q(sink.producer)}"
        for condition in sink.where:
            text = f"SELECT * FROM ({text}) WHERE {condition}"
        for behind, up_to in self._absent.get(sink.uid, ()):
            text = f"SELECT * FROM ({text}) WHERE {EPOCH} NOT BETWEEN {behind + 1} AND {up_to}"
        rows = self.sql.sql(text).to_arrow_table()
        if sink.producer in self._anew and sink.upsert_key and self._shown:
            return self._over_what_was_shown(sink, rows)
        return rows.drop_columns([EPOCH])

    def _selected(self, sink: SinkPlan, rows: pa.Table) -> pa.Table:
        if not sink.select:
            return rows
        self.sql.register("_shown", rows)
        selected = self.sql.sql(f"SELECT {', '.join(sink.select)} FROM _shown").to_arrow_table()
        self.sql.unregister("_shown")
        return selected

    def _over_what_was_shown(self, sink: SinkPlan, rows: pa.Table) -> pa.Table:
        """What was published stays until its key comes again; *rows* are those of the stream."""
        before, epoch = self._shown[sink.uid], self._anew[sink.producer]
        names, came = sink.upsert_key, self._came.setdefault(sink.uid, set())
        if _has_epochs(rows):
            rows = rows.filter(pc.greater(rows.column(EPOCH), epoch))
        came |= {*_keys_of(rows, names)}
        kept = [key not in came for key in _keys_of(before, names)]
        rows = rows.drop_columns([EPOCH])
        before = before.filter(pa.array(kept, pa.bool_()))
        known = {name.lower(): name for name in rows.column_names}
        before = before.rename_columns([known.get(n.lower(), n) for n in before.column_names])
        before = before.select([n for n in before.column_names if n in rows.column_names])
        return pa.concat_tables([rows, before], promote_options="permissive")


def _has_epochs(rows: pa.Table) -> bool:
    """Whether they are of a stream whose rows are not taken back; not, if there are none."""
    return bool(rows.num_rows) and min(rows.column(EPOCH).to_pylist()) > 0


def _keys_of(rows: pa.Table, names: Sequence[str]) -> list[str]:
    return [repr(tuple(row.values())) for row in rows.select([*names]).to_pylist()]


def _narrowed(stage: StagePlan, text: str) -> str:
    """*text* with the stage's own filters and projections applied to it."""
    for condition in stage.where:
        text = f"SELECT * FROM ({text}) WHERE {condition}"
    if stage.select:
        text = f"SELECT {', '.join(stage.select)}, {EPOCH} FROM ({text})"
    return text
