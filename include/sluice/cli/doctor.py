"""``sluice doctor``: whether Sluice works on this machine, in this project and on this root."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sluice.cli.diagnosis.finding import Finding, Status
from sluice.cli.diagnosis.machine import machine_findings
from sluice.cli.diagnosis.project import job_finding, pipeline_findings
from sluice.cli.diagnosis.root import root_findings
from sluice.cli.options import AsJson, EndpointUrl, Root, declared_uids, location
from sluice.cli.printing import print_json
from sluice.errors import ConfigurationError
from sluice.storage.open import StoreLocation
from sluice.storage.redaction import redacted

_STYLES = {Status.OK: "green", Status.WARNING: "yellow", Status.PROBLEM: "red"}
_WIDTHS = (7, 18)  # Of a status and of a check's name; the sentence has the rest.


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The output of ``--json``; ``healthy`` when no finding is a problem."""

    healthy: bool
    root: str
    findings: list[Finding]


def doctor(
    pipeline: Annotated[
        str | None,
        typer.Argument(
            help="Read the journal of this pipeline's job, too.", autocompletion=declared_uids
        ),
    ] = None,
    root: Root = None,
    endpoint_url: EndpointUrl = None,
    as_json: AsJson = False,
) -> None:
    """Check Python, libraries, Java, pipelines, the root and its writes; say what to do.

    The root is tried out with objects outside of every job, which are deleted again.  Exit code 1
    when there is a problem; a warning is none.
    """
    place = location(root, endpoint_url)
    console = Console()
    findings = []
    for finding in _findings(pipeline, place):
        findings.append(finding)
        if not as_json:
            _print(console, finding)
    problems = sum(one.status is Status.PROBLEM for one in findings)
    if as_json:
        print_json(Diagnosis(healthy=not problems, root=place.root, findings=findings))
        raise typer.Exit(1 if problems else 0)
    if problems:
        count = "one problem" if problems == 1 else f"{problems} problems"
        raise ConfigurationError(f"sluice does not work here for the {count} above")


def _findings(pipeline: str | None, place: StoreLocation) -> Iterator[Finding]:
    """Each as soon as it is found, without any secret that an error quotes."""
    for finding in _checks(pipeline, place):
        yield msgspec.structs.replace(finding, message=redacted(finding.message))


def _checks(pipeline: str | None, place: StoreLocation) -> Iterator[Finding]:
    yield from machine_findings()
    yield from pipeline_findings()
    is_root_sound = True
    for finding in root_findings(place):
        is_root_sound = is_root_sound and finding.status is not Status.PROBLEM
        yield finding
    if pipeline is not None and is_root_sound:
        yield job_finding(pipeline, place)


def _print(console: Console, finding: Finding) -> None:
    line = Table.grid(padding=(0, 1))
    for width in _WIDTHS:
        line.add_column(width=width, no_wrap=True)
    line.add_column()
    status = Text(finding.status.value, style=_STYLES[finding.status])
    line.add_row(status, Text(finding.check), Text(finding.message))
    console.print(line)
