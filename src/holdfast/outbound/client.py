"""The guarded client: resolves once, judges, connects to the address that was judged; no redirects, no proxies, limits.

Needs `httpx2`, which the `server` extra brings.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2

from holdfast.outbound.addresses import Gate

TIMEOUT_S = 10.0
ANSWER_MAX = 1 << 20


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Sends each request to an address that its gate let through; the name is used for the certificate only.

    Raises `AddressRefused` for any other. An answer longer than a megabyte is cut off with an error.
    """

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        # No connection is kept: one that was opened for a name must not serve another that shares its address.
        limits = httpx2.Limits(max_keepalive_connections=0)
        self._inner = httpx2.AsyncHTTPTransport(trust_env=False, limits=limits)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        host, secure = request.url.host, request.url.scheme == "https"
        try:
            place = await asyncio.to_thread(self._gate.resolve, host, request.url.port or (443 if secure else 80))
        except OSError as error:
            raise httpx2.ConnectError(f"{host} cannot be found: {error}", request=request) from error
        if not secure:
            self._gate.check_plain(host, place)
        request.url = request.url.copy_with(host=place.address)
        request.extensions = {**request.extensions, "sni_hostname": host}
        response = await self._inner.handle_async_request(request)
        if response.headers.get("Content-Encoding", "identity") != "identity":
            # Packed, it could be longer than anybody counts.
            await response.aclose()
            raise httpx2.ReadError(f"{host} packs its answer, and was asked not to", request=request)
        response.stream = _Bounded(response.stream)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Bounded(httpx2.AsyncByteStream):
    """An answer that cannot go on for ever."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        length = 0
        async for part in self._stream:
            length += len(part)
            if length > ANSWER_MAX:
                raise httpx2.ReadError(f"the answer is longer than {ANSWER_MAX} bytes")
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()


def options(gate: Gate) -> dict[str, Any]:
    """What makes a client of httpx2, or one that is built on it, a guarded one."""
    return {
        "transport": GuardedTransport(gate),
        "headers": {"Accept-Encoding": "identity", "User-Agent": "holdfast"},
        "timeout": TIMEOUT_S,
        "follow_redirects": False,
        "trust_env": False,
    }
