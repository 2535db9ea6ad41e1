"""How every route is called: bodies that can be stored, answers that are kept for their key, and no endless waits."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from holdfast.errors import DatabaseError
from holdfast.http.edge import TooLarge
from holdfast.http.problems import Refused
from holdfast.http.service import UNSAFE, Service, in_time
from holdfast.identity import check_name
from holdfast.outbound.client import TIMEOUT_S
from holdfast.protocol.values import DEPTH_MAX, clean, fingerprint
from holdfast.runtime.kept_answers import Answer, Place, Turn

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
KEPT_HEADERS = ("content-type", "location", "content-location")
KEY = "idempotency-key"
WAIT_MAX_S = 60
DISTANT_S = 3 * TIMEOUT_S
"""A provider may be asked who it is, for tokens, and for its keys."""


class JsonRequest(Request):
    """A request whose JSON is read once, with care: what is too deep is refused before anybody walks through it."""

    async def body(self) -> bytes:
        try:
            return await super().body()
        except TooLarge as error:
            raise Refused("the body is too large", status=413, code="too_large") from error

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            self._json = parsed(await self.body())
        return self._json


def parsed(body: bytes) -> Any:
    """The JSON of a body; `Refused` where it is none, says something twice, or cannot be read at all."""
    try:
        # The plain reader: it takes what can be repaired, such as half of a surrogate pair.
        return json.loads(body, object_pairs_hook=_object)
    except RecursionError as error:
        text = f"the body is nested deeper than {DEPTH_MAX} levels; flatten it"
        raise Refused(text, status=422, code="invalid_value") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise Refused(f"the body is no JSON: {error}", status=400, code="malformed") from error
    except ValueError as error:
        # JSON has no longest number. Python has, and so have we.
        raise Refused("the body has a number that is too long to be read", status=422, code="invalid_value") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object that says each thing once: of two values another reader might take the other one."""
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(name for place, (name, _) in enumerate(pairs) if name in dict(pairs[:place]))
        raise Refused(f"the body says {twice[:64]!r} twice in one object", status=422, code="invalid_value")
    return found


def service_of(request: Request) -> Service:
    found: Service = request.app.state.holdfast
    return found


class Route(APIRoute):
    """A route of the API. A POST with an `Idempotency-Key` is carried out once for its user, route and key."""

    keeps_answers = True

    def get_route_handler(self) -> Handler:
        original = super().get_route_handler()

        async def handle(request: Request) -> Response:
            given = JsonRequest(request.scope, request.receive)
            service = service_of(given)
            async with in_time(self._patience_s(service, given)):
                return await self._answered(service, given, original)

        return handle

    def _patience_s(self, service: Service, request: Request) -> float | None:
        """How long to wait for the database, as long as a person would; None to wait for whatever it takes."""
        wait = request.query_params.get("wait", "0")
        return service.limits.database_s + (min(int(wait), WAIT_MAX_S) if wait.isascii() and wait.isdigit() else 0)

    async def _answered(self, service: Service, request: JsonRequest, original: Handler) -> Response:
        if request.method in UNSAFE and await request.body():
            # Here, because the framework has one word for everything that is wrong with a body.
            await request.json()
        if self.keeps_answers and request.method == "POST" and KEY in request.headers:
            return await _once(service, request, original)
        return await original(request)


class PatientRoute(Route):
    """A route that takes as long as the work it begins."""

    def _patience_s(self, service: Service, request: Request) -> float | None:
        return None


class DistantRoute(Route):
    """A route that asks others too, who have time limits of their own. What it answers belongs to one browser."""

    keeps_answers = False

    def _patience_s(self, service: Service, request: Request) -> float | None:
        return service.limits.database_s + DISTANT_S


class StreamRoute(PatientRoute):
    """A route whose answer is a stream, which nobody can keep: what it begins has a key of its own."""

    keeps_answers = False


async def _once(service: Service, request: JsonRequest, original: Handler) -> Response:
    """Answer as before, or find an answer and keep it. Where nothing was done, nothing is kept."""
    user_id = await service.user(request)
    place = Place(user_id, f"{request.method} {request.url.path}", check_name(request.headers[KEY], KEY))
    turn = await service.answers.begin(place, await _fingerprint(request))
    if isinstance(turn, Answer):
        return Response(turn.body, turn.status, {**turn.headers, "Idempotency-Replayed": "true"})
    request.state.nonce = turn.nonce
    try:
        response = await original(request)
    except Exception:
        await _let_go(service, turn)
        raise
    if response.status_code >= 300 or not isinstance(response.body, bytes) or not response.body:
        await _let_go(service, turn)
        return response
    headers = {name: response.headers[name] for name in KEPT_HEADERS if name in response.headers}
    await service.answers.keep(turn, Answer(response.status_code, headers, response.body))
    return response


async def _let_go(service: Service, turn: Turn) -> None:
    """Without a database the row stays; whoever comes with the key later takes it over."""
    try:
        await service.answers.forget(turn)
    except DatabaseError:
        return


async def _fingerprint(request: JsonRequest) -> str:
    body = await request.body()
    try:
        value = parsed(body) if body else None
    except Refused:
        value = body.hex()
    return fingerprint([str(request.url.query), clean(value)[0]])


def command_key(request: Request) -> str | None:
    """The key under which a command of this request is carried out once; None where nobody asked for that."""
    nonce: str | None = getattr(request.state, "nonce", None)
    return None if nonce is None else f"http:{nonce}"


def stream_key(request: Request) -> str | None:
    """The key of what a stream begins: as long as that lives, the same request comes back to it."""
    given = request.headers.get(KEY)
    return None if given is None else f"http:{fingerprint([request.url.path, check_name(given, KEY)])}"


def chosen_id(request: Request) -> str | None:
    """The id of what this request makes: the same one for whoever takes the request over."""
    nonce: str | None = getattr(request.state, "nonce", None)
    return nonce
