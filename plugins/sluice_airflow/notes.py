"""Notes of runs: a task writes one sentence, which Airflow shows as the run's note.

A task cannot set a note itself (Airflow's execution API has no call for it), so it stores the
sentence as an XCom, and a listener in the scheduler makes it the note when the run ends
(``run_notes``).  Notes are for people: sluice does not read them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.sdk import Context

from sluice.storage.redaction import redacted

log = logging.getLogger(__name__)

NOTE_KEY = "sluice_note"
MAX_NOTE = 1_000  # Characters that Airflow's column of notes holds.


def note(context: Context, sentence: str) -> None:
    """Set the run's note; a later task of the run replaces it."""
    said = redacted(sentence)  # Before it is cut, as half of a secret is secret, too.
    log.info("%s", said)
    context["ti"].xcom_push(key=NOTE_KEY, value=said[:MAX_NOTE])
