"""Routes of event streams: of a run, of a session, and the one of old that creates its run first."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response

from holdfast.errors import DatabaseError
from holdfast.http.following import SessionChunks, SessionCursor, run_chunks, seq_of
from holdfast.http.problems import documented
from holdfast.http.readers import Reader
from holdfast.http.routing import StreamRoute, stream_key
from holdfast.http.runs import LANE, ON_RUN, Key, tell_where
from holdfast.http.service import Service, in_time, missing
from holdfast.http.shapes import ChatRequest, PathId
from holdfast.http.sse import EventStream
from holdfast.runtime.following import Standing, standing

AT_ONCE_S = 2.0
LastEventId = Annotated[str | None, Header(alias="Last-Event-ID")]
FromQuery = Annotated[str | None, Query(max_length=1 << 16)]
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"description": "Server-sent events.", "content": {"text/event-stream": {}}}
}
_SEEN: dict[int | str, dict[str, Any]] = {204: {"description": "The end was seen before; do not come back."}}


def stream_routes(service: Service) -> APIRouter:
    """`…/events`, and `/api/chat`."""
    routes = APIRouter(route_class=StreamRoute, tags=["streams"])

    @routes.get("/api/runs/{run_id}/events", response_class=Response, responses={**ON_RUN, **_STREAM, **_SEEN})
    async def run_events(
        request: Request, run_id: PathId, cursor: FromQuery = None, last_event_id: LastEventId = None
    ) -> Response:
        """The run's events after a cursor, live, up to `done`. The header goes before the query."""
        user_id = await service.user(request)
        after = seq_of(last_event_id, cursor)
        try:
            async with asyncio.timeout(AT_ONCE_S):
                known = await standing(service.hf.journal, run_id, user_id)
        except (DatabaseError, TimeoutError):
            # A browser that is refused does not come back by itself; one that waits will see everything.
            return _stream_of(service, user_id, run_id, after, None)
        if known is None:
            raise await missing(service.hf.as_user(user_id), run_id)
        if known.ended_rev is not None and after >= known.ended_rev:
            return Response(status_code=204)
        if after:
            service.metrics.resumes.inc()
        return _stream_of(service, user_id, run_id, after, known)

    @routes.get("/api/sessions/{session_id}/events", response_class=Response, responses={**ON_RUN, **_STREAM})
    async def session_events(
        request: Request, session_id: PathId, cursor: FromQuery = None, last_event_id: LastEventId = None
    ) -> Response:
        """The events of every run of the session, those to come included. Ids are opaque, and safe to resume from."""
        mine = await service.asking(request)
        # Where the database is away, the stream itself asks whether there is such a session, until it knows.
        with contextlib.suppress(DatabaseError, TimeoutError):
            async with asyncio.timeout(AT_ONCE_S):
                await mine.sessions.check(session_id)
        reader = Reader()
        place = SessionCursor.parsed(cursor if last_event_id is None else last_event_id)
        user_id = await service.user(request)
        told = SessionChunks(service, reader, session_id, user_id=user_id, cursor=place)
        return EventStream(service, user_id, told.chunks(), reader)

    @routes.post(
        "/api/chat/{session_id}",
        response_class=Response,
        responses={**documented(400, 401, 404, 409, 410, 413, 422, 429, 503), **_STREAM},
    )
    async def chat(request: Request, session_id: PathId, body: ChatRequest, key: Key = None) -> Response:
        """For clients of old: create a run and stream it on the same connection. Going away does not cancel it."""
        mine = await service.asking(request)
        value = {**(body.model_extra or {}), "text": body.message}
        told = {"session_id": session_id, "clog_id": body.clog_id, "mode": "single", "lane": LANE}
        user_id = await service.user(request)
        async with in_time(service.limits.database_s):
            run = await mine.create_run(**told, input=value, key=stream_key(request))
            known = await standing(service.hf.journal, run.run_id, user_id)
        response = _stream_of(service, user_id, run.run_id, 0, known)
        tell_where(request, response, run.run_id)
        return response

    return routes


def _stream_of(service: Service, user_id: str, run_id: str, cursor: int, known: Standing | None) -> Response:
    reader = Reader()
    chunks = run_chunks(service, reader, run_id, user_id=user_id, cursor=cursor, known=known)
    return EventStream(service, user_id, chunks, reader)
