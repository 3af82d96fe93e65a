"""What the product offers, the product runs: what only a test, a benchmark or the harness reaches
is not in it.

Names are compared, not what they are bound to: one that the product uses for something else passes.
So this finds what was forgotten, and no more.  It starts from what is entered from outside (the
names that ``__all__`` and pyproject.toml export, functions that a framework registers by their
decorator, statements of modules, the repository's own pipelines) and follows names from there.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.house.test_repository import REPOSITORY

PYPROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
DOTTED = re.compile(r"[a-z_]+(\.\w+)+")
PACKAGES = ("include/sluice", "plugins")  # What is asked.
ENTERED = ("include/pipelines", "dags", "spark_jobs")  # And who uses it, as a team would.

TEMPLATES = [re.compile(one) for one in PYPROJECT["tool"]["mypy"]["exclude"]]  # A tree of a team.

# Who calls what no name in the product leads to.
CALLED_FROM_OUTSIDE = {
    "deserialize": "Airflow, of a timetable",
    "infer_manual_data_interval": "Airflow, of a timetable",
    "get_link": "Airflow, of a link of an operator",
    "get_openlineage_facets_on_complete": "Airflow's OpenLineage provider, of an operator",
    "on_kill": "Airflow, of an operator",
    "on_load": "Airflow, of a plugin",
    "NewFilesTrigger": "a declaration's Watcher, which names it as text",
    "state_dataframe": "people, in a notebook (docs/reference/pipelines.md)",
    "emit": "logging, of a handler",
    "readinto": "io, of a raw file",
    "seekable": "io, of a raw file",
    "writable": "io, of a raw file",
    "isNotNull": "who declares, of a column of Spark's",
    "_parse_as_command": "sqlglot, of its parser",
    "_parse_types": "sqlglot, of its parser",
    "preload": "Airflow's settings, which are written as text",
}

# Decorators that hand nothing on to a framework.
PLAIN = {
    "abstractmethod", "asynccontextmanager", "cache", "cached_property", "classmethod",
    "contextmanager", "dataclass", "final", "lru_cache", "overload", "override", "property",
    "setter", "staticmethod", "total_ordering", "wraps",
}  # fmt: skip


@dataclass
class _Product:
    """``brings`` is, by the name of a definition, the names in it; ``entered`` is where it begins.

    Of a class there are its ``members``, and what it ``leads_to`` who is handed it: its bases, and
    the classes of its fields.  ``modules`` is what is public in one, of whatever folder.
    """

    brings: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    members: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    leads_to: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    modules: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    exported: set[str] = field(default_factory=set)
    entered: set[str] = field(default_factory=set)

    def read(self, path: Path) -> None:
        module = ast.parse(path.read_bytes())
        self.modules[path.stem] |= {
            statement.name
            for statement in module.body
            if isinstance(statement, ast.FunctionDef | ast.ClassDef)
            and not statement.name.startswith("_")
        }
        is_public = path.stem == "__init__" or (path.parent / "py.typed").is_file()
        for statement in module.body:
            match statement:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    self._function(statement)
                case ast.ClassDef():
                    self._class(statement)
                case ast.Assign() | ast.AnnAssign():
                    self._assignment(statement, is_public=is_public)
                case _:
                    self.entered |= _names(statement)

    def unreached(self) -> set[str]:
        to_visit, reached = [*self.entered, *self._interface()], set[str]()
        while to_visit:
            name = to_visit.pop()
            if name in self.brings and name not in reached:
                reached.add(name)
                to_visit += self.brings[name]
        return self.brings.keys() - reached

    def _interface(self) -> set[str]:
        """What is exported, and of a class every public method of it and of what it leads to."""
        found = set[str]()
        to_visit = [one for name in self.exported for one in (name, *self.modules[name])]
        while to_visit:
            name = to_visit.pop()
            if name not in found:
                found.add(name)
                found |= {one for one in self.members[name] if not one.startswith("_")}
                to_visit += self.leads_to[name]
        return found

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.brings[node.name] |= _names(node)
        if node.name.startswith("__") or any(_registers(one) for one in node.decorator_list):
            self.entered.add(node.name)

    def _class(self, node: ast.ClassDef) -> None:
        own = self.brings[node.name]
        for part in (*node.bases, *node.keywords, *node.decorator_list):
            own |= _names(part)
        self.leads_to[node.name] |= {name for base in node.bases for name in _names(base)}
        for member in node.body:
            if not isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
                own |= _names(member)
                if isinstance(member, ast.AnnAssign):
                    self.leads_to[node.name] |= _names(member.annotation)
            elif member.name.startswith("_") and member.name.endswith("_"):
                own |= _names(member)  # Called by the language, or by Enum.
            else:
                self._function(member)
                self.members[node.name].add(member.name)

    def _assignment(self, node: ast.Assign | ast.AnnAssign, *, is_public: bool) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            for name in _names(target):
                self.brings[name] |= _names(node)
                if name == "__all__" and is_public and node.value is not None:
                    self.exported |= set(ast.literal_eval(node.value))


def _names(tree: ast.AST) -> set[str]:
    """Names that are used in *tree*: also under another one, by ``getattr``, as a dotted path."""
    found = set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Name():
                found.add(node.id)
            case ast.Attribute():
                found.add(node.attr)
            case ast.MatchClass():
                found.update(node.kwd_attrs)
            case ast.alias() if node.asname:
                found.add(node.name)
            case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=str(name)), *_]):
                found.add(name)
            case ast.Constant(value=str(text)) if DOTTED.fullmatch(text):
                found.add(text.rpartition(".")[2])
    return found


def _registers(decorator: ast.expr) -> bool:
    """Whether it hands the function on, as ``@app.command()`` and ``@hookimpl`` do."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return getattr(called, "attr", getattr(called, "id", "")) not in PLAIN


