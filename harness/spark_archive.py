"""``python -m harness.spark_archive``: archive the classes that Spark loads, for the JVMs of tests.

A test's Spark lives for seconds, most of which the JVM compiles and loads classes.  With the
archive and one compiler instead of two a ``sluice run`` takes less than half the CPU.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

VARIABLE = "SPARK_SUBMIT_OPTS"  # Read by spark-submit alone, which says nothing of it.
ARCHIVE = Path(sys.prefix) / "spark.jsa"
_FAST_TO_START = "-XX:TieredStopAtLevel=1"


def java_options() -> str:
    """Without the archive where none was written; one of another Java or Spark is passed over."""
    if not ARCHIVE.exists():  # The JVM would do without its own, too.
        return _FAST_TO_START
    return f"{_FAST_TO_START} -Xlog:disable -XX:SharedArchiveFile={ARCHIVE}"


def main() -> None:
    from pyspark import SparkContext

    from sluice.coordinator.submission import configure, submit
    from sluice.declaration.project import load_pipeline
    from sluice.job.job import open_job
    from sluice.local.driver import run_epochs
    from sluice.spark.session import local_session
    from sluice.store.open import StoreLocation

    written = ARCHIVE.with_suffix(".new")
    os.environ[VARIABLE] = f"{_FAST_TO_START} -XX:ArchiveClassesAtExit={written}"
    with tempfile.TemporaryDirectory() as folder:
        log_file = Path(folder) / "spark.log"
        with local_session(driver_memory="1g", log_file=log_file) as spark:
            job = open_job(load_pipeline("auctions"), StoreLocation(root=f"file://{folder}/jobs"))
            submit(job, configure(job.pipeline, {"events": "2000"}))
            run_epochs(job, spark, epochs=None, drain=False, report=lambda _: None)
            gateway = SparkContext._gateway  # noqa: SLF001 - There is no other way to the process.
        assert gateway is not None
        gateway.proc.stdin.close()
        gateway.proc.wait()  # It writes the archive while it ends.
        assert written.exists(), log_file.read_text()
    written.replace(ARCHIVE)


if __name__ == "__main__":
    main()
