"""The person at the command line, as the journal names them."""

from __future__ import annotations

import getpass


def this_person(because: str = "") -> str:
    """The user of this machine, and *because*, in a few words."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # A container's user may have no name.
        name = "a person"
    return f"{name}: {because}" if because else name
