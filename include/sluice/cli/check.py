"""``sluice check`` and ``sluice init``: a project begun, and what its pipelines' stages yield.

The check reads no row.  The project has a pipeline, its test and its input.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from sluice.cli.from_spark import draft_of
from sluice.cli.options import (
    AsJson,
    Params,
    parameters,
    print_json,
    print_table,
)
from sluice.cli.run import run_log
from sluice.declaration.determinism import unpinned
from sluice.declaration.operations import SparkCode, tables_of
from sluice.declaration.params import resolve_params
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.project import load_declarations
from sluice.errors import ConfigurationError
from sluice.extras import DISTRIBUTION
from sluice.job.job import Job
from sluice.spark.jvm import find_java
from sluice.spark.session import local_session, require_pyspark
from sluice.surface.options import awaited_changes

if TYPE_CHECKING:
    from sluice.job.analysis import Result


IS_ORDER_SENSITIVE = (
    "computes with floats, whose sums depend on the order of the rows, so Spark sorts them, at "
    "several times the CPU; integers and decimals need no order"
)


def check(
    job: Job,
    context: typer.Context,
    param: Params = None,
    as_json: AsJson = False,
) -> None:
    """Analyse types and columns of all stages of PIPELINE; show what each yields, and of what kind.

    Parameters of the pipeline are options, too, as the columns of files are read from the files.
    A note says which stage's rows Spark has to sort.
    A job that is there, and goes on, has to be able to read its state.  Spark is started only for
    what Spark alone knows: functions, and SQL beyond names and comparisons.  Named on stderr are
    modules that cannot be loaded, whatever PIPELINE is, and options of a running job that the
    declaration changed and that come into force with a restore, and sources and stages that nothing
    reads.
    """
    for name, problem in load_declarations().problems.items():
        typer.secho(f"warning: {name}: {problem}", err=True, fg="yellow")
    declared = job.pipeline
    params = resolve_params(declared.params, parameters(param or [], context.args), declared.uid)
    for what in _unread(declared):
        typer.secho(f"warning: {declared.uid}: nothing reads {what}", err=True, fg="yellow")
    for node in declared.stages.values():
        for found in unpinned(node.operation) if isinstance(node.operation, SparkCode) else ():
            where = f"{declared.uid}: in stage {node.uid!r}"
            typer.secho(f"warning: {where} {found}", err=True, fg="yellow")
    yields = _analysed(job, params)
    for uid in (uid for uid, result in yields.items() if result.is_order_sensitive):
        typer.secho(f"note: {declared.uid}: stage {uid!r} {IS_ORDER_SENSITIVE}", err=True)
    state = job.state()
    if not state.status.is_globally_terminal:
        for change in awaited_changes(declared, state):
            typer.secho(f"warning: {declared.uid}: {change.awaited}", err=True, fg="yellow")
    if as_json:
        print_json(
            {
                uid: {
                    "kind": str(result.kind),
                    "columns": {name: str(dtype) for name, dtype in result.columns.items()},
                }
                for uid, result in yields.items()
            }
        )
        return
    table = Table("stage", "kind", "column", "type")
    for uid, result in yields.items():
        for number, (name, dtype) in enumerate(result.columns.items()):
            stage = ("", "") if number else (uid, str(result.kind))
            table.add_row(*stage, name, str(dtype))
    print_table(table)


def _unread(declared: Pipeline) -> Iterator[str]:
    """The sources and stages that are read, or computed, at every barrier and for nothing."""
    read = {uid for stage in declared.stages.values() for uid in stage.producers}
    for stage in declared.stages.values():
        read.update(tables_of(stage.operation))
    yield from (f"source {uid!r}" for uid in declared.sources if uid not in read)
    yield from (f"stage {uid!r}" for uid in declared.stages if not declared.is_consumed(uid))


def _analysed(job: Job, params: Mapping[str, str]) -> Mapping[str, Result]:
    from sluice.job.analysis import analyse, check_state
    from sluice.job.places import check_tables

    for node in job.pipeline.sources.values():
        # Columns may be declared, and nothing be there to read.
        node.spec.open(params, job.location.endpoint_url).check_place()
    check_tables(job.pipeline, params, job.location)
    found = analyse(job.pipeline, params, job.location.endpoint_url)
    for note in check_state(job, found):
        typer.secho(f"warning: {job.pipeline.uid}: {note}", err=True, fg="yellow")
    known = {uid: result for uid, result in found.items() if result is not None}
    if len(known) == len(found):
        return known
    from sluice.spark.checking import check_pipeline

    require_pyspark("sluice check")
    find_java(os.environ)
    with run_log(f"{job.pipeline.uid}-check") as log, local_session(log_file=log) as spark:
        yields = check_pipeline(job.pipeline, spark, params, job.location.endpoint_url)
    check_state(job, {uid: result for uid, result in yields.items() if uid not in known})
    return yields


TEMPLATE = Path(__file__).with_name("project")
_DOT = "dot-"  # This prefix of a template's file becomes a dot in the project.


def init(
    folder: Annotated[
        Path | None, typer.Argument(help="It is created; one that is there must be empty.")
    ] = None,
    from_spark: Annotated[
        Path | None,
        typer.Option(
            help="A script of PySpark: print the draft of a pipeline that does what it does."
        ),
    ] = None,
) -> None:
    """Begin a project in FOLDER: a pipeline with its test and its input, and what Airflow needs."""
    if from_spark is not None and folder is None:
        typer.echo(draft_of(from_spark), nl=False)
        return
    if folder is None or from_spark is not None:
        raise ConfigurationError(
            "init begins a project in a FOLDER, or prints a draft with --from-spark SCRIPT; give "
            "one of the two"
        )
    place = folder.resolve()
    if place.exists() and not place.is_dir():
        raise ConfigurationError(f"{folder} is a file; name a folder for the project")
    if place.is_dir() and (found := sorted(path.name for path in place.iterdir())):
        raise ConfigurationError(
            f"the folder {folder} is not empty, it has {found[0]}; name a new one"
        )
    values = {"PROJECT_NAME": place.name, "SLUICE_VERSION": version(DISTRIBUTION)}
    for template in sorted(TEMPLATE.rglob("*")):
        if template.is_dir() or "__pycache__" in template.parts:
            continue
        to = place / template.relative_to(TEMPLATE)
        if to.name.startswith(_DOT):
            to = to.with_name("." + to.name.removeprefix(_DOT))
        text = template.read_text(encoding="utf-8")
        for name, value in values.items():
            text = text.replace(name, value)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(text, encoding="utf-8")
    typer.echo(
        f"{folder} has a pipeline, orders; its README.md tells of it. Next:\n"
        f"  cd {folder}\n"
        "  sluice check orders --input input/orders\n"
        "  sluice run orders --input input/orders"
    )
