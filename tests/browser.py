"""A headless Chromium for tests of pages, driven over a pipe by its DevTools protocol.

https://chromedevtools.github.io/devtools-protocol/ lists the commands. No driver is needed beside
the browser: with `--remote-debugging-pipe` it reads commands from file descriptor 3 and writes
results and events to 4, as JSON that ends in a null byte.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
TIMEOUT = 60.0  # seconds for a command; a start on a busy machine takes ten


def find_browser() -> str | None:
    """The first Chromium on the path; None if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One tab. Use it as a context, which ends the browser.

    Attributes:
      errors: messages of the console that are errors or warnings, and exceptions of scripts.
      requests: addresses that pages asked for, without their own and data URIs.
      dialogs: types of the dialogs that pages opened ("alert", "beforeunload"); all are accepted.
    """

    def __init__(self, profile: Path):
        to_browser, from_us = os.pipe()
        from_browser, to_us = os.pipe()
        self._in, self._out, self._read = from_us, from_browser, b""
        command = [
            find_browser(), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-dev-shm-usage", "--disable-background-networking", "--disable-extensions",
            f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank",
        ]  # fmt: skip
        # The shell puts the pipes where the browser looks for them.
        redirect = f'exec "$@" 3<&{to_browser} 4>&{to_us}'
        self._process = subprocess.Popen(
            ["bash", "-c", redirect, "bash", *command],
            pass_fds=(to_browser, to_us),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(to_us)
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.dialogs: list[str] = []
        self._number, self._session, self._loaded = 0, None, False
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        try:
            self._session = None
            self.send("Browser.close")
            self._process.wait(TIMEOUT)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._in)
            os.close(self._out)

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result; events that come before it are noted."""
        number = self._post(method, **params)
        while True:
            reply = self._receive()
            if reply.get("id") == number:
                if "error" in reply:
                    raise RuntimeError(f"{method}: {reply['error']}")
                return reply["result"]
            self._note(reply)

    def _post(self, method: str, **params: Any) -> int:
        """Send a command without waiting for its result; returns its number."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._in, json.dumps(message).encode() + b"\0")
        return self._number

    def _receive(self) -> dict[str, Any]:
        end = time.monotonic() + TIMEOUT
        while b"\0" not in self._read:
            if not select.select([self._out], [], [], max(0, end - time.monotonic()))[0]:
                raise TimeoutError(f"the browser said nothing for {TIMEOUT:.0f} s")
            piece = os.read(self._out, 2**20)
            if not piece:
                raise RuntimeError("the browser ended")
            self._read += piece
        message, _, self._read = self._read.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        if "method" not in event:
            return  # the result of a command that was not waited for
        method, params = event["method"], event["params"]
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.errors.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"])
        elif method == "Page.javascriptDialogOpening":
            self.dialogs.append(params["type"])
            self._post("Page.handleJavaScriptDialog", accept=True)
        elif method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if url != params["documentURL"] and not url.startswith("data:"):
                self.requests.append(url)

    def open(self, path: Path) -> None:
        """Open a file, and wait until it is loaded."""
        self._loaded = False
        self.send("Page.navigate", url=path.resolve().as_uri())
        while not self._loaded:
            self._note(self._receive())

    def type(self, text: str) -> None:
        """Press and release the keys of some characters."""
        for key in text:
            self.send("Input.dispatchKeyEvent", type="keyDown", key=key, text=key)
            self.send("Input.dispatchKeyEvent", type="keyUp", key=key)

    def run(self, script: str) -> Any:
        """Value of a JavaScript expression, which may be a promise."""
        result = self.send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in result:
            raise RuntimeError(json.dumps(result["exceptionDetails"]))
        return result["result"].get("value")

    def point_at(self, selector: str) -> None:
        """Move the mouse onto the first element that the selector finds."""
        x, y = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect();"
            "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y, pointerType="mouse")

    def press(self, key: str) -> None:
        """Press and release a key, by its name in JavaScript."""
        codes = {"Tab": 9, "Escape": 27, "End": 35, "Home": 36}
        codes |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        for kind in ("keyDown", "keyUp"):
            self.send(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key,
                windowsVirtualKeyCode=codes[key],
            )  # fmt: skip

    def resize(self, width: int, height: int, *, phone: bool = False) -> None:
        """Set the size of the window in CSS pixels; a phone has a dense screen and touch."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=2 if phone else 1, mobile=phone,
        )  # fmt: skip
        self.send("Emulation.setTouchEmulationEnabled", enabled=phone)

    def prefer(self, scheme: str) -> None:
        """Prefer the colour scheme "light" or "dark"."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.send("Emulation.setEmulatedMedia", features=[feature])

    def screenshot(self, path: Path) -> None:
        """Write what the window shows to a PNG file."""
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot")["data"]))
