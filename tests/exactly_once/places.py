"""Where records come from and go to: real places, each filled with the same records."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import duckdb

from sluice.sinks import FilesTable
from sluice.sources import Files
from tests.exactly_once.pairs import GROUPS, RECORDS, Row, SinkPlace, SourcePlace

Source = Callable[["Places"], SourcePlace]
Sink = Callable[["Places", str], SinkPlace]


class Places:
    """The servers that are running, and a folder for what needs none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder


def text_files(places: Places) -> SourcePlace:
    """Three files, so that epochs end within them and between them."""
    folder = places.folder / "input"
    expected: list[Row] = []
    if not folder.exists():
        folder.mkdir()
        for number in range(3):
            ids = range(number, RECORDS, 3)
            lines = "".join(f"group {one % GROUPS}\n" for one in ids)
            (folder / f"{number}.txt").write_text(lines)
    for file in sorted(folder.iterdir()):
        expected += [
            {"file": file.name, "line_number": index + 1, "line": line}
            for index, line in enumerate(file.read_text().splitlines())
        ]
    spec = Files(str(folder))
    return SourcePlace("files", spec, ("file", "line_number"), "line", tuple(expected))


def files_table(places: Places, name: str) -> SinkPlace:
    location = places.folder / name
    return SinkPlace(
        "files", FilesTable(f"file://{location}"), lambda: _by_manifests(location, None)
    )


def upserted_files_table(places: Places, name: str) -> SinkPlace:
    location = places.folder / name
    spec = FilesTable(f"file://{location}", upsert_key=("line",))
    return SinkPlace("upserted files", spec, lambda: _by_manifests(location, "line"), upserts=True)


def _by_manifests(location: Path, key: str | None) -> list[Row]:
    """What DuckDB sees in the files that the manifests name, followed by hand."""
    manifests = {
        file.stem: json.loads(file.read_text())
        for file in sorted((location / "_manifests").glob("*.json"))
    }
    chain: list[dict[str, object]] = []
    newest: str | None = max(manifests)
    while newest is not None:
        manifest = manifests[newest]
        chain.insert(0, manifest)
        parent = manifest["parent"]
        newest = None if parent is None else f"{parent:020d}"
    files = [str(location / file["file"]) for one in chain for file in one["files"]]  # type: ignore[attr-defined]
    if not files:
        return []
    dedupe = (
        f"QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY filename DESC) = 1" if key else ""
    )
    query = f"SELECT * EXCLUDE filename FROM read_parquet(?, filename = true) {dedupe}"  # noqa: S608
    with duckdb.connect() as connection:
        result = connection.execute(query, [files])
        names = [column[0] for column in result.description]
        return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


SOURCES: tuple[Source, ...] = (text_files,)
APPENDED: tuple[Sink, ...] = (files_table,)
UPSERTED: tuple[Sink, ...] = (upserted_files_table,)
