"""Invoices as a graph: fan out over a list, join, ask a person if it is much, then pay and archive side by side.

Two workers share the run. The line that fails is tried again by itself; everything else is called once.

python examples/invoices.py [database url]
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Any

from holdfast import Context, Decision, Holdfast, RetryPolicy, Workflow

INVOICES = ["hosting 120.00", "coffee 18.50", "chairs 940.00", "stamps 6.40"]
QUICKLY = RetryPolicy(max_attempts=3, backoff_ms=100)

flow = Workflow("invoices", version="2026-11")


@flow.step()
async def fetch(ctx: Context, input: str) -> list[str]:
    return INVOICES


@flow.map("parse", over="fetch", limit=8, retry=QUICKLY)
async def parse(ctx: Context, line: str) -> dict[str, Any]:
    if line.startswith("coffee") and ctx.attempt == 0:
        raise ConnectionError("the scanner does not answer")
    name, amount = line.split()
    return {"name": name, "cents": round(float(amount) * 100)}


@flow.step(after=["parse"])
def total(ctx: Context, parse: list[dict[str, Any]]) -> int:
    return sum(invoice["cents"] for invoice in parse)


flow.approval(
    "manager",
    after=["total"],
    when=lambda results: results["total"] > 50_000,
    details=lambda results: {"cents": results["total"]},
)
flow.wait("cooldown", seconds=0.2, after=["manager"])


@flow.step(after=["cooldown", "manager", "total"], irreversible=True)
async def pay(ctx: Context, manager: Decision | None, total: int) -> str:
    await ctx.outbox("bank", {"cents": total})
    return f"{total / 100:.2f} paid, approved by {manager.actor if manager else 'nobody, it was little'}"


@flow.step(after=["parse", "manager"])
async def archive(ctx: Context, parse: list[dict[str, Any]]) -> int:
    return len(parse)


async def main(url: str) -> None:
    async with Holdfast(url) as hf, Holdfast(url) as other:
        for runtime in (hf, other):
            runtime.register(flow)
        run = await hf.start(flow, "november", session_id="accounting")
        workers = [asyncio.create_task(runtime.worker(concurrency=4).run()) for runtime in (hf, other)]
        approving = asyncio.create_task(approve(hf, run.run_id))
        output = await hf.result(run.run_id, timeout=30)
        await approving
        for worker in workers:
            worker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await worker
        print(f"\nthe run is done: {output}")
        print(f"fsck: {'sound' if (await hf.fsck(run.run_id)).ok else 'broken'}")


async def approve(hf: Holdfast, run_id: str) -> None:
    """Watch the run like any reader, and answer its question."""
    async for event in hf.events(run_id, follow=True):
        if event.type in ("step_complete", "approval_requested", "approval_resolved"):
            print(f"  {event.at:%H:%M:%S}  {event.type:<18} {event.data}")
        if event.type == "approval_requested":
            graph = await hf.graph(run_id)
            assert graph is not None
            print(f"\n{graph.to_mermaid()}")
            await hf.approve(run_id, actor="ada", seen_rev=event.seq)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "invoices.db"))