def _files(folders: Iterable[str]) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((REPOSITORY / folder).rglob("*.py"))


def _is_template(path: Path) -> bool:
    return any(one.match(str(path.relative_to(REPOSITORY))) for one in TEMPLATES)


def _entry_points() -> set[str]:
    project = PYPROJECT["project"]
    points = [*project["scripts"].values()]
    points += [point for group in project["entry-points"].values() for point in group.values()]
    return {point.partition(":")[2] for point in points}


def _unreached() -> set[str]:
    product = _Product()
    entered = [*_files(ENTERED)]
    for path in _files(PACKAGES):
        if _is_template(path):
            entered.append(path)
        else:
            product.read(path)
    for path in entered:
        product.entered |= _names(ast.parse(path.read_bytes()))
    product.entered |= _entry_points() | CALLED_FROM_OUTSIDE.keys()
    return {name for name in product.unreached() if not re.fullmatch("__.*__", name)}


def test_nothing_is_offered_that_only_tests_reach() -> None:
    assert _unreached() == set(), "remove it, or move it to who uses it"


def test_what_nobody_reaches_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "py.typed").touch()
    (tmp_path / "api.py").write_text(
        "__all__ = ['Offered']\nclass Offered(Base):\n    def asked(self): return helper()\n"
    )
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "rest.py").write_text(
        "class Base:\n    def inherited(self): ...\n    def __len__(self): return size()\n"
        "def helper(): ...\ndef size(): ...\n"
        "@app.command()\ndef registered(): return Inner().called()\n"
        "class Inner:\n    def called(self): ...\n    def forgotten(self): return lost()\n"
        "def lost(): return lost()\n"
    )
    product = _Product()

    for path in sorted(tmp_path.rglob("*.py")):
        product.read(path)

    assert product.unreached() - {"__all__"} == {"forgotten", "lost"}


@pytest.mark.parametrize("name", ["AcksReceived", "acknowledge"])
def test_acks_are_folded_into_a_state_in_one_place(name: str) -> None:
    folding = {
        path
        for path in _files(PACKAGES)
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", getattr(node.func, "id", "")) == name
    }

    assert len(folding) == 1
