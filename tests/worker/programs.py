"""Processes of the worker tests: a mother that forks, and the roles of her children.

    python -m tests.worker.programs        commands on stdin, answers on stdout, both lines of JSON

A child is a worker with the clogs below, or a sender of signals. What handlers do outside the database they note in a
diary: lines `<what> <run> <number> <tick>` in one file, appended whole.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

# Imported before the first child is born: forking is quick, importing is not.
import asyncpg  # noqa: F401

from holdfast import Clog, Continue, Done, Holdfast, LeaseLost, Ok, ToolFailed
from holdfast.executor import Executor
from holdfast.handlers.ticks import ClaimedTick
from holdfast.journal import schedules
from holdfast.runtime.pulse import Hold, Pulse
from holdfast.store import postgres  # noqa: F401


class Diary:
    """One line for everything a handler does in the world outside."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, *words: Any) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def chores(diary: Diary) -> Clog:
    """Runs of several ticks, each of which stores, says and sends one thing."""
    clog = Clog("chores")

    @clog.on_advance
    async def advance(given: dict[str, Any], ctx: Any) -> Any:
        diary.note("began", ctx.run_id, given["number"], ctx.tick_id)
        (count,) = await ctx.read(("run",))
        await ctx.write(("run.set", (count or 0) + 1))
        await ctx.emit("chore", {"number": given["number"]})
        await ctx.outbox("post", {"run": ctx.run_id, "number": given["number"]}, key=f"{ctx.run_id}:{given['number']}")
        await asyncio.sleep(random.uniform(0.5, 1.5) * given["seconds"])
        diary.note("ended", ctx.run_id, given["number"], ctx.tick_id)
        number = given["number"] + 1
        return Continue({**given, "number": number}) if number < given["count"] else Done({"count": number})

    return clog


def fragile(diary: Diary) -> Clog:
    """Its process dies at the named place, the first time."""
    clog = Clog("fragile")

    @clog.on_advance
    async def advance(place: str, ctx: Any) -> Any:
        diary.note("began", ctx.run_id, 0, ctx.tick_id)
        (count,) = await ctx.read(("run",))
        await ctx.write(("run.set", (count or 0) + 1))
        _die_at("after write", place, ctx)
        await ctx.emit("half", {"place": place})
        _die_at("after event", place, ctx)
        await ctx.outbox("post", {"place": place})
        return Done({"deliveries": ctx.deliveries})

    return clog


def _die_at(place: str, wanted: str, ctx: Any) -> None:
    if place == wanted and ctx.deliveries == 1:
        die()


def die_around_the_handler() -> None:
    """Two places that no handler can reach: right after the claim, and with the outcome in hand."""
    run, settle = Executor.run, ClaimedTick.settle

    async def doomed_run(self: Executor, taken: Any, **options: Any) -> Any:
        if taken.claim.input == "after claim" and taken.state.work[""].deliveries == 1:
            die()
        return await run(self, taken, **options)

    async def doomed_settle(self: ClaimedTick, *args: Any, **options: Any) -> Any:
        if self.state.clog_id == "fragile" and self.deliveries == 1:
            die()
        return await settle(self, *args, **options)

    Executor.run = doomed_run  # type: ignore[method-assign]
    ClaimedTick.settle = doomed_settle  # type: ignore[method-assign]


def deadly(diary: Diary) -> Clog:
    """Kills its process whenever it is called."""
    clog = Clog("deadly")

    @clog.on_advance
    async def advance(given: Any, ctx: Any) -> None:
        diary.note("began", ctx.run_id, ctx.deliveries, ctx.tick_id)
        die()

    return clog


def sleepy(diary: Diary) -> Clog:
    """Sleeps for as long as it is told, awake to cancellation or not."""
    clog = Clog("sleepy")

    @clog.on_advance
    async def advance(seconds: float, ctx: Any) -> Any:
        diary.note("began", ctx.run_id, 0, ctx.tick_id)
        await asyncio.sleep(seconds)
        return Done(ctx.deliveries)

    return clog


def stubborn(diary: Diary) -> Clog:
    """Will not be stopped."""
    clog = Clog("stubborn")

    @clog.on_advance
    async def advance(given: Any, ctx: Any) -> None:
        diary.note("began", ctx.run_id, 0, ctx.tick_id)
        while True:
            try:
                await asyncio.sleep(3_600)
            except asyncio.CancelledError:
                continue

    return clog


def mailbox(diary: Diary) -> Clog:
    """Keeps every signal in the order in which it came."""
    clog = Clog("mailbox")

    @clog.on_advance
    async def advance(given: Any, ctx: Any) -> Any:
        (kept,) = await ctx.read(("run",))
        await ctx.write(("run.set", [*(kept or []), [ctx.signal.seq, *given]]))
        await ctx.emit("read", given)
        return Ok()

    return clog


