"""The pages of the documentation that messages name, by their titles.

A message names a page where a sentence has no room for the advice.  An installed package has no
docs folder, so a page is named by its title and section, which are the same wherever it is read.
``tests/house`` holds that each of them exists, and that no message names a path instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sluice.core.reasons import CheckpointFailureReason


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the documentation, or one ``section`` of it, as messages name it."""

    title: str
    section: str = ""

    def __str__(self) -> str:
        page = f'"{self.title}" in Sluice\'s documentation'
        return f"{self.section} in {page}" if self.section else page


FAILURE_REASONS: Final = Page("Why a checkpoint or a command failed")
STORES: Final = Page("Which stores can hold a journal")
KAFKA: Final = Page("Kafka")


def page_of(reason: CheckpointFailureReason) -> Page:
    """The section about *reason*: what it means, what Sluice did, what to look at, what to do."""
    return Page(FAILURE_REASONS.title, section=reason.value)
