"""docs/reference/acts.md, written from what the acts declare.

A row that several acts have stands once, in the last table.

After a change of ``sluice.surface.acts``: ``python -m tests.house.acts_page``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from sluice.surface.acts import ACTS, Act, Face, Field, Kind
from tests.house.test_repository import REPOSITORY

PAGE = REPOSITORY / "docs" / "reference" / "acts.md"

# The command of an act, and its route below /pipelines/{uid}.
PLACES = {
    "checkpoint": ("checkpoint PIPELINE", "checkpoints"),
    "backfill": ("backfill PIPELINE --input FOLDERS", "backfill"),
    "savepoint": ("savepoint PIPELINE NAME", "savepoints"),
    "stop": ("stop PIPELINE", "stop"),
    "restore": ("restore PIPELINE", "restore"),
    "cancel": ("cancel PIPELINE", "cancel"),
    "abort": ("checkpoints abort PIPELINE ID", "checkpoints/{id}/abort"),
    "dispose": ("dispose PIPELINE NAME", "savepoint-disposal"),
    "pause": ("pause PIPELINE", "pause"),
    "resume": ("resume PIPELINE", "resume"),
    "config": ("checkpoints config PIPELINE", "checkpoints/config"),
}
_HEAD = """# Acts on a job

What a person may do to a job: as a command, in the form of a DAG, and over REST, which the pages'
dialogs use. An act without a DAG is in force at once. A dash stands where a face does not have the
field; the brackets say why.
"""
_TABLE = ["| command line | form | body | what it does |", "|---|---|---|---|"]
_SHARED = """## Fields of several acts
"""


def written() -> str:
    rows = Counter(_row(act, field) for act in ACTS for field in act.fields)
    shared = [row for row, acts in rows.items() if acts > 1]
    sections = [line for act in ACTS for line in _section(act, shared)]
    return "\n".join([_HEAD, *sections, _SHARED, *_TABLE, *shared, ""])


def _section(act: Act, shared: Sequence[str]) -> Iterator[str]:
    command, route = PLACES[act.name]
    yield f"## {act.name}"
    yield ""
    yield f"{act.says} {act.details}".strip()
    yield ""
    dag = "" if act.is_immediate else f", the DAG `{act.dag_id('{uid}')}`"
    yield f"`sluice {command}`{dag}, `POST /pipelines/{{uid}}/{route}`"
    yield ""
    rows = [_row(act, field) for field in act.fields]
    if own := [row for row in rows if row not in shared]:
        yield from [*_TABLE, *own, ""]
    if others := [row.split(" | ")[0].removeprefix("| ") for row in rows if row in shared]:
        yield f"{'And' if own else 'Only'} {', '.join(others)}: [below](#fields-of-several-acts)."
        yield ""


def _row(act: Act, field: Field) -> str:
    option = field.command or f"--{field.name.replace('_', '-')}"
    command = field.metavar or field.name.upper() if field.is_argument else option
    form = "param_NAME" if field.kind is Kind.PARAMETERS else field.name
    body = field.route or field.name.replace("_", "-")
    has_form = not act.is_immediate and Face.FORM in field.on
    cells = [
        f"`{command}`" if Face.COMMAND in field.on else "-",
        f"`{form}`" if has_form else "-",
        f"`{body}`" if Face.ROUTE in field.on else "-",
    ]
    why_not = f" ({field.why_not})" if field.why_not else ""
    return f"| {' | '.join(cells)} | {field.says}{why_not} |"


if __name__ == "__main__":
    PAGE.write_text(written())
