"""``sluice state schema``, ``rewrite``, ``drop`` and ``bootstrap``: state as data, by command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer
from rich.console import Console
from rich.table import Table

from sluice.cli.options import (
    AsJson,
    EndpointUrl,
    Params,
    PipelineName,
    Root,
    declared_job,
    parameters,
)
from sluice.cli.printing import print_json, print_line
from sluice.cli.run_log import run_log
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from sluice.spark.session import local_session
from sluice.views.units import size

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sluice.state_processor import SavepointWriter, WrittenSavepoint
    from sluice.state_processor.schemas import Session
    from sluice.subtask.state.schema import StateSchema

Snapshot: TypeAlias = Annotated[
    str,
    typer.Argument(metavar="FROM", help="A savepoint's name, a retained checkpoint, or 'latest'."),
]
NewName: TypeAlias = Annotated[
    str, typer.Argument(metavar="NAME", help="The name of the new savepoint.")
]
Stage: TypeAlias = Annotated[str, typer.Option("--stage", help="The uid of the stage.")]
TableName: TypeAlias = Annotated[
    str | None, typer.Option("--table", help="Which table, if the stage keeps several.")
]
Where: TypeAlias = Annotated[
    str | None, typer.Option("--where", metavar="SQL", help="Only the rows for which it is true.")
]
FromRoot: TypeAlias = Annotated[
    str | None, typer.Option(metavar="URI", help="Another root, where FROM lies.")
]
FromPipeline: TypeAlias = Annotated[
    str | None, typer.Option(metavar="UID", help="The pipeline there, if its uid is another.")
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
Starts: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--start",
        metavar="SOURCE/PARTITION=OFFSET",
        help="Where a source begins, without --from.  [default: as it is declared]",
    ),
]


def schema(
    pipeline: PipelineName,
    stages: Annotated[list[str] | None, typer.Argument(metavar="[STAGE]...")] = None,
    param: Params = None,
    root: Root = None,
    endpoint_url: EndpointUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the tables of keyed state that stages of PIPELINE keep, as declared now."""
    from sluice.state_processor import state_tables

    job = declared_job(pipeline, root, endpoint_url)
    wanted = stages or [uid for uid, one in job.pipeline.stages.items() if one.is_stateful]
    params = parameters(param or [], [])
    found = state_tables(job, wanted, params, session=_session(job))
    rows = [
        (uid, name, column, str(dtype), _role(of, column))
        for uid, tables in found.items()
        for name, of in tables.items()
        for column, dtype in of.columns.items()
    ]
    names = ("stage", "table", "column", "type", "role")
    if as_json:
        print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    shown = Table(*names)
    for row in rows:
        shown.add_row(*row)
    Console().print(shown)


def rewrite(
    pipeline: PipelineName,
    snapshot: Snapshot,
    name: NewName,
    stage: Stage,
    assignments: Annotated[
        list[str],
        typer.Option("--set", metavar="COLUMN=SQL", help="What a column becomes; repeatable."),
    ],
    table: TableName = None,
    where: Where = None,
    from_root: FromRoot = None,
    from_pipeline: FromPipeline = None,
    to_root: ToRoot = None,
    param: Params = None,
    root: Root = None,
    endpoint_url: EndpointUrl = None,
    as_json: AsJson = False,
) -> None:
    """Write the savepoint NAME: FROM with other values in the keyed state of a stage."""
    from sluice.state_processor.sql import setting

    job = declared_job(pipeline, root, endpoint_url)
    columns = dict(_pair(one, "--set", "COLUMN=SQL") for one in assignments)
    writer = _writer(job, snapshot, from_root, from_pipeline, param)
    writer.transform(stage, setting(columns, where), table)
    _print_written(job, writer.write(name, root=to_root), to_root, as_json=as_json)


def drop(
    pipeline: PipelineName,
    snapshot: Snapshot,
    name: NewName,
    stage: Stage,
    table: TableName = None,
    where: Where = None,
    from_root: FromRoot = None,
    from_pipeline: FromPipeline = None,
    to_root: ToRoot = None,
    param: Params = None,
    root: Root = None,
    endpoint_url: EndpointUrl = None,
    as_json: AsJson = False,
) -> None:
    """Write the savepoint NAME: FROM without keys of a stage, or without all that it remembers.

    Of a stage with several tables the rows go from each, unless one is named.
    """
    from sluice.state_processor.sql import dropping

    job = declared_job(pipeline, root, endpoint_url)
    writer = _writer(job, snapshot, from_root, from_pipeline, param)
    if where is None and table is None:
        writer.remove(stage)
    for one in (writer.tables(stage) if table is None else (table,)) if where or table else ():
        writer.transform(stage, dropping(where or "true"), one)
    _print_written(job, writer.write(name, root=to_root), to_root, as_json=as_json)


