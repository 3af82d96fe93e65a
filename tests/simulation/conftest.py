"""Says at the end of the run how much was simulated, and how fast."""

from __future__ import annotations

import pytest

PLAYED = "simulation"  # A property of the test that played.


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == PLAYED and report.when == "call":
                    terminalreporter.write_line(str(value))
