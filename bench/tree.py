"""The tree, counted and checked: rooms in one order, the arrows between them, circles of files.

    python -m bench.tree                  the table, room by room
    python -m bench.tree --beside REV     the same beside an earlier commit
    python -m bench.tree --rooms          the table of rooms that ARCHITECTURE.md holds
    python -m bench.tree --check          what `make check` asks; ends with 1 if something is broken

An arrow is an import of a module of the product by another one, wherever it stands: at the top of a
file, inside a function, or for type checkers alone.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
TEMPLATES = "include/sluice/cli/project"  # What `sluice init` writes is a tree of its own.


@dataclass(frozen=True, kw_only=True)
class Room:
    """A folder that answers one question, and which rooms it may import."""

    says: str
    imports: str  # Names of rooms below it, or "all below", perhaps "but" some.
    names: tuple[str, ...]  # The few that others use.


# From the ground up.  `root` are the files beside the rooms.
ROOMS = {
    "root": Room(
        says="Names that users import, errors, and the optional libraries.",
        imports="",
        names=("SluiceError",),
    ),
    "core": Room(
        says="Facts in, decisions out: no clock, no I/O, no logging, and `step` is total.",
        imports="root",
        names=("step", "CoordinatorState", "decide"),
    ),
    "figures": Room(
        says="What was measured of each checkpoint, and every figure derived from that.",
        imports="core",
        names=("CheckpointStats",),
    ),
    "protocol": Room(
        says="Every key of the bucket and every record's bytes; no I/O.",
        imports="root core figures",
        names=("PipelinePaths",),
    ),
    "store": Room(
        says="Six verbs of an object store, three stores that keep them, and the journal.",
        imports="root core figures protocol",
        names=("ObjectStore", "open_store", "Journal"),
    ),
    "declaration": Room(
        says="What a user writes, checked where it is written.",
        imports="root core protocol store",
        names=("Pipeline", "Checkpointing", "Source", "Sink"),
    ),
    "connectors": Room(
        says="A place in each folder: declared, source, sink and client; no place imports another.",
        imports="root core protocol store declaration",
        names=("OffsetSource", "StagedSink"),
    ),
    "state": Room(
        says="Keyed state: immutable sorted segments, of which the newest run wins.",
        imports="root core protocol store",
        names=("KeyedState", "SegmentCache"),
    ),
    "operators": Room(
        says="Pure functions of an epoch's groups, their state and event time, in Polars.",
        imports="root core declaration state",
        names=("Operator", "build_operator"),
    ),
    "exchange": Room(
        says="A subtask's pass: rows to key groups, through an operator, to files and an ack.",
        imports="root core protocol store declaration connectors state operators",
        names=("run_subtask",),
    ),
    "job": Room(
        says="One job in one root: what its bucket holds, and what an epoch continues.",
        imports="root core figures protocol store declaration connectors state operators exchange",
        names=("Job", "Lineage"),
    ),
    "coordinator": Room(
        says="Load, decide, journal, act: every change of a job goes through `record`.",
        imports="root core figures protocol store declaration operators job",
        names=("trigger", "finalize", "commit", "restore", "fail_checkpoint"),
    ),
    "surface": Room(
        says="What people see and ask, for command line, forms, REST and pages alike.",
        imports="all below but connectors exchange",
        names=("Act", "checkpoint_page", "snapshots", "state_page"),
    ),
    "spark": Room(
        says="A stage of a pending checkpoint, and what is chained to it, as one Spark job.",
        imports="all below but figures",
        names=("run_stage", "local_session"),
    ),
    "local": Room(
        says="One process with a job in hand: runs it, plays it in a test, rewrites its state.",
        imports="all below",
        names=("run_local", "SavepointWriter"),
    ),
    "cli": Room(
        says="The `sluice` command: renders surface, runs local.",
        imports="all below",
        names=("main",),
    ),
    "devstack": Room(
        says="S3, Spark and Airflow on one machine, supervised.",
        imports="all below",
        names=("start_stack", "stop_stack"),
    ),
    "airflow": Room(
        says="When: DAGs of a declaration, tasks, triggers, notes; REST and pages render surface.",
        imports="all below but cli devstack local",
        names=("dags",),
    ),
}

# What must not be loaded when Airflow parses a DAG file, or a person asks for `sluice --help`.
HEAVY = frozenset({"boto3", "numpy", "pandas", "polars", "pyarrow", "pyspark"})
LIGHT = (
    "sluice",
    "sluice.cli.main",
    "sluice.sinks",
    "sluice.sources",
    "sluice_airflow.dags",
    "sluice_airflow.plugin",
    "sluice_airflow.rest.app",
)


def allowed(room: str) -> frozenset[str]:
    """The rooms that *room* may import."""
    order = list(ROOMS)
    below = frozenset(order[: order.index(room)])
    says, _, but = ROOMS[room].imports.partition(" but ")
    asked = below - {*but.split()} if says == "all below" else frozenset(says.split())
    assert asked <= below, f"{room} is drawn below {', '.join(sorted(asked - below))}"
    return asked


class When(Enum):
    """When an import runs."""

    AT_ONCE = "at once"
    IN_A_FUNCTION = "in a function"
    FOR_TYPES = "for types"


@dataclass(frozen=True, kw_only=True)
class Module:
    """A file of the product, and what it imports."""

    name: str
    path: Path
    lines: int
    defines: frozenset[str]
    imports: Mapping[str, When] = field(default_factory=dict)
    heavy: frozenset[str] = frozenset()

    @property
    def room(self) -> str:
        top, *rest = self.name.split(".")
        if top == "sluice_airflow":
            return "airflow"
        is_folder = len(rest) > 1 or self.path.name == "__init__.py"
        return rest[0] if rest and is_folder else "root"


@dataclass(frozen=True, kw_only=True)
class Tree:
    """The product at one commit."""

    modules: Mapping[str, Module]
    root: Path

    @property
    def arrows(self) -> set[tuple[str, str]]:
        """Between rooms."""
        pairs = ((m.room, self.modules[to].room) for m in self.modules.values() for to in m.imports)
        return {(one, other) for one, other in pairs if one != other}

    @property
    def imported_once(self) -> list[str]:
        users = Counter(to for module in self.modules.values() for to in module.imports)
        return sorted(name for name, many in users.items() if many == 1)

    @property
    def defined_twice(self) -> list[str]:
        homes = Counter(name for module in self.modules.values() for name in module.defines)
        return sorted(name for name, many in homes.items() if many > 1)

    def circles(self) -> list[list[str]]:
        """Files that import each other by imports that run."""
        edges = {
            module.name: [to for to, when in module.imports.items() if when is not When.FOR_TYPES]
            for module in self.modules.values()
        }
        return [sorted(one) for one in _components(edges) if len(one) > 1]

    def loads(self, start: str) -> set[str]:
        """The heavy libraries that an import of *start* loads at once."""
        seen, to_visit, found = {start}, [start], set[str]()
        while to_visit:
            module = self.modules[to_visit.pop()]
            found |= module.heavy
            parts = module.name.split(".")
            parents = {".".join(parts[:depth]) for depth in range(1, len(parts))}
            at_once = {to for to, when in module.imports.items() if when is When.AT_ONCE}
            for name in (at_once | parents) - seen:
                if name in self.modules:
                    seen.add(name)
                    to_visit.append(name)
        return found


def _components(edges: Mapping[str, Iterable[str]]) -> Iterator[list[str]]:
    """Tarjan's strongly connected components."""
    index, low, stack = dict[str, int](), dict[str, int](), list[str]()
    found = list[list[str]]()

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for to in edges.get(node, ()):
            if to not in index:
                visit(to)
                low[node] = min(low[node], low[to])
            elif to in stack:
                low[node] = min(low[node], index[to])
        if low[node] == index[node]:
            at = stack.index(node)
            found.append(stack[at:])
            del stack[at:]

    for node in edges:
        if node not in index:
            visit(node)
    yield from found


