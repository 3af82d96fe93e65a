"""A benchmark on a busy machine: real processes that burn, and what is compared nonetheless."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bench.disturbance import DISTURBED_SHARE, is_disturbed, other_share
from bench.forms import form_of
from bench.measuring import quieter
from bench.protocol import EpochRecord, Meter
from bench.results import Row, Sample
from bench.table import print_table

PROCESSORS = os.cpu_count() or 1
# The burning process is an orphan: no descendant of the one that measures.
ORPHAN = """
import subprocess, sys
burn = "import time\\nend = time.monotonic() + 60\\nwhile time.monotonic() < end: pass"
quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
print(subprocess.Popen([sys.executable, "-c", burn], **quiet).pid)
"""


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    pids = [
        int(subprocess.run([sys.executable, "-c", ORPHAN], capture_output=True, check=True).stdout)
        for _ in range(count)
    ]
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


def burn(cpu_s: float) -> EpochRecord:
    meter = Meter()
    with meter.epoch(rows_in=1):
        end = time.process_time() + cpu_s
        while time.process_time() < end:
            pass
    return meter.records[0]


def a_sample(*epochs: EpochRecord, wall_s: float = 1.0, share: float | None = None) -> Sample:
    return Sample(
        wall_s=wall_s,
        cpu_s=wall_s,
        bytes_uploaded=None,
        epochs=epochs,
        notes={},
        other_share=other_share(epochs) if share is None else share,
    )


def a_row(engine: str, *samples: Sample) -> Row:
    return Row(
        workload="keyed_5m_1m",
        engine=engine,
        events=1,
        bytes_changed=None,
        samples=samples,
        agrees=True,
        result_rows=1,
        error="",
        refused="",
    )


def test_a_busy_machine_is_divided_between_the_engine_and_the_others() -> None:
    with busy_processes(PROCESSORS):
        epoch = burn(cpu_s=1.0)

    available_s = epoch.wall_s * PROCESSORS
    assert epoch.cpu_s >= 0.95  # User and system time are rounded down, before and after.
    assert epoch.cpu_s + epoch.other_cpu_s == pytest.approx(available_s, rel=0.1, abs=0.1)
    assert is_disturbed(other_share([epoch]))


def test_a_disturbed_sample_is_taken_once_more_and_then_marked() -> None:
    shares: list[float] = []

    def once() -> Sample:
        sample = a_sample(burn(cpu_s=0.5))
        shares.append(sample.other_share)
        return sample

    with busy_processes(PROCESSORS):
        sample = quieter(once)

    assert len(shares) == 2
    assert sample.repeated
    assert sample.is_disturbed
    assert sample.other_share == min(shares)
    assert "disturbed" in sample.line()


def test_a_quiet_sample_is_not_repeated() -> None:
    epoch = EpochRecord(epoch=0, wall_s=10.0, cpu_s=20.0, rows_in=1, other_cpu_s=0.3)
    samples = iter([a_sample(epoch)])

    sample = quieter(lambda: next(samples))

    assert not sample.repeated
    assert not sample.is_disturbed


def test_some_ticks_of_a_short_epoch_are_no_disturbance() -> None:
    """The kernel counts the machine in ticks; a share of so little says nothing."""
    epoch = EpochRecord(epoch=0, wall_s=0.1, cpu_s=0.1, rows_in=1, other_cpu_s=0.05)

    assert other_share([epoch]) == 0


def test_figures_are_those_of_the_samples_that_were_not_disturbed() -> None:
    above = DISTURBED_SHARE * 2

    mixed = a_row("sluice", a_sample(wall_s=3, share=0.01), a_sample(wall_s=9, share=above))
    disturbed = a_row("sluice", a_sample(wall_s=3, share=above), a_sample(wall_s=9, share=above))

    assert (mixed.wall_s(), mixed.is_disturbed) == ((3, 3), False)
    assert (disturbed.wall_s(), disturbed.is_disturbed) == ((3, 6), True)
    assert mixed.document()["counted"] == 1
    assert disturbed.document()["disturbed"] is True


@pytest.mark.parametrize(
    ("ours", "peers", "compared"),
    [
        (0.01, [0.02, 0.0], True),
        (0.5, [0.02, 0.0], False),
        (0.01, [0.02, 0.5], False),  # Undisturbed it might be the best peer.
    ],
)
def test_nothing_is_compared_with_a_disturbed_row(
    ours: float, peers: list[float], *, compared: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["flink_hashmap", "spark_rocksdb"]
    rows = [a_row("sluice", a_sample(wall_s=3, share=ours))]
    rows += [
        a_row(name, a_sample(wall_s=6, share=share))
        for name, share in zip(names, peers, strict=True)
    ]

    print_table(rows, form_of(quick=False, scale=None, repetitions=None))

    printed = capsys.readouterr().out
    assert ("0.50" in printed) is compared
    assert ("disturbed: in each of its samples" in printed) is not compared
    assert (f"more than {DISTURBED_SHARE:.0%}" in printed) is not compared
