"""The charts of the benchmark, drawn from a small history: what is in them, and that they last."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bench.charts import IMAGES, draw, latest, ratios
from bench.forms import FormName
from bench.history import Machine, Record, append_history, read_history

REPOSITORY = Path(__file__).resolve().parents[2]
NAMES = ("bench-ratio.svg", "bench-state.svg", "bench-change.svg")


def a_record(
    row: str,
    engine: str,
    wall_s: float,
    *,
    commit: str = "aaaaaaaaaaaa",
    form: FormName = "full",
    scale: float = 1,
    disturbed: bool = False,
    bytes_written: int | None = None,
) -> Record:
    return Record(
        commit=commit,
        date="2026-11-23",
        source="measured",
        form=form,
        scale=scale,
        machine=Machine(processors=2, memory_gb=24, model=""),
        row=row,
        engine=engine,
        repetitions=3,
        wall_min_s=wall_s,
        wall_median_s=wall_s,
        cpu_min_s=wall_s,
        cpu_median_s=wall_s,
        bytes_written=bytes_written,
        bytes_changed=3_200_000,
        disturbed=disturbed,
        other_share=0.0,
    )


HISTORY = [
    a_record("small_delta", "sluice", 1.0, bytes_written=4_000_000),
    a_record("small_delta", "flink_hashmap", 1.5, bytes_written=165_000_000),
    a_record("small_delta", "spark_rocksdb", 2.4, bytes_written=9_000_000),
    a_record("small_delta", "polars", 0.1),
    a_record("small_delta_50m", "sluice", 1.1),
    a_record("delta_10k", "sluice", 0.8),
    a_record("restore_1m", "sluice", 0.8),
    a_record("restore_1m", "flink_hashmap", 4.5),
    a_record("small_delta", "sluice", 0.5, commit="bbbbbbbbbbbb"),
    a_record("small_delta", "flink_hashmap", 1.5, commit="bbbbbbbbbbbb"),
    a_record("restore_1m", "sluice", 0.9, commit="bbbbbbbbbbbb"),
    a_record("restore_1m", "flink_hashmap", 9.9, commit="bbbbbbbbbbbb", disturbed=True),
    a_record("nexmark_q4", "sluice", 18.0),
    a_record("keyed_5m_1m", "sluice", 0.6, form="quick", scale=0.05),
    a_record("keyed_5m_1m", "duckdb", 0.3, form="quick", scale=0.05),
    a_record("keyed_5m_1m", "sluice", 0.6, form="quick", scale=0.001),
    a_record("keyed_5m_1m", "duckdb", 60.0, form="quick", scale=0.001),
]


def texts_of(path: Path) -> list[str]:
    root = ET.parse(path).getroot()  # noqa: S314 - we have just drawn it
    return [
        "".join(one.itertext()).strip() for one in root.iter("{http://www.w3.org/2000/svg}text")
    ]


def test_a_ratio_is_that_to_the_best_peer_and_of_undisturbed_rows_only() -> None:
    a, b = "aaaaaaaaaaaa", "bbbbbbbbbbbb"

    full, quick = ratios(HISTORY, "full"), ratios(HISTORY, "quick")

    # q4 has no peer; the last restore's was disturbed; what ran at another scale is not compared.
    assert full == {
        "small_delta": {a: 1.5, b: 3.0},
        "restore_1m": {a: pytest.approx(4.5 / 0.8)},
    }
    assert quick == {"keyed_5m_1m": {a: 0.5}}


def test_the_newest_undisturbed_figures_count() -> None:
    found = latest(HISTORY, ["restore_1m"])

    assert {name: by_row["restore_1m"].wall_median_s for name, by_row in found.items()} == {
        "sluice": 0.9,
        "flink_hashmap": 4.5,
    }


def test_charts_show_rows_engines_and_commits(tmp_path: Path) -> None:
    drawn = draw(HISTORY, tmp_path)

    assert [path.name for path in drawn] == list(NAMES)
    ratio, state, change = map(texts_of, drawn)
    assert {"small_delta", "restore_1m", "keyed_5m_1m"} <= set(ratio)
    assert "nexmark_q4" not in ratio
    assert any("aaaaaaa" in text for text in ratio)
    assert any("bbbbbbb" in text for text in ratio)
    assert {"sluice", "flink_hashmap", "polars", "50M"} <= set(state)
    assert {"what changed", "10k", "bytes written"} <= set(change)
    assert "nothing recorded yet" not in [*ratio, *state, *change]


@pytest.mark.parametrize("history", [HISTORY, []], ids=["small", "empty"])
def test_the_same_history_gives_the_same_bytes(history: Sequence[Record], tmp_path: Path) -> None:
    """In another process, with other hashes, on another day."""
    append_history(history, tmp_path / "history.jsonl")
    command = [sys.executable, "-m", "bench.charts", "--history", str(tmp_path / "history.jsonl")]
    environment = os.environ | {"PYTHONHASHSEED": "7", "SOURCE_DATE_EPOCH": "1"}
    subprocess.run(
        [*command, "--output", str(tmp_path / "other")],
        cwd=REPOSITORY,
        env=environment,
        check=True,
        capture_output=True,
        timeout=120,
    )

    draw(history, tmp_path / "here")

    for name in NAMES:
        here = (tmp_path / "here" / name).read_bytes()
        assert here == (tmp_path / "other" / name).read_bytes()
        assert b"<dc:date>" not in here
        assert str(tmp_path).encode() not in here


def test_the_charts_of_the_page_are_those_of_the_history(tmp_path: Path) -> None:
    draw(read_history(), tmp_path)

    stale = [
        name for name in NAMES if (tmp_path / name).read_bytes() != (IMAGES / name).read_bytes()
    ]
    assert stale == [], "run make bench-charts"