def spender(diary: Diary) -> Clog:
    """Uses a tool whose process dies, the first time, after its effect and before its answer."""
    clog = Clog("spender")

    @clog.on_advance
    async def advance(policy: str, ctx: Any) -> Any:
        def charge(args: Any, key: str) -> str:
            diary.note("charged", ctx.run_id, 0, key)
            if ctx.deliveries == 1:
                die()
            return "receipt"

        def probe(args: Any, key: str) -> str:
            diary.note("probed", ctx.run_id, 0, key)
            return "found"

        before = await ctx.tool("look", policy, lambda args: diary.note("looked", ctx.run_id, 0, ctx.tool_key))
        try:
            chosen = probe if policy == "probe" else policy
            return Done([before, await ctx.tool("charge", {"amount": 1}, charge, on_unknown=chosen)])
        except ToolFailed as error:
            return Done([before, error.code])

    return clog


CLOGS = (chores, fragile, deadly, sleepy, stubborn, mailbox, spender)


def ignore_the_clock(diary: Diary) -> None:
    """A worker without a deadline of its own: what it sends too late, only the database can refuse."""

    async def never(self: Pulse) -> None:
        return

    def unchecked(self: Hold) -> None:
        return

    Pulse._mourn_for_ever = never  # type: ignore[method-assign]
    Hold.check = unchecked  # type: ignore[method-assign]
    for method in ("settle", "_say"):
        setattr(ClaimedTick, method, _noting(getattr(ClaimedTick, method), diary))


def _noting(method: Callable[..., Coroutine[Any, Any, Any]], diary: Diary) -> Callable[..., Coroutine[Any, Any, Any]]:
    async def noted(self: ClaimedTick, *args: Any, **options: Any) -> Any:
        try:
            return await method(self, *args, **options)
        except LeaseLost as error:
            diary.note("refused", self.state.run_id, error.code, self.tick_id)
            raise

    return noted


async def work(given: dict[str, Any]) -> None:
    diary = Diary(given["diary"])
    die_around_the_handler()
    if given.get("deaf"):
        ignore_the_clock(diary)
    async with Holdfast(given["url"], schema=given["schema"], lease_ms=given["lease_ms"]) as holdfast:
        holdfast.register(*(make(diary) for make in CLOGS))
        diary.note("ready", os.getpid(), 0, "-")
        options = {name: given[name] for name in ("concurrency", "drain_s", "sticky_ttl_s") if name in given}
        await holdfast.worker(**options).run()


async def send(given: dict[str, Any]) -> None:
    """Send each run its signals in order, all runs at once."""

    async def letters(run_id: str) -> None:
        for number in range(given["count"]):
            receipt = await holdfast.signal(run_id, [given["name"], number])
            assert receipt.accepted

    async with Holdfast(given["url"], schema=given["schema"]) as holdfast:
        await asyncio.gather(*map(letters, given["run_ids"]))


async def sweep(given: dict[str, Any]) -> None:
    """Start one window of a schedule and die at the named place: right before its commit, or right after."""
    start = schedules._start

    async def doomed(*told: Any) -> Any:
        if given["place"] == "before":
            die()
        await start(*told)
        die()

    schedules._start = doomed  # type: ignore[assignment]
    async with Holdfast(given["url"], schema=given["schema"]) as holdfast:
        await holdfast.journal.sweep()


Role = Callable[[dict[str, Any]], Coroutine[Any, Any, None]]
ROLES: dict[str, Role] = {"worker": work, "sender": send, "sweeper": sweep}


class Mother:
    """Forks, signals and reaps, one command after the other. Her children do not outlive her."""

    def __init__(self, roles: Mapping[str, Role]) -> None:
        self._roles = roles
        self._children: set[int] = set()

    def start(self, role: str, given: dict[str, Any]) -> int:
        pid = os.fork()
        if pid == 0:
            self._live(role, given)
        self._children.add(pid)
        return pid

    def send(self, pid: int, number: int) -> None:
        os.kill(pid, number)

    def wait(self, pid: int, within_s: float) -> int | None:
        deadline = time.monotonic() + within_s
        while True:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self._children.discard(pid)
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() >= deadline:
                return None
            time.sleep(0.005)

    def end_all(self) -> None:
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)

    def _live(self, role: str, given: dict[str, Any]) -> None:
        """A child's whole life. The mother's pipes are not its own: her test must see her end."""
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        random.seed()
        code = 1
        try:
            asyncio.run(self._roles[role](given))
            code = 0
        except Exception:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)


def main(roles: Mapping[str, Role] = ROLES) -> None:
    mother = Mother(roles)
    gc.freeze()
    for line in sys.stdin:
        word, *arguments = json.loads(line)
        print(json.dumps(getattr(mother, word)(*arguments)), flush=True)
    mother.end_all()


if __name__ == "__main__":
    main()