def read_tree(root: Path) -> Tree:
    """Every module of the product below *root*, read and not imported."""
    paths = dict[str, Path]()
    for base in (root / "include", root / "plugins"):
        for path in sorted([*base.glob("sluice/**/*.py"), *base.glob("sluice_airflow/**/*.py")]):
            if path.is_relative_to(root / TEMPLATES):
                continue
            parts = path.relative_to(base).with_suffix("").parts
            paths[".".join(parts).removesuffix(".__init__")] = path
    return Tree(modules={name: _read(name, paths) for name in paths}, root=root)


def _read(name: str, paths: Mapping[str, Path]) -> Module:
    text = paths[name].read_text()
    tree = ast.parse(text)
    imports, heavy = dict[str, When](), set[str]()
    for node, when in _imports(tree, When.AT_ONCE):
        for imported in _targets(node, paths):
            if imported != name and imports.get(imported) is not When.AT_ONCE:
                imports[imported] = when
        if when is When.AT_ONCE:
            heavy |= HEAVY & {top.split(".")[0] for top in _names(node)}
    defines = {
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and not node.name.startswith("_")
    }
    return Module(
        name=name,
        path=paths[name],
        lines=text.count("\n"),
        defines=frozenset(defines),
        imports=imports,
        heavy=frozenset(heavy),
    )


def _imports(node: ast.AST, when: When) -> Iterator[tuple[ast.Import | ast.ImportFrom, When]]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.Import() | ast.ImportFrom():
                yield child, when
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from _imports(child, When.IN_A_FUNCTION)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                yield from _imports(child, When.FOR_TYPES)
            case _:
                yield from _imports(child, when)


