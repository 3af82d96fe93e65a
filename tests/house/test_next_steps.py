"""The next step that a message names is a real command, and how a job begins anew is told once."""

from __future__ import annotations

import ast
import functools
import re
import shlex
from collections.abc import Iterator

import pytest
import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

from sluice.cli.main import app
from sluice.errors import BEGIN_ANEW, fresh_run, of_pipeline
from tests.house.test_repository import REPOSITORY, tracked

TOLD_IN = "include/sluice/errors.py"
# A column or a stage begins anew by --begin; the rest says what cannot.
SAYS_HOW = re.compile(r"--begin|\bcan(?:not)? begin anew")


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Each text of a module that people may see, with its line; values stand as VALUE.

    Docstrings and what an assertion says are for those who read the code.
    """
    tree = ast.parse(source)
    unseen: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            unseen.add(id(node.value))
        elif isinstance(node, ast.Assert) and node.msg is not None:
            unseen |= {id(one) for one in ast.walk(node.msg)}
        elif isinstance(node, ast.JoinedStr):
            unseen |= {id(one) for one in node.values if isinstance(one, ast.Constant)}
        elif isinstance(node, ast.FormattedValue) and node.format_spec is not None:
            unseen |= {id(one) for one in ast.walk(node.format_spec)}
    for node in ast.walk(tree):
        if id(node) in unseen:
            continue
        if isinstance(node, ast.JoinedStr):
            parts = (one.value if isinstance(one, ast.Constant) else "VALUE" for one in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


@functools.cache
def seen() -> list[tuple[str, str]]:
    """The texts that may tell a next step, by their places."""
    return [
        (f"{path.relative_to(REPOSITORY)}:{line}", text)
        for path in tracked("include/sluice/*.py", "plugins/*.py")
        if "anew" in (source := path.read_text()) or "sluice " in source
        for line, text in texts(source)
        if "anew" in text or "sluice " in text
    ]


def commands_in(text: str) -> list[str]:
    """The commands that *text* quotes, or is."""
    quoted = re.findall(r"'(sluice [a-z][^'\n]*)'", text)
    is_one = re.fullmatch(r"sluice [a-z-]+(?: [a-z-]+)? (?:VALUE|{})(?: -.*)?", text)
    return [*quoted, text] if is_one else quoted


def parse(command: str) -> None:
    """Raises LookupError or TyperException where there is no such command or option."""
    _, *words = shlex.split(command)
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    found = group.commands[words.pop(0)]
    while isinstance(found, TyperGroup) and words[0] in found.commands:
        found = found.commands[words.pop(0)]
    # An option that is named without its value gets one.
    found.make_parser(typer.Context(found)).parse_args([*words, "x"])


def test_no_message_says_begin_anew_in_words_of_its_own() -> None:
    own = [place for place, text in seen() if "begin anew" in text and not SAYS_HOW.search(text)]

    assert [place for place in own if not place.startswith(TOLD_IN)] == []


def test_every_command_that_a_message_names_is_one() -> None:
    found = {command: place for place, text in seen() for command in commands_in(text)}
    wrong: dict[str, str] = {}
    for command, place in found.items():
        try:
            parse(command)
        except (LookupError, TyperException) as error:
            wrong[place] = f"{command}: {error}"

    assert len(found) > 20
    assert wrong == {}


def test_a_job_begins_anew_by_a_command() -> None:
    parse(fresh_run("orders"))

    assert of_pipeline(BEGIN_ANEW, "orders") == f"begin anew ('{fresh_run('orders')}')"
    assert "PIPELINE" in BEGIN_ANEW


@pytest.mark.parametrize("command", ["sluice begin orders", "sluice run orders --anew"])
def test_a_command_that_is_none_is_noticed(command: str) -> None:
    with pytest.raises((LookupError, TyperException)):
        parse(command)
