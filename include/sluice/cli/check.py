"""``sluice check``: what a pipeline's stages yield, found out without reading a row."""

from __future__ import annotations

import os

import typer
from rich.console import Console
from rich.table import Table

from sluice.cli.options import AsJson, EndpointUrl, Params, PipelineName, location, parameters
from sluice.cli.printing import print_json
from sluice.declarations import load_declarations, load_pipeline
from sluice.devstack.java import find_java
from sluice.params import resolve
from sluice.spark.checking import check_pipeline
from sluice.spark.session import local_session


def check(
    context: typer.Context,
    pipeline: PipelineName,
    param: Params = None,
    endpoint_url: EndpointUrl = None,
    as_json: AsJson = False,
) -> None:
    """Analyse types and columns of all stages of PIPELINE; show what each yields, and of what kind.

    Parameters of the pipeline are options, too, as the columns of files are read from the files.
    Modules that cannot be loaded are named on stderr, whatever PIPELINE is.
    """
    for name, problem in load_declarations().problems.items():
        typer.secho(f"warning: {name}: {problem}", err=True, fg="yellow")
    declared = load_pipeline(pipeline)
    given = parameters(param or [], context.args)
    params = resolve(declared.params, given, declared.uid)
    find_java(os.environ)
    with local_session() as spark:
        yields = check_pipeline(declared, spark, params, location(None, endpoint_url).endpoint_url)
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
            who = ("", "") if number else (uid, str(result.kind))
            table.add_row(*who, name, str(dtype))
    Console().print(table)
