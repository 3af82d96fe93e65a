"""A test's Spark is started with the options that spare its CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.spark_archive import java_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_jvm_has_one_compiler_and_the_archive(spark: SparkSession) -> None:
    jvm = spark.sparkContext._jvm  # noqa: SLF001 - There is no other way to what it was given.
    assert jvm is not None

    bean = jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()

    assert {*java_options().split()} <= {*bean.getInputArguments()}
