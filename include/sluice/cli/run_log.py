"""The log file of one run: output that is of use only if it fails, mainly traces of the JVM."""

from __future__ import annotations

import logging
import os
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from sluice.errors import SluiceError, StageFailed
from sluice.spark.stage_failure import cause_of

FOLDER = ".sluice/logs"  # Beside the jobs' default folder; .gitignore names it.
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class Unexpected(SluiceError):
    """What no part of sluice expects: a mistake of a library, or of sluice."""


@contextmanager
def run_log(what: str) -> Iterator[Path]:
    """A log file for the block, gone again when the block ends well.

    It gets what ``logging`` is told, and errors alone are printed, too.  An exception leaves as one
    sentence that names the file, where the whole trace is.

    Raises:
        SluiceError: what the block raised, with its cause last.
    """
    now = datetime.now(UTC)
    path = _folder() / f"{what}-{now:%Y%m%dT%H%M%S}-{os.getpid()}.log"
    root = logging.getLogger()
    handlers = _handlers(path)
    level = root.level
    root.setLevel(logging.INFO)
    for handler in handlers:
        root.addHandler(handler)
    try:
        yield path
    except Exception as error:
        with path.open("a") as log:
            traceback.print_exception(error, file=log)
        raise _naming(path, error) from error
    else:
        path.unlink(missing_ok=True)
    finally:
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()
        root.setLevel(level)


def _folder() -> Path:
    """A folder of the machine's, where the current one cannot be written to."""
    folder = Path(FOLDER)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="sluice-logs-"))
    return folder


def _handlers(path: Path) -> list[logging.Handler]:
    """The handlers: all records go to the file, and our errors to the terminal, too."""
    printed = logging.StreamHandler()
    printed.setLevel(logging.ERROR)
    printed.addFilter(logging.Filter("sluice"))
    printed.setFormatter(logging.Formatter("%(message)s"))
    written = logging.FileHandler(path)
    written.setFormatter(logging.Formatter(_FORMAT))
    return [written, printed]


def _naming(path: Path, error: Exception) -> SluiceError:
    match error:
        case StageFailed(cause=cause):
            said = str(error).removesuffix(cause).rstrip(": ")
            return StageFailed(f"{said} (trace: {path}): {cause}", cause=cause)
        case SluiceError():
            path.unlink(missing_ok=True)  # It says everything that there is to say.
            return error
        case _:
            return Unexpected(f"the run was broken off (trace: {path}): {cause_of(error)}")
