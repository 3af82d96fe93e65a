"""Sluice's pages as a browser has them: where they are, and when what they show is there."""

from __future__ import annotations

from dataclasses import dataclass

# Wherever the pages are: alone below #pages, or somewhere in Airflow's own.
PLACE = """[...document.querySelectorAll('*')].map((one) => one.shadowRoot)
    .find((root) => root?.querySelector('.sluice'))"""
TEXT = f"{PLACE}.querySelector('.sluice').innerText"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """``address`` is behind the ``#``; it is open with *least* elements of the *selector*."""

    name: str
    address: str
    heading: str
    selector: str
    least: int = 1

    @property
    def is_open(self) -> str:
        """An expression that is true as soon as it is drawn, with nothing still loading."""
        return f"""((root) => root?.querySelector('h2')?.textContent === {self.heading!r}
            && !root.querySelector('.loading')
            && root.querySelectorAll({self.selector!r}).length >= {self.least})({PLACE})"""


def pages_of(uid: str, *, completed: int, pending: int, savepoint: str) -> list[Page]:
    """All of them, of a pipeline with two stages."""

    def page(name: str, address: str, heading: str, selector: str, least: int = 1) -> Page:
        return Page(name=name, address=address, heading=heading, selector=selector, least=least)

    rows = "tbody tr"
    done, late = f"Checkpoint {completed}", f"Checkpoint {pending}"
    compared = f"p/{uid}/state/compare?from={savepoint}&to={completed}&stage=count_bids"
    return [
        page("pipelines", "", "Pipelines", rows),
        page("overview", f"p/{uid}/overview", "Overview", "canvas", 3),
        page("history", f"p/{uid}/history", "History", rows, 50),
        page("checkpoint", f"p/{uid}/checkpoints/{completed}", done, rows, 102),
        page("late checkpoint", f"p/{uid}/checkpoints/{pending}", late, "tr.late", 4),
        page("exceptions", f"p/{uid}/exceptions", "Exceptions", ".failed"),
        page("summary", f"p/{uid}/summary", "Summary", "canvas", 3),
        page("skew", f"p/{uid}/skew", "Skew", ".course", 2),
        page("configuration", f"p/{uid}/configuration", "Configuration", rows),
        page("journal", f"p/{uid}/journal", "Journal", "ol.story li"),
        page("graph", f"p/{uid}/graph", "Graph", ".node", 4),
        page("state", f"p/{uid}/state", "State", rows, 100),
        page("compare", compared, "Compare", rows, 100),
        page("snapshots", f"p/{uid}/snapshots", "Snapshots", rows, 10),
    ]
