"""The page of metrics has a row for each metric, in the words of the code."""

from __future__ import annotations

import re

from sluice.figures.metrics import METRICS
from sluice.surface.monitoring import exposed_name
from tests.house.test_repository import REPOSITORY

NEWEST = ", of the newest completed checkpoint$"  # A star in the page.
PAGE = REPOSITORY / "docs" / "reference" / "metrics.md"


def test_the_page_has_every_metric_and_no_other() -> None:
    rows = re.findall(r"^\| (`sluice_.+) \|$", PAGE.read_text(), re.MULTILINE)

    assert rows == [
        " | ".join(
            [
                f"`{exposed_name(metric)}`",
                ", ".join(f"`{label}`" for label in metric.labels if label != "pipeline"),
                metric.unit.value,
                re.sub(NEWEST, " *", metric.help),
                "yes" if metric.is_flinks else "",
            ]
        )
        for metric in METRICS.values()
    ]
