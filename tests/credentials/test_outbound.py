"""The guarded client: public places only, no redirects, no proxies, nothing endless."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx2
import pytest

from holdfast.errors import AddressRefused
from holdfast.outbound import Gate
from holdfast.outbound.client import ANSWER_MAX, options

HERE = Gate(["127.0.0.1/32"])


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.seen.append((self.path, self.headers.get("Host")))  # type: ignore[attr-defined]
        match self.path:
            case "/away":
                self.send_response(302)
                self.send_header("Location", "/secret")
                self.end_headers()
            case "/long":
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"x" * (ANSWER_MAX + 1))
            case "/packed":
                self.send_response(200)
                self.send_header("Content-Encoding", "gzip")
                self.end_headers()
            case _:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"hello")

    def log_message(self, format: str, *args: object) -> None:
        return


class _Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen: list[tuple[str, str]] = []


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server() as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield found
        found.shutdown()
        thread.join()


async def ask(gate: Gate, url: str) -> httpx2.Response:
    async with httpx2.AsyncClient(**options(gate)) as client:
        return await client.get(url)


async def test_an_allowed_place_is_reached_under_its_name(server: _Server) -> None:
    port = server.server_port

    answer = await ask(HERE, f"http://localhost:{port}/x")

    assert (answer.text, server.seen) == ("hello", [("/x", f"localhost:{port}")])


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]", "169.254.169.254"],
)
async def test_a_private_place_is_never_connected_to(server: _Server, host: str) -> None:
    with pytest.raises(AddressRefused):
        await ask(Gate(), f"http://{host}:{server.server_port}/")

    assert server.seen == []


async def test_plain_http_goes_to_no_public_place() -> None:
    with pytest.raises(AddressRefused, match="use https"):
        await ask(Gate(), "http://93.184.215.14/")


async def test_a_redirect_is_an_answer_and_no_order(server: _Server) -> None:
    answer = await ask(HERE, f"http://127.0.0.1:{server.server_port}/away")

    assert (answer.status_code, [path for path, _ in server.seen]) == (302, ["/away"])


@pytest.mark.parametrize("path", ["/long", "/packed"])
async def test_an_answer_has_limits(server: _Server, path: str) -> None:
    with pytest.raises(httpx2.ReadError):
        await ask(HERE, f"http://127.0.0.1:{server.server_port}{path}")


async def test_no_proxy_of_the_environment_is_used(server: _Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")

    assert (await ask(HERE, f"http://127.0.0.1:{server.server_port}/")).text == "hello"


async def test_a_name_that_does_not_exist_is_no_accident() -> None:
    with pytest.raises(httpx2.ConnectError, match="cannot be found"):
        await ask(Gate(), "https://nobody.invalid/")
