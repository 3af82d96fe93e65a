"""Java is found as Spark would find it; whatever is wrong is one sentence with the fix."""

from pathlib import Path

import pytest

from sluice.errors import ConfigurationError
from sluice.spark.jvm import Java, find_java

DEBIAN = "sudo apt-get install openjdk-17-jre-headless"


def a_java(home: Path, answer: str, exit_code: int = 0) -> Path:
    """Write a ``java`` that answers ``-version`` as a real one does: on standard error."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho '{answer}' >&2\nexit {exit_code}\n")
    executable.chmod(0o755)
    return executable


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "25-ea" 2025-09-16', 25),
    ],
)
def test_java_home_is_used(tmp_path: Path, answer: str, version: int) -> None:
    executable = a_java(tmp_path, answer)

    found = find_java({"JAVA_HOME": str(tmp_path)})

    assert found == Java(executable=executable, version=version)


def test_java_home_goes_before_path(tmp_path: Path) -> None:
    home = a_java(tmp_path / "home", 'openjdk version "21.0.1" 2023-10-17')
    other = a_java(tmp_path / "other", 'openjdk version "17.0.1" 2021-10-19')
    env = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(other.parent)}

    assert find_java(env).executable == home
    assert find_java({"PATH": env["PATH"]}).executable == other


def test_no_java_says_what_to_install_on_each_system(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        find_java({"PATH": str(tmp_path)})

    message = str(caught.value)
    assert "none was found on PATH" in message
    assert DEBIAN in message
    assert "dnf install java-17-openjdk-headless" in message
    assert "brew install openjdk@17" in message


@pytest.mark.parametrize(
    ("answer", "version"),
    [('openjdk version "11.0.2" 2019-01-15', 11), ('java version "1.8.0_402"', 8)],
)
def test_an_old_java_is_named_with_its_version(tmp_path: Path, answer: str, version: int) -> None:
    executable = a_java(tmp_path, answer)

    with pytest.raises(ConfigurationError) as caught:
        find_java({"JAVA_HOME": str(tmp_path)})

    assert f"{executable} is Java {version}" in str(caught.value)
    assert DEBIAN in str(caught.value)


def test_a_java_home_without_java_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"JAVA_HOME is {tmp_path}"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": "/usr/bin"})


def test_a_stub_that_is_no_java_is_refused(tmp_path: Path) -> None:
    a_java(tmp_path, "Unable to locate a Java Runtime.", exit_code=1)

    with pytest.raises(ConfigurationError, match="is not a working Java"):
        find_java({"JAVA_HOME": str(tmp_path)})
