"""Commands that look: `runs`, `approvals`, `inspect`, `explain`, `graph`."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from holdfast.cli.app import Desk, Run, on_runs
from holdfast.cli.output import pairs, table
from holdfast.errors import NotFound
from holdfast.facade import Holdfast
from holdfast.moments import from_us
from holdfast.runtime import (
    Explanation,
    GraphEdge,
    GraphNode,
    Inspection,
    ListedRun,
    OpenQuestion,
    Page,
    RunGraph,
)
from holdfast.runtime.explanation import span

WATCH_S = 1.0
SHOWN_MAX = 20
TICK = "(tick)"
"""How a run's own work item is shown: its key is empty."""


@on_runs()
async def runs(
    desk: Desk,
    hf: Holdfast,
    *,
    session: Annotated[str | None, typer.Option(help="Only runs of this session.")] = None,
    clog: Annotated[str | None, typer.Option(help="Only runs of this clog.")] = None,
    status: Annotated[list[str] | None, typer.Option(help="Only runs in this status; may be repeated.")] = None,
    user: Annotated[str | None, typer.Option(help="Only runs of this user.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="How many.")] = 20,
    cursor: Annotated[str | None, typer.Option(help="Go on where the last page ended.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Stay, and show them anew every second.")] = False,
) -> None:
    """List runs, newest first, without their contents."""
    asker = hf if user is None else hf.as_user(user)

    async def ask() -> Page[ListedRun]:
        return await asker.list_runs(session, clog, status or None, limit, cursor)

    page = await ask()
    if desk.out.json:
        desk.out.tell({"runs": page.items, "next": page.next})
    elif watch:
        with Live(_list(page), console=desk.out.console, auto_refresh=False) as live:
            while True:
                await asyncio.sleep(WATCH_S)
                live.update(_list(await ask()), refresh=True)
    else:
        desk.out.show(_list(page))
        if page.next:
            desk.out.show(f"more: --cursor {page.next}")


@on_runs()
async def approvals(
    desk: Desk,
    hf: Holdfast,
    *,
    session: Annotated[str | None, typer.Option(help="Only runs of this session.")] = None,
    clog: Annotated[str | None, typer.Option(help="Only runs of this clog.")] = None,
    user: Annotated[str | None, typer.Option(help="Only runs of this user.")] = None,
    pauses: Annotated[bool, typer.Option("--pauses", help="Runs that are paused, too.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=100, help="How many.")] = 20,
    cursor: Annotated[str | None, typer.Option(help="Go on where the last page ended.")] = None,
) -> None:
    """List what people are asked, over all runs. Answer with `approve`, `reject` or `resume`."""
    asker = hf if user is None else hf.as_user(user)
    page = await asker.approvals(session, clog, None if pauses else "approval", limit, cursor)
    if desk.out.json:
        desk.out.tell({"approvals": page.items, "next": page.next})
        return
    now = from_us(await hf.journal.store.now())
    desk.out.show(_questions(page, now))
    if page.next:
        desk.out.show(f"more: --cursor {page.next}")


@on_runs()
async def inspect(desk: Desk, hf: Holdfast, *, run: Run) -> None:
    """Show everything about a run: status, work, ticks, orders, anomalies, family."""
    seen = await hf.inspect(run)
    if seen is None:
        raise _unknown(run)
    if desk.out.json:
        desk.out.tell(seen.to_dict())
    else:
        desk.out.show(*_picture(seen))


@on_runs()
async def explain(desk: Desk, hf: Holdfast, *, run: Run) -> None:
    """Say why a run is where it is, and what would move it on."""
    found = await hf.explain(run)
    if found is None:
        raise _unknown(run)
    if desk.out.json:
        desk.out.tell(found.to_dict())
    else:
        desk.out.show(*_words(found))


@on_runs()
async def graph(
    desk: Desk,
    hf: Holdfast,
    *,
    run: Run,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print the picture in Mermaid's words.")] = False,
) -> None:
    """Show the steps of a run, what comes after what, and how far each one is."""
    found = await hf.graph(run)
    if found is None:
        raise _unknown(run)
    if mermaid:
        for line in found.to_mermaid().splitlines():
            desk.out.show_line(Text(line))
    elif desk.out.json:
        desk.out.tell(found.to_dict())
    else:
        desk.out.show(*_steps(found))


def _unknown(run_id: str) -> NotFound:
    return NotFound(f"there is no run {run_id}")


def _list(page: Page[ListedRun]) -> RenderableType:
    if not page.items:
        return "no runs"
    columns = ("run", "status", "clog", "session", "queue", "attempt", "created", "updated")
    return table(
        columns,
        (
            (
                *(run.run_id, run.status, run.clog_id, run.session_id, run.queue, run.attempt),
                *(run.created_at, run.updated_at),
            )
            for run in page.items
        ),
    )


def _questions(page: Page[OpenQuestion], now: datetime) -> RenderableType:
    if not page.items:
        return "nobody is asked anything"
    columns = ("run", "asks", "step", "details", "since", "until", "rev", "clog", "session")
    return table(
        columns,
        (
            (
                *(each.run_id, each.kind, each.step, each.details, span(now - each.asked_at)),
                *(span(each.expires_at - now) if each.expires_at else None, each.rev, each.clog_id, each.session_id),
            )
            for each in page.items
        ),
    )


def _words(found: Explanation) -> list[RenderableType]:
    head = {"run": found.run_id, "status": found.status, "reason": found.reason, "next": ", ".join(found.next_actions)}
    return [pairs({"": found.summary}), "", pairs(head), pairs(found.to_dict()["details"])]


def _steps(found: RunGraph) -> list[RenderableType]:
    """Each step with what it waits for."""
    head = pairs({"run": found.run_id, "status": found.status, "workflow": found.clog_id, "version": found.version})
    if not found.nodes:
        return [head, "no steps"]
    sources: dict[str, list[str]] = {}
    for edge in found.edges:
        sources.setdefault(edge.target, []).append(edge.source if edge.kind == "dependency" else _way(edge))
    rows = [(node.id, node.kind, node.state, _items(node), ", ".join(sources.get(node.id, ()))) for node in found.nodes]
    return [head, table(("step", "kind", "state", "items", "after"), rows, title="\nSteps")]


def _way(edge: GraphEdge) -> str:
    return f"{edge.source} ({edge.kind})"


def _items(node: GraphNode) -> str | None:
    return None if node.items is None else f"{node.items_done}/{node.items}"


def _picture(seen: Inspection) -> list[RenderableType]:
    head = pairs(
        {
            "run": seen.run_id,
            "status": seen.status,
            "reason": seen.reason,
            "rev": seen.rev,
            "clog": seen.clog_id,
            "session": seen.session_id,
            "queue": seen.queue,
            "lane": seen.lane,
            "created": seen.created_at,
            "started": seen.started_at,
            "updated": seen.updated_at,
            "finished": seen.finished_at,
            "cancel requested": seen.cancel_requested_at,
            "next visible": seen.next_visible_at,
            "error": seen.last_error,
            "error kind": seen.error_kind,
            "signals waiting": seen.signals_waiting or None,
            "question": _question(seen),
            "parent": seen.parent_run.run_id if seen.parent_run else None,
            "replayed from": seen.replayed_from,
            "forked from": seen.forked_from,
        }
    )
    parts = (_work(seen), _ticks(seen), _orders(seen), _anomalies(seen), _children(seen))
    return [head, *(part for part in parts if part is not None)]


def _question(seen: Inspection) -> str | None:
    return f"{seen.manual_state.kind} of {seen.manual_state.step}" if seen.manual_state else None


def _work(seen: Inspection) -> RenderableType | None:
    columns = ("key", "status", "attempt", "deliveries", "visible", "worker", "lease until")
    names = ("status", "attempt", "deliveries", "visible_at", "owner_id", "lease_until")
    rows = [(item.runnable_key or TICK, *(getattr(item, name) for name in names)) for item in seen.attempts]
    return _part("Work", columns, rows)


def _ticks(seen: Inspection) -> RenderableType | None:
    columns = ("tick", "key", "outcome", "started", "from rev", "to rev")
    rows = [
        (
            *(tick.tick_id, tick.runnable_key or TICK, tick.outcome or "running", tick.started_at),
            *(tick.claimed_rev, tick.settled_rev),
        )
        for tick in seen.ticks
    ]
    return _part("Ticks", columns, rows)


def _orders(seen: Inspection) -> RenderableType | None:
    rows = [(each.rev, each.command, each.at, each.actor, each.comment) for each in seen.command_history]
    return _part("Orders", ("rev", "order", "at", "by", "comment"), rows)


def _anomalies(seen: Inspection) -> RenderableType | None:
    rows = [(each.rev, each.reason, each.entry_kind, each.claim_id, each.step) for each in seen.anomalies]
    return _part("Anomalies", ("rev", "reason", "entry", "claim", "step"), rows)


def _children(seen: Inspection) -> RenderableType | None:
    rows = [(child.run_id, child.status or "open", child.clog_id, child.child_key) for child in seen.child_runs]
    return _part("Children", ("run", "status", "clog", "key"), rows)


def _part(title: str, columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> RenderableType | None:
    """A table of the last rows, or nothing if there are none."""
    if not rows:
        return None
    more = f" (the last {SHOWN_MAX} of {len(rows)})" if len(rows) > SHOWN_MAX else ""
    return table(columns, rows[-SHOWN_MAX:], title=f"\n{title}{more}")
