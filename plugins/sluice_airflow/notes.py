"""What a run did, in a sentence: a task says it, and the run's note shows it.

A task cannot write a note itself (Airflow's execution API has no call for it), so it leaves the
sentence as an XCom, and the scheduler, which hears when a run ends, makes it the note
(``run_notes``).  For people only: nothing reads a note.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.sdk import Context

from sluice.redaction import redacted

log = logging.getLogger(__name__)

NOTE_KEY = "sluice_note"
MAX_NOTE = 1_000  # Characters: what Airflow's note column holds.


def note(context: Context, sentence: str) -> None:
    """The last task of a run that says something has the last word."""
    said = redacted(sentence)  # Before it is cut: half of a secret is one, too.
    log.info("%s", said)
    context["ti"].xcom_push(key=NOTE_KEY, value=said[:MAX_NOTE])
