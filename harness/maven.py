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
_TAGS = ("groupId", "artifactId", "version", "classifier")


def is_fetched(folder: Path) -> bool:
    return (folder / "complete").exists() and shutil.which("java") is not None


def fetch(folder: Path, modules: list[str], prepare: Callable[[], None]) -> None:
    """Have Maven copy *modules* into *folder*, and *prepare* them.

    Each is ``group:name:version``, or ``group:name:version:classifier``.
    """
    if is_fetched(folder):
        return
    folder.mkdir(parents=True, exist_ok=True)
    named = "".join(f"<dependency>{_module(one)}</dependency>" for one in modules)
    (folder / "pom.xml").write_text(_POM.format(named))
    copy = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
    subprocess.run([*copy, "-DincludeScope=runtime"], cwd=folder, check=True)
    prepare()
    (folder / "complete").touch()


def _module(named: str) -> str:
    given = zip(_TAGS, named.split(":"), strict=False)
    return "".join(f"<{tag}>{value}</{tag}>" for tag, value in given)