def bootstrap(
    pipeline: PipelineName,
    name: NewName,
    rows: RowsOfStages,
    snapshot: From = None,
    replace: Replace = False,
    start: Starts = None,
    from_root: FromRoot = None,
    from_pipeline: FromPipeline = None,
    to_root: ToRoot = None,
    param: Params = None,
    root: Root = None,
    endpoint_url: EndpointUrl = None,
    as_json: AsJson = False,
) -> None:
    """Write the savepoint NAME with rows of Parquet as the keyed state of stages.

    The rows have the columns that 'sluice state schema' shows.
    """
    from sluice.state_processor import SavepointWriter

    job = declared_job(pipeline, root, endpoint_url)
    given = [_pair(one, "the argument", "STAGE=FILE") for one in rows]
    if snapshot is not None:
        if start:
            raise ConfigurationError(
                "--start is for a savepoint without --from: sources stay where that one has them"
            )
        writer = _writer(job, snapshot, from_root, from_pipeline, param)
    elif replace or from_root or from_pipeline:
        raise ConfigurationError("--replace and --from-root need the snapshot: give --from")
    else:
        params = parameters(param or [], [])
        starts = _starts(start or [])
        writer = SavepointWriter.new_savepoint(
            job, starts=starts, params=params, session=_session(job)
        )
    targets = [(*place.partition(".")[::2], file) for place, file in given]
    for stage in dict.fromkeys(stage for stage, _, _ in targets) if replace else ():
        writer.remove(stage)
    for stage, table, file in targets:
        writer.bootstrap(stage, file, table or None)
    _print_written(job, writer.write(name, root=to_root), to_root, as_json=as_json)


def _writer(
    job: Job,
    snapshot: str,
    from_root: str | None,
    from_pipeline: str | None,
    param: list[str] | None,
) -> SavepointWriter:
    from sluice.state_processor import SavepointWriter

    return SavepointWriter.from_existing_savepoint(
        job,
        snapshot,
        root=from_root,
        pipeline=from_pipeline,
        params=parameters(param or [], []),
        session=_session(job),
    )


def _session(job: Job) -> Session:
    @contextmanager
    def session() -> Iterator[SparkSession]:
        with run_log(f"{job.pipeline.uid}-state") as log, local_session(log_file=log) as spark:
            yield spark

    return session


def _starts(texts: Sequence[str]) -> Mapping[str, Mapping[str, int]]:
    starts: dict[str, dict[str, int]] = {}
    for text in texts:
        place, _, offset = text.rpartition("=")
        source, slash, partition = place.partition("/")
        if not (slash and offset.isdecimal()):
            raise ConfigurationError(
                f"--start {text!r} is not understood; write SOURCE/PARTITION=OFFSET"
            )
        starts.setdefault(source, {})[partition] = int(offset)
    return starts


def _pair(text: str, what: str, form: str) -> tuple[str, str]:
    name, _, value = (part.strip() for part in text.partition("="))
    if not (name and value):
        raise ConfigurationError(f"{what} {text!r} is not understood; write {form}")
    return name, value


def _role(schema: StateSchema, column: str) -> str:
    if column in schema.key_columns:
        return "key"
    roles = ["sub-key"] if column in schema.sub_key_columns else []
    return ", ".join([*roles, "timer"] if column == schema.time_column else roles)


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
            f"warning: {', '.join(written.readers)} read updates of what was changed, and keep "
            "state of what they were told before: change them, too, or drop their state",
            err=True,
            fg="yellow",
        )
    elsewhere = "" if to_root is None else f" --from-root {to_root}"
    print_line(f"savepoint {written.name!r} is at {written.uri}")
    print_line(f"{written.files:,} files, {size(written.size_bytes)}; to go on from it:")
    print_line(f"sluice restore {job.pipeline.uid} --savepoint {written.name}{elsewhere}")
