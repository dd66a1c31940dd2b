"""A real Chromium, driven through its debugging pipe: no package needed beside the browser."""

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = "no-first-run disable-background-networking disable-component-update disable-sync disable-quic"
FLAGS = f"headless no-sandbox disable-gpu hide-scrollbars {QUIET}".split()


class Browser:
    """One tab. Commands are those of the Chrome DevTools Protocol; messages end with a zero byte."""

    def __init__(self, profile: Path) -> None:
        ours, theirs = os.pipe(), os.pipe()  # what it reads, what it writes
        command = [CHROMIUM, *(f"--{flag}" for flag in FLAGS), f"--user-data-dir={profile}", "about:blank"]
        command.append("--remote-debugging-pipe")
        command.append("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")

        def as_three_and_four() -> None:
            os.dup2(ours[0], 100)  # first out of the way: the numbers may be in use
            os.dup2(theirs[1], 101)
            os.dup2(100, 3)
            os.dup2(101, 4)

        self.process = subprocess.Popen(
            command,
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=as_three_and_four,
        )
        os.close(ours[0])
        os.close(theirs[1])
        self.writing, self.reading = os.fdopen(ours[1], "wb", 0), theirs[0]
        self.rest, self.number, self.session, self.console = b"", 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "DOM", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        """The result of a command; what the page logs meanwhile is kept in `console`."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        self.writing.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self.number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            if answer.get("method") in (
                "Runtime.exceptionThrown",
                "Log.entryAdded",
                "Runtime.consoleAPICalled",
            ):
                self.console.append(json.dumps(answer["params"]))

    def _read(self):
        while b"\0" not in self.rest:
            found = os.read(self.reading, 1 << 20)
            assert found, "the browser ended"
            self.rest += found
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def open(self, address, width, height=900, dark=False):
        """The page at this address, as wide as that."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call("Page.navigate", url=address)
        self.until("document.body && document.body.dataset.ready === 'true'")

    def run(self, code):
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, code, seconds=20.0):
        """Waits until an expression is true."""
        end = time.monotonic() + seconds
        while not self.run(f"Boolean({code})"):
            assert time.monotonic() < end, f"never true: {code}\n{self.run('document.body.innerText')}"
            time.sleep(0.05)

    def choose(self, selector, *files):
        """Files for an input, as if a person had chosen them."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(file) for file in files])

    def drop(self, *files):
        """Files or folders dropped onto the page."""
        data = {"items": [], "files": [str(file) for file in files], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, x=100, y=150, data=data)

    def screenshot(self, path, whole=True):
        """A picture of the page, below the window too."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        Path(path).write_bytes(base64.b64decode(found["data"]))

    def close(self):
        """The browser ends."""
        self.process.terminate()
        self.process.wait(timeout=20)
        self.writing.close()
        os.close(self.reading)
