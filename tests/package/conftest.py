"""The wheel in fresh environments, without this checkout.

``core`` has the wheel and what it requires, and nothing else.  ``environment`` has everything: in
CI it sees the libraries of the environment that runs the tests; with ``SLUICE_PACKAGE=highest`` all
extras are really installed, as a team would do it, and with ``lowest`` in the oldest versions that
pyproject.toml allows.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
INSTALLED = os.environ.get("SLUICE_PACKAGE", "")
_KEPT = (
    "HOME", "JAVA_HOME", "LANG", "NO_PROXY", "SPARK_SUBMIT_OPTS", "SSL_CERT_FILE", "TMPDIR",
    "XDG_CACHE_HOME",
)  # fmt: skip
_KEPT_PREFIXES = ("UV_", "PIP_", "http", "HTTP", "no_proxy")


@dataclass(frozen=True)
class Environment:
    """A virtual environment, whose commands see none of the variables of this process."""

    folder: Path

    def run(
        self, *command: str | Path, cwd: Path, check: bool = True, **env: str
    ) -> subprocess.CompletedProcess[str]:
        program, *arguments = map(str, command)
        here = self.folder / "bin" / program
        ran = subprocess.run(
            [str(here) if here.exists() else program, *arguments],
            check=False,
            cwd=cwd,
            env={
                **inherited(),
                "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
                "VIRTUAL_ENV": str(self.folder),
                **env,
            },
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert ran.returncode == 0 or not check, ran.stdout + ran.stderr
        return ran


def inherited() -> Mapping[str, str]:
    """Nothing that leads to our tree, a Spark or a bucket."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or name.startswith(_KEPT_PREFIXES)
    }


def uv(*arguments: str | Path, cwd: Path = REPOSITORY) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "uv", *map(str, arguments)],
        check=False,
        cwd=cwd,
        env={**inherited(), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert ran.returncode == 0, ran.stderr


def created(folder: Path, *requirements: str) -> Environment:
    uv("venv", "--quiet", "--python", sys.executable, folder)
    uv("pip", "install", "--quiet", "--python", folder / "bin" / "python", *requirements)
    return Environment(folder)


def asked_for() -> list[str]:
    """What ``sluice[all]`` requires, named directly: of these the oldest versions are wanted."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = {**project["optional-dependencies"], "all": [], "openlineage": [], "submit": []}
    return [*project["dependencies"], *itertools.chain.from_iterable(extras.values())]


@pytest.fixture(scope="session", name="dist")
def _dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, and the wheel that was built from it alone."""
    folder = tmp_path_factory.mktemp("dist")
    uv("build", "--quiet", "--out-dir", folder)
    return folder


@pytest.fixture(scope="session", name="wheel")
def _wheel(dist: Path) -> Path:
    (wheel,) = dist.glob("*.whl")
    return wheel


@pytest.fixture(scope="session", name="core")
def _core(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Environment:
    """In the locked versions, which are downloaded already."""
    locked = str(REPOSITORY / "requirements.txt")
    return created(tmp_path_factory.mktemp("core") / "venv", str(wheel), "--constraint", locked)


@pytest.fixture(scope="session", name="environment")
def _environment(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Environment:
    folder = tmp_path_factory.mktemp("environment") / "venv"
    if INSTALLED == "lowest":
        return created(folder, "--resolution=lowest-direct", str(wheel), "pytest>=9", *asked_for())
    if INSTALLED:
        return created(folder, f"sluice[all] @ {wheel.as_uri()}", "pytest>=9")
    environment = created(folder, str(wheel), "--no-deps")
    (packages,) = folder.glob("lib/python*/site-packages")
    # Behind the environment's own, and without our own checkout that is installed there.
    libraries = folder / "libraries"
    libraries.mkdir()
    for one in Path(sysconfig.get_path("purelib")).iterdir():
        if not (one.suffix == ".pth" or one.name.startswith(("sluice-", "__editable__"))):
            (libraries / one.name).symlink_to(one)
    (packages / "heavy.pth").write_text(f"{libraries}\n")
    return environment


@pytest.fixture(scope="session", name="project")
def _project(tmp_path_factory: pytest.TempPathFactory, environment: Environment) -> Path:
    """What the first commands of docs/own-airflow.md leave behind; installing is ours."""
    page = (REPOSITORY / "docs" / "own-airflow.md").read_text()
    block = re.search(r"^```bash\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert block is not None
    install, *commands = block[1].splitlines()
    assert install == 'pip install "sluice[airflow,spark] @ file://$WHEEL" pytest'
    folder = tmp_path_factory.mktemp("projects")
    environment.run("bash", "-euc", "\n".join(commands), cwd=folder)
    return folder / "shop"
