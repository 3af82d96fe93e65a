"""The tables of docs/reference/configuration.md name what the code has, with its defaults."""

from __future__ import annotations

import inspect
from dataclasses import fields

from sluice.declaration import checkpointing
from sluice.declaration.checkpointing import Checkpointing, StateBackend
from tests.house.test_repository import REPOSITORY

PAGE = REPOSITORY / "docs" / "reference" / "configuration.md"


def table(first_heading: str) -> list[dict[str, str]]:
    """The rows of one table, by heading, without backticks."""
    lines = PAGE.read_text().replace("`", "").splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"| {first_heading} |"))
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]


def value(expression: str) -> object:
    return eval(expression, vars(checkpointing))  # noqa: S307 - our own page


def test_the_page_has_every_field_with_its_default() -> None:
    default = Checkpointing()

    documented = [(row["field"], value(row["default here"])) for row in table("field")]

    assert documented == [(field.name, getattr(default, field.name)) for field in fields(default)]


def test_the_page_has_every_option_of_the_state_backend_with_its_default() -> None:
    default = StateBackend()

    documented = [(row["option"], value(row["default here"])) for row in table("option")]

    assert documented == [(field.name, getattr(default, field.name)) for field in fields(default)]


def test_the_page_has_every_restart_strategy_with_its_defaults() -> None:
    documented: dict[str, dict[str, object]] = {}
    for row in table("strategy"):
        parameters = documented.setdefault(row["strategy"], {})
        if row["parameter"]:
            parameters[row["parameter"]] = value(row["default here"])

    assert documented == {
        name: {
            parameter.name: parameter.default
            for parameter in inspect.signature(getattr(checkpointing, name)).parameters.values()
        }
        for name in ("no_restart", "fixed_delay", "exponential_delay", "failure_rate")
    }
