"""The pipeline on orders of its own, run as a person runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
SLUICE = Path(sys.executable).with_name("sluice")


def test_the_orders_of_a_customer_are_added_up(tmp_path: Path) -> None:
    orders = tmp_path / "orders"
    orders.mkdir()
    rows = [("ada", 100), ("grace", 5), ("ada", 20), ("ada", 3)]
    lines = [
        json.dumps({"id": number, "customer": customer, "cents": cents})
        for number, (customer, cents) in enumerate(rows)
    ]
    (orders / "1.jsonl").write_text("\n".join(lines[:2]) + "\n")
    (orders / "2.jsonl").write_text("\n".join(lines[2:]) + "\n")
    output = tmp_path / "customers.json"

    subprocess.run(
        [SLUICE, "run", "orders", "--input", orders, "--output", output,
         "--root", f"file://{tmp_path / 'jobs'}", "--max-records-per-epoch", "2"],
        cwd=PROJECT,
        check=True,
    )  # fmt: skip

    assert json.loads(output.read_text()) == [
        {"customer": "ada", "orders": 3, "cents": 123},
        {"customer": "grace", "orders": 1, "cents": 5},
    ]
