"""A private browser without a screen: Debian's Chromium, driven by its own driver.

Not exported by the package: only tests of pages need it. It has a profile of its own, reaches loopback addresses
alone, and ends with its driver.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selenium.webdriver import ChromeOptions, Remote

from integration.servers.process import ServerProcess, get_program

ANSWER_SECONDS = 5.0


class ChromeDriver(ServerProcess):
    """The program that starts browsers and is asked to drive them."""

    technology = "chromedriver"

    def command(self) -> list[str]:
        homes = [f"{name}={self.directory}" for name in ("HOME", "TMPDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")]
        return ["/usr/bin/env", *homes, get_program("chromedriver", "browser"), f"--port={self.port}"]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_SECONDS)
        try:
            connection.request("GET", "/status")
            return bool(json.load(connection.getresponse())["value"]["ready"])
        finally:
            connection.close()


@dataclass(frozen=True, slots=True)
class Browser:
    """One browser with one page."""

    driver: Remote

    def emulate(self, *, width: int, height: int = 900, dark: bool = False) -> None:
        """The size of the window, in pixels of CSS, and the scheme of colours that a person asks for."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._tell("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._tell("Emulation.setEmulatedMedia", features=[scheme])

    def take_screenshot(self, path: Path, *, height_max: int) -> None:
        """The page from its top as PNG, one pixel for each of CSS."""
        size = self._tell("Page.getLayoutMetrics")["cssContentSize"]
        clip = {**size, "height": min(size["height"], height_max), "scale": 1}
        taken = self._tell("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(taken["data"]))

    def list_complaints(self) -> list[str]:
        """Since the last call: errors of scripts, and what the page's own policy has refused."""
        lines = self.driver.execute("getLog", {"type": "browser"})["value"]
        return [line["message"] for line in lines if line["level"] == "SEVERE"]

    def _tell(self, command: str, **parameters: Any) -> Any:
        return self.driver.execute("executeCdpCommand", {"cmd": command, "params": parameters})["value"]


@contextmanager
def open_browser() -> Iterator[Browser]:
    with ChromeDriver() as program:
        options = ChromeOptions()
        options.binary_location = get_program("chromium", "browser")
        for argument in (
            "--headless=new",
            "--disable-gpu",
            "--disable-lcd-text",
            "--hide-scrollbars",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--no-first-run",
            "--no-proxy-server",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            f"--user-data-dir={program.directory / 'profile'}",
        ):
            options.add_argument(argument)
        if os.geteuid() == 0:
            options.add_argument("--no-sandbox")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = Remote(program.url, options=options)
        try:
            yield Browser(driver)
        finally:
            driver.quit()
