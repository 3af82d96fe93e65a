"""``sluice dispose``: deletes a savepoint that is needed no more."""

from __future__ import annotations

from typing import Annotated

import typer

from sluice.cli.options import AsJson, EndpointUrl, PipelineName, Root, declared_job
from sluice.cli.printing import print_json, print_line
from sluice.coordinator.disposal import dispose as dispose_savepoint


def dispose(
    pipeline: PipelineName,
    name: Annotated[str, typer.Argument(help="The savepoint's name.")],
    root: Root = None,
    endpoint_url: EndpointUrl = None,
    as_json: AsJson = False,
) -> None:
    """Delete savepoint NAME of PIPELINE, and nothing else; refused while the job needs it.

    One that is not there, or not any more, is no error.  Jobs of other roots that were restored
    from it, and have completed no checkpoint since, are not asked.
    """
    job = declared_job(pipeline, root, endpoint_url)
    was_there = dispose_savepoint(job, name)
    if as_json:
        print_json({"savepoint": name, "disposed": was_there})
    elif was_there:
        print_line(f"savepoint {name} is deleted")
    else:
        print_line(f"there is no savepoint {name} in {job.store.root}; nothing was deleted")
