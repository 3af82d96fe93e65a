"""The Spark session of local runs: an existing one, or one that is started once per process."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from sluice.spark.java import find_java
from sluice.spark.session import SETTINGS, local_session, with_our_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER_MEMORY = "1g"  # Rows of a test are few.


@contextmanager
def session_of(given: SparkSession | None) -> Iterator[SparkSession]:
    """*given*, else the active session, else that of this process.

    The latter is started by the first call, and ends with the process.  Within the block a session
    has the settings that results depend on, and after it the previous ones.
    """
    spark = given or _active() or _own()
    before = {name: spark.conf.get(name, None) for name in SETTINGS}
    try:
        yield with_our_settings(spark)
    finally:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)


def _active() -> SparkSession | None:
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def _own() -> SparkSession:
    find_java(os.environ)
    stack = ExitStack()
    spark = stack.enter_context(local_session(driver_memory=DRIVER_MEMORY, compiles_for_rows=False))
    # Errors are raised to the caller, and a ``Kill`` is intended.
    spark.sparkContext.setLogLevel("OFF")
    atexit.register(stack.close)
    return spark
