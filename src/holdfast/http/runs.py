"""Routes of runs: create, list, read, and everything a person can order a run to do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response

from holdfast.facade import Holdfast
from holdfast.http.problems import Refused, documented
from holdfast.http.routing import WAIT_MAX_S, PatientRoute, Route, chosen_id, command_key
from holdfast.http.service import Service, existing, missing, next_page, place
from holdfast.http.shapes import (
    Advanced,
    AdvanceRequest,
    AnswerRequest,
    CancelRequest,
    Cursor,
    ForkRequest,
    Limit,
    Ok,
    PathId,
    QueryId,
    ReplayRequest,
    ResumeRequest,
    RunList,
    RunRequest,
    RunView,
    SignalRequest,
    SignalView,
    Started,
    instant_of,
    maybe_ms,
    plain,
    run_view,
)
from holdfast.journal import Journal
from holdfast.journal.conversation import input_text
from holdfast.moments import from_us, to_us
from holdfast.protocol.outcomes import UNSET
from holdfast.protocol.views import WEB
from holdfast.runtime import RunInfo

LANE = "session"
"""HTTP runs of one session go one after the other."""
AT_REST = frozenset({"idle", "paused", "done", "failed", "cancelled"})
POLL_S = 0.5
LATEST_US = to_us(datetime.max.replace(tzinfo=UTC))
Key = Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=256)]
ON_RUN = documented(400, 401, 404, 409, 410, 413, 422, 429, 503)


def run_routes(service: Service) -> APIRouter:
    """`/api/runs` and `/api/advance`."""
    routes = APIRouter(route_class=Route, tags=["runs"])
    _add_creation(routes, service)
    _add_reading(routes, service)
    _add_orders(routes, service)
    _add_answers(routes, service)
    _add_copies(routes, service)
    patient = APIRouter(route_class=PatientRoute, tags=["runs"])
    _add_advance(patient, service)
    routes.include_router(patient)
    return routes


def _add_creation(routes: APIRouter, service: Service) -> None:
    @routes.post("/api/runs", status_code=202, response_model=Started, responses=ON_RUN)
    async def create_run(request: Request, response: Response, body: RunRequest, key: Key = None) -> Started:
        """Queue a run and answer at once; `Location` is its event stream, `Content-Location` the run."""
        mine = await service.asking(request)
        run = await mine.create_run(**creation(body, command_key(request)))
        tell_where(request, response, run.run_id)
        return Started(run_id=run.run_id, status="queued")

    @routes.get("/api/runs", response_model=RunList, responses=ON_RUN)
    async def list_runs(
        request: Request,
        response: Response,
        session_id: QueryId = None,
        clog_id: QueryId = None,
        statuses: Annotated[str | None, Query(max_length=256)] = None,
        limit: Limit = 20,
        cursor: Cursor = None,
    ) -> RunList:
        """The caller's runs, newest first; of `statuses` (with commas) unknown ones are ignored."""
        mine = await service.asking(request)
        page = await mine.list_runs(session_id, clog_id, states_of(statuses), max(1, min(limit, 100)), cursor)
        texts = await input_texts(mine.journal, [run.run_id for run in page.items])
        if page.next is not None:
            response.headers["Link"] = next_page(request, page.next)
        return RunList(runs=[run_view(run, texts[run.run_id]) for run in page.items], next=page.next)


def _add_reading(routes: APIRouter, service: Service) -> None:
    @routes.get("/api/runs/{run_id}", response_model=RunView, responses=ON_RUN)
    async def get_run(
        request: Request,
        run_id: PathId,
        as_of: Annotated[str | None, Query(max_length=64, description="A revision, or an instant.")] = None,
        wait: Annotated[int, Query(ge=0, description="Wait so many seconds for it to rest or end.")] = 0,
    ) -> RunView:
        """One run: now, as of a revision or an instant, or once it rests."""
        mine = await service.asking(request)
        run = await existing(mine, run_id)
        if as_of is not None:
            past = await mine.get_run(run_id, as_of=_moment(as_of))
            if past is None:
                raise await missing(mine, run_id)
            run = past
        elif wait and run.status not in AT_REST:
            run = await _waited(service, mine, run_id, min(wait, WAIT_MAX_S))
        return run_view(run, (await input_texts(mine.journal, [run_id]))[run_id])

    @routes.get("/api/runs/{run_id}/journal", response_model=dict[str, Any], responses=ON_RUN)
    async def journal(
        request: Request,
        run_id: PathId,
        after: Annotated[int, Query(ge=0, le=(1 << 31) - 1)] = 0,
        limit: Annotated[int, Query(ge=0)] = 100,
    ) -> dict[str, Any]:
        """The run's entries after a revision, in order; `next` is the revision to go on after."""
        mine = await service.asking(request)
        await existing(mine, run_id)
        most = max(1, min(limit, 1_000))
        entries = await mine.journal.read(f"run:{run_id}", after, most)
        items = [plain(entry) | {"data": without_hashes(entry.data)} for entry in entries]
        return {"items": items, "next": entries[-1].rev if len(entries) == most else None}

    @routes.get("/api/runs/{run_id}/inspect", response_model=dict[str, Any], responses=ON_RUN)
    async def inspect(request: Request, run_id: PathId) -> Any:
        """Everything about the run at one instant."""
        mine = await service.asking(request)
        return await _shown(mine, run_id, await mine.inspect(run_id))

    @routes.get("/api/runs/{run_id}/explain", response_model=dict[str, Any], responses=ON_RUN)
    async def explain(request: Request, run_id: PathId) -> Any:
        """Why the run is where it is, and what would move it on."""
        mine = await service.asking(request)
        return await _shown(mine, run_id, await mine.explain(run_id))

    @routes.get("/api/runs/{run_id}/graph", response_model=dict[str, Any], responses=ON_RUN)
    async def graph(request: Request, run_id: PathId) -> Any:
        """The run's steps as nodes and edges."""
        mine = await service.asking(request)
        return await _shown(mine, run_id, await mine.graph(run_id))


