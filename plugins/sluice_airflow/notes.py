"""Notes of runs: a task writes one sentence, which Airflow shows as the run's note.

A task cannot set a note itself (Airflow's execution API has no call for it), so it stores the
sentence as an XCom.  The API server makes it the note at once (``live_notes``), and a listener in
the scheduler when the run ends (``run_notes``).  Notes are for people: sluice does not read them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.sdk import Context

from sluice.storage.redaction import redacted

log = logging.getLogger(__name__)

NOTE_KEY = "sluice_note"
SILENCE_KEY = "sluice_silence"
MAX_NOTE = 1_000  # Characters that Airflow's column of notes holds.


def note(context: Context, sentence: str) -> None:
    """Set the run's note; a later task of the run replaces it."""
    said = redacted(sentence)  # Before it is cut, as half of a secret is secret, too.
    log.info("%s", said)
    context["ti"].xcom_push(key=NOTE_KEY, value=said[:MAX_NOTE])


def note_silence(context: Context, sentence: str) -> None:
    """Put *sentence* before the run's note while the run lasts; an empty one takes it away."""
    said = redacted(sentence)
    if said:
        log.warning("%s", said)
    context["ti"].xcom_push(key=SILENCE_KEY, value=said[:MAX_NOTE])
