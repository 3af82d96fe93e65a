"""The table of docs/reference/transitions.md, written from the one that decides.

After a change of the table: ``python -m tests.house.transitions_page``.
"""

from __future__ import annotations

from sluice.core.transitions import EVERY, TRANSITIONS, Becomes, PartDifference, TransitionRow
from tests.house.test_repository import REPOSITORY

PAGE = REPOSITORY / "docs" / "reference" / "transitions.md"

HEADING = "| changed | rows only come | rows are taken back | because |"

# What a part is, in a declaration.
_PARTS = {
    "operator": "another operator under the uid",
    "keys": "keys: added, removed, in another order, or computed of something else",
    "input": "filters, projections, functions or lookups before the stage; the stage that it reads",
    "function": "the function of `process`, `process_keyed` or `spark`: its `version` or source",
    "event time": "the event time by which rows are ordered or windowed",
    "out of orderness": "`out_of_orderness` of its event time",
    "window": "the window: its kind, size, slide or gap",
    "allowed lateness": "`allowed_lateness`",
    "ttl": "`ttl`",
    "n": "`n` of `top_n`",
    "by": "`by` of `latest`, `deduplicate`, `top_n` and `window_top_n`",
    "ties": "`ties_by` of `top_n`, `ties` of `window_top_n`",
    "unique": "`unique` of `top_n`",
    "how": "`how` of a join",
    "partners": "`ttl` of a `left`, `right`, `full` or `anti` join, or of a `semi` join of updates",
    "bounds": "`lower` and `upper` of `interval_join`",
    "table": "`lookup` of rows that are updated: its table, `on`, `keep`, `add` or `valid_from`",
    "columns": "the `select()` between an aggregate, `latest` or `top_n` without `ttl` and a "
    "table: columns beside its key",
    "place": "the place of a source: folder, topics or table; another topic beside them is none",
    "rows": "a sink: its mode, its key; of updates, filters before it, the stage that it reads",
}

_KINDS = {
    EVERY: "`how` of another join, or to or from `semi` and `anti`",
    (PartDifference.OUTER,): "`how` of `join`: `left`, `right` or `full` to another of them",
    (PartDifference.INNER,): "`how` of `join`: `inner` to `left`, `right` or `full`, or back",
}
_SINKS: dict[tuple[PartDifference, ...], str] = {
    (PartDifference.SENDER,): "a sink whose rows a stage has sent that is not declared any more",
    (PartDifference.ABSENT,): "a sink that was not declared for a while, and is again",
}
_COLUMNS = {
    (PartDifference.REMOVED,): "a column of an aggregate removed",
    (PartDifference.ADDED, PartDifference.CHANGED): "a column of an aggregate added; its function, "
    "argument, filter or order",
    (
        PartDifference.MEAN,
    ): "a column of `aggregate()` added: the `avg` of what a `sum` and a `count` beside it have "
    "had from the beginning",
    (PartDifference.RENAMED,): "a column of an aggregate that is called otherwise",
}


def written() -> list[str]:
    """The rows of the page's table."""
    return [
        f"| {_changed(row)} | {_said(row, row.append, Becomes.BEGUN_ANEW)} | "
        f"{_said(row, row.updates, Becomes.REFUSED)} | {row.because} |"
        for row in TRANSITIONS
    ]


def _changed(row: TransitionRow) -> str:
    if row.part is None:
        return _COLUMNS[row.differences]
    if row.part == "n" and row.differences == EVERY:
        return "`n` of `window_top_n`"
    if row.part == "rows" and row.differences != EVERY:
        return _SINKS[row.differences]
    if row.part == "how":
        return _KINDS[row.differences]
    how = "" if row.differences == EVERY else f", {' or '.join(row.differences)}"
    return _PARTS[row.part] + how


def _said(row: TransitionRow, becomes: Becomes | None, with_ttl: Becomes) -> str:
    if becomes is Becomes.RECOMPUTED:
        return "recomputed, else refused"
    if becomes is Becomes.TAKEN_OVER and row.needs_all_rows:
        return f"taken over; with a `ttl` {with_ttl}"
    return "-" if becomes is None else becomes.value


def shown(page: str) -> list[str]:
    """The rows of the table below its heading."""
    lines = page[page.index(HEADING) :].splitlines()[2:]
    return lines[: lines.index("")]


if __name__ == "__main__":
    text = PAGE.read_text()
    PAGE.write_text(text.replace("\n".join(shown(text)), "\n".join(written())))
