"""Chromium without a screen, spoken to through its DevTools pipe."""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

TIMEOUT = 60
# Chromium reads commands from descriptor 3 and writes answers to 4.
LAUNCH = """
import os, sys
os.dup2(int(sys.argv[1]), 100, inheritable=False)
os.dup2(int(sys.argv[2]), 101, inheritable=False)
os.dup2(100, 3)
os.dup2(101, 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""
UNTIL = """
const until = async condition => {
  const start = Date.now();
  while (!condition()) {
    if (Date.now() - start > 10000) throw new Error(`waited in vain for ${condition}`);
    await new Promise(next => setTimeout(next, 20));
  }
};
"""


class Browser:
    """One tab of a headless Chromium. ``errors`` collects what its console complains about."""

    def __init__(self, command: str, profile: Path) -> None:
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            "--disable-breakpad",
            "--disable-dev-shm-usage",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
            "about:blank",
        ]
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(to_browser), str(from_browser), command, *options],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._rest = b""
        self._number = 0
        self._session: dict[str, str] = {}
        self._loaded = False
        self.errors: list[str] = []
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters, **self._session}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def open(self, address: str) -> None:
        """Load the page afresh."""
        self.errors.clear()
        self._loaded = False
        self.call("Page.navigate", url=address)
        while not self._loaded:
            self._receive()

    def run(self, script: str) -> Any:
        """Value of a JavaScript expression, awaited if it is a promise; ``until(condition)`` waits."""
        answer = self.call(
            "Runtime.evaluate",
            expression=f"(async () => {{ {UNTIL} return await ({script}); }})()",
            awaitPromise=True,
            returnByValue=True,
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, text="\r" if key == "Enter" else "")

    def prefer(self, scheme: str) -> None:
        """Light or dark, as the reader's system would say."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def resize(self, width: int, height: int = 900) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], TIMEOUT)
            chunk = os.read(self._read, 1 << 20) if ready else b""
            if not chunk:
                raise RuntimeError(f"Chromium ended, or has not answered for {TIMEOUT} seconds")
            self._rest += chunk
        raw, self._rest = self._rest.split(b"\0", 1)
        message: dict[str, Any] = json.loads(raw)
        match message.get("method"):
            case "Page.loadEventFired":
                self._loaded = True
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(message["params"]["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if message["params"]["type"] in ("error", "warning", "assert"):
                self.errors.append(json.dumps(message["params"]["args"]))
            case "Log.entryAdded" if message["params"]["entry"]["level"] in ("error", "warning"):
                self.errors.append(message["params"]["entry"]["text"])
        return message
