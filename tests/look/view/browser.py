"""A headless Chromium that tests drive by its own protocol (Chrome DevTools), and what it asked the network for."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--remote-debugging-port=0",
)  # fmt: skip
SPECIAL: dict[str, dict[str, Any]] = {"Enter": {"text": "\r"}, "Escape": {"windowsVirtualKeyCode": 27}}
PATIENCE_S = 60.0


def chromium() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Tab:
    """One page. `requested` are the addresses that it asked for, `complaints` what its console said."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._loads = 0
        self.requested: list[str] = []
        self.complaints: list[str] = []
        self.dialogs: list[str] = []
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            said = json.loads(self._socket.recv(timeout=PATIENCE_S))
            if said.get("id") == number:
                assert "error" not in said, said
                return said["result"]
            self._note(said)

    def _note(self, said: dict[str, Any]) -> None:
        params = said.get("params", {})
        match said.get("method"):
            case "Network.requestWillBeSent":
                self.requested.append(params["request"]["url"])
            case "Page.javascriptDialogOpening":
                self.dialogs.append(params["message"])
                self._socket.send(
                    json.dumps({"id": 0, "method": "Page.handleJavaScriptDialog", "params": {"accept": True}})
                )
            case "Page.loadEventFired":
                self._loads += 1
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(params["exceptionDetails"]))
            case "Log.entryAdded":
                self.complaints.append(params["entry"]["text"])

    def open(self, address: str) -> None:
        """Go there and wait until it is loaded."""
        before = self._loads
        self.call("Page.navigate", url=address)
        self.until_loaded(before)

    def until_loaded(self, before: int) -> None:
        ends = time.monotonic() + PATIENCE_S
        while self._loads == before:
            assert time.monotonic() < ends, "the page did not load"
            self.run("0")
            time.sleep(0.02)

    def run(self, script: str) -> Any:
        """The value of an expression on the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, script: str) -> None:
        """Wait until an expression is true."""
        ends = time.monotonic() + PATIENCE_S
        while not self.run(script):
            assert time.monotonic() < ends, f"this never came true: {script}"
            time.sleep(0.05)

    def press(self, key: str) -> None:
        """A key, as a person presses it."""
        more: dict[str, Any] = {"text": key} if len(key) == 1 else SPECIAL[key]
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, **more)

    def look(self, path: Path, *, dark: bool = False, whole: bool = False, size: tuple[int, int] = (1280, 800)) -> None:
        """Write what is to be seen as a picture."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.resize(*size)
        taken = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(taken["data"]))

    def resize(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)


@contextmanager
def browser() -> Iterator[Tab]:
    """One page of a Chromium with a profile of its own."""
    program = chromium()
    assert program is not None, "no Chromium is installed"
    with tempfile.TemporaryDirectory(prefix="mappa-chromium-", ignore_cleanup_errors=True) as profile:
        arguments = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            with connect(_address(Path(profile)), max_size=None, compression=None) as socket:
                yield Tab(socket)
        finally:
            process.terminate()
            process.wait(30)


def _address(profile: Path) -> str:
    """Where the only page listens; the port stands in a file as soon as it is taken."""
    from urllib.request import urlopen

    ends = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends:
        try:
            port = (profile / "DevToolsActivePort").read_text().splitlines()[0]
            with urlopen(f"http://127.0.0.1:{port}/json/list", timeout=5) as answer:
                pages = [one for one in json.load(answer) if one["type"] == "page"]
            return str(pages[0]["webSocketDebuggerUrl"])
        except (FileNotFoundError, IndexError, OSError):
            time.sleep(0.05)
    raise AssertionError("Chromium did not start")
