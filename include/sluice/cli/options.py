"""What several commands take: where the root is, and the parameters of a pipeline."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from sluice.errors import ConfigurationError
from sluice.storage.open import StoreLocation

ROOT_VARIABLE = "SLUICE_ROOT"
DEFAULT_FOLDER = ".sluice/jobs"  # Below the current folder; .gitignore names it.

PipelineName: TypeAlias = Annotated[str, typer.Argument(help="The uid of a declared pipeline.")]
Root: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--root",
        help=f"Where checkpoints live: s3://bucket/prefix or file:///folder. "
        f"[default: ${ROOT_VARIABLE}, or {DEFAULT_FOLDER} here]",
        show_default=False,
    ),
]
EndpointUrl: TypeAlias = Annotated[
    str | None,
    typer.Option("--endpoint-url", help="An S3 server other than AWS, e.g. http://127.0.0.1:4566."),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


def location(root: str | None, endpoint_url: str | None) -> StoreLocation:
    """The root that was named, the environment's, or a folder here."""
    named = root or os.environ.get(ROOT_VARIABLE)
    if named is None:
        named = f"file://{Path(DEFAULT_FOLDER).resolve()}"
    return StoreLocation(root=named, endpoint_url=endpoint_url)


def parameters(pairs: Sequence[str], extra: Sequence[str]) -> dict[str, str]:
    """Parameters from ``--param name=value`` and from ``--name value`` or ``--name=value``.

    Raises:
        ConfigurationError: one of them is not of these forms.
    """
    given: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator:
            raise ConfigurationError(f"--param {pair!r} lacks a value; write --param {pair}=VALUE")
        given[name] = value
    rest = list(extra)
    while rest:
        word = rest.pop(0)
        name, separator, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not name:
            raise ConfigurationError(f"{word!r} is not understood; write --name VALUE")
        if not separator and not rest:
            raise ConfigurationError(f"--{name} lacks a value")
        given[name.replace("-", "_")] = value if separator else rest.pop(0)
    return given
