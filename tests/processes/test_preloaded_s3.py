"""A process forked behind the preloading makes its first client of S3 without parsing anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.conftest import environment_with_sluice

CHILD = """
import os, sys
from botocore.loaders import JSONFileLoader
from sluice.errors import StoreUnavailable
from sluice.store.s3 import S3Store
from sluice.store.s3 import preload_descriptions

if "scheduler" in sys.argv:
    from sluice_airflow.stage import preload_spark_client
    preload_spark_client()
if "preloads" in sys.argv:
    preload_descriptions()
if os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))

parse, parsed = JSONFileLoader.load_file, []
def told(self, path):
    found = parse(self, path)
    parsed.extend([path] if found is not None else [])
    return found
JSONFileLoader.load_file = told

try:
    [*S3Store("bucket", "prefix", "http://127.0.0.1:1").list("")]
except StoreUnavailable:
    print("parsed", len(parsed), flush=True)
"""


def files_parsed(*arguments: str, **environment: str) -> int:
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *arguments],
        check=True,
        env=environment_with_sluice() | keys | environment,
        capture_output=True,
        text=True,
    )
    return int(done.stdout.rpartition("parsed ")[2])


def test_a_task_parses_nothing_that_the_scheduler_has_preloaded(tmp_path: Path) -> None:
    assert files_parsed() > 3
    assert files_parsed("scheduler", AIRFLOW_HOME=str(tmp_path)) == 0


def test_an_environment_that_is_wrong_is_left_to_the_first_request() -> None:
    with pytest.raises(subprocess.CalledProcessError) as raised:
        files_parsed("preloads", AWS_PROFILE="nobody")

    assert "(nobody) could not be found; correct AWS_PROFILE" in raised.value.stderr
