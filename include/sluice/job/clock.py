"""One clock for all coordinators of a job: the store's.

Machines' clocks disagree, and a coordinator acts on times that another one journaled: a timeout,
the pause before a restart, an interval.  All use the job's clock: the store's plus an offset that
the journal keeps.  The first coordinator of the job chooses the offset so that the job's clock is
its own, as people and functions expect.

A machine whose clock agrees with the job's uses its own, as the store's is exact to a second only.
One whose clock disagrees logs a warning, and adds its own elapsed milliseconds to the job's time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from sluice.errors import ConfigurationError
from sluice.store.journal import Journal
from sluice.store.object_store import ObjectStore, machine_clock_ms
from sluice.store.open import now_ms

log = logging.getLogger(__name__)

TOLERANCE_MS = 5_000  # S3's times are whole seconds, and a slow request takes some.
MOST_OFF_MS = 15 * 60_000  # AWS's own limit: it refuses a signature that is older, or newer.


class JobClock:
    """The job's clock on a machine that has the clock *own*, both in ms since 1970."""

    def __init__(self, own: Callable[[], int], journal: Journal, store: ObjectStore) -> None:
        self._own = own
        self._journal = journal
        self._store = store
        self._drawn: int | None = None  # From this clock, which then is the job's.
        self._compared: int | None = None  # The offset by which the clocks were compared.
        self.ahead_ms = 0  # What this machine's clock is ahead of the job's.

    def now_ms(self) -> int:
        """The time on the job's clock.

        Before the job has one it is this machine's, and from it the job's is drawn.  Once compared,
        the time that passes is this machine's: its clock may be off, and is steady.
        """
        own_ms, offset_ms = self._own(), self._journal.clock_offset_ms
        if offset_ms is None:
            if self._drawn is None:
                self._drawn = own_ms - now_ms(self._store)
            self._journal.drawn_offset_ms = self._drawn
            return own_ms
        if offset_ms != self._compared:
            self._compare(own_ms, offset_ms)
        return own_ms - self.ahead_ms

    def on_machine(self, at_ms: int) -> int:
        """A moment of the job's clock on this machine's."""
        self.now_ms()
        return at_ms + self.ahead_ms

    def _compare(self, own_ms: int, offset_ms: int) -> None:
        is_ours = offset_ms == self._drawn
        ahead_ms = 0 if is_ours else own_ms - (now_ms(self._store) + offset_ms)
        self.ahead_ms = 0 if abs(ahead_ms) <= TOLERANCE_MS else ahead_ms
        self._compared = offset_ms
        if self.ahead_ms:
            log.warning(
                "this machine's clock is not the job's, which is used ahead_ms=%d store=%s: "
                "synchronize it with NTP",
                ahead_ms,
                self._store.root,
            )


def check_machine_clock(store: ObjectStore) -> None:
    """Check the clock of a machine from which a job's clock would be drawn.

    Raises:
        ConfigurationError: it is off by more than AWS accepts, whatever the store.
    """
    off_ms = machine_clock_ms() - now_ms(store)
    if abs(off_ms) > MOST_OFF_MS:
        which = "ahead of" if off_ms > 0 else "behind"
        raise ConfigurationError(
            f"this machine's clock is {abs(off_ms) // 1_000:,} s {which} that of {store.root}, and "
            "the job's processing time would begin with it; synchronize both with NTP"
        )
