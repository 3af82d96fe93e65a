"""An S3 server that is not Python, for tests: versitygw over a folder, as one that people run.

``python -m harness.versitygw`` has Go build it into ``.sluice``, once: minutes of a processor.  It
checks signatures, keeps its objects as files, and is killed with the thread that started it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from harness.kafka_server import ENDS_WITH_US
from harness.s3_server import S3Server, variables

VERSION = "v1.8.0"
FOLDER = Path(__file__).parents[1] / ".sluice" / f"versitygw-{VERSION}"
PROGRAM = FOLDER / "versitygw"
MISSING = "versitygw is not here; `make s3` has Go build it"
# Of ``make s3``: what else asks for a server of S3 has this one, too.
IS_CHOSEN = os.environ.get("SLUICE_TEST_S3") == "versitygw"

KEYS_ARE_PATHS = "versitygw keeps objects as files, so a key cannot be any text"


def is_here() -> bool:
    return PROGRAM.exists()


def fetch() -> None:
    """Have Go build it from its modules (82 MB)."""
    if is_here():
        return
    module = f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"
    subprocess.run(["go", "install", module], env=os.environ | {"GOBIN": str(FOLDER)}, check=True)


class Versitygw(S3Server):
    """See ``S3Server``."""

    health = "/health"

    def command(self) -> list[str]:
        # Metadata lies in files beside: not each file system has attributes for users.
        data, beside = self._data_dir / "data", self._data_dir / "beside"
        for folder in (data, beside):
            folder.mkdir(exist_ok=True)
        at = ["--port", f"127.0.0.1:{self._port}", "--health", self.health]
        place = ["posix", "--sidecar", str(beside), str(data)]
        return [sys.executable, "-S", "-c", ENDS_WITH_US, str(PROGRAM), *at, *place]

    def environment(self) -> dict[str, str]:
        given = variables(self.endpoint_url)
        return {
            "ROOT_ACCESS_KEY_ID": given["AWS_ACCESS_KEY_ID"],
            "ROOT_SECRET_ACCESS_KEY": given["AWS_SECRET_ACCESS_KEY"],
            "VGW_REGION": given["AWS_DEFAULT_REGION"],
        }


if __name__ == "__main__":
    fetch()
