"""The page of metrics, the alert rules and the dashboard speak of what there is."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from sluice.figures.metrics import METRICS
from sluice.surface.monitoring import exposed_name
from tests.house.test_links import anchors
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


FOLDER = REPOSITORY / "docs" / "monitoring"
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
EXPOSED = {exposed_name(metric) for metric in METRICS.values()}


def named(text: str) -> set[str]:
    return set(re.findall(r"sluice_(?:job|source|stage)_\w+", text))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_asks_for_metrics_that_there_are_and_leads_to_its_section(
    rule: dict[str, Any],
) -> None:
    page, _, section = rule["annotations"]["runbook_url"].partition("#")

    assert named(rule["expr"])
    assert named(rule["expr"]) <= EXPOSED
    assert section in anchors(FOLDER / page)
    assert f"**{rule['alert']}.**" in (FOLDER / page).read_text()


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    panels = json.loads((FOLDER / "dashboard.json").read_text())["panels"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]

    assert asked
    assert all(named(one) and named(one) <= EXPOSED for one in asked)


@pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="promtool is not on the path; Debian's package prometheus has it",
)
@pytest.mark.parametrize("arguments", [["check", "rules", "alerts.yml"],
                                       ["test", "rules", "alerts_test.yml"]])  # fmt: skip
def test_prometheus_takes_the_rules_and_they_fire_as_they_say(arguments: list[str]) -> None:
    done = subprocess.run(
        ["promtool", *arguments], check=False, cwd=FOLDER, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stdout + done.stderr
