"""A real browser, headless, driven over its DevTools pipe: open a page at a size and in a theme, ask it, photograph it.

Messages are JSON, each ended by a zero byte, on two inherited file descriptors; no port is opened.
Source: Chrome DevTools Protocol, and ``--remote-debugging-pipe`` in Chromium's devtools_pipe_handler.cc.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

DEADLINE_S = 60.0
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--remote-debugging-pipe")


def find_browser() -> str | None:
    """Path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One browser with one tab. Use as a context manager."""

    def __init__(self, program: str, profile: Path) -> None:
        """Start ``program`` with an empty ``profile`` folder."""
        to_browser, self._send = _high(os.pipe())
        self._receive, from_browser = _high(os.pipe())
        command = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'  # the browser wants exactly these two numbers
        with (profile / "browser.log").open("wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", command, "bash", program, *FLAGS, f"--user-data-dir={profile}"], pass_fds=(to_browser, from_browser),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | {"TMPDIR": str(profile)})
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        """What the page reported since it was opened: requests, console messages, exceptions, log entries."""

    def __enter__(self) -> Self:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._session = ""  # the browser itself, not the tab
        try:
            self.call("Browser.close")
            self._process.wait(DEADLINE_S)
        finally:
            self._process.kill()
            self._process.wait(DEADLINE_S)
        os.close(self._send)
        os.close(self._receive)

    def open(self, url: str, *, width: int, theme: str = "light", media: str = "screen") -> None:
        """Load ``url`` in a window ``width`` pixels wide."""
        self.events.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", media=media, features=[{"name": "prefers-color-scheme", "value": theme}])
        self.call("Page.navigate", url=url)
        self._until(lambda message: message.get("method") == "Page.loadEventFired")

    def ask(self, expression: str) -> Any:
        """Evaluate JavaScript in the page and return its value; the page's own policy does not apply to it."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def photograph(self) -> bytes:
        """The whole page as PNG."""
        height = self.ask("document.documentElement.scrollHeight")
        width = self.ask("window.innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        return base64.b64decode(self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"])

    def call(self, method: str, **parameters: Any) -> Any:
        """Send a command and return its result."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters} | ({"sessionId": self._session} if self._session else {})
        os.write(self._send, json.dumps(message).encode() + b"\0")
        answer = self._until(lambda received: received.get("id") == number)
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def _until(self, wanted: Any) -> dict[str, Any]:
        """Read messages, keep the events, and return the first that is wanted."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            while b"\0" not in self._buffer:
                ready, _, _ = select.select([self._receive], [], [], max(0.0, deadline - time.monotonic()))
                data = os.read(self._receive, 1 << 20) if ready else b""
                if not data:
                    raise TimeoutError(f"the browser did not answer within {DEADLINE_S:g} s, or ended ({self._process.poll()})")
                self._buffer += data
            line, _, self._buffer = self._buffer.partition(b"\0")
            message: dict[str, Any] = json.loads(line)
            if "method" in message:
                self.events.append(message)
            if wanted(message):
                return message


def _high(ends: tuple[int, int]) -> tuple[int, int]:
    """The same pipe under numbers that leave 3 and 4 free."""
    moved = fcntl.fcntl(ends[0], fcntl.F_DUPFD_CLOEXEC, 20), fcntl.fcntl(ends[1], fcntl.F_DUPFD_CLOEXEC, 20)
    for end in ends:
        os.close(end)
    return moved
