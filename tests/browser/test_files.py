"""The files of the pages, without a browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from sluice_airflow.plugin import FOLDER, FOREVER, PAGES_PREFIX, VIEWS, PagesApp, digest_of
from sluice_airflow.rest.app import create_app

# What is shown before each test builds Airflow's whole API, where no file did before this one.
pytestmark = pytest.mark.filterwarnings("ignore")

MODULES = sorted(FOLDER.rglob("*.js"))
OWN = [path for path in MODULES if path.parent.name != "vendor"]

_PARSED = """
const { SourceTextModule } = require("vm");
for (const path of process.argv.slice(1)) {
  new SourceTextModule(require("fs").readFileSync(path, "utf8"), { identifier: path });
}
"""
_IMPORT = re.compile(r"""(?:from|import)\s*\(?\s*"(\.[^"]+)\"""")
_ASKED = re.compile(r"(?:\bpath\(|\bplace: \[)((?:[^()\]]|\([^()]*\))*)[\])]")
_NAMED = re.compile(r'useResource\("([a-z]+)"')


def test_every_module_parses() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is not installed; the browser's tests load every module, too")

    ran = subprocess.run(
        [node, "--no-warnings", "--experimental-vm-modules", "-e", _PARSED, *MODULES],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_a_module_says_what_it_is_and_imports_what_is_there(path: Path) -> None:
    text = path.read_text()

    missing = [name for name in _IMPORT.findall(text) if not (path.parent / name).is_file()]

    assert missing == []
    assert text.startswith("/**"), "a module says what it is"


def test_every_route_that_a_page_asks_for_is_there() -> None:
    document = create_app().openapi()
    known = {re.sub(r"{[a-z_]+}", "{}", path) for path in document["paths"]}

    asked = {f"/api/v1/{one}" for path in OWN for one in _routes_of(path.read_text())}

    assert len(asked) > 5
    assert asked - known == set()


def _routes_of(text: str) -> list[str]:
    """``path("checkpoints", id)`` is pipelines/{}/checkpoints/{}."""
    named = _NAMED.findall(text)
    for arguments in _ASKED.findall(text):
        names = [one.strip() for one in arguments.split(",") if one.strip()]
        if names and names[0].startswith("..."):
            continue
        parts = [name.strip('"') if name.startswith('"') else "{}" for name in names]
        named.append("/".join(["pipelines", "{}", *parts]))
    return named


def test_airflow_is_told_of_files_that_are_served() -> None:
    app = FastAPI()
    app.mount(PAGES_PREFIX, PagesApp())
    client = TestClient(app)

    for view in VIEWS:
        for name in ("bundle_url", "icon", "icon_dark_mode"):
            assert client.get(f"/{view[name]}").status_code == 200
    module = client.get(f"/{VIEWS[0]['bundle_url']}")
    alone = client.get(f"{PAGES_PREFIX}/")
    assert module.headers["content-type"].startswith("text/javascript")
    assert module.headers["cache-control"] == FOREVER
    assert alone.headers["cache-control"] == "no-cache"
    (script,) = re.findall(r'src="([^"]+)"', alone.text)
    kept = client.get(f"{PAGES_PREFIX}/{script}")
    assert (kept.status_code, kept.headers["cache-control"]) == (200, FOREVER)
    assert f"globalThis.{VIEWS[0]['name']} = " in module.text
    assert len({view["url_route"] for view in VIEWS}) == len(VIEWS)
    assert len({view["name"] for view in VIEWS}) == 1


def test_a_changed_file_has_another_address(tmp_path: Path) -> None:
    page = tmp_path / "app.js"
    page.write_text("one")
    before = digest_of(tmp_path)

    page.write_text("two")

    assert digest_of(tmp_path) != before


def test_how_long_ago_a_moment_is_is_told_in_one_place() -> None:
    """Moments are of the job's clock, and a browser's may be behind it."""
    told = [path.name for path in OWN if re.search(r"\bnow - ", path.read_text())]

    assert told == ["format.js"]


def test_every_vendored_file_has_a_licence_and_a_line() -> None:
    vendor = FOLDER / "vendor"
    told = (vendor / "README.md").read_text()

    for path in vendor.glob("*.[cj]s*"):
        assert f"`{path.name}`" in told
        assert (vendor / f"{path.stem.partition('-')[0]}.LICENSE").is_file()
