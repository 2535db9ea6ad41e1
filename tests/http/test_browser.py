"""The page of `holdfast dev` in a real browser: a conversation, a question, a break, and nothing in the console."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.http.browsers import Browser, browser
from tests.http.households import Process, start
from tests.http.pages import KNOWN

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
TOO_LONG = " ".join(["too long to wait for"] * 40)
"""Its answer repeats it word by word, which takes longer than a busy machine needs for a click."""
Dev = Callable[..., Awaitable[Process]]


@pytest.fixture
async def dev(tmp_path: Path) -> AsyncIterator[Dev]:
    """Starts `holdfast dev` on one file, at a port or at any; all are gone afterwards."""
    async with AsyncExitStack() as stack:

        async def started(port: int = 0, *program: str) -> Process:
            place = str(tmp_path / "dev.db")
            process = await start("dev", *program, "--port", str(port), "--db", place, HOLDFAST_DATABASE_URL=place)
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

    await say(window, TOO_LONG)
    await window.until("li.assistant", lambda texts: len(texts) == 3)
    await window.click("#cancel")
    await window.until("#state", lambda texts: texts == ["cancelled"])
    await keep(window, "cancelled")
    tools = await window.texts("li.tool")
    users = await window.texts("li.user")
    below = await window.run(BELOW)

    assert users == ["hello there", "publish this", TOO_LONG]
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
    back = await dev(port)
    answers = await window.until("li.assistant", is_answer, within_s=40)
    await window.until("#state", lambda texts: texts == ["completed"])

    assert len(answers) == 1
    await check_told_in_order(window, answers[0])
    assert await window.texts("li.tool") == ['count_words {"text":"hold fast"}', '→ {"words":2}']
    resumed = await back.client.get("/metrics")
    assert "holdfast_sse_resumes_total 1.0" in resumed.text, "it came with the last id that it had seen"
    # A server that is not there is what the console says, and nothing else.
    assert [text for text in await window.complaints() if not text.startswith("network:")] == []


@pytest.mark.clause("WB-19", "WB-20")
async def test_text_appends_final_replaces_and_what_is_unknown_is_ignored(dev: Dev) -> None:
    process = await dev(0, "tests.http.pages:clog")
    async with browser() as window:
        await window.go(str(process.client.base_url))
        await window.click("#new")
        await window.run(WATCH)
        await say(window, "everything")
        await window.until("#state", lambda texts: texts == ["completed"])
        seen = list(dict.fromkeys(await window.run("return window.seen")))
        await keep(window, "everything")

        assert await window.texts("#messages li") == [
            "everything",
            "First I think, then I look.",
            'look {"at":"<i>it</i>"}',
            "→ saw <i>it</i>",
            KNOWN,
        ]
        assert await window.texts("li.assistant") == [KNOWN]
        growing = ["Let me", "Let me look.", "I saw", "I saw it.", KNOWN]
        assert [text for text in growing if text in seen][-1] == KNOWN
        assert set(seen) <= set(growing), "piece by piece, and nothing else"

        await say(window, "fail")
        await window.until("#state", lambda texts: texts == ["error"])
        assert (await window.texts("li.error"))[-1] == "error: the model is <b>away</b>"
        assert await window.run("return document.querySelectorAll('#messages i, #messages b').length") == 0
        assert await window.complaints() == []


@pytest.mark.clause("WB-19", "H-W1", "WB-31")
async def test_what_a_lost_tick_said_is_shown_once(dev: Dev) -> None:
    async with browser() as window:
        await talk_to_one_who_dies(window, dev, "tests.http.pages:clog")

        shown = await window.texts("#messages li")
        assert shown == ["go on", "look {}", "→ seen", "Hm. ", "Looking. It is there."]


@pytest.mark.clause("WB-19", "H-W1")
async def test_what_a_finished_step_said_stands_although_its_tick_was_lost(dev: Dev) -> None:
    async with browser() as window:
        await talk_to_one_who_dies(window, dev, "tests.http.pages:flow")

        assert await window.texts("#messages li") == ["go on", "These words stand, and these follow."]


async def talk_to_one_who_dies(window: Browser, dev: Dev, program: str) -> None:
    """A conversation whose process is lost in the middle of its answer, and comes back."""
    process = await dev(0, program)
    await window.go(str(process.client.base_url))
    await window.click("#new")
    await say(window, "go on")
    await process.ended()
    await window.until("#state", lambda texts: texts == ["reconnecting"])
    await dev(process.client.base_url.port, program)
    await window.until("#state", lambda texts: texts == ["completed"], within_s=40)


async def test_nobody_talks_over_an_answer(page: tuple[Browser, Process]) -> None:
    window, process = page
    await say(window, TOO_LONG)
    await window.until("li.assistant", lambda texts: bool(texts and texts[-1]))

    await window.type("#message", "and another thing\n")
    is_closed = await window.run("return document.getElementById('send').disabled")
    await window.until("#state", lambda texts: texts == ["completed"], within_s=60)

    assert is_closed
    assert await window.texts("li.user") == [TOO_LONG]
    assert len((await process.client.get("/api/runs")).json()["runs"]) == 1
    await window.click("#send")
    await window.until("li.user", lambda texts: texts == [TOO_LONG, "and another thing"])
