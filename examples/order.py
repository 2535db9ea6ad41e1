"""An order as a durable function: a step that fails once, a child run, an hour of sleep, and a person who decides.

The process "dies" after every tick: each one is another runtime on the same file, which knows nothing but the journal.

python examples/order.py [database url]
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from holdfast import FlowContext, Holdfast, RetryPolicy
from holdfast.testing import VirtualClock

calls: list[str] = []


async def reserve(item: str) -> dict[str, Any]:
    calls.append("reserve")
    return {"item": item, "price": 120}


async def charge(price: int) -> str:
    calls.append("charge")
    if calls.count("charge") == 1:
        raise ConnectionError("the bank does not answer")
    return f"receipt over {price}"


def define(hf: Holdfast) -> None:
    """The flows of this shop. Every process that may run them says this once."""

    @hf.flow("shipment")
    async def shipment(ctx: FlowContext, item: str) -> str:
        await ctx.sleep(hours=1)
        await ctx.emit("shipped", {"item": item})
        return f"{item} is on its way"

    @hf.flow("order", version=1, retry=RetryPolicy(max_attempts=3, backoff_ms=2_000))
    async def order(ctx: FlowContext, item: str) -> dict[str, Any]:
        reserved = await ctx.step("reserve", reserve, item)
        decision = await ctx.approval("expensive", details=reserved, expires=86_400)
        if not decision.approved:
            return {"refused_by": decision.actor}
        receipt = await ctx.step("charge", charge, reserved["price"])
        shipped = await ctx.run("shipment", key="parcel", input=item)
        await ctx.outbox("mail", {"text": f"{receipt}; {shipped}"})
        return {"approved_by": decision.actor, "receipt": receipt, "shipped": shipped}


async def main(url: str) -> None:
    clock = VirtualClock()
    run_id = await begin(url, clock)
    while True:
        # Every pass is a process of its own: what it knows of the order it reads from the journal.
        async with Holdfast(url, clock=clock) as hf:
            define(hf)
            await hf.advance(max_runs=1)
            for question in (await hf.approvals()).items:
                print(f"  to decide: {question.step} {question.details}")
                await hf.approve(question.run_id, actor="ada", comment="fine", seen_rev=question.rev)
            run = await hf.get_run(run_id)
            assert run is not None
            if run.finished_at:
                break
            due = (await hf.advance(max_runs=0)).next_wake_at
            clock.advance(seconds=max(0.0, (due - clock.now()).total_seconds()) if due else 0.0)
    await tell(url, clock, run_id)


async def begin(url: str, clock: VirtualClock) -> str:
    async with Holdfast(url, clock=clock) as hf:
        define(hf)
        run = await hf.start("order", "espresso machine", session_id="shop")
        return run.run_id


async def tell(url: str, clock: VirtualClock, run_id: str) -> None:
    async with Holdfast(url, clock=clock) as hf:
        async for event in hf.events(run_id):
            if event.type not in ("run_queued", "run_started"):
                print(f"  {event.at:%H:%M:%S}  {event.type:<18} {event.data}")
        print(f"\nthe order is done: {await hf.result(run_id)}")
        print(f"calls: {calls}; fsck: {'sound' if (await hf.fsck()).ok else 'broken'}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "order.db"))
