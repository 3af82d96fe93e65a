"""``.sluice/stack.json``: the running services, for other processes to find, reuse and stop.

One file, replaced atomically after every change, and one lock: at most one ``up`` or ``down`` at
a time on a folder.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from sluice.devstack.processes import ProcessRecord
from sluice.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A process that was started, and a digest of everything it was started with."""

    process: ProcessRecord
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Every port of the stack; all on 127.0.0.1."""

    s3: int
    spark: int
    spark_ui: int
    airflow: int
    worker_log: int
    trigger_log: int
    postgres: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StackFile:
    """The whole file.  ``stack_id`` marks every process of this stack in its environment."""

    stack_id: str
    ports: Ports
    services: Mapping[str, Service] = field(default_factory=dict[str, Service])


def read(sluice_dir: Path) -> StackFile | None:
    """The recorded stack; None without a record."""
    try:
        content = _path(sluice_dir).read_bytes()
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(content, type=StackFile)
    except msgspec.MsgspecError as error:
        raise ConfigurationError(
            f"{_path(sluice_dir)} is unreadable ({error}); stop the stack's processes by hand and"
            " remove the file"
        ) from error


def write(sluice_dir: Path, content: StackFile) -> None:
    """Replace the file; readers see the old or the new one, never a part."""
    new = _path(sluice_dir).with_suffix(".json.new")
    new.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2))
    new.replace(_path(sluice_dir))


@contextmanager
def exclusive(sluice_dir: Path) -> Iterator[None]:
    """Hold the folder's lock; the kernel releases it when the process dies."""
    sluice_dir.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(sluice_dir / "stack.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(
                f"another command is starting or stopping the stack in {sluice_dir};"
                " wait until it is done"
            ) from None
        yield
    finally:
        os.close(descriptor)


def _path(sluice_dir: Path) -> Path:
    return sluice_dir / "stack.json"
