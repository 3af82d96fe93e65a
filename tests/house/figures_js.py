"""The figures of checkpoints, as the pages inside Airflow show them.

After a change of ``sluice.figures.record.FIGURES``: ``python -m tests.house.figures_js``.
"""

from __future__ import annotations

import json

from sluice.figures.record import FIGURES, Scope
from tests.house.test_repository import REPOSITORY

SHIPPED = REPOSITORY / "plugins/sluice_airflow/pages/figures.js"
HEAD = """\
/** The figures of a checkpoint, a stage and a subtask: made by tests/house/figures_js.py. */

export const FIGURES = """


def written() -> str:
    """Those that a record has itself: the greatest of a stage's subtasks are in their own table."""
    found: dict[str, list[dict[str, str]]] = {
        scope.value: [] for scope in (Scope.CHECKPOINT, Scope.STAGE, Scope.SUBTASK)
    }
    for one in FIGURES:
        if not one.path.startswith("subtasks."):
            said = one.says[0].upper() + one.says[1:]
            path, unit = one.path.rstrip("_"), one.unit.value
            found[one.scope].append({"path": path, "title": one.title, "unit": unit, "says": said})
    lines = (
        f"  {scope}: [\n" + "".join(f"    {json.dumps(one)},\n" for one in figures) + "  ],\n"
        for scope, figures in found.items()
    )
    return f"{HEAD}{{\n{''.join(lines)}}};\n"


if __name__ == "__main__":
    SHIPPED.write_text(written())
