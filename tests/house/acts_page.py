"""docs/reference/acts.md, written from what the acts declare.

After a change of ``sluice.surface.acts``: ``python -m tests.house.acts_page``.
"""

from __future__ import annotations

from collections.abc import Iterator

from sluice.surface.acts import ACTS, Act, Face, Field, Kind
from tests.house.test_repository import REPOSITORY

PAGE = REPOSITORY / "docs" / "reference" / "acts.md"

# The command of an act, and its route below /pipelines/{uid}.
PLACES = {
    "checkpoint": ("checkpoint PIPELINE", "checkpoints"),
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

What a person may do to a job, on the command line, in the form of a DAG, and over REST with the
pages' dialogs. All are rendered from one declaration, `include/sluice/surface/acts.py`, and so is
this page. An act without a DAG has no form: it is in force at once. Where else a face lacks a
field, the last column says why in brackets.
"""


def written() -> str:
    return "\n".join([_HEAD, *(line for act in ACTS for line in _section(act))])


def _section(act: Act) -> Iterator[str]:
    command, route = PLACES[act.name]
    yield f"## {act.name}"
    yield ""
    yield f"{act.says} {act.details}".strip()
    yield ""
    dag = "" if act.dag is None else f", the DAG `{{uid}}{act.dag and '__' + act.dag}`"
    yield f"`sluice {command}`{dag}, `POST /pipelines/{{uid}}/{route}`"
    yield ""
    if act.fields:
        yield "| command line | form | body | what it says |"
        yield "|---|---|---|---|"
        yield from (_row(act, field) for field in act.fields)
        yield ""


def _row(act: Act, field: Field) -> str:
    option = field.command or f"--{field.name.replace('_', '-')}"
    command = field.metavar or field.name.upper() if field.is_argument else option
    form = "param_NAME" if field.kind is Kind.PARAMETERS else field.name
    body = field.route or field.name.replace("_", "-")
    has_form = act.dag is not None and Face.FORM in field.on
    cells = [
        f"`{command}`" if Face.COMMAND in field.on else "-",
        f"`{form}`" if has_form else "-",
        f"`{body}`" if Face.ROUTE in field.on else "-",
    ]
    why_not = f" ({field.why_not})" if field.why_not else ""
    return f"| {' | '.join(cells)} | {field.says}{why_not} |"


if __name__ == "__main__":
    PAGE.write_text(written())
