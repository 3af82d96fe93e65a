"""``sluice state diff``: what changed between two snapshots of a job, down to the keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, TypeAlias

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sluice.cli.options import AsJson, EndpointUrl, PipelineName, Root, declared_job
from sluice.cli.printing import print_json, print_line
from sluice.views.snapshot_differences import (
    Difference,
    Pair,
    SnapshotDifference,
    SnapshotName,
    TableFiles,
    chosen_table,
    open_pair,
    snapshot_difference,
)
from sluice.views.state_differences import (
    Asked,
    Change,
    ChangeKind,
    Cut,
    TableDifference,
    table_difference,
)
from sluice.views.units import moment, size, watermark

SHOWN_CHANGES = 20
_SNAPSHOT = "A retained checkpoint's id, 'latest', or a savepoint's name."
_MARKS = {ChangeKind.ADDED: "+", ChangeKind.REMOVED: "-", ChangeKind.CHANGED: "~"}
_STYLES = {ChangeKind.ADDED: "green", ChangeKind.REMOVED: "red", ChangeKind.CHANGED: "yellow"}


Before: TypeAlias = Annotated[str, typer.Argument(metavar="FROM", help=_SNAPSHOT)]
After: TypeAlias = Annotated[str, typer.Argument(metavar="TO", help=_SNAPSHOT)]
Stages: TypeAlias = Annotated[
    list[str] | None, typer.Option("--stage", help="Only the state of this stage; repeatable.")
]
TableName: TypeAlias = Annotated[
    str | None, typer.Option("--table", help="Only this table, where a stage keeps several.")
]
Keys: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--key", metavar="COLUMN=VALUE", help="Only such keys; COLUMN alone is null."),
]
Kinds: TypeAlias = Annotated[
    list[ChangeKind] | None, typer.Option("--kind", help="Only such changes; repeatable.")
]
Limit: TypeAlias = Annotated[
    int, typer.Option("--limit", min=0, help="Keys shown of a table; 0 counts them all.")
]
MaxRows: TypeAlias = Annotated[
    int | None, typer.Option("--max-rows", min=1, help="Compare about so many rows of a table.")
]
OtherRoot: TypeAlias = Annotated[
    str | None, typer.Option(metavar="URI", help="Another root, which has this snapshot.")
]
OtherPipeline: TypeAlias = Annotated[
    str | None, typer.Option(metavar="UID", help="The pipeline there, if its uid is another.")
]


class StateDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The output of ``--json``."""

    snapshots: SnapshotDifference
    state: tuple[TableDifference, ...]


def diff(
    pipeline: PipelineName,
    before: Before,
    after: After,
    stage: Stages = None,
    table: TableName = None,
    key: Keys = None,
    kind: Kinds = None,
    limit: Limit = SHOWN_CHANGES,
    max_rows: MaxRows = None,
    from_root: OtherRoot = None,
    from_pipeline: OtherPipeline = None,
    to_root: OtherRoot = None,
    to_pipeline: OtherPipeline = None,
    root: Root = None,
    endpoint_url: EndpointUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show what changed from the snapshot FROM to the snapshot TO."""
    pair = open_pair(
        declared_job(pipeline, root, endpoint_url),
        SnapshotName(named=before, root=from_root, pipeline=from_pipeline),
        SnapshotName(named=after, root=to_root, pipeline=to_pipeline),
    )
    kinds = frozenset(kind or ChangeKind)
    asked = Asked(limit=limit, kinds=kinds, key=tuple(key or ()), most_rows=max_rows)
    places = _places(pair, tuple(stage or ()), table)
    summary = snapshot_difference(pair)
    found = (table_difference(*pair.table(*place), asked) for place in places)
    if as_json:
        print_json(StateDifference(snapshots=summary, state=tuple(found)))
        return
    _print_summary(summary)
    files = {(one.stage, one.table): one for one in summary.tables}
    for one in found:
        several = len(pair.tables(one.stage)) > 1
        _print_table(files[one.stage, one.table], one, is_one_of_several=several)


def _places(pair: Pair, stages: tuple[str, ...], table: str | None) -> list[tuple[str, str]]:
    """The tables that are asked for, by stage and name."""
    if table is not None:
        return [(uid, chosen_table(pair, uid, table)) for uid in stages or pair.stages()]
    for uid in stages:
        chosen_table(pair, uid, None)
    return [(uid, name) for uid in stages or pair.stages() for name in pair.tables(uid)]


def _print_summary(summary: SnapshotDifference) -> None:
    for word, one in (("from", summary.before), ("to", summary.after)):
        place = f" of {one.pipeline!r} in {one.root}" if one.root else ""
        name = "" if one.name == str(one.id) else f" ({one.name})"
        print_line(f"{word:4} checkpoint {one.id}{name}{place}, {moment(one.triggered_at_ms)}")
    if not summary.differences:
        print_line("nothing else differs")
        return
    shown = Table("of", "name", "what", "before", "after")
    for difference in summary.differences:
        values = (_told(difference, side) for side in (difference.before, difference.after))
        shown.add_row(difference.about.value, difference.name, difference.what, *values)
    Console().print(shown)


def _told(difference: Difference, value: int | str | None) -> str:
    match value:
        case None:
            return "-"
        case int() if difference.what == "watermark":
            return watermark(value)
        case int() if difference.what == "bytes published":
            return size(value)
        case int():
            return f"{value:,}"
        case str():
            return value


def _print_table(files: TableFiles, found: TableDifference, *, is_one_of_several: bool) -> None:
    name = f"{found.stage}, {found.table}" if is_one_of_several else found.stage
    before, after, shared = files.before, files.after, files.shared
    print_line("")
    print_line(
        f"{name}: {size(before.size_bytes)} in {before.segments:,} segments, then "
        f"{size(after.size_bytes)} in {after.segments:,}; {size(shared.size_bytes)} are the same"
    )
    if found.problem is not None:
        print_line(f"its keys cannot be compared: {found.problem}")
        return
    if found.changes:
        Console().print(_rows(found))
    print_line(_counted(found))


def _counted(found: TableDifference) -> str:
    counts = found.counts
    line = f"{counts.added:,} added, {counts.removed:,} removed, {counts.changed:,} changed"
    match found.cut:
        case Cut.LIMIT:
            return f"{line} are shown, and there are more; --limit shows them, --limit 0 counts all"
        case Cut.ROWS:
            return f"{line} in the first {found.rows_compared:,} rows; --max-rows compares more"
        case None:
            return line


def _rows(found: TableDifference) -> Table:
    keys = [one.name for one in found.columns if one.is_key]
    values = [one.name for one in found.columns if not one.is_key]
    shown = Table("", *keys, *values)
    for change in found.changes:
        shown.add_row(
            Text(_MARKS[change.kind], style=_STYLES[change.kind]),
            *(_cell(change.key[name]) for name in keys),
            *_values(change, values),
        )
    return shown


def _values(change: Change, names: list[str]) -> Iterator[Text]:
    """A value, or both of them where they differ."""
    for name in names:
        old, new = ((side or {}).get(name) for side in (change.before, change.after))
        if name in change.changed:
            yield Text.assemble(_cell(old), " → ", _cell(new), style="bold yellow")
        else:
            yield _cell(new if change.after is not None and name in change.after else old)


def _cell(value: object) -> Text:
    return Text("null", style="dim") if value is None else Text(str(value))
