"""A headless Chromium that a test drives over its DevTools protocol."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--remote-debugging-port=0",
)  # fmt: skip
_PATIENCE_SECONDS = 240.0  # Airflow's own page takes minutes where ten others are at work.


def found_browser() -> str | None:
    """The program that ``SLUICE_BROWSER`` names, or the first Chromium on the path."""
    named = os.environ.get("SLUICE_BROWSER")
    return named or next(filter(None, map(shutil.which, _NAMES)), None)


class Tab:
    """One tab: in ``errors`` what its scripts complain of, in ``failed`` what was not answered, in
    ``posts`` what was posted.
    """

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._ids = itertools.count(1)
        self.posts: list[str] = []
        self.errors: list[str] = []
        self.failed: list[str] = []
        for domain in ("Page", "Runtime", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: object) -> Any:
        number = next(self._ids)
        self._connection.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            said = json.loads(self._connection.recv(timeout=_PATIENCE_SECONDS))
            if said.get("id") == number:
                assert "error" not in said, f"{method}: {said['error']}"
                return said["result"]
            self._note(said["method"], said["params"])

    def open(self, url: str) -> None:
        """Load *url* anew, also where only the part behind ``#`` differs."""
        self.send("Page.navigate", url="about:blank")
        self.send("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, or what its promise comes to."""
        result = self.send(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in result, f"{expression}: {result['exceptionDetails']}"
        return result["result"].get("value")

    def until(self, expression: str) -> Any:
        """The value of *expression* as soon as it is truthy."""
        end = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < end:
            value = self.evaluate(f"(() => {{ try {{ return {expression} }} catch {{ }} }})()")
            if value:
                return value
            time.sleep(0.02)
        shown = self.evaluate("document.getElementById('pages')?.shadowRoot?.textContent")
        raise AssertionError(f"never true: {expression}; errors {self.errors}; shown: {shown}")

    def look(self, *, width: int = 1280, height: int = 800, theme: str = "light") -> None:
        """The size of the window, and the system's theme."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.send("Emulation.setEmulatedMedia", features=features)

    def press(self, key: str) -> None:
        code = {"Tab": 9, "Enter": 13, "Escape": 27}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.send(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key,
                windowsVirtualKeyCode=code, **(text if kind == "keyDown" else {}),
            )  # fmt: skip

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot")["data"]))

    def _note(self, method: str, params: Any) -> None:
        match method:
            case "Network.requestWillBeSent" if params["request"]["method"] == "POST":
                self.posts.append(params["request"]["url"])
            case "Network.responseReceived" if params["response"]["status"] >= 400:
                self.failed.append(params["response"]["url"])
            case "Runtime.exceptionThrown":
                self.errors.append(str(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if params["type"] == "error":
                self.errors.append(str(params["args"]))
            case _:
                pass


@contextmanager
def chromium(program: str, profile: Path) -> Iterator[Tab]:
    """A browser with an empty *profile*, ended behind the block."""
    started = subprocess.Popen(
        [program, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with connect(_tab_address(profile / "DevToolsActivePort"), max_size=None) as connection:
            yield Tab(connection)
    finally:
        started.terminate()
        started.wait(timeout=60)


def _tab_address(announced: Path) -> str:
    end = time.monotonic() + _PATIENCE_SECONDS
    while not (announced.exists() and announced.read_text().count("\n")):
        assert time.monotonic() < end, "the browser does not start"
        time.sleep(0.05)
    port = announced.read_text().splitlines()[0]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=60) as answer:
        tabs = json.load(answer)
    return str(next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page"))
