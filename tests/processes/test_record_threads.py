"""Records are decoded by many threads at once: the triggerer watches every stage in one process.

msgspec builds what it knows of a dataclass at its first use, and a second thread that decodes the
same class meanwhile crashed the interpreter (seen in Airflow's triggerer).
"""

from __future__ import annotations

from tests.processes.conftest import run_python

PROGRAM = """
import sys, threading
sys.setswitchinterval(1e-6)
from sluice.core.coordinator import step
from sluice.core.configuration import JobConfiguration
from sluice.core.events import JobSubmitted
from sluice.core.state import CoordinatorState
from sluice.protocol.records import JournalEntry, decode_entry, encode_entry

event = JobSubmitted(at_ms=1, generation=1, life="a", configuration=JobConfiguration())
state = step(CoordinatorState(), event).state
raw = encode_entry(JournalEntry(author="a", previous="", event=event, state=state))
barrier = threading.Barrier(16)

def decode():
    barrier.wait()
    decode_entry(raw, "key")

threads = [threading.Thread(target=decode) for _ in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_threads_may_decode_their_first_record_at_the_same_time() -> None:
    for _ in range(3):
        done = run_python(PROGRAM)

        assert done.returncode == 0, done.stderr
