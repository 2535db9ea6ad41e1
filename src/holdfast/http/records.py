"""Routes of what is on record: open questions, the outbox, tool calls, turns and proposals."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request

from holdfast.audit.records import Pair
from holdfast.errors import NotFound
from holdfast.facade import Holdfast
from holdfast.http.problems import documented
from holdfast.http.routing import Route
from holdfast.http.runs import ON_RUN, Key
from holdfast.http.service import Service
from holdfast.http.shapes import (
    AppliedRequest,
    At,
    Cursor,
    DecisionRequest,
    Items,
    Limit,
    PathId,
    QueryId,
    instant_of,
    plain,
)
from holdfast.moments import to_us
from holdfast.outbox.records import row_of
from holdfast.runtime.listing import cursor_at, place_of
from holdfast.store.outbox_sql import COLUMNS

_LISTED = documented(401, 404, 422, 429, 503)
Status = Annotated[str | None, Query(max_length=32)]


def record_routes(service: Service) -> APIRouter:
    """`/api/approvals`, `/api/outbox`, `/api/tool-calls`, `/api/turns`, `/api/proposals`."""
    routes = APIRouter(route_class=Route, tags=["records"])
    _add_approvals(routes, service)
    _add_outbox(routes, service)
    _add_audit(routes, service)
    _add_proposals(routes, service)
    return routes


def _add_approvals(routes: APIRouter, service: Service) -> None:
    @routes.get("/api/approvals", response_model=Items, responses=_LISTED)
    async def approvals(
        request: Request,
        session_id: QueryId = None,
        clog_id: QueryId = None,
        kind: Annotated[Literal["approval", "pause", "all"], Query()] = "approval",
        limit: Limit = 20,
        cursor: Cursor = None,
    ) -> Items:
        """The inbox: what the caller's runs ask a person, those of the newest runs first."""
        mine = await service.asking(request)
        wanted = None if kind == "all" else kind
        page = await mine.approvals(session_id, clog_id, wanted, max(1, min(limit, 100)), cursor)
        return Items(items=[plain(each) for each in page.items], next=page.next)


def _add_outbox(routes: APIRouter, service: Service) -> None:
    @routes.get("/api/outbox", response_model=Items, responses=_LISTED)
    async def outbox(
        request: Request,
        status: Annotated[Literal["pending", "sent", "dead"] | None, Query()] = None,
        limit: Limit = 20,
        cursor: Cursor = None,
    ) -> Items:
        """What the caller's runs have to deliver, newest first."""
        mine = await service.asking(request)
        return await _deliveries(mine, await service.user(request), status, max(1, min(limit, 100)), cursor)

    @routes.post("/api/outbox/{outbox_id}/requeue", response_model=dict[str, str], responses=ON_RUN)
    async def requeue(request: Request, outbox_id: PathId, key: Key = None) -> dict[str, str]:
        """Try a dead row's payload again, as a new row."""
        mine = await service.asking(request)
        return {"outbox_id": await mine.outbox.requeue(outbox_id)}


def _add_audit(routes: APIRouter, service: Service) -> None:
    @routes.get("/api/tool-calls", response_model=Items, responses=_LISTED)
    async def tool_calls(
        request: Request,
        parent_id: Annotated[str | None, Query(min_length=1, max_length=256)] = None,
        status: Status = None,
        tool: Annotated[str | None, Query(min_length=1, max_length=256)] = None,
        at: At = "NOW",
        limit: Limit = 100,
    ) -> Items:
        """The calls of a run or message, or all of the caller's, as they stood at an instant; the newest first."""
        mine = await service.asking(request)
        most = max(1, min(limit, 1_000))
        if parent_id is not None:
            pairs = await mine.audit.list_tool_calls_by_parent(parent_id, most, at=instant_of(at))
        else:
            pairs = await mine.audit.list_tool_calls(
                status=status or None, tool_name=tool, limit=most, at=instant_of(at)
            )
        return Items(items=[_call(pair) for pair in pairs])

    @routes.get("/api/turns", response_model=Items, responses=_LISTED)
    async def turns(request: Request, session_id: QueryId = None, at: At = "NOW", limit: Limit = 100) -> Items:
        """What was said, as it stood at an instant, the oldest first: in a session, also by its runs."""
        mine = await service.asking(request)
        most = max(1, min(limit, 1_000))
        found = await mine.audit.list_conversation_since(0, most, thread_id=session_id, at=instant_of(at))
        return Items(items=[plain(turn) for turn in found])


