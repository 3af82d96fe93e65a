"""``sluice init``: a project of one's own, with a pipeline, its test and its input."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from sluice.errors import ConfigurationError
from sluice.extras import DISTRIBUTION

TEMPLATE = Path(__file__).with_name("project")
_DOT = "dot-"  # A file of the template that begins so, begins with a dot in the project.


def init(
    folder: Annotated[Path, typer.Argument(help="It is created; one that is there must be empty.")],
) -> None:
    """Begin a project in FOLDER: a pipeline with its test and its input, and what Airflow needs."""
    place = folder.resolve()
    if place.exists() and not place.is_dir():
        raise ConfigurationError(f"{folder} is a file; name a folder for the project")
    if place.is_dir() and (found := sorted(path.name for path in place.iterdir())):
        raise ConfigurationError(
            f"the folder {folder} is not empty, it has {found[0]}; name a new one"
        )
    words = {"PROJECT_NAME": place.name, "SLUICE_VERSION": version(DISTRIBUTION)}
    for template in sorted(TEMPLATE.rglob("*")):
        if template.is_dir() or "__pycache__" in template.parts:
            continue
        to = place / template.relative_to(TEMPLATE)
        if to.name.startswith(_DOT):
            to = to.with_name("." + to.name.removeprefix(_DOT))
        text = template.read_text(encoding="utf-8")
        for word, meaning in words.items():
            text = text.replace(word, meaning)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(text, encoding="utf-8")
    typer.echo(
        f"{folder} has a pipeline, orders; its README.md tells of it. Next:\n"
        f"  cd {folder}\n"
        "  sluice check orders --input input/orders\n"
        "  sluice run orders --input input/orders"
    )
