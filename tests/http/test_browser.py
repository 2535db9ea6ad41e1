"""The page of `holdfast dev` in a real browser: a conversation, a question, a break, and nothing in the console."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.http.browsers import Browser, browser
from tests.http.households import Process, start

pytestmark = pytest.mark.timeout(120)

PICTURES = os.environ.get("HOLDFAST_PICTURES")
"""A folder for pictures of the page, for people who want to look at it."""
# Everything that a bubble of the newest answer ever said, from now on.
WATCH = """
    window.seen = [];
    const look = () => document.querySelectorAll("li.assistant").forEach((item) => window.seen.push(item.textContent));
    new MutationObserver(look).observe(document.getElementById("messages"),
        { childList: true, subtree: true, characterData: true });
    look();
"""
# How many pixels of the conversation are below what is shown.
BELOW = (
    "const list = document.getElementById('messages'); return list.scrollHeight - list.scrollTop - list.clientHeight"
)
Dev = Callable[[int], Awaitable[Process]]


@pytest.fixture
async def dev(tmp_path: Path) -> AsyncIterator[Dev]:
    """Starts `holdfast dev` on one file, at a port or at any; all are gone afterwards."""
    async with AsyncExitStack() as stack:

        async def started(port: int = 0) -> Process:
            process = await start("dev", "--port", str(port), "--db", str(tmp_path / "dev.db"))
            stack.push_async_callback(process.kill)
            return await process.ready()

        yield started


@pytest.fixture
async def page(dev: Dev) -> AsyncIterator[tuple[Browser, Process]]:
    """The page, open, on a server that knows nobody yet."""
    process = await dev(0)
    async with browser() as window:
        await window.go(str(process.client.base_url))
        yield window, process


async def say(window: Browser, text: str) -> None:
    await window.type("#message", text)
    await window.click("#composer button[type=submit]")


def is_answer(texts: list[str]) -> bool:
    return bool(texts) and texts[-1].endswith("I ask you first.")


async def keep(window: Browser, name: str) -> None:
    if PICTURES:
        (Path(PICTURES) / f"{name}.png").write_bytes(await window.picture())


async def check_told_in_order(window: Browser, answer: str) -> None:
    """Whatever a bubble said at any moment was the beginning of its answer: nothing left out, nothing twice."""
    seen = await window.run("return window.seen")
    assert len(set(seen)) > 2, "it came piece by piece"
    assert [text for text in seen if not answer.startswith(text)] == []


@pytest.mark.clause("W-08")
async def test_a_person_talks_approves_and_cancels(page: tuple[Browser, Process]) -> None:
    window, _ = page

    await window.click("#new")
    await window.until("#title", lambda texts: texts[0].startswith("Session"))
    await window.run(WATCH)
    await say(window, "hello there")
    first = await window.until("li.assistant", is_answer)
    await window.until("#state", lambda texts: texts == ["completed"])
    await check_told_in_order(window, first[-1])
    await keep(window, "answered")

    await say(window, "publish this")
    await window.until("#state", lambda texts: texts == ["asks you"])
    await keep(window, "asking")
    await window.click("#approve")
    await window.until("li.assistant", lambda texts: len(texts) == 2 and is_answer(texts))
    await window.until("#state", lambda texts: texts == ["completed"])

    await say(window, "too long to wait for")
    await window.until("li.assistant", lambda texts: len(texts) == 3)
    await window.click("#cancel")
    await window.until("#state", lambda texts: texts == ["cancelled"])
    await keep(window, "cancelled")
    tools = await window.texts("li.tool")
    users = await window.texts("li.user")
    below = await window.run(BELOW)

    assert users == ["hello there", "publish this", "too long to wait for"]
    assert [text for text in tools if not text.startswith("→")] == [
        f'count_words {{"text":"{text}"}}' for text in users
    ]
    assert below < 1, "the end of the answer is in sight"
    assert await window.complaints() == []


@pytest.mark.clause("W-33", "WB-28")
async def test_a_page_that_is_loaded_again_in_the_middle_of_an_answer_goes_on(page: tuple[Browser, Process]) -> None:
    window, _ = page
    await say(window, "hello again")
    await window.until("li.assistant", lambda texts: bool(texts and texts[-1]))

    await window.reload()
    await window.run(WATCH)
    await window.until("li.assistant", lambda texts: bool(texts and texts[-1]))
    is_midway = not is_answer(await window.texts("li.assistant"))
    answers = await window.until("li.assistant", is_answer)
    await window.until("#state", lambda texts: texts == ["completed"])

    assert is_midway
    assert len(answers) == 1
    await check_told_in_order(window, answers[0])
    assert await window.texts("li.user") == ["hello again"]
    assert await window.texts("li.tool") == ['count_words {"text":"hello again"}', '→ {"words":2}']
    assert await window.complaints() == []


@pytest.mark.clause("W-33")
async def test_a_page_goes_on_when_its_server_was_killed_and_is_back(page: tuple[Browser, Process], dev: Dev) -> None:
    window, process = page
    port = process.client.base_url.port
    assert port is not None
    await window.click("#new")
    await window.run(WATCH)
    await say(window, "hold fast")
    await window.until("li.assistant", lambda texts: bool(texts and texts[-1]))

    await process.kill()
    await window.until("#state", lambda texts: texts == ["reconnecting"])
    await dev(port)
    answers = await window.until("li.assistant", is_answer, within_s=40)
    await window.until("#state", lambda texts: texts == ["completed"])

    assert len(answers) == 1
    await check_told_in_order(window, answers[0])
    assert await window.texts("li.tool") == ['count_words {"text":"hold fast"}', '→ {"words":2}']
    # A server that is not there is what the console says, and nothing else.
    assert [text for text in await window.complaints() if not text.startswith("network:")] == []
