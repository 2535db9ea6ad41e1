"""Routes of sessions: the conversations that runs belong to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from holdfast.http.problems import documented
from holdfast.http.routing import Route, chosen_id
from holdfast.http.runs import ON_RUN, Key
from holdfast.http.service import Service, next_page
from holdfast.http.shapes import Cursor, Limit, Ok, PathId, SessionRequest, SessionState, SessionView, ms
from holdfast.journal.conversation import Message
from holdfast.protocol.values import canonical
from holdfast.runtime.sessions import Session

_LISTED = documented(401, 422, 429, 503)


def session_routes(service: Service) -> APIRouter:
    """`/api/sessions`."""
    routes = APIRouter(route_class=Route, tags=["sessions"])

    @routes.get("/api/sessions", response_model=list[SessionView], responses=_LISTED)
    async def list_sessions(
        request: Request, response: Response, limit: Limit = 50, cursor: Cursor = None
    ) -> list[SessionView]:
        """The caller's sessions, those that moved last first. `Link` names the next page."""
        mine = await service.asking(request)
        page = await mine.sessions.list(max(1, min(limit, 100)), cursor)
        if page.next is not None:
            response.headers["Link"] = next_page(request, page.next)
        return [_view(each) for each in page.items]

    @routes.post(
        "/api/sessions", response_model=SessionView, responses=documented(400, 401, 404, 409, 413, 422, 429, 503)
    )
    async def create_session(request: Request, body: SessionRequest | None = None, key: Key = None) -> SessionView:
        """An empty session, kept at once."""
        mine = await service.asking(request)
        told = body or SessionRequest()
        return _view(await mine.sessions.create(told.session_id or chosen_id(request), title=told.title))

    @routes.get("/api/sessions/{session_id}", response_model=SessionState, responses=ON_RUN)
    async def get_session(request: Request, session_id: PathId) -> SessionState:
        """The session with its messages: what was asked, what tools did, what was answered."""
        mine = await service.asking(request)
        found = await mine.sessions.get(session_id)
        return SessionState(
            session_id=found.session_id,
            title=found.title,
            created_at=ms(found.created_at),
            updated_at=ms(found.updated_at),
            run_id=found.run_id,
            messages=list(messages(await mine.sessions.messages(session_id))),
        )

    @routes.delete("/api/sessions/{session_id}", response_model=Ok, responses=ON_RUN)
    async def delete_session(request: Request, session_id: PathId, force: Annotated[bool, Query()] = False) -> Ok:
        """Delete the session with its runs. While one of them is worked on this is a conflict, unless forced."""
        mine = await service.asking(request)
        await mine.delete_session(session_id, force=force, actor=await service.user(request))
        return Ok(ok=True)

    @routes.post("/api/sessions/{session_id}/cancel", response_model=Ok, responses=ON_RUN)
    async def cancel_session(request: Request, session_id: PathId, key: Key = None) -> Ok:
        """Ask every open run of the session to stop; `ok` says whether there was one."""
        mine = await service.asking(request)
        return Ok(ok=await mine.sessions.cancel(session_id, actor=await service.user(request)) > 0)

    return routes


def messages(told: Sequence[Message]) -> Iterator[dict[str, Any]]:
    """Messages as chat clients know them: a call is part of an assistant's message, its result one of its own."""
    for each in told:
        message: dict[str, Any] = {"role": each.role, "content": each.content}
        if each.role == "assistant" and each.tool is not None:
            function = {"name": each.tool, "arguments": canonical(each.args)}
            message["tool_calls"] = [{"id": each.tool_call_id, "type": "function", "function": function}]
        elif each.role == "tool":
            message |= {"tool_call_id": each.tool_call_id, "tool_name": each.tool, "is_error": each.is_error}
        yield message | {"run_id": each.run_id, "seq": each.seq, "ts": ms(each.at)}


def _view(found: Session) -> SessionView:
    return SessionView(
        session_id=found.session_id,
        title=found.title,
        created_at=ms(found.created_at),
        updated_at=ms(found.updated_at),
        message_count=found.message_count,
        last_user_message=found.last_user_message,
        run_id=found.run_id,
    )
