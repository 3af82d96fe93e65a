"""The Java that runs Spark: found and checked, or an error that says what to install."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sluice.errors import ConfigurationError

MINIMUM_VERSION = 17  # The oldest that Spark 4 runs on.

_INSTALL = (
    "install Java 17 (Debian/Ubuntu: `sudo apt-get install openjdk-17-jre-headless`;"
    " Fedora: `sudo dnf install java-17-openjdk-headless`; macOS: `brew install openjdk@17`)"
)
_ANSWER_TIMEOUT_S = 30  # A cold JVM on a loaded machine takes seconds.
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java that Spark can use."""

    executable: Path
    version: int


def find_java(env: Mapping[str, str]) -> Java:
    """Return the Java of JAVA_HOME, or else of PATH, as Spark would choose it.

    Raises:
        ConfigurationError: there is none, or it is too old; the message says what to install.
    """
    executable = java_executable(env)
    version = _version(executable)
    if version < MINIMUM_VERSION:
        raise ConfigurationError(
            f"Spark needs Java {MINIMUM_VERSION} or newer, but {executable} is Java {version};"
            f" {_INSTALL} and point JAVA_HOME at it"
        )
    return Java(executable=executable, version=version)


def java_executable(env: Mapping[str, str]) -> Path:
    """The Java of JAVA_HOME, or else of PATH.  Raises ConfigurationError if there is none."""
    home = env.get("JAVA_HOME")
    if home:
        executable = Path(home) / "bin" / "java"
        if not executable.is_file():
            raise ConfigurationError(
                f"JAVA_HOME is {home}, where there is no bin/java; unset it, or {_INSTALL}"
            )
        return executable
    found = shutil.which("java", path=env.get("PATH", ""))
    if found is None:
        raise ConfigurationError(f"Spark needs Java and none was found on PATH; {_INSTALL}")
    return Path(found)


def _version(executable: Path) -> int:
    try:
        answer = subprocess.run(
            [str(executable), "-version"],
            capture_output=True,
            text=True,
            timeout=_ANSWER_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError(f"{executable} does not run ({error}); {_INSTALL}") from error
    found = _VERSION.search(answer.stderr + answer.stdout)
    if answer.returncode != 0 or found is None:  # The stub that macOS installs at /usr/bin/java.
        raise ConfigurationError(f"{executable} is not a working Java; {_INSTALL}")
    return int(found.group(1))
