"""Faults planted in operators, state and output one at a time: proof that the fuzz would see them.

``PATHS`` has the faults in reading, shuffle, state and output, ``OPERATORS`` those in what
operators compute, ``TRANSITIONS`` those in what becomes of state when the declaration changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.exchange.reading import interned_input
from sluice.operators import sql
from tests.fuzz.changing import forgets
from tests.fuzz.drawing import TWIN
from tests.fuzz.growing import DWINDLES
from tests.fuzz.plans import Change, Checkpoint, Plan, Restore, SinkPlan, StagePlan, Vacuum
from tests.planted import Fault


@dataclass(frozen=True, slots=True)
class Mutation(Fault):
    """``ops``: only plans with one of these can see it, empty for any; and they need all of
    ``needs``.  See ``features``.  What ``accepts`` a mistake shows where that is not refused.
    """

    ops: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    accepts: bool = False

    def may_show_in(self, plan: Plan) -> bool:
        found = features(plan)
        return (not self.ops or bool(found & {*self.ops})) and found >= {*self.needs}


_FLOATS = (["sum", "y"], ["avg", "y"])


def features(plan: Plan) -> set[str]:
    """What a fault may hide in: operations, aggregates, windows, joins, sinks, acts."""
    found = {stage.op for stage in plan.stages}
    for stage in plan.stages:
        aggregates = stage.args.get("aggregates", {}).values()
        found |= {one[0] for one in aggregates}
        found |= {f"{one[0]}_of_floats" for one in aggregates if one[1] in ("x", "y")}
        found |= {str(stage.args[name]) for name in ("how", "keep") if name in stage.args}
        found |= {stage.args["window"][0]} if "window" in stage.args else set()
        found |= {name for name in ("ties", "lateness") if stage.args.get(name)}
        found |= {"filtered"} if stage.where else set()
        found |= {"projected"} if any(i.select for s in plan.stages for i in s.inputs) else set()
    found |= {"behind"} if any(plan.source(i.producer) is None for i in stage.inputs) else set()
    floats = [
        one
        for stage in plan.stages
        for one in stage.args.get("aggregates", {}).values()
        if stage.op == "aggregate" and plan.source(stage.inputs[0].producer) is None
    ]
    found |= {"float_updates"} if any(one[:2] in _FLOATS for one in floats) else set()
    found |= {"chained"} if "behind" in found and plan.is_chained and plan.way == "plain" else set()
    found |= {stage.args["lists"] for stage in plan.stages if "lists" in stage.args}
    found |= {"hears"} if any("hears" in stage.args for stage in plan.stages) else set()
    found |= {*plan.values, *(source.format for source in plan.sources)}
    found |= {"lines"} if any(source.has_lines for source in plan.sources) else set()
    found |= {"grown_lines"} if any(s.has_files_that_grow for s in plan.sources) else set()
    reads = [given for stage in plan.stages for given in stage.inputs]
    is_filtered = any(given.where and plan.source(given.producer) for given in reads)
    found |= {"filtered_source"} if is_filtered else set()
    found |= {"header"} if any(source.has_header for source in plan.sources) else set()
    found |= {"malformed"} if any(source.malformed for source in plan.sources) else set()
    found |= {"packed"} if any(source.packed for source in plan.sources) else set()
    found |= {name for sink in plan.sinks for name in _options(sink)}
    found |= {"changelog" if one.changelog else "upsert" for one in plan.sinks if _is_special(one)}
    found |= {"twins"} if any(stage.uid == TWIN for stage in plan.stages) else set()
    found |= {"idle"} if any(one.idle_after_ms is not None for one in plan.sources) else set()
    found |= {"forgets"} if any("ttl" in stage.args for stage in plan.stages) else set()
    found |= {_forgetful(stage) for stage in plan.stages if forgets(stage)}
    found |= {"capped"} if plan.max_records else set()
    found |= {*plan.tuning, plan.way, *(("parallel",) if plan.parallelism > 1 else ())}
    found |= {"dwindling"} if plan.stages[-1].uid == DWINDLES else set()
    found |= _unaligned(plan) if plan.unaligned else set()
    acts = zip(plan.acts, plan.acts[1:], strict=False)
    is_older = any(isinstance(a, Restore) and isinstance(b, Change) for a, b in acts)
    found |= {"changed_older"} if is_older else set()
    found |= {"restore" for act in plan.acts if isinstance(act, Restore)}
    found |= {"vacuum" for act in plan.acts if isinstance(act, Vacuum)}
    rescaled = [act for act in plan.acts if isinstance(act, Restore) and act.parallelism]
    found |= {"rescale"} if rescaled else set()
    found |= _changed(plan)
    checkpoints = sum(isinstance(act, Checkpoint) for act in plan.acts)
    found |= {"epochs"} if checkpoints > 1 else set()
    return found


def _forgetful(stage: StagePlan) -> str:
    """A stage whose TTL expires, as a feature."""
    return f"{stage.args.get('how', stage.op)}_forgets"


def _changed(plan: Plan) -> set[str]:
    changes = [act for act in plan.acts if isinstance(act, Change)]
    found = {f"changed_{act.part or 'nothing'}".replace(" ", "_") for act in changes}
    found |= {f"changed_{act.part}_{act.difference}".replace(" ", "_") for act in changes}
    found |= (
        {"changed_argument"} if any(_has_other_arguments(plan, act) for act in changes) else set()
    )
    found |= {"changed_from_before"} if any(act.from_before for act in changes) else set()
    found |= {"began"} if any(act.consents == "begin" for act in changes) else set()
    return found | ({"changed"} if changes else set())


def _has_other_arguments(plan: Plan, act: Change) -> bool:
    """Whether an aggregate is of another column."""
    before = {stage.uid: stage.args.get("aggregates", {}) for stage in plan.stages}
    for uid, path, value in act.edits:
        *whole, name = path.split("/")
        if whole == ["args", "aggregates"] and value is not None:
            kind, column, *_ = before.get(uid, {}).get(name, (None, None))
            if kind == value[0] and column != value[1]:
                return True
    return False


def _options(sink: SinkPlan) -> set[str]:
    found = {"json_table"} if sink.format == "json" else set()
    found |= {"filtered_reader"} if sink.where else set()
    found |= {"projected_reader"} if sink.select else set()
    found |= {"compacted"} if sink.compact_when_files else set()
    found |= {"delta_log"} if sink.delta_log else set()
    return found | ({"partitioned"} if sink.partition_by else set())


def _unaligned(plan: Plan) -> set[str]:
    """Rows come later the more stages are before them: ``uneven`` inputs differ in that, and one
    of ``waiting_source`` is a source, whose rows cannot wait for the columns of the other.
    """
    depth = {source.uid: 0 for source in plan.sources}
    found = {"unaligned", plan.unaligned}
    for stage in plan.stages:
        depths = {depth[given.producer] for given in stage.inputs}
        depth[stage.uid] = 1 + max(depths)
        if max(depths) > 1 and len(depths) > 1:
            found.add("waiting_source" if 0 in depths else "uneven")
    return found


def _is_special(sink: Any) -> bool:
    return bool(sink.changelog or sink.upsert_key)


PATHS: dict[str, Mutation] = {
    "log_keeps_what_was_left_behind": Mutation(
        "a Delta log shows rows still of versions from which the table went back",
        "connectors.files_table.delta_view:DeltaView._written",
        "gone = [] if is_added else",
        "gone = [] if True else",
        needs=("delta_log", "restore", "epochs"),
    ),
    "vacuumed_is_shown_again": Mutation(
        "a Delta log goes back to files that vacuum deleted, as what replaced them is young",
        "connectors.files_table.delta_view:DeltaView._step",
        "return self._replaced(snapshot, log.chain(version), shown, is_owed=is_owed)",
        "raise",
        needs=("delta_log", "vacuum", "epochs"),
    ),
    "nothing_is_pinned": Mutation(
        "vacuum deletes versions that checkpoints go back to",
        "cli.maintenance:vacuum",
        "*pinned",
        "",
        needs=("vacuum", "restore", "epochs"),
    ),
    "nothing_is_pinned_against_garbage": Mutation(
        "the collection of garbage deletes versions that checkpoints go back to",
        "coordinator.garbage:collect_garbage",
        "used.versions(uid)",
        "()",
        needs=("vacuum", "restore", "epochs"),
    ),
    "deletes_are_lost": Mutation(
        "what is taken back and not replaced stays in an upsert sink",
        "exchange.output:_SinkFiles.add",
        "if not self._key or not taken_back.height:",
        "if True:",
        needs=("upsert", "behind", "epochs"),
    ),
    "weights_are_lost": Mutation(
        "rows that are taken back do not reach the stages behind",
        "exchange.output:StageOutput._emit",
        "self._taken_back.add(revoked)",
        "pass",
        needs=("behind", "epochs"),
    ),
    "replaced_is_one_row": Mutation(
        "a changelog has no row for what is replaced",
        "exchange.output:_SinkFiles.add",
        "changelog_of(rows, taken_back, self._replaced_by)",
        "changelog_of(rows, taken_back.clear(), self._replaced_by)",
        needs=("changelog", "epochs"),
    ),
    "filter_is_dropped": Mutation(
        "where() behind a stage keeps every row",
        "operators.changes:behind",
        "for step in steps:",
        "for step in [s for s in steps if not isinstance(s, Filter)]:",
        needs=("filtered",),
    ),
    "readers_steps_are_dropped": Mutation(
        "a stage reads a stream without the filter that is its own",
        "exchange.reading:StreamRows.behind",
        "behind(self.steps, rows, self.stage)",
        "rows",
    ),
    "a_reader_filters_for_all": Mutation(
        "a filter of one reader of a stream is that of all",
        "declaration.pipeline:Pipeline._left_to",
        "if self.is_consumed(producer) else added",
        "if stage.steps else added",
        needs=("filtered_reader",),
    ),
    "a_reader_projects_for_all": Mutation(
        "a projection of one reader of a stream is that of all",
        "declaration.pipeline:Pipeline._left_to",
        "if self.is_consumed(producer) else added",
        "if stage.steps else added",
        needs=("projected_reader",),
    ),
    "the_first_reader_has_no_steps": Mutation(
        "a stage reads all of a stream once a second stage reads it with other steps",
        "declaration.pipeline:Pipeline._left_to",
        "_read_behind(left, given, producer)",
        "given",
        needs=("twins",),
    ),
    "a_draw_is_a_constant": Mutation(
        "random() is taken for what answers the same again",
        "declaration.determinism:nondeterministic",
        "_found(sql, DRAWS) or ",
        "",
        accepts=True,
    ),
    "readers_may_draw_apart": Mutation(
        "two readers of a source may each draw for themselves",
        "declaration.determinism:check_readers",
        "if found is not None:",
        "if False:",
        accepts=True,
    ),
    "a_header_is_in_every_part": Mutation(
        "of a file of lines that has grown a row is taken for its header",
        "connectors.files.text:FilesSource._check_header",
        "and before.offset == 0",
        "",
        needs=("header", "grown_lines", "epochs"),
    ),
    "one_malformed_line_is_told": Mutation(
        "of the malformed lines of a chunk the first goes to the side output",
        "exchange.output:StageOutput.without_malformed",
        "self._add_to_side(MALFORMED, bad)",
        "self._add_to_side(MALFORMED, bad.head(1))",
        needs=("malformed",),
    ),
    "malformed_lines_are_filtered": Mutation(
        "a malformed line has to pass the filters of the stage that tells of it",
        "spark.frames:projected",
        "if may_be_malformed:",
        "if False:",
        needs=("malformed", "filtered_source"),
    ),
    "a_function_filters_malformed_lines": Mutation(
        "a malformed line is told only where a function keeps it",
        "spark.frames:_passing_by",
        "function(marked(good)).unionByName(malformed, allowMissingColumns=True)",
        "result",
        needs=("malformed", "transform"),
    ),
    "every_reader_tells": Mutation(
        "each stage that reads a source tells of its malformed lines",
        "spark.frames:_is_first_reader",
        "return first.uid == run.node.uid and",
        "return True or",
        needs=("malformed",),
    ),
    "a_sink_filters_not": Mutation(
        "a sink gets the rows that its own filter drops",
        "exchange.output:_SinkFiles.behind_steps",
        "changes = behind(steps, changes, self._node.input)",
        "pass",
        needs=("filtered_reader",),
    ),
    "any_condition": Mutation(
        "of several conditions one is enough",
        "operators.sql:_Compiler._logic",
        "left.expr & right.expr if is_and",
        "left.expr | right.expr if is_and",
    ),
    "null_is_any": Mutation(
        "IS NOT NULL is IS NULL past the JVM",
        "operators.sql:_is_null",
        "given[0].expr.is_null()",
        "given[0].expr.is_not_null()",
    ),
    "no_task_no_ack": Mutation(
        "a stage of whose rows Spark plans none gets no ack",
        "spark.stage:_collected",
        "if not done and chain[0].has_no_rows():",
        "if False:",
    ),
    "no_task_before": Mutation(
        "a stage fails behind one of whose rows Spark plans none",
        "exchange.subtask:KeyedSnapshot._read_clock",
        "if clock.producer not in self.executions:",
        "if False:",
        needs=("chained", "filtered_source"),
    ),
    "block_is_short": Mutation(
        "the last row of a block is left out",
        "exchange.blocks:BlockWriter.to_owners",
        "enumerate(self.owners.split(rows))",
        "enumerate(part[:-1] for part in self.owners.split(rows))",
        needs=("plain", "parallel"),
    ),
    "reference_is_to_the_first": Mutation(
        "rows that are sent by reference are read from the beginning of their file",
        "exchange.blocks:read_block",
        "mapped.seek(place.offset)",
        "mapped.seek(0)",
        needs=("plain", "parallel", "blocks_in_files"),
    ),
    "times_reach_one": Mutation(
        "event times that readers measured reach the first subtask alone",
        "exchange.blocks:BlockWriter.to_all",
        "for subtask in self._subtasks:",
        "for subtask in range(1):",
        needs=("plain", "parallel", "epochs"),
    ),
    "chained_clock_stands": Mutation(
        "a chained stage does not hear how far event time has come",
        "exchange.blocks:ChainedClock.read",
        "combined_watermark([streams_ms], self.floor_ms)",
        "self.floor_ms",
        needs=("chained", "epochs"),
    ),
    "chained_ack_is_lost": Mutation(
        "of the stage before it a chained stage believes the first ack alone",
        "exchange.subtask:KeyedSnapshot._read_clock",
        "self.executions[clock.producer]]",
        "self.executions[clock.producer][:1]]",
        needs=("chained", "parallel", "epochs"),
    ),
    "chain_is_cut": Mutation(
        "of what a chained stage yields the last block stays behind",
        "exchange.blocks:ChainedOutput.add",
        "for block in self._sender.rows(0, read.behind(to_frame(rows))):",
        "for block in [*self._sender.rows(0, read.behind(to_frame(rows)))][:-1]:",
        needs=("chained",),
    ),
    "times_of_one_reader": Mutation(
        "of the event times of several readers the first count",
        "exchange.reading:times_of",
        "max(last, most)",
        "last",
        needs=("plain", "parallel", "epochs"),
    ),
    "rescale_drops": Mutation(
        "a segment that two subtasks have to read is read by none",
        "job.lineage:assigned_state",
        "for index in range(owner, end):",
        "for index in range(owner, end if end - owner == 1 else owner):",
        needs=("rescale", "epochs"),
    ),
    "compaction_loses_the_oldest": Mutation(
        "a compaction leaves out the oldest of its runs",
        "state.merging:_merge",
        "open_runs(cache, handles)",
        "open_runs(cache, handles)[1:]",
        needs=("compacts", "behind", "epochs"),
    ),
    "special_values_stay": Mutation(
        "NaN and infinities stay in a sum when their row goes",
        "operators.kernels:_counted_apart",
        "+= copies",
        "+= abs(copies)",
        needs=("float_updates", "wild", "epochs"),
    ),
    "blanks_do_not_count": Mutation(
        "keys that differ in blanks at their end are one",
        "operators.kernels:grouped",
        "return _collected(rows, by, expressions, in_order=in_order)",
        "return _collected(rows.with_columns(pl.col(pl.String).str.strip_chars_end(' ')), by, "
        "expressions, in_order=in_order)",
        needs=("hostile",),
    ),
    "a_block_of_avro_is_lost": Mutation(
        "of Avro's blocks the one in which a slice begins is passed over",
        "connectors.files.avro:AvroFile.rows",
        "if at <= start or",
        "if begin < start or",
        needs=("avro", "capped", "epochs"),
    ),
    "a_file_of_lines_begins_anew": Mutation(
        "of a file of lines that has grown the record numbers begin anew",
        "connectors.files.text:FilesSource._part",
        "records=before.records + cut.records,",
        "records=cut.records,",
        needs=("grown_lines", "epochs"),
    ),
    "packed_text_is_cut_late": Mutation(
        "packed text is read from a line behind the one that comes",
        "connectors.files.text:FilesSource._compressed_cut",
        "offset=cut.end,",
        "offset=cut.end + (cut.end != size),",
        needs=("packed", "capped", "epochs"),
    ),
    "a_folder_begins_early": Mutation(
        "a folder begins with the last row of the one before",
        "connectors.row_files:split_by_partition",
        "ordered.slice(start, end - start)",
        "ordered.slice(max(start - 1, 0), end - start)",
        needs=("partitioned",),
    ),
    "a_merged_file_is_short": Mutation(
        "of a table's files that are merged the last is left out",
        "connectors.files_table.maintenance:Compactor._appended",
        "rows = read_chain(self.files, run, None)",
        "rows = read_chain(self.files, run[:-1], None)",
        needs=("compacted", "epochs"),
    ),
    "idle_holds_back": Mutation(
        "a partition that is idle holds event time back",
        "core.event_time:source_watermark",
        " - cut.idle",
        "",
        needs=("idle", "epochs"),
    ),
    "silence_is_forgotten": Mutation(
        "a source that says nothing is as one that has just spoken",
        "core.event_time:with_activity",
        "None if previous is None or waits or read else previous.active_at_ms",
        "None",
        needs=("idle", "epochs"),
    ),
    "rests_too_long": Mutation(
        "a key is remembered half a minute too long",
        "state.keyed:delta_table",
        "(WRITTEN, now_ms)",
        "(WRITTEN, now_ms + 30_000)",
        ("deduplicate",),
        needs=("forgets", "epochs"),
    ),
    "oldest_wins": Mutation(
        "of two versions of a row in the state the older one counts",
        "state.keyed:KeyedState.find",
        "reversed(self._sorted_runs)",
        "list(self._sorted_runs)",
        needs=("epochs",),
    ),
    "tombstones_go": Mutation(
        "merging drops deletes that hide rows of older runs",
        "state.merging:_swept",
        "if drop_tombstones:",
        "if True:",
        needs=("dwindling",),
    ),
    "partial_merges_drop_tombstones": Mutation(
        "a compaction of some runs drops deletes that hide rows of older ones",
        "state.merging:_merge",
        "drop_tombstones=due.is_oldest",
        "drop_tombstones=True",
        needs=("dwindling",),
    ),
    "expires_behind_the_edge": Mutation(
        "a key is forgotten a second after its time",
        "state.segments:StateSchema.has_expired",
        "written_ms <= now_ms",
        "written_ms <= now_ms - 1_000",
        needs=("forgets", "epochs"),
    ),
    "due_is_all": Mutation(
        "what waits for an event time is asked for once, and not in every run",
        "state.keyed:KeyedState.due",
        "for run in self._runs",
        "for run in self._runs[-1:]",
        needs=("epochs",),
    ),
    "buffer_forgets": Mutation(
        "groups that were spilled and come again are not folded",
        "exchange.blocks:received",
        "for key, frames in pending.items():",
        "for key, frames in [*pending.items()][1:]:",
        needs=("plain",),
    ),
    "table_is_old": Mutation(
        "a table source stays as it was first pinned",
        "job.places:write_table",
        "if previous is not None and previous.checksum == digest:",
        "if previous is not None:",
        ("lookup",),
        needs=("epochs",),
    ),
    "watermark_is_early": Mutation(
        "a watermark does not wait for rows out of order",
        "core.event_time:source_watermark",
        "- out_of_orderness_ms - 1",
        "- 1",
    ),
    "watermark_goes_back": Mutation(
        "a watermark may go back",
        "core.event_time:combined_watermark",
        "max(floor, min(known)) if known else floor",
        "min(known) if known else floor",
        needs=("epochs",),
    ),
    "fastest_input": Mutation(
        "the watermark is that of the fastest input",
        "core.event_time:combined_watermark",
        "min(known)",
        "max(known)",
        needs=("epochs",),
    ),
    "no_roll_back": Mutation(
        "after a restore a table goes on from what it showed",
        "connectors.files_table.table:ManifestTable.commit",
        "parent=parent,",
        "parent=max((v for v in self.versions() if v < checkpoint_id), default=None),",
        needs=("restore", "epochs"),
    ),
    "cut_of_the_other": Mutation(
        "a cap of records loses the row behind it",
        "connectors.offsets:_slices",
        "end=before[name].offset + end,",
        "end=before[name].offset + end - (end > 1),",
        needs=("epochs",),
    ),
    "unread_is_dropped": Mutation(
        "what is in flight goes while a stage cannot read yet",
        "job.lineage:_left",
        "None if has_read else before",
        "None",
        needs=("uneven", "epochs"),
    ),
    "overtaken_drops": Mutation(
        "what was in flight goes when its stage is overtaken",
        "job.lineage:_in_flight",
        "earlier.segments if earlier is not None else ()",
        "()",
        needs=("unaligned", "behind", "epochs"),
    ),
    "source_is_skipped": Mutation(
        "a stage that reads a source and an unaligned stream leaves out what it cannot read yet",
        "coordinator.planning:task_plan",
        "is_possible and not _is_needed_now(job, uid, lineage)",
        "is_possible",
        needs=("waiting_source", "epochs"),
    ),
    "source_is_overtaken": Mutation(
        "a stage that reads a source is overtaken with the stream that it reads, too",
        "coordinator.planning:task_plan",
        " and not _is_before_a_source(job, uid)",
        "",
        needs=("timeout", "waiting_source", "epochs"),
    ),
}


OPERATORS: dict[str, Mutation] = {
    "sum_forgets": Mutation(
        "a sum forgets what it was before the epoch",
        "operators.kernels:summed",
        "pl.coalesce(state + before, state, before)",
        "pl.coalesce(state, before)",
        ("aggregate", "window"),
        needs=("sum", "epochs"),
    ),
    "count_nulls": Mutation(
        "count(column) counts nulls",
        "operators.kernels:counted",
        "count = argument.value.count()",
        "count = pl.len()",
        ("aggregate", "window"),
        needs=("count",),
    ),
    "mean_of_nulls": Mutation(
        "avg() divides by nulls as well",
        "operators.kernels:averaged",
        "argument.value.count()",
        "pl.len()",
        ("aggregate", "window"),
        needs=("avg",),
    ),
    "adds_what_is_taken_back": Mutation(
        "a sum adds a row that is taken back",
        "operators.kernels:weighed",
        "then(-value)",
        "then(value)",
        ("aggregate",),
        needs=("behind", "epochs"),
    ),
    "null_keys_do_not_recover": Mutation(
        "the least or first value of a null key stays when its row is taken back",
        "operators.aggregate:_Extreme.applied",
        'on=identity, how="semi", nulls_equal=True',
        'on=identity, how="semi", nulls_equal=False',
        needs=("dwindling",),
    ),
    "least_is_latest": Mutation(
        "min() keeps the newer value",
        "operators.kernels:extreme",
        "state < before if smallest",
        "state.is_not_null() if smallest",
        ("aggregate", "window"),
        needs=("min", "epochs"),
    ),
    "nan_is_missing": Mutation(
        "max() passes NaN over",
        "operators.kernels:_edge",
        "column.nan_max() if dtype.is_float() else column.max()",
        "column.max()",
        ("aggregate", "window"),
        needs=("max_of_floats",),
    ),
    "last_ignores_ties": Mutation(
        "of several first or last rows the one that came first wins",
        "operators.kernels:outermost",
        "((instant == instant_before) & wins_tie)",
        "((instant == instant_before) & False)",
        ("first", "last"),
        needs=("epochs",),
    ),
    "distinct_repeats": Mutation(
        "count_distinct() of a window counts a value of an earlier epoch again",
        "operators.kernels:distinct_list",
        ".list.unique()",
        "",
        ("window",),
        needs=("count_distinct", "epochs"),
    ),
    "distinct_is_new": Mutation(
        "a running count_distinct() takes every value for new",
        "operators.aggregate:_NewValues.applied",
        "new = values.filter(state.find(values)[HASH].is_null())",
        "new = values",
        ("aggregate",),
        needs=("count_distinct", "epochs"),
    ),
    "collect_forgets": Mutation(
        "collect() keeps the epoch's values alone",
        "operators.kernels:collected",
        "_together(before, state)",
        "state",
        ("collect", "percentile", "string_agg"),
        needs=("epochs",),
    ),
    "empty_group_stays": Mutation(
        "a group whose last row is taken back stays",
        "operators.aggregate:KeyedAggregateOperator._outcome",
        "after[_ROW_COUNT] > 0",
        "after[_ROW_COUNT] > -1",
        ("aggregate",),
        needs=("behind", "epochs"),
    ),
    "unchanged_is_lost": Mutation(
        "state is written only where the result changed",
        "operators.aggregate:KeyedAggregateOperator._outcome",
        "lives & is_changed",
        "lives & is_news & known",
        ("aggregate",),
        needs=("epochs",),
    ),
    "late_is_live": Mutation(
        "a row that comes at the very watermark is not late",
        "operators.windows:AlignedWindow.partial",
        "kept_until_ms > time.previous_watermark_ms",
        "kept_until_ms >= time.previous_watermark_ms",
        ("window",),
    ),
    "late_goes_unsaid": Mutation(
        "late rows of a chunk are left out without a word",
        "exchange.output:StageOutput.add_late",
        "self._add_to_side(LATE_OF_SIDE[side], frame)",
        "pass",
        ("window", "interval_join", "window_join"),
        needs=("epochs",),
    ),
    "window_is_late_by_a_ms": Mutation(
        "a window fires a millisecond too late",
        "operators.windows:max_timestamp_ms",
        '(end.dt.epoch("us") - 1)',
        'end.dt.epoch("us")',
        ("window", "window_top_n", "window_join"),
    ),
    "hops_once": Mutation(
        "a row is only in the last of its hopping windows",
        "operators.windows:Panes._earlier",
        "if not panes:",
        "if panes:",
        ("hopping",),
    ),
    "never_again": Mutation(
        "a row within the allowed lateness changes nothing",
        "operators.windows:AlignedWindow._fired_again",
        "if now.is_empty():",
        "if True:",
        ("window",),
        needs=("lateness", "epochs"),
    ),
    "touching_is_apart": Mutation(
        "sessions that touch are two",
        "operators.windows:SessionWindow._numbered",
        "pl.col(WINDOW_START) > reached",
        "pl.col(WINDOW_START) >= reached",
        ("session",),
    ),
    "sessions_reach_no_further": Mutation(
        "a session of before reaches no farther than the new rows that are earlier",
        "operators.windows:SessionWindow._numbered",
        "pl.max_horizontal(reach(pl.col(_IS_STORED)), reach(~pl.col(_IS_STORED)))",
        "reach(~pl.col(_IS_STORED))",
        needs=("session", "epochs"),
    ),
    "first_lookup_stays": Mutation(
        "of rows that are looked up again the first answer is remembered",
        "operators.joins:KeyedLookupOperator.process",
        "on=after.columns,",
        "on=identity,",
        ("lookup",),
        needs=("behind", "epochs"),
    ),
    "session_stays": Mutation(
        "a session that is merged into another is not taken back",
        "operators.windows:SessionWindow.process",
        "revoked = self._without(replaced.filter(_has_fired()), after.filter(is_repeated))",
        "revoked = replaced.clear()",
        ("window",),
        needs=("session", "lateness", "epochs"),
    ),
    "latest_is_least": Mutation(
        "latest() forgets the row that it had",
        "operators.ranking:LatestOperator._of_added",
        "pl.concat([rows, before.drop_nulls(HASH)])",
        "rows",
        ("latest",),
        needs=("epochs",),
    ),
    "bag_never_empties": Mutation(
        "a row that is taken back stays in the bag",
        "operators.changes:Bag.changed",
        "(before + deltas[COPIES])",
        "(before + deltas[COPIES].abs())",
        ("latest", "top_n", "aggregate"),
        needs=("behind", "epochs"),
    ),
    "nobody_moves_up": Mutation(
        "when a ranked row goes, nobody takes its place",
        "operators.ranking:RetractableRanking.best",
        "if short.is_empty():",
        "if True:",
        ("latest", "top_n"),
        needs=("behind", "epochs"),
    ),
    "rank_forgets": Mutation(
        "top_n() ranks the epoch's rows alone",
        "operators.ranking:TopNOperator._of_added",
        "both = pl.concat([rows, before.select(rows.columns)])",
        "both = rows",
        ("top_n",),
        needs=("epochs",),
    ),
    "rank_stays": Mutation(
        "a rank that nobody has any more is not taken back",
        "operators.ranking:BestRows._outcome",
        "if gone.height:",
        "if False:",
        ("top_n",),
        needs=("behind", "epochs"),
    ),
    "ties_are_apart": Mutation(
        "rows that share a rank have one each",
        "operators.ranking:Ranking.ranked",
        "if self.has_ties",
        "if False",
        ("window_top_n",),
        needs=("ties",),
    ),
    "prunes_the_last": Mutation(
        "a row that equals the n-th is passed over before rows are sorted",
        "operators.ranking:Ranking._pruned",
        "value >= value.top_k",
        "value > value.top_k",
        ("latest", "top_n", "window_top_n"),
        needs=("prunes",),
    ),
    "equal_ranks_are_forgotten": Mutation(
        "ranks that do not change expire, though rows of their key come",
        "operators.ranking:BestRows._outcome",
        "upserts=ranked if self._is_refreshed else news",
        "upserts=news",
        needs=("top_n_forgets", "epochs"),
    ),
    "pairs_of_all_time": Mutation(
        "a join meets rows whose time has passed",
        "state.keyed:KeyedState.lookup",
        "return self._live(merged)",
        "return chosen(merged.filter(~pl.col(DELETED)), self.schema.live)",
        needs=("inner_forgets", "epochs"),
    ),
    "known_keys_are_forgotten": Mutation(
        "the key of a semi join expires, though rows of it come",
        "operators.joins:RegularJoinOperator._semi",
        "upserts=keys if self._is_refreshed else new_keys",
        "upserts=new_keys",
        needs=("semi_forgets", "epochs"),
    ),
    "process_forgets_nothing": Mutation(
        "a function gets state whose time has passed",
        "state.keyed:KeyedState.find",
        "position[np.append(dead, True)[position]] = -1",
        "dead",
        needs=("process_forgets", "epochs"),
    ),
    "first_again": Mutation(
        "deduplicate() lets a key through in every epoch",
        "operators.ranking:DeduplicateOperator.process",
        "passing(rows, is_new)",
        "rows",
        ("deduplicate",),
        needs=("epochs",),
    ),
    "join_of_one_epoch": Mutation(
        "a right row does not meet the left rows of earlier epochs",
        "operators.joins:IntervalJoinOperator.process",
        "self._pairs(old_left, right)",
        "self._pairs(old_left.clear(), right)",
        ("interval_join",),
        needs=("epochs",),
    ),
    "interval_is_open": Mutation(
        "the upper end does not belong to the interval",
        "operators.joins:interval_pairs",
        "starts, ends, after_equals=True",
        "starts, ends, after_equals=False",
        ("interval_join",),
    ),
    "alone_twice": Mutation(
        "a left row that found a partner in its last epoch is emitted without one, too",
        "operators.joins:IntervalJoinOperator.process",
        'how="anti"',
        'how="left"',
        ("interval_join",),
        needs=("left", "epochs"),
    ),
    "late_for_its_window": Mutation(
        "a row is joined in windows that have ended",
        "operators.joins:WindowJoinOperator.partial",
        ".filter(pl.col(_MAX_TIMESTAMP_MS) > time.previous_watermark_ms)",
        "",
        ("window_join",),
    ),
    "state_is_lost": Mutation(
        "the state of a key that is new is not kept",
        "operators.keyed_function:ProcessOperator.process",
        "~is_null & ~is_same",
        "~is_null & ~is_same & is_known",
        ("process",),
        needs=("epochs",),
    ),
    "timer_is_late": Mutation(
        "the last of a key's timers does not fire",
        "operators.keyed_function:KeyTimers.next_due",
        "while self._due:",
        "while len(self._due) > 1:",
        ("process_keyed",),
    ),
    "moved_elements_stay": Mutation(
        "at another parallelism the elements of a list that have moved are not deleted",
        "operators.keyed_function:OperatorLists.changes",
        "deletes = [key for key in before if key not in now]",
        "deletes = [key for key in before if key not in now and key[1] == self._subtask]",
        ("union", "split"),
        needs=("rescale", "epochs"),
    ),
    "list_of_one_restart": Mutation(
        "a subtask gets what it had, though there are others now",
        "operators.keyed_function:OperatorLists._is_settled",
        "return kept.issuperset(",
        "return True or kept.issuperset(",
        ("union", "split"),
        needs=("rescale", "epochs"),
    ),
    "what_is_unsaid_stays": Mutation(
        "what is removed of broadcast state comes back in the next epoch",
        "operators.keyed_function:BroadcastSide._changes",
        "deletes=pl.DataFrame(deletes, identity",
        "deletes=pl.DataFrame([], identity",
        needs=("hears", "epochs"),
    ),
    "union_of_ones_own": Mutation(
        "of a union list a subtask reads its own elements alone",
        "operators.keyed_function:OperatorLists.bind",
        "self._all[table]",
        "[*self._entries[table].current.values()]",
        ("union",),
        needs=("epochs", "parallel"),
    ),
}

TRANSITIONS: dict[str, Mutation] = {
    "operators_mean_nothing": Mutation(
        "another operator goes on with the state of the one before",
        "core.transitions:_changes_of",
        "if before.operator != now.operator:",
        "if False:",
        needs=("changed_operator",),
    ),
    "uniques_mean_nothing": Mutation(
        "what makes a row the same is no part of a ranking",
        "declaration.fingerprints:_operation",
        '"unique": _listed(unique)}, {}',
        '"unique": ""}, {}',
        needs=("changed_unique",),
    ),
    "partners_mean_nothing": Mutation(
        "whether a join remembers which rows have a partner is no part of it",
        "declaration.fingerprints:_operation",
        '"remembered" if goes_by_partners',
        '"" if goes_by_partners',
        needs=("changed_partners_removed",),
    ),
    "begun_goes_unsaid": Mutation(
        "of what comes while a column begins anew late rows go to no side output",
        "exchange.output:StageOutput._add_to_side",
        "if not frame.height:",
        "if not frame.height or self._work.spec.begun:",
        ("window",),
        needs=("changed_column", "began"),
    ),
    "absence_means_nothing": Mutation(
        "a sink that was not declared for a while goes on without a word",
        "core.transitions:_changes_of",
        "if now.operator == SINK:",
        "if False:",
        needs=("changed_rows_absent",),
    ),
    "removed_senders_are_refused": Mutation(
        "no consent helps a sink whose sender is not declared any more",
        "core.transitions:_changes_of",
        "gone = before.sent_by if uids.isdisjoint(before.sent_by) else ()",
        "gone = ()",
        needs=("changed_rows_sender",),
    ),
    "filters_mean_nothing": Mutation(
        "a filter before a stage is no part of what its state is of",
        "declaration.fingerprints:_described_steps",
        'texts.append(f".where({meaning(step.condition)})")',
        "pass",
        needs=("changed_input",),
    ),
    "arguments_mean_nothing": Mutation(
        "the argument of an aggregate is no part of its column",
        "declaration.fingerprints:_aggregate",
        'of = [meaning(aggregate.column or "")]',
        'of = [""]',
        needs=("changed_argument",),
    ),
    "conditions_mean_nothing": Mutation(
        "the filter of an aggregate is no part of its column",
        "declaration.fingerprints:_aggregate",
        'if aggregate.where is not None else ""',
        'if False else ""',
        needs=("changed_column",),
    ),
    "functions_mean_nothing": Mutation(
        "the function of an aggregate is no part of its column",
        "declaration.fingerprints:_aggregate",
        "{aggregate.kind.value}(",
        "aggregate(",
        needs=("changed_column",),
    ),
    "keys_are_names": Mutation(
        "the expression of a key is no part of it",
        "declaration.fingerprints:_Maker._keys",
        'names[key] if text == names[key] else f"{names[key]} = {text}"',
        "names[key]",
        needs=("changed_keys",),
    ),
    "versions_mean_nothing": Mutation(
        "the version of a function is no part of it",
        "declaration.fingerprints:_with_function",
        "described_function(own.function, own.version)",
        "described_function(own.function, None)",
        needs=("changed_function",),
    ),
    "sinks_have_no_key": Mutation(
        "the mode of a sink is no part of its rows",
        "declaration.fingerprints:_Maker.of_sink",
        "self._rows(given, key)} {mode}",
        "self._rows(given, key)}",
        needs=("changed_rows",),
    ),
    "n_means_nothing": Mutation(
        "how many are ranked is no part of a ranking",
        "declaration.fingerprints:_operation",
        'parts = {"n": str(n), "by": meaning(by)}',
        'parts = {"by": meaning(by)}',
        needs=("changed_n", "top_n"),
    ),
    "windows_mean_nothing": Mutation(
        "the size of a window is no part of it",
        "declaration.fingerprints:_window",
        'f"tumbling {in_words(size)}"',
        '"tumbling"',
        needs=("changed_window", "tumbling"),
    ),
    "joins_are_alike": Mutation(
        "the kind of a join is no part of it",
        "declaration.fingerprints:_operation",
        'return "join", {"how": how, "partners": partners}, {}',
        'return "join", {"partners": partners}, {}',
        needs=("changed_how", "join"),
    ),
    "bounds_mean_nothing": Mutation(
        "the bounds of an interval join are no part of it",
        "declaration.fingerprints:_operation",
        '{"bounds": f"{_duration(lower)} to {last}", "how": how}',
        '{"how": how}',
        needs=("changed_bounds",),
    ),
    "lateness_means_nothing": Mutation(
        "the allowed lateness is no part of a window",
        "declaration.fingerprints:_operation",
        ', "allowed lateness": _duration(late_ms)}',
        "}",
        needs=("changed_allowed_lateness",),
    ),
    "times_mean_nothing": Mutation(
        "the event time is no part of what goes by it",
        "declaration.fingerprints:_Maker.of_stage",
        '"event time": " | ".join(times).lower(),',
        '"event time": "",',
        needs=("changed_event_time",),
    ),
    "blanks_mean_something": Mutation(
        "a blank is another meaning",
        "declaration.fingerprints:meaning",
        "parsed(sql).canonical()",
        "sql",
        needs=("changed_nothing",),
    ),
    "cases_mean_something": Mutation(
        "a column that is called so in another case is another",
        "core.transitions:_spelt_as",
        "names.get(name.lower(), name) for",
        "name for",
        needs=("changed_nothing",),
    ),
    "tables_have_one_case": Mutation(
        "the state's own table of a column is found in its former case alone",
        "exchange.subtask:_respelt",
        "now.get(handle.table.lower(), handle.table)",
        "handle.table",
        ("count_distinct", "percentile", "string_agg"),
        needs=("changed_nothing", "aggregate"),
    ),
    "sub_keys_have_one_order": Mutation(
        "of rows that are known by all their columns these keep their order for ever",
        "state.evolution:Evolutions.is_sorted_otherwise",
        "return is_same_key and",
        "return False and",
        needs=("changed_nothing", "behind"),
    ),
    "order_means_something": Mutation(
        "the order of operands is another meaning",
        "declaration.sql_tree:_written",
        "if write is canonical else operands",
        "if False else operands",
        needs=("changed_nothing",),
    ),
    "consent_is_not_heard": Mutation(
        "who consents to keep state is refused again",
        "core.transitions:_is_covered",
        "change.uid in consent.kept",
        "False",
        needs=("changed_input",),
    ),
    "begun_is_full": Mutation(
        "state that begins anew is not empty",
        "core.completed:without_state",
        "state=()",
        "state=subtask.state",
        needs=("began",),
    ),
    "begun_column_is_full": Mutation(
        "a column that begins anew is not empty",
        "exchange.subtask:_state_of",
        "if not columns:",
        "if True:",
        needs=("changed_column", "began"),
    ),
    "begun_column_is_not_shown": Mutation(
        "a column that begins anew shows what it was",
        "exchange.subtask:KeyedSnapshot.finish",
        "if self._begun and",
        "if False and",
        needs=("changed_column", "began", "aggregate"),
    ),
    "nothing_counted_is_null": Mutation(
        "a count that has begun anew is null",
        "operators.kernels:counted",
        "final=pl.col(name).fill_null(0)",
        "final=pl.col(name)",
        needs=("changed_column", "began", "window"),
    ),
    "updates_begin_alone": Mutation(
        "a stage over updates begins anew without those that send them",
        "core.transitions:PartChange.becomes",
        "self.row.updates if self.reads_updates else",
        "",
        needs=("changed", "behind"),
    ),
    "lateness_of_changelogs": Mutation(
        "a changelog goes on with rows that are never taken back",
        "core.transitions:_changes_of",
        "if was != is_now and _is_told",
        "if was != is_now and before.updates_from == now.updates_from and _is_told",
        needs=("changed_how", "changelog", "join"),
    ),
    "longer_ttls_hold_at_once": Mutation(
        "what has expired comes back when a TTL becomes longer",
        "declaration.fingerprints:shorter_ttls_ms",
        "and (is_now is None or was < is_now)",
        "and False",
        needs=("changed_ttl",),
    ),
    "expired_state_stays": Mutation(
        "what has expired is still there when a longer TTL holds",
        "exchange.subtask:StateWriter.__init__",
        "or work.spec.drops_expired",
        "",
        needs=("changed_ttl",),
    ),
    "removed_columns_ask": Mutation(
        "a column of an aggregate that is removed begins anew",
        "core.transitions:difference_of",
        "return PartDifference.REMOVED",
        "return PartDifference.CHANGED",
        needs=("changed_column_removed",),
    ),
    "all_that_was_read_counts": Mutation(
        "what only a column read that is gone is of the input",
        "core.transitions:_is_told_by_itself",
        "return part != INPUT or _reads_otherwise(before, now)",
        "return True",
        needs=("changed_column_removed", "projected"),
    ),
    "names_mean_nothing": Mutation(
        "a column that is called otherwise goes on without a word",
        "core.transitions:_changes_of",
        "column not in names.values()",
        "column not in {*names, *names.values()}",
        needs=("changed_column_renamed",),
    ),
    "means_are_not_shown": Mutation(
        "rows that do not change lack the mean that is added",
        "operators.aggregate:KeyedAggregateOperator.adopted",
        "output=pl.concat([outcome.output, others]),",
        "output=outcome.output,",
        needs=("changed_column_mean",),
    ),
    "smaller_n_is_not_taken_back": Mutation(
        "ranks beyond a smaller n stay",
        "operators.ranking:TopNOperator._of_added",
        "if is_adopted:",
        "if False:",
        needs=("changed_n_smaller", "epochs"),
    ),
    "of_updates_ranks_stay": Mutation(
        "over updates ranks stay as they were by another n, order or ties",
        "operators.ranking:BestRows.adopted",
        "self._retractable.best_of_all(change, state[BAG])",
        "self._retractable.best(change, state[ROWS].scan(), state[BAG])",
        ("changed_n", "changed_by", "changed_ties"),
        needs=("top_n", "behind"),
    ),
    "orders_mean_nothing": Mutation(
        "what latest() goes by is no part of it",
        "declaration.fingerprints:_operation",
        'return "latest", {"by": _listed(by)}, {}',
        'return "latest", {}, {}',
        needs=("changed_by", "latest"),
    ),
    "ties_mean_nothing": Mutation(
        "what decides between equal rows is no part of a ranking",
        "declaration.fingerprints:_operation",
        'parts | {"ties": _listed(ties_by), ',
        "parts | {",
        needs=("changed_ties", "top_n"),
    ),
    "n_of_windows_means_nothing": Mutation(
        "how many are ranked is no part of a window",
        "declaration.fingerprints:_operation",
        '"n": str(n), "by": meaning(by), "ties": ties}',
        '"by": meaning(by), "ties": ties}',
        needs=("changed_n_changed",),
    ),
    "join_kinds_send_nothing": Mutation(
        "rows without a partner stay as another kind of join sent them",
        "operators.joins:ChangelogJoin.adopted",
        "(int(does) - int(did[side]))",
        "0",
        needs=("changed_how", "join"),
    ),
    "kinds_of_windows_mean_nothing": Mutation(
        "the kind of a window join is no part of it",
        "declaration.fingerprints:_operation",
        '{"window": _window(window), "how": how}',
        '{"window": _window(window)}',
        needs=("changed_how_changed", "window_join"),
    ),
    "lookups_mean_nothing": Mutation(
        "what is kept of a lookup is no part of it",
        "declaration.fingerprints:_Maker.lookup",
        'f"{lookup.keep} of {table} on {on}"',
        'f"{table} on {on}"',
        needs=("changed_table",),
    ),
    "places_mean_nothing": Mutation(
        "a source goes on in another place without a word",
        "core.transitions:_changes_of",
        "if not {*before.places} <= {*now.places}:",
        "if False:",
        needs=("changed_place",),
    ),
    "bounds_of_time_ask": Mutation(
        "another bound of event time is no longer taken over",
        "declaration.fingerprints:_Maker.of_stage",
        '"out of orderness": ',
        '"bounds": ',
        needs=("changed_out_of_orderness",),
    ),
    "old_rows_are_not_shown_anew": Mutation(
        "a table keeps what it showed of rows that do not change",
        "exchange.subtask:KeyedSnapshot._republish",
        "self._output.republish(rows, spec.republished)",
        "pass",
        needs=("changed_columns",),
    ),
    "equal_rows_are_not_shown_anew": Mutation(
        "a table keeps what it showed of rows that change in nothing that it shows by now",
        "exchange.output:StageOutput.add",
        "sink.behind_steps(every, is_anew=True)",
        "sink.behind_steps(changes)",
        needs=("changed_columns",),
    ),
    "nothing_is_sent_again": Mutation(
        "a stage that is recomputed reads only what changed",
        "exchange.subtask:KeyedSnapshot.finish",
        "if self._work.spec.resends:",
        "if False:",
        ("changed_keys", "changed_column", "changed_input"),
        needs=("behind",),
    ),
    "former_keys_stay": Mutation(
        "rows with keys of before stay when a stage is recomputed",
        "exchange.subtask:KeyedSnapshot.finish",
        ".scan().drop(HASH)",
        ".scan().drop(HASH).clear()",
        needs=("changed_keys", "behind", "upsert"),
    ),
    "joins_send_pairs_alone": Mutation(
        "a join that sends its rows again leaves out those without a partner",
        "operators.joins:ChangelogJoin.held",
        "if does",
        "if False",
        ("left", "right", "full"),
        needs=("join", "changed", "behind", "aggregate"),
    ),
    "the_newest_is_compared": Mutation(
        "a restore of an older checkpoint compares what the newest one is of",
        "coordinator.restore_plan:observe",
        "        metadata=metadata,\n",
        "        metadata=replace(metadata, fingerprints=job.base_metadata(state).fingerprints),\n",
        needs=("changed_from_before",),
    ),
    "trigger_says_nothing": Mutation(
        "a trigger goes on with another meaning",
        "coordinator.compatibility:change_of",
        "*problems_of(changes,",
        "*problems_of((),",
        needs=("changed",),
    ),
}

MUTATIONS: dict[str, Mutation] = {**OPERATORS, **PATHS, **TRANSITIONS}
MAX_PLANS = 200  # Those that have nothing of what is concerned are not played, nor counted.
MOST_STAGES = 3  # More hide no fault, and take longer.
PAGE = Path(__file__).with_name("planted.md")
HEAD = (
    "# Planted faults, and what it takes the fuzz to see them",
    "",
    "Written by `python -m tests.fuzz --mutations --write`; with names, their rows alone. A fault",
    "without a row was not hunted since.",
    "*Drawn*: what a plan must have to be counted. CPU seconds are with the drawing of all others.",
    "",
    "| fault | what is wrong | drawn | plans | CPU s |",
    "|---|---|---|--:|--:|",
)


@dataclass(frozen=True, slots=True)
class Caught:
    name: str
    seed: int
    plans: int
    seconds: float  # Of CPU, with the drawing of plans in which it cannot show.
    message: str


def hunt(name: str, seeds: range = range(10**6, 10**7)) -> Caught | None:
    """Play plans with the fault planted, until one fails."""
    from tests.fuzz.drawing import draw
    from tests.fuzz.play import play, playing
    from tests.fuzz.refusals import refused

    mutation, plans, begun = MUTATIONS[name], 0, time.process_time()
    with playing(), mutation.planted(), _compiling_anew():
        for seed in seeds:
            if plans == MAX_PLANS:
                return None
            if mutation.accepts:
                plans += 1
                message = refused(seed)
                if message is not None:
                    return Caught(name, seed, plans, time.process_time() - begun, message)
                continue
            plan = draw(seed)
            if not mutation.may_show_in(plan) or len(plan.stages) > MOST_STAGES:
                continue
            plans += 1
            failure = play(plan)
            if failure is not None:
                seconds = time.process_time() - begun
                return Caught(name, seed, plans, seconds, failure.message.splitlines()[0])
    return None


@contextmanager
def _compiling_anew() -> Iterator[None]:
    """Nothing that was compiled without the fault is used with it, nor the other way round."""
    caches = (sql._compiled, interned_input)  # noqa: SLF001 - no one else forgets
    try:
        for cache in caches:
            cache.cache_clear()
        yield
    finally:
        for cache in caches:
            cache.cache_clear()


def hunt_all(
    names: Iterable[str] = (),
    processes: int | None = None,
    report: Callable[[str], None] | None = None,
) -> dict[str, Caught | None]:
    from tests.fuzz.seeds import pool_of, workers

    wanted = [*names] or [*MUTATIONS]
    with pool_of(processes or workers()) as pool:
        hunts = {pool.submit(hunt, name): name for name in wanted}
        for done in as_completed(hunts):
            if report is not None:
                caught = done.result()
                plans = "none" if caught is None else f"{caught.plans} plans"
                report(f"{hunts[done]}: {plans}")
    return {name: done.result() for done, name in hunts.items()}


def page(hunted: Mapping[str, Caught | None], before: str = "") -> str:
    """The page of *hunted* faults; what the page *before* says of others that are planted stays."""
    rows = {row.split("`")[1]: row for row in before.splitlines() if row.startswith("| `")}
    rows |= {name: _row(name, caught) for name, caught in hunted.items()}
    return "\n".join([*HEAD, *(rows[name] for name in MUTATIONS if name in rows), ""])


def _row(name: str, caught: Caught | None) -> str:
    mutation = MUTATIONS[name]
    drawn = ", ".join([*([" or ".join(mutation.ops)] if mutation.ops else []), *mutation.needs])
    found = f"none of {MAX_PLANS} |" if caught is None else f"{caught.plans} | {caught.seconds:.0f}"
    drawn = "a mistake" if mutation.accepts else drawn or "any"
    return f"| `{name}` | {mutation.wrong} | {drawn} | {found} |"
