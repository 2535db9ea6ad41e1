"""Errors as RFC 9457 problems: one table says which status each has, and every one carries its stable code."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from holdfast import errors
from holdfast.errors import HoldfastError
from holdfast.http.limits import TooMany
from holdfast.http.scopes import MissingScope
from holdfast.redaction import logger

log = logger("holdfast.http")

PROBLEM = "application/problem+json"
RETRY_AFTER_S = 2
_BY_CODE = {
    "key_reused": 422,
    "write_rejected": 500,
    "too_large": 413,
    "forbidden": 403,
    "version_changed": 412,
    "unknown_provider": 404,
    "extra_missing": 503,
    # Asking again does not help: this host was never given a key.
    "encryption_key_missing": 409,
}
_BY_CLASS: tuple[tuple[type[HoldfastError], int], ...] = (
    (errors.NotFound, 404),
    (errors.Gone, 410),
    (errors.Unauthorized, 401),
    (errors.HandshakeRefused, 400),
    (errors.ReauthRequired, 409),
    (errors.ProviderError, 502),
    (errors.AddressRefused, 502),
    (errors.SealError, 503),
    (errors.Misconfigured, 503),
    (errors.InvalidValue, 422),
    (errors.Conflict, 409),
    (errors.LeaseLost, 409),
    (errors.StorageError, 409),
    (errors.DatabaseError, 503),
    (TooMany, 429),
    (MissingScope, 403),
)
_CODES = {400: "malformed", 404: "not_found", 405: "method_not_allowed", 413: "too_large", 415: "unsupported_media"}


class FieldError(BaseModel):
    """What is wrong with one part of a request."""

    location: list[str | int]
    message: str


class Problem(BaseModel):
    """What went wrong, for programs (`code`) and for people (`detail`)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    instance: str | None = None
    errors: list[FieldError] | None = None


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The problems that a route may answer with, for its description. Who asks for a key may find it too weak."""
    schema = {"$ref": "#/components/schemas/Problem"}
    told = {*statuses, 403} if 401 in statuses else set(statuses)
    return {
        status: {"description": HTTPStatus(status).phrase, "content": {PROBLEM: {"schema": schema}}}
        for status in sorted(told)
    }


class Refused(HoldfastError):
    """The request cannot be taken as it is."""

    code = "malformed"

    def __init__(self, message: str, *, status: int, code: str) -> None:
        super().__init__(message, code=code)
        self.status = status


def status_of(error: HoldfastError) -> int:
    if isinstance(error, Refused):
        return error.status
    if error.code in _BY_CODE:
        return _BY_CODE[error.code]
    return next((status for kind, status in _BY_CLASS if isinstance(error, kind)), 500)


def of_error(request: Request, error: Exception) -> Response:
    """The problem that an error of ours is."""
    assert isinstance(error, HoldfastError)
    status = status_of(error)
    if status == 500:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return problem(request, status, "internal_error", "something went wrong here; it is in the log")
    return problem(request, status, error.code, str(error), headers=_headers(status, error))


def of_http(request: Request, error: Exception) -> Response:
    """The problem that the framework found: no such route, no such method, a body that cannot be read."""
    assert isinstance(error, HTTPException)
    code = _CODES.get(error.status_code, "refused")
    headers = dict(error.headers or {})
    return problem(request, error.status_code, code, str(error.detail), headers=headers)


def of_validation(request: Request, error: Exception) -> Response:
    """What does not fit the description is 422; what is no JSON at all is 400."""
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    if any(each["type"] == "json_invalid" for each in found):
        return problem(request, 400, "malformed", "the body is no JSON")
    fields = [FieldError(location=list(each["loc"]), message=str(each["msg"])) for each in found]
    where = ", ".join(".".join(map(str, each.location)) for each in fields)
    return problem(request, 422, "invalid_value", f"the request does not fit: {where}", fields=fields)


def of_accident(request: Request, error: Exception) -> Response:
    """Nobody expected this. What it was stands in the log, not in the answer."""
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return problem(request, 500, "internal_error", "something went wrong here; it is in the log")


def problem(
    request: Request,
    status: int,
    code: str,
    detail: str,
    *,
    headers: dict[str, str] | None = None,
    fields: list[FieldError] | None = None,
) -> Response:
    told = Problem(
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        code=code,
        instance=request.url.path,
        errors=fields,
    )
    return JSONResponse(told.model_dump(exclude_none=True), status, headers, PROBLEM)


def _headers(status: int, error: HoldfastError) -> dict[str, str]:
    if isinstance(error, TooMany):
        return {"Retry-After": str(error.retry_after)}
    if isinstance(error, MissingScope):
        return {"WWW-Authenticate": f'Bearer realm="holdfast", error="insufficient_scope", scope="{error.scope}"'}
    if status == 503 or error.code == "request_in_flight":
        return {"Retry-After": str(RETRY_AFTER_S)}
    return {"WWW-Authenticate": 'Bearer realm="holdfast"'} if status == 401 else {}
