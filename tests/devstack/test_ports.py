"""What the stack starts from: free ports, a Java, and settings that reach its processes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.devstack import processes
from sluice.devstack.__main__ import dag_selection
from sluice.devstack.stack import Ports, StackOptions, inherited_environment, service_environment
from sluice.errors import ConfigurationError
from sluice.spark.jvm import Java, find_java
from tests.patching import replace_in


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind((processes.LOOPBACK, 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_free_ports_are_distinct_and_free() -> None:
    found = processes.free_ports(20)

    assert len(set(found)) == 20
    assert all(processes.is_free(port) for port in found)


def test_a_taken_port_is_refused_with_the_variable_to_set(taken_port: int) -> None:
    with pytest.raises(ConfigurationError) as caught:
        processes.require_free(taken_port, variable="SLUICE_AIRFLOW_PORT")

    assert str(caught.value) == (
        f"port {taken_port} on 127.0.0.1 is taken by another process;"
        " stop it or set SLUICE_AIRFLOW_PORT to a free port"
    )


def test_the_first_free_preference_wins(taken_port: int) -> None:
    (free,) = processes.free_ports(1)

    assert processes.first_free(taken_port, free) == free
    assert processes.first_free(taken_port) != taken_port


def test_only_a_listener_accepts_connections(taken_port: int) -> None:
    (free,) = processes.free_ports(1)

    assert processes.accepts_connections(taken_port)
    assert not processes.accepts_connections(free)


def test_free_ports_are_never_given_to_outgoing_connections() -> None:
    lowest_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])

    assert max(processes.free_ports(20)) < lowest_ephemeral


def test_a_connection_to_oneself_is_not_a_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as lonely:
        lonely.bind((processes.LOOPBACK, 0))
        port = lonely.getsockname()[1]
        lonely.connect((processes.LOOPBACK, port))  # As happens by chance to a client that polls.
        replace_in(
            monkeypatch, processes.__name__, "socket", create_connection=lambda *_, **__: lonely
        )

        assert not processes.accepts_connections(port)


PORTS = Ports(s3=1, spark=2, spark_ui=3, airflow=4, worker_log=5, trigger_log=6, postgres=7)


@pytest.mark.parametrize(("said", "handed_on"), [({}, "1"), ({"SLUICE_DRILLS": "0"}, "0")])
def test_forms_of_the_local_stack_have_the_field_fault_unless_a_person_says_otherwise(
    said: dict[str, str], handed_on: str
) -> None:
    options = StackOptions.from_environment(said)

    env = service_environment(PORTS, options, stack_id="a", extra_env={})

    assert env["SLUICE_DRILLS"] == handed_on


def test_its_jvm_has_folders_of_any_letters_where_lc_all_is_c(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = list[str]()
    for locale in ("C", "POSIX", "de_DE.UTF-8", ""):
        monkeypatch.setenv("LC_ALL", locale)
        found.append(inherited_environment()["LC_ALL"])

    assert found == ["C.UTF-8", "C.UTF-8", "de_DE.UTF-8", ""]


def test_a_demo_of_a_pipeline_that_the_project_does_not_select_makes_it_a_dag(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SLUICE_DAGS", raising=False)
    monkeypatch.delenv("SLUICE_PIPELINES", raising=False)

    assert dag_selection("auctions") == {}
    assert dag_selection("nexmark_q4") == {
        "SLUICE_DAGS": "!nexmark_* !auctions_submitted nexmark_q4"
    }


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