def _names(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [name.name for name in node.names]


def _targets(node: ast.Import | ast.ImportFrom, paths: Mapping[str, Path]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (name.name for name in node.names if name.name in paths)
        return
    for name in node.names:
        for module in (f"{node.module}.{name.name}", node.module or ""):
            if module in paths:
                yield module
                break


def problems(tree: Tree) -> Iterator[str]:
    """What `make check` refuses."""
    for module in tree.modules.values():
        if module.room not in ROOMS:
            yield f"{module.path.relative_to(tree.root)}: {module.room} is no room of bench/tree.py"
            continue
        for to in module.imports:
            target = tree.modules[to].room
            if module.room != "root" and target not in (module.room, *allowed(module.room)):
                yield f"{module.name} imports {to}: {module.room} may not import {target}"
    for name, room in ROOMS.items():
        here = [module for module in tree.modules.values() if module.room == name]
        for missing in {*room.names} - {one for module in here for one in module.defines}:
            yield f"{name} has no {missing}, which bench/tree.py says others use"
    if rooms_table() not in (tree.root / "ARCHITECTURE.md").read_text():
        yield "ARCHITECTURE.md has another table than python -m bench.tree --rooms"
    for circle in tree.circles():
        yield f"these import each other: {', '.join(circle)}"
    for name in LIGHT:
        if name in tree.modules and (loaded := tree.loads(name)):
            yield f"an import of {name} loads {', '.join(sorted(loaded))}"


@dataclass(frozen=True, kw_only=True)
class Count:
    """One row of the table."""

    name: str
    figure: int


def counts(tree: Tree) -> Iterator[Count]:
    files = [*_python(tree.root, "include", "plugins", "dags", "spark_jobs")]
    tests = [*_python(tree.root, "tests")]
    yield Count(name="files of include, plugins, dags, spark_jobs", figure=len(files))
    yield Count(name="lines of these", figure=sum(map(_lines, files)))
    yield Count(name="rooms beside root", figure=len({m.room for m in tree.modules.values()}) - 1)
    yield Count(name="arrows between rooms", figure=len(tree.arrows))
    yield Count(name="circles of files", figure=len(tree.circles()))
    yield Count(name="modules that one other imports", figure=len(tree.imported_once))
    yield Count(name="public names defined twice", figure=len(tree.defined_twice))
    yield Count(name="files of tests", figure=len(tests))
    yield Count(name="lines of tests", figure=sum(map(_lines, tests)))
    decisions = [*(tree.root / "docs/adr").glob("0*.md")]
    yield Count(name="decisions (docs/adr)", figure=len(decisions))
    pages = (tree.root / "docs").rglob("*.md")
    yield Count(name="words of docs", figure=sum(len(page.read_text().split()) for page in pages))


def _python(root: Path, *folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from (path for path in (root / folder).rglob("*.py") if path.is_file())


def _lines(path: Path) -> int:
    return path.read_text().count("\n")


def print_table(trees: Mapping[str, Tree]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", *trees)
    columns = [{one.name: one.figure for one in counts(tree)} for tree in trees.values()]
    for name in columns[-1]:
        table.add_row(name, *(f"{column[name]:,}" for column in columns))
    table.add_section()
    sizes = [_sizes(tree) for tree in trees.values()]
    for room in dict.fromkeys([*ROOMS, *(room for size in sizes for room in sorted(size))]):
        table.add_row(room, *(_files_and_lines(size.get(room)) for size in sizes))
    Console(width=120).print(table)


def _sizes(tree: Tree) -> Mapping[str, list[int]]:
    sizes = defaultdict[str, list[int]](list)
    for module in tree.modules.values():
        sizes[module.room].append(module.lines)
    return sizes


def _files_and_lines(lines: list[int] | None) -> str:
    return f"{len(lines)} files, {sum(lines):,} lines" if lines else ""


def rooms_table() -> str:
    """The rooms from the top down, as Markdown."""
    rows = [
        f"| `{name}` | {room.says} | {room.imports or 'nothing'} | {_code(room.names)} |"
        for name, room in reversed(ROOMS.items())
    ]
    head = ["| room | what it is | may import | names that others use |", "|---|---|---|---|"]
    return "\n".join([*head, *rows])


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def tree_at(revision: str, folder: Path) -> Tree:
    """The tree as it was committed, unpacked into *folder*."""
    archive = folder / "tree.tar"
    command = ["git", "archive", "--output", str(archive), revision]
    subprocess.run(command, cwd=REPOSITORY, check=True)
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return read_tree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.tree", description=__doc__)
    parser.add_argument("--beside", metavar="REV", help="an earlier commit to count, too")
    parser.add_argument("--rooms", action="store_true", help="print the table of rooms")
    parser.add_argument("--check", action="store_true", help="end with 1 if a rule is broken")
    asked = parser.parse_args()
    tree = read_tree(REPOSITORY)
    if asked.rooms:
        print(rooms_table())
    elif asked.check:
        found = [*problems(tree)]
        print("\n".join(found) or "the tree is in order")
        sys.exit(bool(found))
    elif asked.beside:
        with tempfile.TemporaryDirectory() as folder:
            print_table({asked.beside: tree_at(asked.beside, Path(folder)), "now": tree})
    else:
        print_table({"now": tree})


if __name__ == "__main__":
    main()
