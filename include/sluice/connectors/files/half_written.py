"""Files that are still being written: they wait for a later epoch, up to a limit.

Only a file system shows incomplete files; in a bucket an object appears whole.  A writer avoids
this by writing a file elsewhere and moving it into place.
"""

from __future__ import annotations

import logging
import time

from sluice.errors import ConfigurationError
from sluice.storage.object_store import Listed

log = logging.getLogger(__name__)

# Longer than a writer pauses within a file, and short enough to report a dead writer that day.
GIVE_UP_AFTER_S = 3600


class NotWholeError(ConfigurationError):
    """A file that ends too early; the rest may still be written."""


def leave_for_later(file: Listed, error: NotWholeError, give_up_after_s: int) -> None:
    """Log that *file* waits for a later epoch.

    Raises:
        ConfigurationError: it was not written to for *give_up_after_s* seconds; it names it.
    """
    if is_silent(file, give_up_after_s):
        raise ConfigurationError(
            f"{error}; it was not written to for {give_up_after_s} s"
        ) from error
    log.info(
        "file is not whole yet, left for a later epoch file=%s size_bytes=%d",
        file.key,
        file.size_bytes,
    )


def is_silent(file: Listed, seconds: int) -> bool:
    """Whether the last write was *seconds* ago, comparing the store's clock with this machine's."""
    return time.time_ns() // 1_000_000 - file.modified_ms >= seconds * 1000
