"""``sluice state``: what stages remember, what changed of it, and other savepoints made of it.

``read`` and ``diff`` only read; ``schema`` shows the tables as they are declared now; ``rewrite``,
``drop`` and ``bootstrap`` write a new savepoint, and change no other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from sluice.cli.options import (
    AsJson,
    OtherPipeline,
    Params,
    apart,
    distinct,
    moment,
    parameters,
    print_json,
    print_line,
    print_table,
    watermark,
)
from sluice.cli.run import check_result_file, run_log, write_result
from sluice.connectors.json_rows import json_objects
from sluice.core.units import size
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from sluice.spark.session import local_session
from sluice.surface.differences import (
    Change,
    ChangeKind,
    Cut,
    Difference,
    DifferenceQuery,
    Pair,
    SnapshotDifference,
    SnapshotName,
    TableDifference,
    TableFiles,
    chosen_table,
    open_pair,
    snapshot_difference,
    table_difference,
)
from sluice.surface.key_lookup import look_up_key
from sluice.surface.state import open_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sluice.local.savepoint_tables import SessionFactory
    from sluice.state.segments import StateSchema
    from sluice.state_processor import SavepointWriter, WrittenSavepoint

SHOWN_ROWS = 20
SHOWN_CHANGES = 20
_SNAPSHOT = "A retained checkpoint's id, 'latest', or a savepoint's name."
_MARKS = {ChangeKind.ADDED: "+", ChangeKind.REMOVED: "-", ChangeKind.CHANGED: "~"}
_STYLES = {ChangeKind.ADDED: "green", ChangeKind.REMOVED: "red", ChangeKind.CHANGED: "yellow"}

BeforeArgument: TypeAlias = Annotated[str, typer.Argument(metavar="FROM", help=_SNAPSHOT)]
AfterArgument: TypeAlias = Annotated[str, typer.Argument(metavar="TO", help=_SNAPSHOT)]
Stages: TypeAlias = Annotated[
    list[str] | None, typer.Option("--stage", help="Only the state of this stage; repeatable.")
]
ComparedTable: TypeAlias = Annotated[
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
SnapshotArgument: TypeAlias = Annotated[
    str,
    typer.Argument(metavar="FROM", help="A savepoint's name, a retained checkpoint, or 'latest'."),
]
NewName: TypeAlias = Annotated[
    str, typer.Argument(metavar="NAME", help="The name of the new savepoint.")
]
StageArgument: TypeAlias = Annotated[str, typer.Option("--stage", help="The uid of the stage.")]
TableOption: TypeAlias = Annotated[
    str | None, typer.Option("--table", help="Which table, if the stage keeps several.")
]
Where: TypeAlias = Annotated[
    str | None, typer.Option("--where", metavar="SQL", help="Only the rows for which it is true.")
]
SnapshotRoot: TypeAlias = Annotated[
    str | None, typer.Option(metavar="URI", help="Another root, where FROM lies.")
]
ToRoot: TypeAlias = Annotated[
    str | None, typer.Option(metavar="URI", help="Another root, to write the savepoint there.")
]
RowsOfStages: TypeAlias = Annotated[
    list[str],
    typer.Argument(metavar="STAGE[.TABLE]=FILE...", help="A Parquet file, or a folder of them."),
]
From: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="FROM", help="A savepoint, or a retained checkpoint, to add it to."
    ),
]
Replace: TypeAlias = Annotated[
    bool, typer.Option("--replace", help="Remove what these stages have in FROM.")
]
StartsOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--start",
        metavar="SOURCE/PARTITION=OFFSET",
        help="Where a source begins, without --from.  [default: as it is declared]",
    ),
]


class StateDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The output of ``--json``."""

    snapshots: SnapshotDifference
    state: tuple[TableDifference, ...]


