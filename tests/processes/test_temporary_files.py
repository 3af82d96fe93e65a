"""A temporary folder lives as long as the process that owns it, whatever a fork of it does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sluice.spark.jvm import owned_folder

OWNER = """
import os, sys, time
from pathlib import Path
from sluice.spark.jvm import owned_folder

with owned_folder("mine-", Path(sys.argv[1])) as folder:
    if os.fork() == 0:
        sys.exit()
    os.wait()
    print(folder, flush=True)
    time.sleep(600)
"""


def test_a_folder_is_deleted_once_its_owner_was_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as owner:
        try:
            assert owner.stdout is not None
            folder = Path(owner.stdout.readline().strip())
            with owned_folder("mine-", tmp_path):
                assert folder.is_dir()
                assert folder != tmp_path
        finally:
            owner.kill()

    with owned_folder("mine-", tmp_path) as own:
        assert [*tmp_path.iterdir()] == [own]
