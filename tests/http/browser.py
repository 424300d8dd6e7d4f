"""A headless Chromium, if there is one in PATH, spoken to over its debugging pipe."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
CHROMIUM = next((found for name in NAMES if (found := shutil.which(name))), None)
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
PATIENCE_S = 60.0


class Browser:
    """One process; `show` opens a page in it."""

    def __init__(self, folder: Path) -> None:
        assert CHROMIUM is not None
        reads, self._writes = os.pipe()
        self._reads, writes = os.pipe()
        # Chromium reads its orders from 3 and answers on 4; neither may be one of ours.
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (reads, writes)]
        told = ("--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank")
        self._pid = os.posix_spawn(
            CHROMIUM,
            [CHROMIUM, *OPTIONS, *told],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, high[0], 3),
                (os.POSIX_SPAWN_DUP2, high[1], 4),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ],
        )
        for each in (reads, writes, *high):
            os.close(each)
        self._number = 0
        self._unread = b""
        self.troubles: list[dict[str, Any]] = []

    def close(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._writes)
        os.close(self._reads)

    def order(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._writes, json.dumps(message).encode() + b"\0")
        over = time.monotonic() + PATIENCE_S
        while time.monotonic() < over:
            answer = self._next()
            if answer is not None and answer.get("id") == self._number:
                return answer["result"]
        raise TimeoutError(method)

    def show(self, url: str, width: int, ready: str) -> Page:
        """A page of this width, once the expression `ready` is true in it."""
        target = self.order("Target.createTarget", url="about:blank")["targetId"]
        session = self.order("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.order("Emulation.setDeviceMetricsOverride", session, **metrics)
        for domain in ("Runtime", "Log", "Page"):
            self.order(f"{domain}.enable", session)
        self.order("Page.navigate", session, url=url)
        page = Page(self, session)
        over = time.monotonic() + PATIENCE_S
        while page.value(ready) is not True:
            assert time.monotonic() < over, f"{ready} does not come true"
            time.sleep(0.2)
        return page

    def _next(self) -> dict[str, Any] | None:
        while b"\0" not in self._unread:
            if not select.select([self._reads], [], [], 1.0)[0]:
                return None
            more = os.read(self._reads, 1 << 20)
            assert more, "the browser has ended"
            self._unread += more
        first, self._unread = self._unread.split(b"\0", 1)
        message = json.loads(first)
        if message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
            self.troubles.append(message["params"])
        return message


class Page:
    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session

    def value(self, expression: str) -> Any:
        answer = self._browser.order("Runtime.evaluate", self._session, expression=expression)
        return answer["result"].get("value")

    def picture(self) -> bytes:
        shot = self._browser.order("Page.captureScreenshot", self._session, format="png")
        return base64.b64decode(shot["data"])
