"""The S3 server: ministack on loopback, for development and tests only.

Objects survive a kill -9 of the server (not a power cut: it does not fsync) in files under the
data folder.  Signatures are unchecked, so nothing but loopback may reach it.

``python -m sluice.devstack.s3_server PORT`` is the server; it sees to its bucket itself, as one
that is started anew has forgotten an empty bucket.
"""

from __future__ import annotations

import runpy
import sys
import threading
import time
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from sluice.devstack.ports import LOOPBACK
from sluice.devstack.processes import Launch

BUCKET = "sluice"
NAME = "s3"
START_TIMEOUT_S = 90.0  # 2 s on a quiet machine; the first start compiles its Python files.

_ANSWER_TIMEOUT_S = 5.0
_POLL_S = 0.2


def s3_launch(*, port: int, sluice_dir: Path, env: Mapping[str, str]) -> Launch:
    """Return how to start the server; everything it writes lies in ``{sluice_dir}/s3``."""
    folder = sluice_dir / "s3"
    temporary = folder / "tmp"  # For its pid file and other temporary files.
    temporary.mkdir(parents=True, exist_ok=True)
    return Launch(
        name=NAME,
        command=(sys.executable, "-m", "sluice.devstack.s3_server", str(port)),
        env={
            **env,
            "BIND_HOST": LOOPBACK,
            "GATEWAY_PORT": str(port),
            "MINISTACK_HOST": LOOPBACK,
            "SERVICES": "s3",
            "IOT_MTLS_ENABLED": "0",  # Else it listens on 0.0.0.0:8883, whatever SERVICES says.
            "S3_PERSIST": "1",
            "S3_DATA_DIR": str(folder / "data"),
            "PERSIST_STATE": "0",
            "STATE_DIR": str(folder / "state"),
            "TMPDIR": str(temporary),
            "LOG_LEVEL": "WARNING",
        },
        folder=folder,
        log_path=sluice_dir / "logs" / "s3.log",
        port=port,
    )


def bucket_exists_or_is_created(port: int) -> bool:
    """Create the bucket; whether it exists now.  False while the server does not answer."""
    return _request(port, "PUT", f"/{BUCKET}") in {200, 409}


def answers(port: int) -> bool:
    """Whether the server answers requests for the stack's bucket."""
    return _request(port, "HEAD", f"/{BUCKET}") == 200


def _request(port: int, method: str, path: str) -> int | None:
    connection = HTTPConnection(LOOPBACK, port, timeout=_ANSWER_TIMEOUT_S)
    try:
        connection.request(method, path)
        return connection.getresponse().status
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()


def _see_to_bucket(port: int) -> None:
    while not bucket_exists_or_is_created(port):
        time.sleep(_POLL_S)


def main() -> None:
    threading.Thread(target=_see_to_bucket, args=(int(sys.argv[1]),), daemon=True).start()
    del sys.argv[1:]
    runpy.run_module("ministack", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
