"""``sluice metrics``: the figures of jobs for Prometheus, printed once, or served."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from sluice.cli.options import EndpointUrl, Root, declared_uids, location
from sluice.cli.printing import print_line
from sluice.coordinator.garbage import find_orphans
from sluice.declaration.discovery import load_pipeline, load_pipelines
from sluice.errors import ConfigurationError
from sluice.job.job import Job, open_job
from sluice.storage.open import open_store
from sluice.views.metrics import metrics_of_each
from sluice.views.prometheus import metrics_text, registry_of

if TYPE_CHECKING:
    from prometheus_client.registry import CollectorRegistry

LOOPBACK = "127.0.0.1"
MAX_PORT = 65_535


def metrics(
    pipelines: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PIPELINE]...",
            help="Uids of declared pipelines; all of them without one.",
            autocompletion=declared_uids,
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Serve the metrics to scrapers, instead of printing them once. Anyone who "
            f"reaches the port can read them. [default host: {LOOPBACK}]",
        ),
    ] = None,
    orphans: Annotated[
        bool,
        typer.Option(
            "--orphans", help="Look for orphans, too: a LIST of everything that the job has stored."
        ),
    ] = False,
    root: Root = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Print the metrics of jobs in Prometheus' text format, or serve them."""
    jobs = _jobs(pipelines or [], root, endpoint_url)
    count = count_orphans if orphans else None
    if listen is None:
        typer.echo(metrics_text(jobs, count), nl=False)
        return
    host, port = address(listen)
    _serve(host, port, registry_of(lambda: metrics_of_each(jobs, count)))


def address(listen: str) -> tuple[str, int]:
    """The host and port of ``[HOST:]PORT``.

    Raises:
        ConfigurationError: it is not of this form, or stands for every network of the machine.
    """
    host, _, port = listen.rpartition(":")
    if not port.isdecimal() or not 0 <= int(port) <= MAX_PORT:
        raise ConfigurationError(f"--listen {listen!r} has no port; write --listen {LOOPBACK}:9464")
    host = host.strip("[]") or LOOPBACK
    if _is_unspecified(host):
        raise ConfigurationError(
            f"--listen {listen!r} would serve the metrics on every network of this machine, "
            f"without a password; name one address, as {LOOPBACK}:{port}"
        )
    return host, int(port)


def count_orphans(job: Job) -> tuple[int, int]:
    """How many files nothing names, beyond the grace period, and their bytes."""
    found = find_orphans(job)
    return len(found.files), found.total_bytes


def _jobs(uids: Sequence[str], root: str | None, endpoint_url: str | None) -> list[Job]:
    """The jobs of the pipelines; a request that fails is not repeated, but the next scrape's is."""
    declared = [load_pipeline(uid) for uid in uids] or [*load_pipelines().values()]
    place = location(root, endpoint_url)
    return [open_job(pipeline, place, store=open_store(place)) for pipeline in declared]


def _serve(host: str, port: int, registry: CollectorRegistry) -> None:
    from prometheus_client import start_http_server

    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise ConfigurationError(
            f"--listen {host}:{port} cannot be had: {error.strerror or error}; name a free port"
        ) from error
    print_line(f"metrics at http://{host}:{server.server_port}/metrics; Ctrl-C ends it")
    try:
        thread.join()
    except KeyboardInterrupt:
        server.shutdown()


def _is_unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:  # A name.
        return False
