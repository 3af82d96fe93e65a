"""Every reason and every error that a person can be shown has its section in the page; the pages
ship what the documentation and the records say.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

from sluice.core import failures
from sluice.core.configuration import JobStatus
from sluice.core.failures import FAILURE_REASONS, CheckpointFailureReason, Page, page_of
from tests.house import failure_reasons_json, figures_js
from tests.house.test_links import titled
from tests.house.test_repository import REPOSITORY, tracked

(PAGE,) = titled(FAILURE_REASONS.title)
LABELS = ["What it means.", "What Sluice did.", "What to look at.", "What to do."]
CODE = [
    path
    for path in tracked("include/sluice/*.py", "plugins/*.py")
    if path != REPOSITORY / "include/sluice/core/failures.py"
]


def sections() -> dict[str, str]:
    parts = re.split(r"^#{2,3} (.+)$", PAGE.read_text(), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


@functools.cache
def texts() -> list[str]:
    """Every worker asks while it collects the tests: no more of these is parsed than has to be."""
    return [path.read_text() for path in CODE]


@functools.cache
def reasons_in_use() -> frozenset[str]:
    """The reasons that our code names: those that it gives, or looks for."""
    return frozenset(
        node.attr
        for text in texts()
        if "CheckpointFailureReason." in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "CheckpointFailureReason"
        and node.attr in CheckpointFailureReason.__members__
    )


@functools.cache
def errors() -> frozenset[str]:
    """The names of all descendants of ``SluiceError``, in any module."""
    bases = {
        name: [base.strip() for base in of.split(",")]
        for text in texts()
        for name, of in re.findall(r"^ *class (\w+)\(([^)]*)\):", text, re.MULTILINE)
    }
    found, before = {"SluiceError"}, set[str]()
    while found != before:
        before = set(found)
        found |= {name for name, of in bases.items() if found.intersection(of)}
    return frozenset(found - {"SluiceError"})


@pytest.mark.parametrize("reason", CheckpointFailureReason, ids=lambda reason: reason.value)
def test_every_reason_is_explained_and_answered(reason: CheckpointFailureReason) -> None:
    said = re.findall(r"\*\*(.+?)\*\*", sections()[page_of(reason).section])

    assert said == [label for label in LABELS if label in said]
    assert {"What it means.", "What to do."} <= set(said)


def test_there_is_no_reason_that_sluice_never_gives() -> None:
    assert reasons_in_use() == CheckpointFailureReason.__members__.keys()


def test_the_table_of_reasons_says_what_the_code_does() -> None:
    rows = re.findall(r"^\| \[(\w+)\]\(#\w+\) \|[^|]+\| (yes)? ?\|", PAGE.read_text(), re.MULTILINE)

    assert {name: bool(counts) for name, counts in rows} == {
        name: CheckpointFailureReason[name].counts for name in reasons_in_use()
    }


@pytest.mark.parametrize("error", sorted(errors()))
def test_every_error_has_its_section(error: str) -> None:
    assert "What it means." in sections()[error]
    assert "hat to do.**" in sections()[error]


def test_every_status_at_which_a_job_stands_still_is_explained() -> None:
    headings = " ".join(sections())

    still = set(JobStatus) - {JobStatus.CREATED, JobStatus.RUNNING}
    assert {status.value for status in still if status.value not in headings} == set()


@pytest.mark.parametrize(
    "page", [page for page in vars(failures).values() if isinstance(page, Page)]
)
def test_every_page_that_messages_name_exists_once(page: Page) -> None:
    assert len(titled(page.title)) == 1


def test_an_error_of_any_module_would_be_found() -> None:
    """Errors are also declared outside of ``sluice.errors``."""
    assert {"CorruptSegment", "NotWholeError", "Unexpected"} < errors()
    assert Path(PAGE).is_file()


def test_the_reasons_are_those_of_the_documentation() -> None:
    shipped, made = failure_reasons_json.SHIPPED.read_text(), failure_reasons_json.written()

    assert shipped == made, "python -m tests.house.failure_reasons_json"


def test_the_figures_are_those_of_the_records() -> None:
    assert figures_js.SHIPPED.read_text() == figures_js.written(), (
        "python -m tests.house.figures_js"
    )
