# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven by the DevTools protocol over a pipe."""
import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
ANSWER_S = 600


class Failed(RuntimeError):
    """Chromium, or a script in the page, failed."""


class Page:
    """One tab."""

    def __init__(self, to, from_):
        self._to, self._from = to, from_
        self._bytes = b""
        self._n = 0
        self._session = None
        self.errors = []
        """What the console and the network said that is wrong."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target,
                                  flatten=True)["sessionId"]
        for domain in "Runtime", "Page", "Log":
            self.call(f"{domain}.enable")

    def _message(self):
        end = time.monotonic() + ANSWER_S
        while b"\0" not in self._bytes:
            if not select.select([self._from], [], [], max(0, end - time.monotonic()))[0]:
                raise Failed(f"no answer within {ANSWER_S} s")
            read = os.read(self._from, 1 << 20)
            if not read:
                raise Failed("Chromium ended")
            self._bytes += read
        message, self._bytes = self._bytes.split(b"\0", 1)
        return json.loads(message)

    def _note(self, message):
        parameters = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(parameters["exceptionDetails"]))
        elif message.get("method") == "Runtime.consoleAPICalled":
            self.errors.append(f"{parameters['type']}: {parameters['args']}")
        elif message.get("method") == "Log.entryAdded":
            self.errors.append(f"{parameters['entry']['text']} {parameters['entry'].get('url')}")

    def call(self, method, **parameters):
        """A method's result."""
        self._n += 1
        request = {"id": self._n, "method": method, "params": parameters}
        if self._session:
            request["sessionId"] = self._session
        os.write(self._to, json.dumps(request).encode() + b"\0")
        while True:
            message = self._message()
            if message.get("id") != self._n:
                self._note(message)
            elif "error" in message:
                raise Failed(f"{method}: {message['error']}")
            else:
                return message["result"]

    def run(self, script):
        """The value of an expression; of a promise, when it is settled."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True,
                           awaitPromise=True)
        if "exceptionDetails" in result:
            raise Failed(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def until(self, condition):
        """Wait until an expression is true, in the page's own frames."""
        end = time.monotonic() + ANSWER_S
        while not self.run(f"new Promise((done) => setTimeout(() => done(!!({condition})), 20))"):
            if time.monotonic() > end:
                raise Failed(f"never: {condition}")

    def open(self, url):
        """Load a page."""
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def size(self, width, height):
        """The window's, in pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)

    def dark(self, is_dark):
        """Which colours the user prefers."""
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}])

    def key(self, name):
        """Press and release a key."""
        for kind in "rawKeyDown", "keyUp":
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name)

    def mouse(self, kind, x, y):
        """mouseMoved, mousePressed, mouseReleased."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, clickCount=1,
                  button="none" if kind == "mouseMoved" else "left")

    def picture(self):
        """The window as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])


def high_pipe():
    """A pipe with descriptors above those that Chromium uses."""
    ends = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return high


@contextlib.contextmanager
def page():
    """A tab of a Chromium of its own, which ends with it."""
    with tempfile.TemporaryDirectory(prefix="kvt-chromium-") as home:
        to_read, to_write = high_pipe()
        from_read, from_write = high_pipe()
        # Chromium reads its descriptor 3 and writes 4; bash puts the pipes there.
        with subprocess.Popen(
                ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{from_write}', "bash", PROGRAM,
                 "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
                 "--disable-background-networking", "--disable-dev-shm-usage",
                 "--remote-debugging-pipe", f"--user-data-dir={home}"],
                pass_fds=(to_read, from_write), stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env={**os.environ, "HOME": home}) as process:
            os.close(to_read)
            os.close(from_write)
            try:
                made = Page(to_write, from_read)
                yield made
                with contextlib.suppress(Failed):
                    made._session = None
                    made.call("Browser.close")
            finally:
                os.close(to_write)
                os.close(from_read)
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
