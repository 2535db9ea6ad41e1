"""Chromium without a window, driven by its own driver in the words of W3C WebDriver: no package in between."""

from __future__ import annotations

import asyncio
import re
import tempfile
from base64 import b64decode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.crash.programs import require

READY_S = 30.0
_LISTENS = re.compile(rb"started successfully on port (\d+)")
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
_OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    "--window-size=1280,800",
)


class Browser:
    """One window. What it finds is found as a person would find it: by what is shown."""

    def __init__(self, client: httpx.AsyncClient, session: str) -> None:
        self._client = client
        self._session = session

    async def go(self, url: str) -> None:
        await self._tell("POST", "url", {"url": url})

    async def reload(self) -> None:
        await self._tell("POST", "refresh", {})

    async def click(self, css: str) -> None:
        await self._tell("POST", f"element/{await self._element(css)}/click", {})

    async def type(self, css: str, text: str) -> None:
        await self._tell("POST", f"element/{await self._element(css)}/value", {"text": text})

    async def run(self, script: str) -> Any:
        """What a script of ours returns."""
        return await self._tell("POST", "execute/sync", {"script": script, "args": []})

    async def texts(self, css: str) -> list[str]:
        """What stands in each of these elements, in the order of the page."""
        found: list[str] = await self.run(f"return [...document.querySelectorAll({css!r})].map((e) => e.textContent)")
        return found

    async def until(self, css: str, is_so: Callable[[list[str]], bool], within_s: float = 15.0) -> list[str]:
        """Look at what stands there until it is so."""
        seen: list[str] = []
        try:
            async with asyncio.timeout(within_s):
                while True:
                    seen = await self.texts(css)
                    if is_so(seen):
                        return seen
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"{css} still says {seen}; the page said {await self.complaints()}") from None

    async def complaints(self) -> list[str]:
        """What the console has that is worse than information, since the last time."""
        told = await self._tell("POST", "se/log", {"type": "browser"})
        return [f"{each['source']}: {each['message']}" for each in told if each["level"] in ("SEVERE", "WARNING")]

    async def picture(self) -> bytes:
        return b64decode(await self._tell("GET", "screenshot"))

    async def _element(self, css: str) -> str:
        found = await self._tell("POST", "element", {"using": "css selector", "value": css})
        return str(found[_ELEMENT])

    async def _tell(self, method: str, path: str, body: Any = None) -> Any:
        answer = await self._client.request(method, f"/session/{self._session}/{path}", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["value"]


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """A fresh one that knows nobody; gone afterwards with all it kept."""
    program, chromium = require("chromedriver"), require("chromium")
    driver = await asyncio.create_subprocess_exec(
        *(program, "--port=0"), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        port = await asyncio.wait_for(_port(driver), READY_S)
        # Python removes it last, so that the browser has let go of it.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=READY_S) as client:
                session = await _begun(client, chromium, folder)
                try:
                    yield Browser(client, session)
                finally:
                    await client.delete(f"/session/{session}")
    finally:
        driver.terminate()
        await driver.wait()


async def _port(driver: asyncio.subprocess.Process) -> int:
    assert driver.stdout is not None
    async for line in driver.stdout:
        found = _LISTENS.search(line)
        if found:
            return int(found[1])
    raise AssertionError("chromedriver does not listen")


async def _begun(client: httpx.AsyncClient, chromium: str, folder: str) -> str:
    wanted = {
        "browserName": "chrome",
        "goog:loggingPrefs": {"browser": "ALL"},
        "goog:chromeOptions": {"binary": chromium, "args": [*_OPTIONS, f"--user-data-dir={folder}"]},
    }
    answer = await client.post("/session", json={"capabilities": {"alwaysMatch": wanted}})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["value"]["sessionId"])
