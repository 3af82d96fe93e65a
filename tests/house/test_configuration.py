"""The tables of docs/reference/configuration.md name what the code has, with its defaults."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path

import pytest

from sluice.core.configuration import JobConfiguration, Timing
from sluice.declaration import checkpointing
from sluice.declaration.checkpointing import OPTIONS, StateBackend
from sluice.spark.session import JVM_OPTIONS, PYTHON_WORKERS
from tests.house.configuration_page import PAGE, written


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


def test_the_table_of_options_is_what_they_declare() -> None:
    assert PAGE.read_text() == written(), "run: python -m tests.house.configuration_page"


def test_an_option_that_the_journal_keeps_is_named_as_its_field() -> None:
    """A typing error would make it an option of the next checkpoint, silently."""
    known = {field.name for kept_in in (JobConfiguration, Timing) for field in fields(kept_in)}

    assert {option.kept_as for option in OPTIONS.values()} - known == {""}
    assert {name for name, option in OPTIONS.items() if not option.kept_as} == {
        "schedule",
        "target_age",
        "history_size",
        "num_retained_versions",
    }


def test_the_page_has_every_option_of_the_state_backend_with_its_default() -> None:
    default = StateBackend()

    rows = table("option of the state backend")
    documented = [(row["option of the state backend"], value(row["default here"])) for row in rows]

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


REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "place", ["docker-compose.yaml", "docs/own-airflow.md", "docs/guides/clusters.md"]
)
def test_its_python_workers_and_its_jvm_are_ours(place: str) -> None:
    text = (REPOSITORY / place).read_text()

    lines = [JVM_OPTIONS, *(f"{name}={value}" for name, value in PYTHON_WORKERS.items())]
    assert [line for line in lines if line not in text] == []
