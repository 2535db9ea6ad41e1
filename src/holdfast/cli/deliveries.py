"""Commands for the outbox: `outbox` shows it or delivers, `reconcile` puts right what was left behind."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import Annotated

import typer

from holdfast.cli.app import OK, PROBLEMS, Desk, command, on_runs
from holdfast.cli.output import pairs, table
from holdfast.cli.working import App, load
from holdfast.errors import InvalidValue
from holdfast.facade import Holdfast
from holdfast.outbox.deliveries import MAX_RETRIES
from holdfast.outbox.reconciling import STALE_S, WINDOW_S
from holdfast.outbox.records import FAILED_CODES
from holdfast.outbox.relay import IDLE_MAX_S, LEASE_S
from holdfast.store.doctor import check_ready

SHOWN = 20


@command()
async def outbox(
    desk: Desk,
    *,
    app: App = None,
    once: Annotated[bool, typer.Option("--once", help="Deliver one batch and end; 1 if any row failed.")] = False,
    loop: Annotated[bool, typer.Option("--loop", help="Deliver until SIGTERM or Ctrl-C.")] = False,
    requeue: Annotated[str | None, typer.Option(metavar="ID", help="Try a dead row again, as a new one.")] = None,
    batch: Annotated[int, typer.Option(help="With --once: how many rows.")] = 10,
    max_retries: Annotated[int, typer.Option(help="Tries of a row, unless it or its sink says.")] = MAX_RETRIES,
    lease_s: Annotated[float, typer.Option(help="How long a claim lasts without a heartbeat.")] = LEASE_S,
    interval_s: Annotated[float, typer.Option(help="With --loop: how often to look, at least.")] = IDLE_MAX_S,
    drain_s: Annotated[float, typer.Option(help="With --loop: how long deliveries may take to end.")] = 30.0,
    worker_id: Annotated[str | None, typer.Option(help="Who delivers; otherwise a new name.")] = None,
) -> int:
    """Show the outbox; or deliver with the sinks of your program (--once, --loop), or requeue a dead row."""
    if once + loop + (requeue is not None) > 1:
        raise InvalidValue("choose one of --once, --loop and --requeue")
    if loop:
        async with load(app) as hf:
            return await _loop(
                hf,
                worker_id=worker_id,
                lease_seconds=lease_s,
                max_retries=max_retries,
                drain_s=drain_s,
                idle_max_s=interval_s,
            )
    if once:
        async with load(app) as hf:
            return _tell(desk, await hf.outbox.flush_once(worker_id, batch, lease_s, max_retries))
    await check_ready(desk.url, schema=desk.schema)
    hf = desk.holdfast()
    await hf.open(migrate=False)
    try:
        return await (_show(desk, hf) if requeue is None else _requeue(desk, hf, requeue))
    finally:
        await hf.close()


@on_runs()
async def reconcile(
    desk: Desk,
    hf: Holdfast,
    *,
    report: Annotated[bool, typer.Option("--report", help="Only say what is amiss.")] = False,
    window_s: Annotated[float, typer.Option(help="Rows that ended this long ago are looked at.")] = WINDOW_S,
    stale_s: Annotated[float, typer.Option(help="How old an expired lock must be.")] = STALE_S,
    delay_s: Annotated[float, typer.Option(help="When a freed row is due again.")] = 0,
) -> int:
    """Write the audits that are missing and free the locks that nobody came back for. 1 if something is left."""
    found = await hf.outbox.reconcile(report, window_s=window_s, stale_s=stale_s, delay_s=delay_s)
    if desk.out.json:
        desk.out.tell({**{name: getattr(found, name) for name in found.__struct_fields__}, "ok": found.ok})
    else:
        rows = [(each, "no audit of its end") for each in found.missing_audits]
        rows += [(each, "a lock that nobody came back for") for each in found.stale_locks]
        if rows:
            desk.out.show(table(("row", "amiss"), rows))
        desk.out.show(f"{found.found} found, {found.fixed} put right")
    return OK if found.ok else PROBLEMS


async def _loop(hf: Holdfast, **options: object) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    relay = hf.outbox.relay(**options)
    running = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        running.add_signal_handler(number, relay.stop)
    logging.getLogger("holdfast").info("%s delivers", relay.worker_id)
    await relay.run()
    ends = ", ".join(f"{count} {code}" for code, count in relay.counts.items() if count)
    logging.getLogger("holdfast").info("%s has stopped: %s", relay.worker_id, ends or "nothing was due")
    return OK


def _tell(desk: Desk, counts: dict[str, int]) -> int:
    if desk.out.json:
        desk.out.tell(counts)
    else:
        desk.out.show(pairs({code: count for code, count in counts.items() if count} or {"nothing": "was due"}))
    return PROBLEMS if any(counts[code] for code in FAILED_CODES) else OK


async def _show(desk: Desk, hf: Holdfast) -> int:
    report = await hf.outbox.report()
    dead = await hf.outbox.rows("dead", limit=SHOWN)
    if desk.out.json:
        desk.out.tell({"report": report, "dead": dead})
        return OK
    desk.out.show(pairs({**report.statuses, "held": report.locked, "oldest pending": report.oldest_pending_at}))
    if dead:
        rows = [(each.outbox_id, each.target_space, each.settled_at, each.last_error) for each in dead]
        desk.out.show("", table(("dead", "space", "since", "error"), rows))
    return OK


async def _requeue(desk: Desk, hf: Holdfast, outbox_id: str) -> int:
    made = await hf.outbox.requeue(outbox_id)
    if desk.out.json:
        desk.out.tell({"outbox_id": made, "requeued_from": outbox_id})
    else:
        desk.out.show(f"{outbox_id} is tried again as {made}")
    return OK
