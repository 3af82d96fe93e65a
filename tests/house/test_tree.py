"""The tree is in order, and what is out of order would be noticed."""

from __future__ import annotations

from pathlib import Path

from bench.tree import REPOSITORY, problems, read_tree


def a_tree(root: Path, **files: str) -> list[str]:
    for name, text in files.items():
        path = root / "include" / "sluice" / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "ARCHITECTURE.md").write_text("")
    return [one for one in problems(read_tree(root)) if "others use" not in one]


def test_every_room_imports_only_what_it_may() -> None:
    assert [*problems(read_tree(REPOSITORY))] == []


def test_an_import_of_a_higher_room_would_be_noticed_for_type_checkers_too(tmp_path: Path) -> None:
    guarded = "if TYPE_CHECKING:\n    from sluice.job.job import Job\n"

    found = a_tree(tmp_path, core__state=guarded, job__job="")

    assert "sluice.core.state imports sluice.job.job: core may not import job" in found


def test_files_that_import_each_other_would_be_noticed(tmp_path: Path) -> None:
    late = "def one():\n    from sluice.core.two import two\n"

    found = a_tree(tmp_path, core__one=late, core__two="from sluice.core.one import one")

    assert "these import each other: sluice.core.one, sluice.core.two" in found


def test_a_heavy_library_behind_the_command_line_would_be_noticed(tmp_path: Path) -> None:
    found = a_tree(tmp_path, cli__main="from sluice.core.ids import x", core__ids="import polars")

    assert "an import of sluice.cli.main loads polars" in found


def test_the_documentation_stays_short() -> None:
    """Shorten a page, or link to the one that has the fact, before this is raised."""
    pages = (REPOSITORY / "docs").rglob("*.md")

    assert sum(len(page.read_text().split()) for page in pages) <= 58_600
