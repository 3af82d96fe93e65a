"""Faults on the way: reading, the shuffle, state, output, the coordinator's side of a stage."""

from __future__ import annotations

from tests.fuzz.planting import Mutation

PATHS: dict[str, Mutation] = {
    "deletes_are_lost": Mutation(
        "what is taken back and not replaced stays in an upsert sink",
        "subtask.output:_SinkFiles.add",
        "if not self._key or not taken_back.height:",
        "if True:",
        needs=("upsert", "behind", "epochs"),
    ),
    "weights_are_lost": Mutation(
        "rows that are taken back do not reach the stages behind",
        "subtask.output:Output._emit",
        "self._taken_back.add(revoked)",
        "pass",
        needs=("behind", "epochs"),
    ),
    "replaced_is_one_row": Mutation(
        "a changelog has no row for what is replaced",
        "subtask.output:_SinkFiles.add",
        "changelog_of(rows, taken_back, self._replaced_by)",
        "changelog_of(rows, taken_back.clear(), self._replaced_by)",
        needs=("changelog", "epochs"),
    ),
    "filter_is_dropped": Mutation(
        "where() behind a stage keeps every row",
        "subtask.output:narrowed",
        "for step in stage.steps:",
        "for step in [s for s in stage.steps if not isinstance(s, Filter)]:",
        needs=("filtered",),
    ),
    "any_condition": Mutation(
        "of conditions in plain SQL one is enough",
        "subtask.plain_sql:plain_condition",
        "holds &= part.expression",
        "holds |= part.expression",
    ),
    "null_is_any": Mutation(
        "IS NOT NULL is IS NULL past the JVM",
        "subtask.plain_sql:_comparison",
        '~is_null if found["negated"] else is_null',
        'is_null if found["negated"] else ~is_null',
    ),
    "block_is_short": Mutation(
        "the last row of a block is left out",
        "subtask.exchange_blocks:_blocks",
        "sorted_rows[start:end]",
        "sorted_rows[start : max(start, end - 1)]",
        needs=("plain", "parallel"),
    ),
    "rescale_drops": Mutation(
        "a segment that two subtasks have to read is read by none",
        "epoch.assignment:assigned_state",
        "for index in range(owner, end):",
        "for index in range(owner, end if end - owner == 1 else owner):",
        needs=("rescale", "epochs"),
    ),
    "oldest_wins": Mutation(
        "of two versions of a row in the state the older one counts",
        "subtask.state.keyed:KeyedState.find",
        "reversed(self._sorted_runs)",
        "list(self._sorted_runs)",
        needs=("epochs",),
    ),
    "tombstones_go": Mutation(
        "merging drops deletes that hide rows of older runs",
        "subtask.state.merging:_swept",
        "if drop_tombstones:",
        "if True:",
        needs=("epochs",),
    ),
    "due_is_all": Mutation(
        "what waits for an event time is asked for once, and not in every run",
        "subtask.state.keyed:KeyedState.due",
        "for run in self._runs",
        "for run in self._runs[-1:]",
        needs=("epochs",),
    ),
    "buffer_forgets": Mutation(
        "groups that were spilled and come again are not folded",
        "subtask.exchange_blocks:received",
        "for key, frames in pending.items():",
        "for key, frames in [*pending.items()][1:]:",
        needs=("plain",),
    ),
    "table_is_old": Mutation(
        "a table source stays as it was first pinned",
        "epoch.table_sources:write_table",
        "if previous is not None and previous.checksum == digest:",
        "if previous is not None:",
        ("lookup",),
        needs=("epochs",),
    ),
    "watermark_is_early": Mutation(
        "a watermark does not wait for rows out of order",
        "core.watermarks:source_watermark",
        "- out_of_orderness_ms - 1",
        "- 1",
    ),
    "watermark_goes_back": Mutation(
        "a watermark may go back",
        "core.watermarks:combined_watermark",
        "max(floor, min(known)) if known else floor",
        "min(known) if known else floor",
        needs=("epochs",),
    ),
    "fastest_input": Mutation(
        "the watermark is that of the fastest input",
        "core.watermarks:combined_watermark",
        "min(known)",
        "max(known)",
        needs=("epochs",),
    ),
    "no_roll_back": Mutation(
        "after a restore a table goes on from what it showed",
        "connectors.files_table.table:FilesTable.commit",
        "parent=parent,",
        "parent=max((v for v in self.versions() if v < checkpoint_id), default=None),",
        needs=("restore", "epochs"),
    ),
    "cut_of_the_other": Mutation(
        "a cap of records loses the row behind it",
        "connectors.contracts.offsets:_slices",
        "end=before[name].offset + end,",
        "end=before[name].offset + end - (end > 1),",
        needs=("epochs",),
    ),
}
