"""What a machine of the cluster lacks is said by the run whose stage came there."""

from __future__ import annotations

import sys
from pathlib import Path

from sluice.devstack.servers import BUCKET
from tests.cluster.conftest import WAIT_S, Client, a_client, whole

pytestmark = whole
CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


def test_credentials_or_the_wheel_are_named_that_a_worker_has_not(tmp_path: Path) -> None:
    bare = tmp_path / "python"  # It has no site-packages.
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    with a_client(tmp_path, workers=1, lacking=CREDENTIALS) as client:
        with client.cluster.connect_server() as remote:
            without_credentials = failed(client, remote, "one")
        with client.cluster.connect_server(PYSPARK_PYTHON=str(bare)) as remote:
            without_wheel = failed(client, remote, "two")

    assert "there are no credentials for" in without_credentials
    assert "No module named" in without_wheel


def failed(client: Client, remote: str, name: str) -> str:
    """What a run prints that ends with an error."""
    root = f"s3://{BUCKET}/{name}"
    run = client.begin("run", "auctions", "--remote", remote, "--root", root, "--events", "1000")
    said, errors = run.communicate(timeout=WAIT_S)
    assert run.returncode != 0, said
    return said + errors