def _add_orders(routes: APIRouter, service: Service) -> None:
    @routes.post("/api/runs/{run_id}/cancel", response_model=Ok, responses=ON_RUN)
    async def cancel(request: Request, run_id: PathId, body: CancelRequest | None = None, key: Key = None) -> Ok:
        """Ask the run to stop; ok also for one that is over."""
        mine = await service.asking(request)
        await existing(mine, run_id)
        told = body or CancelRequest()
        await mine.cancel(run_id, told.reason, force=told.force, actor=told.actor or await service.user(request))
        return Ok(ok=True)

    @routes.post("/api/runs/{run_id}/signal", response_model=SignalView, responses=ON_RUN)
    async def signal(
        request: Request, run_id: PathId, body: SignalRequest | None = None, key: Key = None
    ) -> SignalView:
        """Put an input into the run's mailbox. A run that is over does not accept it, and says so."""
        mine = await service.asking(request)
        await existing(mine, run_id)
        told = body or SignalRequest()
        value = told.input if "input" in told.model_fields_set else UNSET
        receipt = await mine.signal(run_id, value, name=told.name, key=command_key(request), interrupt=told.interrupt)
        return SignalView(accepted=receipt.accepted, reason=receipt.reason, rev=receipt.rev)


def _add_answers(routes: APIRouter, service: Service) -> None:
    @routes.post("/api/runs/{run_id}/approve", response_model=RunView, responses=ON_RUN)
    async def approve(request: Request, run_id: PathId, body: AnswerRequest | None = None, key: Key = None) -> RunView:
        """Say yes to what the run asks."""
        mine = await service.asking(request)
        await existing(mine, run_id)
        told = await _answer(service, request, body or AnswerRequest())
        return await _viewed(mine, await mine.approve(run_id, **told))

    @routes.post("/api/runs/{run_id}/reject", response_model=RunView, responses=ON_RUN)
    async def reject(request: Request, run_id: PathId, body: AnswerRequest | None = None, key: Key = None) -> RunView:
        """Say no to what the run asks."""
        mine = await service.asking(request)
        await existing(mine, run_id)
        told = await _answer(service, request, body or AnswerRequest())
        return await _viewed(mine, await mine.reject(run_id, **told))

    @routes.post("/api/runs/{run_id}/resume", response_model=RunView, responses=ON_RUN)
    async def resume(request: Request, run_id: PathId, body: ResumeRequest | None = None, key: Key = None) -> RunView:
        """Let a paused run go on."""
        mine = await service.asking(request)
        await existing(mine, run_id)
        told = await _answer(service, request, body or ResumeRequest())
        return await _viewed(mine, await mine.resume(run_id, **told))


def _add_copies(routes: APIRouter, service: Service) -> None:
    @routes.post("/api/runs/{run_id}/fork", status_code=202, response_model=Started, responses=ON_RUN)
    async def fork(
        request: Request, response: Response, run_id: PathId, body: ForkRequest | None = None, key: Key = None
    ) -> Started:
        """Begin a new run with the first entries of this one."""
        mine = await service.asking(request)
        await existing(mine, run_id)
        told = body or ForkRequest()
        chosen = told.new_run_id or chosen_id(request)
        made = await _made(mine, request) or await mine.fork(
            run_id, told.at_rev, new_run_id=chosen, allow_irreversible=told.allow_irreversible
        )
        tell_where(request, response, made.run_id)
        return Started(run_id=made.run_id, status=WEB[made.status])  # type: ignore[index]

    @routes.post("/api/runs/{run_id}/replay", status_code=202, response_model=Started, responses=ON_RUN)
    async def replay(
        request: Request, response: Response, run_id: PathId, body: ReplayRequest | None = None, key: Key = None
    ) -> Started:
        """Create a new run as this one was created."""
        mine = await service.asking(request)
        await existing(mine, run_id)
        told = body or ReplayRequest()
        chosen = told.new_run_id or chosen_id(request)
        made = await _made(mine, request) or await mine.replay(
            run_id, new_run_id=chosen, allow_irreversible=told.allow_irreversible
        )
        tell_where(request, response, made.run_id)
        return Started(run_id=made.run_id, status=WEB[made.status])  # type: ignore[index]


