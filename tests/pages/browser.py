"""A real headless Chromium for tests of pages, steered through chromedriver's own protocol: no package is needed for it."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MISSING = "needs Chromium and its driver: apt-get install chromium chromium-driver"
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--no-first-run",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)
"""The last one: whatever a page asked of a network fails, and is seen in its log."""


def find_driver() -> tuple[str, str] | None:
    """The browser and its driver, if both are installed."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


class Browser:
    """One window. Every method is a command of the WebDriver protocol."""

    def __init__(self, address: str, session: str, driver: int) -> None:
        self._root = f"{address}/session/{session}"
        self._driver = driver

    def open(self, page: Path, width: int = 1400, height: int = 1000, *, dark: bool = False) -> None:
        """Open a file. Anew from an empty page, so that the log is its own."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._ask("goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": {"features": scheme}})
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._ask("goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": metrics})
        self._ask("url", {"url": "about:blank"})
        self.read_log()
        self._ask("url", {"url": page.resolve().as_uri()})

    def run(self, script: str, *arguments: object) -> Any:
        """The result of a script."""
        return self._ask("execute/sync", {"script": script, "args": list(arguments)})

    def wait_for(self, script: str, *arguments: object) -> Any:
        """The value that an asynchronous script passes to its last argument."""
        return self._ask("execute/async", {"script": script, "args": list(arguments)})

    def read_log(self) -> list[str]:
        """Messages of the console since the last call, failed requests among them."""
        return [entry["message"] for entry in self._ask("se/log", {"type": "browser"})]

    def press(self, *keys: str) -> None:
        """Press keys one after the other."""
        steps = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._ask("actions", {"actions": [{"type": "key", "id": "keyboard", "actions": steps}]})

    def take_picture(self, file: Path, *, whole: bool = True) -> None:
        """A picture of the page as it is, or of what the window shows."""
        parameters = {"captureBeyondViewport": whole, "format": "png"}
        if whole:
            size = self.run("const e = document.documentElement; return [e.clientWidth, e.scrollHeight]")
            parameters["clip"] = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
        found = self._ask("goog/cdp/execute", {"cmd": "Page.captureScreenshot", "params": parameters})
        file.write_bytes(base64.b64decode(found["data"]))

    def measure_cpu(self) -> float:
        """Seconds of processor that the browser has used so far, in all its processes: what a busy machine does not change."""
        parents: dict[int, int] = {}
        ticks: dict[int, int] = {}
        for place in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = place.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            number = int(place.parent.name)
            parents[number], ticks[number] = int(fields[1]), int(fields[11]) + int(fields[12])
        return sum(spent for number, spent in ticks.items() if self._descends(number, parents)) / os.sysconf(
            "SC_CLK_TCK"
        )

    def _descends(self, number: int, parents: dict[int, int]) -> bool:
        while number in parents and number != self._driver:
            number = parents[number]
        return number == self._driver

    def close(self) -> None:
        _send(self._root, None, "DELETE")

    def _ask(self, command: str, value: object) -> Any:
        return _send(f"{self._root}/{command}", value)


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A browser that ends with the `with` block."""
    found = find_driver()
    assert found is not None, MISSING
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    driver = subprocess.Popen(
        [found[1], f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ
    )
    address = f"http://127.0.0.1:{port}"
    try:
        _await_driver(address)
        options = {"binary": found[0], "args": list(ARGUMENTS)}
        capabilities = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        begun = _send(f"{address}/session", {"capabilities": {"alwaysMatch": capabilities}})
        browser = Browser(address, begun["sessionId"], driver.pid)
        try:
            yield browser
        finally:
            browser.close()
    finally:
        driver.terminate()
        driver.wait(20)


def _await_driver(address: str) -> None:
    for _ in range(300):
        try:
            _send(f"{address}/status", None, "GET")
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise OSError("chromedriver does not answer")


def _send(address: str, value: object, method: str = "POST") -> Any:
    body = None if value is None else json.dumps(value).encode()
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.loads(answer.read())["value"]
    except urllib.error.HTTPError as error:
        told = json.loads(error.read())["value"]
        raise RuntimeError(f"{told['error']}: {told['message'][:2000]}") from None


def check_quiet_and_fitting(browser: Browser, page: Path, width: int, dark: bool) -> None:
    """Open a page: no message in the console, no hostile script has run, nothing is wider than the window."""
    browser.open(page, width, dark=dark)
    assert browser.read_log() == []
    assert browser.run("return window.harmed") is None
    assert browser.run("return document.documentElement.scrollWidth") <= width