def _add_proposals(routes: APIRouter, service: Service) -> None:
    @routes.get("/api/proposals", response_model=Items, responses=_LISTED)
    async def proposals(request: Request, status: Status = None, at: At = "NOW", limit: Limit = 100) -> Items:
        """Proposed edits, as they stood at an instant, the newest first."""
        mine = await service.asking(request)
        most = max(1, min(limit, 1_000))
        found = await mine.audit.list_edit_proposals(status=status or None, limit=most, at=instant_of(at))
        return Items(items=[plain(each) for each in found])

    async def decide(request: Request, request_id: str, record: Callable[[Holdfast], Awaitable[Any]]) -> dict[str, Any]:
        """Do it, and answer the proposal as it stands then."""
        mine = await service.asking(request)
        if await mine.audit.get_edit_proposal(request_id) is None:
            raise NotFound(f"there is no proposal {request_id}")
        await record(mine)
        found: dict[str, Any] = plain(await mine.audit.get_edit_proposal(request_id))
        return found

    async def who(request: Request, body: DecisionRequest | None) -> str:
        return (body.actor if body else None) or await service.user(request)

    @routes.post("/api/proposals/{request_id}/approve", response_model=dict[str, Any], responses=ON_RUN)
    async def approve_proposal(
        request: Request, request_id: PathId, body: DecisionRequest | None = None, key: Key = None
    ) -> Any:
        actor = await who(request, body)
        return await decide(
            request, request_id, lambda mine: mine.audit.record_edit_decision(request_id, "approved", actor)
        )

    @routes.post("/api/proposals/{request_id}/deny", response_model=dict[str, Any], responses=ON_RUN)
    async def deny_proposal(
        request: Request, request_id: PathId, body: DecisionRequest | None = None, key: Key = None
    ) -> Any:
        actor = await who(request, body)
        return await decide(
            request, request_id, lambda mine: mine.audit.record_edit_decision(request_id, "denied", actor)
        )

    @routes.post("/api/proposals/{request_id}/apply", response_model=dict[str, Any], responses=ON_RUN)
    async def apply_proposal(
        request: Request, request_id: PathId, body: AppliedRequest | None = None, key: Key = None
    ) -> Any:
        told = body or AppliedRequest()
        return await decide(
            request,
            request_id,
            lambda mine: mine.audit.record_edit_applied(
                request_id, results_json=told.results, commit_hash=told.commit_hash
            ),
        )

    @routes.post("/api/proposals/{request_id}/revert", response_model=dict[str, Any], responses=ON_RUN)
    async def revert_proposal(
        request: Request, request_id: PathId, body: DecisionRequest | None = None, key: Key = None
    ) -> Any:
        actor = await who(request, body)
        return await decide(request, request_id, lambda mine: mine.audit.record_edit_reverted(request_id, actor=actor))


async def _deliveries(mine: Holdfast, user_id: str, status: str | None, limit: int, cursor: str | None) -> Items:
    conditions, values = ["user_id = $1"], [user_id]
    if status is not None:
        conditions.append("status = $2")
        values.append(status)
    places: Sequence[Any] = () if cursor is None else place_of(cursor)
    if places:
        conditions.append(f"(created_at, outbox_id) < (${len(values) + 1}, ${len(values) + 2})")
    sql = f"""
        SELECT {", ".join(COLUMNS)} FROM {{s}}outbox
        WHERE {" AND ".join(conditions)}
        ORDER BY created_at DESC, outbox_id DESC
        LIMIT {limit + 1}
    """
    found = [row_of(row) for row in await mine.journal.store.fetch(sql, *values, *places)]
    last = found[limit - 1] if len(found) > limit else None
    following = None if last is None else cursor_at(to_us(last.created_at), last.outbox_id)
    return Items(items=[plain(row) for row in found[:limit]], next=following)


def _call(pair: Pair) -> dict[str, Any]:
    request, done = pair
    shown: dict[str, Any] = plain(request)
    return shown | {"done": None if done is None else plain(done)}