def _add_advance(routes: APIRouter, service: Service) -> None:
    @routes.post("/api/advance", response_model=Advanced, responses=documented(400, 401, 413, 422, 429, 503))
    async def advance(request: Request, body: AdvanceRequest | None = None, key: Key = None) -> Advanced:
        """One pass over what is due here, for whoever has no worker. It shows only the caller's own runs."""
        mine = await service.asking(request)
        told = body or AdvanceRequest()
        result = await service.hf.advance(told.budget_ms, told.max_runs, told.queues)
        shown = [each for each in result.results if await mine.owns(each.run_id)]
        return Advanced(
            advanced=result.advanced,
            results=[plain(each) for each in shown],
            budget_exhausted=result.budget_exhausted,
            next_wake_at=maybe_ms(result.next_wake_at),
        )


def creation(body: RunRequest, key: str | None) -> dict[str, Any]:
    """What `create_run` is told: a message becomes the handler's `text`, with the request's other fields beside it."""
    others = body.model_extra or {}
    if body.message is None and "input" not in body.model_fields_set:
        raise Refused("a run needs a message or an input", status=422, code="invalid_value")
    if "input" in body.model_fields_set:
        others = {**others, "input": body.input}
    value = body.input if body.message is None else {**others, "text": body.message}
    options: dict[str, Any] = {"queue": body.queue} if body.queue else {}
    return {
        **options,
        "session_id": body.session_id,
        "clog_id": body.clog_id,
        "input": value,
        "mode": "single",
        "lane": LANE,
        "priority": body.priority,
        "metadata": body.metadata,
        "run_id": body.run_id,
        "key": key,
    }


def tell_where(request: Request, response: Response, run_id: str) -> None:
    """Its event stream, and the run itself."""
    response.headers["Location"] = place(request, f"/api/runs/{run_id}/events")
    response.headers["Content-Location"] = place(request, f"/api/runs/{run_id}")


def states_of(statuses: str | None) -> list[str] | None:
    """The exact states behind the web's words; None, for all of them, where no word is known."""
    words = {word.strip() for word in (statuses or "").split(",")}
    return [state for state, word in WEB.items() if word in words or state in words] or None


async def input_texts(journal: Journal, run_ids: Sequence[str]) -> dict[str, str]:
    """What each run was created with, as a person would have written it."""
    created = await journal.facts_at([(run_id, 1) for run_id in run_ids])
    return {run_id: input_text(getattr(fact, "input", None)) for (run_id, _), fact in created.items()}


def without_hashes(data: Any) -> Any:
    """What the journal knows of a claim's token stays there."""
    if isinstance(data, dict):
        return {name: value for name, value in data.items() if name != "claim_token_hash"}
    return data


async def _waited(service: Service, mine: Holdfast, run_id: str, seconds: int) -> RunInfo:
    """The run once it rests or is over, or as it is after so long, or when this process leaves."""

    async def rest() -> RunInfo:
        listener = mine.journal.store.listen(f"run:{run_id}")
        try:
            while (run := await existing(mine, run_id)).status not in AT_REST and not service.is_leaving:
                await listener.wait(POLL_S)
            return run
        finally:
            listener.close()

    try:
        async with asyncio.timeout(seconds):
            return await rest()
    except TimeoutError:
        return await existing(mine, run_id)


async def _answer(service: Service, request: Request, body: AnswerRequest | ResumeRequest) -> dict[str, Any]:
    told = body.model_dump()
    return told | {"actor": body.actor or await service.user(request), "key": command_key(request)}


async def _viewed(mine: Holdfast, run: RunInfo) -> RunView:
    return run_view(run, (await input_texts(mine.journal, [run.run_id]))[run.run_id])


async def _made(mine: Holdfast, request: Request) -> RunInfo | None:
    """The copy that this request made before its process was lost."""
    run_id = chosen_id(request)
    return None if run_id is None else await mine.get_run(run_id)


async def _shown(mine: Holdfast, run_id: str, found: object | None) -> Any:
    if found is None:
        raise await missing(mine, run_id)
    return plain(found)


def _moment(text: str) -> int | datetime:
    """A revision, or an instant as everywhere."""
    if text.isascii() and text.isdigit() and len(text) < 12:
        return int(text)
    # Nothing has happened before these years or after them.
    return from_us(min(max(instant_of(text), 0), LATEST_US))
