"""A headless Chromium at the end of a pipe: opens one page and tells all it did.

Owns the browser's process and the few commands of the DevTools protocol that the tests need. The
pipe (file descriptors 3 and 4, messages ended by a zero byte) needs no port and no other package.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic",
    "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-extensions", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
TIMEOUT_S = 60.0
ABOVE_STANDARD = 10
"""Our ends of the pipes get numbers from here on, so that 3 and 4 are free for the browser's."""


def find() -> str | None:
    """Path of a Chromium on this machine."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@dataclass
class Seen:
    """What a page did while it loaded and since."""

    requests: list[str] = field(default_factory=list)
    """Addresses asked for, the page's own included."""
    complaints: list[str] = field(default_factory=list)
    """Console messages, log entries (blocked loads, policy violations) and exceptions."""


class Chromium:
    """One browser with one page at a time."""

    def __init__(self, program: str, profile: Path) -> None:
        read, self._write = _pipe()
        self._read, write = _pipe()

        def connect() -> None:
            os.dup2(read, 3)
            os.dup2(write, 4)

        self._process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=connect, close_fds=False, start_new_session=True,
        )  # fmt: skip
        os.close(read)
        os.close(write)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.seen = Seen()

    def close(self) -> None:
        """End the browser and everything it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=TIMEOUT_S)
        os.close(self._read)
        os.close(self._write)

    def open(
        self, file: Path, *, width: int, height: int = 900, dark: bool = False, script: bool = True
    ) -> Seen:
        """Load a file in a fresh page of that size and wait until it is shown."""
        self.seen = Seen()
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self.call("Page.navigate", url=file.resolve().as_uri())
        self._until("Page.loadEventFired")
        return self.seen

    def evaluate(self, expression: str) -> Any:
        """Value of a JavaScript expression in the page, even if its own scripts are off."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The whole page, also what lies below the window, as PNG."""
        made = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(made["data"]))

    def printed(self) -> bytes:
        """The page as PDF."""
        return base64.b64decode(self.call("Page.printToPDF")["data"])

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command and its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session and not method.startswith("Target."):
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        for answer in self._messages():
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
        raise AssertionError("unreachable")

    def _until(self, event: str) -> None:
        for message in self._messages():
            if message.get("method") == event:
                return

    def _messages(self) -> Iterator[dict[str, Any]]:
        """Messages as they come; what a page did is noted on the way."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            while b"\0" in self._buffer:
                line, _, self._buffer = self._buffer.partition(b"\0")
                message = json.loads(line)
                if message.get("sessionId") == self._session:
                    self._note(message)
                yield message
            left = deadline - time.monotonic()
            assert left > 0, "the browser does not answer"
            if select.select([self._read], [], [], left)[0]:
                data = os.read(self._read, 1 << 20)
                assert data, "the browser ended"
                self._buffer += data

    def _note(self, message: dict[str, Any]) -> None:
        kind, values = message.get("method"), message.get("params", {})
        if kind == "Network.requestWillBeSent":
            self.seen.requests.append(values["request"]["url"])
        elif kind in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
            self.seen.complaints.append(json.dumps(values)[:500])
        elif kind == "Log.entryAdded":
            self.seen.complaints.append(values["entry"]["text"])


def _pipe() -> tuple[int, int]:
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, ABOVE_STANDARD) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]
