"""What the pure core offers, production uses: a proof about code that nobody runs proves nothing.

Names are compared, not what they are bound to: a name that production uses for something else
passes.  So this finds what was forgotten, and no more.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
CORE = REPOSITORY / "include/sluice/core"
PRODUCTION = [
    path
    for folder in ("include", "plugins", "dags", "spark_jobs")
    for path in sorted((REPOSITORY / folder).rglob("*.py"))
]

# Flink's rules that this system has no use for; a case in tests/conformance/cases asks for each,
# and the docstring says so.  Nothing is added here but with such a case.
ASKED_FOR_BY_CONFORMANCE = {
    "id-counter": {"get_and_increment"},
    "key-groups": {"previous_subtasks"},
    "checkpoint-plan": {"to_trigger", "to_commit_to", "finished_subtasks"},
}


def _names(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            yield each.id
        if isinstance(each, ast.Attribute):
            yield each.attr


def _parts(node: ast.stmt) -> Iterator[tuple[str, list[ast.AST]]]:
    """Each public name that a statement of a module defines, and what it brings with it."""
    if isinstance(node, ast.FunctionDef):
        yield node.name, [node]
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            yield next(_names(target)), [] if node.value is None else [node.value]
    if isinstance(node, ast.ClassDef):
        special: list[ast.AST] = [*node.bases]
        for member in node.body:
            if isinstance(member, ast.FunctionDef) and not member.name.startswith("__"):
                yield member.name, [member]
            elif isinstance(member, ast.AnnAssign):
                yield next(_names(member.target)), [member.annotation]
                special += [part for part in (member.annotation, member.value) if part]
            elif isinstance(member, ast.FunctionDef):
                special.append(member)
        yield node.name, special


def _unused() -> set[str]:
    defined: dict[str, list[ast.AST]] = {}
    for path in CORE.glob("*.py"):
        for statement in ast.parse(path.read_text()).body:
            for name, brings in _parts(statement):
                defined.setdefault(name, []).extend(brings)
    used: set[str] = set()
    for path in PRODUCTION:
        if not path.is_relative_to(CORE):
            used.update(_names(ast.parse(path.read_text())))
    reached, to_visit = set[str](), [name for name in defined if name in used]
    while to_visit:
        name = to_visit.pop()
        if name not in reached:
            reached.add(name)
            to_visit += [n for part in defined[name] for n in _names(part) if n in defined]
    return {name for name in defined.keys() - reached if not name.startswith("__")}


def test_what_the_core_offers_is_used_in_production_or_asked_for_by_a_conformance_case() -> None:
    assert _unused() == set[str]().union(*ASKED_FOR_BY_CONFORMANCE.values())


def test_what_is_there_for_a_conformance_case_says_so_where_it_is_defined() -> None:
    text = {path.name: path.read_text() for path in CORE.glob("*.py")}

    for area, names in ASKED_FOR_BY_CONFORMANCE.items():
        homes = [body for body in text.values() if all(name in body for name in names)]
        assert any("asked for by" in body and area in body for body in homes), area


def test_acks_are_folded_into_a_state_in_one_place() -> None:
    folding = {
        str(path.relative_to(REPOSITORY))
        for path in PRODUCTION
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and next(_names(node.func), "") in ("AcksReceived", "acknowledge")
    }

    assert folding == {"include/sluice/core/progress.py", "include/sluice/epoch/acks.py"}
