"""Files that are still being written: what is not whole yet is left alone, but not for ever.

Only a file system shows half a file; in a bucket an object appears whole.  Who can, writes a file
elsewhere and moves it into place.
"""

from __future__ import annotations

import logging
import time

from sluice.errors import ConfigurationError
from sluice.storage.object_store import Listed

log = logging.getLogger(__name__)

# Longer than a writer keeps an open file silent; a person hears of one that died the same day.
GIVE_UP_AFTER_S = 3600


class NotWholeError(ConfigurationError):
    """A file ends too early.  More of it may come."""


def leave_for_later(file: Listed, error: NotWholeError, give_up_after_s: int) -> None:
    """Log that *file* has to wait.

    Raises:
        ConfigurationError: nobody has written to it for *give_up_after_s* seconds; it names it.
    """
    if is_silent(file, give_up_after_s):
        raise ConfigurationError(
            f"{error}; nobody has written to it for {give_up_after_s} s"
        ) from error
    log.info(
        "file is not whole yet, left for a later epoch file=%s size_bytes=%d",
        file.key,
        file.size_bytes,
    )


def is_silent(file: Listed, seconds: int) -> bool:
    """Whether the file is as it is since *seconds*, by the store's clock against ours."""
    return time.time_ns() // 1_000_000 - file.modified_ms >= seconds * 1000
