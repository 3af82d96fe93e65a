"""Fetch a program of Java with what it needs by Maven, once, into a folder below ``.sluice``."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

FETCHED = Path(__file__).parents[1] / ".sluice"

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>sluice</groupId><artifactId>fetched</artifactId><version>1</version>
<packaging>pom</packaging><dependencies>{}</dependencies></project>"""
_MODULE = (
    "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
)


def is_fetched(folder: Path) -> bool:
    return (folder / "complete").exists() and shutil.which("java") is not None


def fetch(folder: Path, modules: list[str], prepare: Callable[[], None]) -> None:
    """Have Maven copy *modules*, ``group:name:version``, into *folder*, and *prepare* them."""
    if is_fetched(folder):
        return
    folder.mkdir(parents=True, exist_ok=True)
    named = "".join(_MODULE.format(*module.split(":")) for module in modules)
    (folder / "pom.xml").write_text(_POM.format(named))
    copy = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
    subprocess.run([*copy, "-DincludeScope=runtime"], cwd=folder, check=True)
    prepare()
    (folder / "complete").touch()