def read(
    job: Job,
    checkpoint: Annotated[str, typer.Argument(help=_SNAPSHOT)],
    stage: Annotated[str, typer.Argument(help="The uid of a stage with keyed state.")],
    table: TableOption = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", help="Write all rows there: *.parquet, *.csv or *.json."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", min=1, help=f"Read at most so many rows. [default on screen: {SHOWN_ROWS}]"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the keyed state that STAGE has in CHECKPOINT, or write it to a file."""
    check_result_file(output)
    state = open_state(job, checkpoint, stage, table)
    if output is not None:
        rows = state.frame(limit)
        write_result(rows.to_arrow(), output)
        print_line(f"{rows.height:,} rows written to {output}")
        return
    rows = state.frame(limit or SHOWN_ROWS)
    if as_json:
        print_json(json_objects(rows.to_arrow()))
        return
    shown = Table(*rows.columns, title=f"{stage} in checkpoint {checkpoint}")
    for row in rows.iter_rows():
        shown.add_row(*("" if value is None else str(value) for value in row))
    print_table(shown)
    total = sum(handle.segment.rows for handles in state.subtasks for handle in handles)
    print_line(f"{rows.height:,} rows shown; its segments hold {total:,}, older versions included")


def find(
    job: Job,
    key: Annotated[
        list[str],
        typer.Argument(
            metavar="COLUMN=VALUE...", help="Every column of the key; COLUMN alone is null."
        ),
    ],
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",
            help="In this one alone: an id, 'latest', or a savepoint's name.  [default: the 20 "
            "newest retained checkpoints]",
        ),
    ] = None,
    stage: Annotated[
        str | None, typer.Option("--stage", help="Only the state of this stage.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what every stage remembers of one key, and how it came to be."""
    found = look_up_key(job, key, checkpoint=checkpoint, stage=stage)
    if as_json:
        print_json(found)
        return
    several = Counter(table.stage for table in found.tables)
    for table in found.tables:
        name = f"{table.stage}, {table.table}" if several[table.stage] > 1 else table.stage
        shown = Table("checkpoint", *(column.name for column in table.columns), title=name)
        for version in table.versions:
            first, last = version.first, version.last
            of = str(first) if first == last else f"{first} to {last}"
            if not version.rows:
                shown.add_row(of, Text("not there", style="dim"))
            for row in version.rows:
                shown.add_row(of, *(_cell(row[column.name]) for column in table.columns))
            if version.has_more:
                shown.add_row(of, Text("and more", style="dim"))
        print_table(shown)


def diff(
    job: Job,
    before: BeforeArgument,
    after: AfterArgument,
    stage: Stages = None,
    table: ComparedTable = None,
    key: Keys = None,
    kind: Kinds = None,
    limit: Limit = SHOWN_CHANGES,
    max_rows: MaxRows = None,
    from_root: OtherRoot = None,
    from_pipeline: OtherPipeline = None,
    to_root: OtherRoot = None,
    to_pipeline: OtherPipeline = None,
    as_json: AsJson = False,
) -> None:
    """Show what changed from the snapshot FROM to the snapshot TO."""
    pair = open_pair(
        job,
        SnapshotName(named=before, root=from_root, pipeline=from_pipeline),
        SnapshotName(named=after, root=to_root, pipeline=to_pipeline),
    )
    kinds = frozenset(kind or ChangeKind)
    query = DifferenceQuery(limit=limit, kinds=kinds, key=tuple(key or ()), most_rows=max_rows)
    places = _places(pair, tuple(stage or ()), table)
    summary = snapshot_difference(pair)
    found = (table_difference(*pair.table(*place), query) for place in places)
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
        sides = (difference.before, difference.after)
        values = (_difference_cell(difference, value) for value in sides)
        shown.add_row(difference.about.value, difference.name, difference.what, *values)
    print_table(shown)


def _difference_cell(difference: Difference, value: int | str | None) -> str:
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
        print_table(_rows(found))
    print_line(_counted(found))


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
    """The cells of a changed key: a value, or both values where they differ."""
    for name in names:
        old, new = ((side or {}).get(name) for side in (change.before, change.after))
        if name in change.changed:
            yield Text.assemble(_cell(old), " → ", _cell(new), style="bold yellow")
        else:
            yield _cell(new if change.after is not None and name in change.after else old)


def _cell(value: object) -> Text:
    return Text("null", style="dim") if value is None else Text(str(value))


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


def schema(
    job: Job,
    context: typer.Context,
    stages: Annotated[list[str] | None, typer.Argument(metavar="[STAGE]...")] = None,
    param: Params = None,
    as_json: AsJson = False,
) -> None:
    """Show the tables of keyed state that stages of PIPELINE keep, as declared now."""
    from sluice.state_processor import state_tables

    named, more = apart([*(stages or []), *context.args])
    wanted = named or [uid for uid, one in job.pipeline.stages.items() if one.is_stateful]
    params = parameters(param or [], more)
    found = state_tables(job, wanted, params, session=_session(job))
    rows = [
        (uid, name, column, str(dtype), _role(table, column))
        for uid, tables in found.items()
        for name, table in tables.items()
        for column, dtype in table.columns.items()
    ]
    names = ("stage", "table", "column", "type", "role")
    if as_json:
        print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    shown = Table(*names)
    for row in rows:
        shown.add_row(*row)
    print_table(shown)


def _role(schema: StateSchema, column: str) -> str:
    if column in schema.key_columns:
        return "key"
    roles = ["sub-key"] if column in schema.sub_key_columns else []
    return ", ".join([*roles, "timer"] if column == schema.time_column else roles)


def rewrite(
    job: Job,
    context: typer.Context,
    snapshot: SnapshotArgument,
    name: NewName,
    stage: StageArgument,
    assignments: Annotated[
        list[str],
        typer.Option("--set", metavar="COLUMN=SQL", help="What a column becomes; repeatable."),
    ],
    table: TableOption = None,
    where: Where = None,
    from_root: SnapshotRoot = None,
    from_pipeline: OtherPipeline = None,
    to_root: ToRoot = None,
    param: Params = None,
    as_json: AsJson = False,
) -> None:
    """Write the savepoint NAME: FROM with other values in the keyed state of a stage."""
    from sluice.local.savepoint_tables import setting

    pairs = (_pair(assignment, "--set", "COLUMN=SQL") for assignment in assignments)
    columns = distinct(pairs, "--set: column")
    writer = _writer(job, snapshot, from_root, from_pipeline, parameters(param or [], context.args))
    writer.transform(stage, setting(columns, where), table)
    _print_written(job, writer.write(name, root=to_root), to_root, as_json=as_json)


def drop(
    job: Job,
    context: typer.Context,
    snapshot: SnapshotArgument,
    name: NewName,
    stage: StageArgument,
    table: TableOption = None,
    where: Where = None,
    from_root: SnapshotRoot = None,
    from_pipeline: OtherPipeline = None,
    to_root: ToRoot = None,
    param: Params = None,
    as_json: AsJson = False,
) -> None:
    """Write the savepoint NAME: FROM without keys of a stage, or without all that it remembers.

    Of a stage with several tables the rows go from each, unless one is named.
    """
    from sluice.local.savepoint_tables import dropping

    writer = _writer(job, snapshot, from_root, from_pipeline, parameters(param or [], context.args))
    if where is None and table is None:
        writer.remove(stage)
    else:
        condition = "true" if where is None else where
        for name_of_table in writer.tables(stage) if table is None else (table,):
            writer.transform(stage, dropping(condition), name_of_table)
    _print_written(job, writer.write(name, root=to_root), to_root, as_json=as_json)


def bootstrap(
    job: Job,
    context: typer.Context,
    name: NewName,
    rows: RowsOfStages,
    snapshot: From = None,
    replace: Replace = False,
    start: StartsOption = None,
    from_root: SnapshotRoot = None,
    from_pipeline: OtherPipeline = None,
    to_root: ToRoot = None,
    param: Params = None,
    as_json: AsJson = False,
) -> None:
    """Write the savepoint NAME with rows of Parquet as the keyed state of stages.

    The rows have the columns that 'sluice state schema' shows.
    """
    from sluice.state_processor import SavepointWriter

    named, more = apart([*rows, *context.args])
    pairs = [_pair(argument, "the argument", "STAGE=FILE") for argument in named]
    params = parameters(param or [], more)
    if snapshot is not None:
        if start:
            raise ConfigurationError(
                "--start is for a savepoint without --from: sources stay where that one has them"
            )
        writer = _writer(job, snapshot, from_root, from_pipeline, params)
    elif replace or from_root or from_pipeline:
        raise ConfigurationError("--replace and --from-root need the snapshot: give --from")
    else:
        writer = SavepointWriter.new_savepoint(
            job,
            starts=_starts(start or []),
            params=params,
            session=_session(job),
        )
    targets = [(*place.partition(".")[::2], file) for place, file in pairs]
    if replace:
        for stage in dict.fromkeys(stage for stage, _, _ in targets):
            writer.remove(stage)
    for stage, table, file in targets:
        writer.bootstrap(stage, file, table or None)
    _print_written(job, writer.write(name, root=to_root), to_root, as_json=as_json)


def _writer(
    job: Job,
    snapshot: str,
    from_root: str | None,
    from_pipeline: str | None,
    params: Mapping[str, str],
) -> SavepointWriter:
    from sluice.state_processor import SavepointWriter

    return SavepointWriter.from_existing_savepoint(
        job,
        snapshot,
        root=from_root,
        pipeline=from_pipeline,
        params=params,
        session=_session(job),
    )


def _session(job: Job) -> SessionFactory:
    @contextmanager
    def session() -> Iterator[SparkSession]:
        with run_log(f"{job.pipeline.uid}-state") as log, local_session(log_file=log) as spark:
            yield spark

    return session


def _pair(text: str, what: str, form: str) -> tuple[str, str]:
    name, _, value = (part.strip() for part in text.partition("="))
    if not (name and value):
        raise ConfigurationError(f"{what} {text!r} is not understood; write {form}")
    return name, value


def _starts(texts: Sequence[str]) -> Mapping[str, Mapping[str, int]]:
    offsets: list[tuple[str, int]] = []
    for text in texts:
        place, _, offset = text.rpartition("=")
        if not ("/" in place and offset.isdecimal()):
            raise ConfigurationError(
                f"--start {text!r} is not understood; write SOURCE/PARTITION=OFFSET"
            )
        offsets.append((place, int(offset)))
    starts: dict[str, dict[str, int]] = {}
    for place, begin in distinct(offsets, "--start").items():
        source, _, partition = place.partition("/")
        starts.setdefault(source, {})[partition] = begin
    return starts


def _print_written(
    job: Job, written: WrittenSavepoint, to_root: str | None, *, as_json: bool
) -> None:
    if as_json:
        print_json(written)
        return
    for one in written.tables:
        before = f"{one.rows_before:,} rows were read and " if one.rows_before else ""
        print_line(f"{one.stage}.{one.table}: {before}{one.rows:,} rows written")
    if written.readers:
        typer.secho(
            f"warning: {', '.join(written.readers)} read updates of the changed stages, and keep "
            "state of the rows from before the change: change it, too, or drop it",
            err=True,
            fg="yellow",
        )
    elsewhere = "" if to_root is None else f" --from-root {to_root}"
    print_line(f"savepoint {written.name!r} is at {written.uri}")
    print_line(f"{written.files:,} files, {size(written.size_bytes)}; to go on from it:")
    print_line(f"sluice restore {job.pipeline.uid} --savepoint {written.name}{elsewhere}")
