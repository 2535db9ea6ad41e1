"""A first run, printed live: a worker dies in the middle, another one finishes, and the journal proves it.

make first          # or: python examples/first_run.py [database url]
"""

from __future__ import annotations

import asyncio
import sys

from holdfast import Claim, Done, Event, Holdfast

LEASE_MS = 1_500


async def main(url: str) -> None:
    async with Holdfast(url, lease_ms=LEASE_MS) as hf:
        run = await hf.create_run(session_id="demo", clog_id="greeter", input={"name": "Ada"}, queue="first-run")
        print(f"run {run.run_id} is {run.status}; its database is {url}\n")
        watcher = asyncio.create_task(watch(hf, run.run_id))

        await die_in_the_middle(hf)
        await finish(hf)

        await watcher
        ended = await hf.get_run(run.run_id)
        assert ended is not None
        print(f"\nthe run is {ended.status}: {ended.output}")
        report = await hf.fsck(run.run_id)
        verdict = "rows and journal agree" if report.ok else report.problems
        print(f"fsck refolded its {ended.rev} journal entries: {verdict}")


async def watch(hf: Holdfast, run_id: str) -> None:
    """Print every event as it happens, until the run is over."""
    async for event in hf.events(run_id, follow=True):
        print(f"  {event.at:%H:%M:%S.%f}  {event.seq:>2}  {event.type:<15} {shown(event)}", flush=True)


async def die_in_the_middle(hf: Holdfast) -> None:
    """A worker that claims the run, says something, and is never heard of again."""
    claim = await next_claim(hf, "worker-1")
    await hf.emit(claim, "text", f"Hello {claim.input['name']}, I am about to")


async def finish(hf: Holdfast) -> None:
    """Another worker: it waits until the first one's lease has ended, then does the whole tick."""
    claim = await next_claim(hf, "worker-2")
    for words in (f"Hello {claim.input['name']}!", "Nothing was lost."):
        await hf.emit(claim, "text", words)
    await hf.complete(claim, Done({"greeted": claim.input["name"]}))


async def next_claim(hf: Holdfast, owner: str) -> Claim:
    """Ask until there is work: the search is cheap, and a lease that runs out tells nobody."""
    while True:
        for claim in await hf.claim_next("first-run", owner=owner):
            return claim
        await asyncio.sleep(0.1)


def shown(event: Event) -> str:
    return event.data if isinstance(event.data, str) else str(event.data)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "first-run.db"))
