"""What Airflow writes of a task has no secret: its own sentence of a failure, and clients' logs.

A process of its own logs as a task does: Airflow's logging is set up once in a process.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

TASK = """
import logging, os, sys
from pathlib import Path

os.environ["SHOP_TOKEN"] = "a-token-of-the-shop"
from airflow.sdk.log import configure_logging

configure_logging(json_output=True, output=open(sys.argv[1], "wb"), sending_to_supervisor=True)
import structlog

log = structlog.get_logger("task")
log.info("before password=s3cr3t-00")  # Bound and cached: a task's process has logged by then.

from sluice.errors import CheckpointFailure, StoreUnavailable
from sluice_airflow.runs import airflow_failures

def fails(text):
    try:
        try:
            raise OSError("cause: postgresql://shop:s3cr3t-01@db/x")
        except OSError as error:
            raise RuntimeError(text) from error
    except RuntimeError as error:
        raise StoreUnavailable(f"the store: {text}") from error

for text in ("password=s3cr3t-02", "AWS_SECRET_ACCESS_KEY=s3cr3t-03", "for a-token-of-the-shop"):
    try:
        with airflow_failures():
            logging.getLogger("pyspark.sql.connect.logging").error("GRPC Error: %s", text)
            logging.getLogger("ours").warning("it failed", exc_info=RuntimeError(text))
            log.info("said", options={"url": [text]})
            fails(text)
    except Exception:
        log.exception("Task failed with exception")
print("password=s3cr3t-04: what is printed is a person's own")
"""


def test_what_a_task_logs_has_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "task.log"

    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(TASK), str(path)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    assert ended.returncode == 0, ended.stderr
    before, *written = path.read_text().splitlines()
    assert "s3cr3t-00" in before  # The test sees secrets where they are not masked.
    assert len(written) >= 12
    assert "Task failed with exception" in "".join(written)
    for line in (*written, ended.stderr):
        assert "s3cr3t" not in line
        assert "a-token-of-the-shop" not in line
