"""The webhook sink against a receiver on this host: signed, bounded, never redirected, and kept to public addresses."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from ipaddress import ip_address
from typing import Any

import pytest

from holdfast import DeadLetter, DeliveryFailed, Holdfast, InvalidValue
from holdfast.outbound import Gate
from holdfast.outbox import Webhook, verify_signature
from holdfast.outbox.webhooks import ANSWER_MAX, sign
from tests.outbox.post import only, row
from tests.outbox.receivers import HERE, SECRET, Receiver, reply


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


def post(receiver: Receiver, payload: Any = "x", **options: Any) -> str:
    hook = Webhook(receiver.url, **{"secret": SECRET, "allow": HERE, **options})
    return hook(payload, idempotency_key="k-1", outbox_id="o-1")


def test_a_payload_is_posted_with_its_key_and_a_signature(receiver: Receiver) -> None:
    assert post(receiver, {"to": "ann", "text": "häßlich"}, headers={"X-Mine": "1"}) == "200"

    ((path, headers, body),) = receiver.seen
    assert path == "/hook?a=1"
    assert body.decode() == '{"text":"häßlich","to":"ann"}'
    assert (headers["Idempotency-Key"], headers["Holdfast-Outbox-Id"], headers["X-Mine"]) == ("k-1", "o-1", "1")
    assert headers["Host"] == receiver.url.split("/")[2]
    assert verify_signature(SECRET, body, headers["Holdfast-Signature"])
    assert not verify_signature("other", body, headers["Holdfast-Signature"])
    assert not verify_signature(SECRET, body + b" ", headers["Holdfast-Signature"])


@pytest.mark.parametrize("header", ["", "t=1", "v1=abc", "t=x,v1=abc", "t=1,v1="])
def test_a_signature_that_is_none_is_refused(header: str) -> None:
    assert not verify_signature(SECRET, b"{}", header, now_s=1)


def test_a_signature_grows_old() -> None:
    header = sign(SECRET.encode(), b"{}", 1_000)

    assert verify_signature(SECRET, b"{}", header, now_s=1_300)
    assert not verify_signature(SECRET, b"{}", header, now_s=1_301)
    assert not verify_signature(SECRET, b"{}", header, now_s=699)


@pytest.mark.parametrize("status", [400, 401, 404, 410, 422, 301, 302, 307, 308])
def test_an_answer_that_will_not_change_is_a_dead_letter(receiver: Receiver, status: int) -> None:
    receiver.answer = lambda handler: reply(handler, status, b"no", Location="http://127.0.0.1:1/")

    with pytest.raises(DeadLetter, match=str(status)):
        post(receiver)

    assert len(receiver.seen) == 1


@pytest.mark.clause("XB-9", "C-7")
@pytest.mark.parametrize(("status", "said", "after"), [(429, "7", 7.0), (503, None, None), (500, "soon", None)])
def test_an_answer_that_may_change_is_tried_again(
    receiver: Receiver, status: int, said: str | None, after: float | None
) -> None:
    headers = {} if said is None else {"Retry_After": said}
    receiver.answer = lambda handler: reply(handler, status, b"busy", **headers)

    with pytest.raises(DeliveryFailed) as failed:
        post(receiver)

    assert (failed.value.status, failed.value.retry_after) == (status, after)


def test_a_receiver_that_says_nothing_is_left(receiver: Receiver) -> None:
    receiver.answer = lambda handler: time.sleep(1)
    since = time.monotonic()

    with pytest.raises(OSError, match="timed out"):
        post(receiver, timeout=0.2)

    assert time.monotonic() - since < 0.9


def test_a_receiver_that_says_too_much_is_not_listened_to(receiver: Receiver) -> None:
    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        for _ in range(1_000):
            handler.wfile.write(b"x" * ANSWER_MAX)

    receiver.answer = endless

    assert post(receiver, timeout=5) == "200"


def test_a_receiver_that_drips_is_left(receiver: Receiver) -> None:
    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        for _ in range(100):
            handler.wfile.write(b"x")
            handler.wfile.flush()
            time.sleep(0.02)

    receiver.answer = drip

    with pytest.raises(OSError, match=r"too long|timed out"):
        post(receiver, timeout=0.3)


@pytest.mark.parametrize("part", ["the status", "a header", "going on"])
def test_a_receiver_that_drips_before_its_answer_is_left(receiver: Receiver, part: str) -> None:
    def drip(handler: BaseHTTPRequestHandler) -> None:
        first, drop = {
            "the status": (b"", b"H"),
            "a header": (b"HTTP/1.1 200 OK\r\nX-Long: ", b"x"),
            "going on": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        }[part]
        handler.wfile.write(first)
        for _ in range(100):
            handler.wfile.write(drop)
            handler.wfile.flush()
            time.sleep(0.02)

    receiver.answer = drip
    since = time.monotonic()

    with pytest.raises(OSError, match=r"too long|timed out"):
        post(receiver, timeout=0.3)

    assert time.monotonic() - since < 1.5


def test_something_that_is_no_http_is_tried_again(receiver: Receiver) -> None:
    def gibberish(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"\x00\x01nothing\r\n\r\n")

    receiver.answer = gibberish

    with pytest.raises(DeliveryFailed, match="does not speak HTTP"):
        post(receiver)


PRIVATE = (
    *("127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1"),
    *("224.0.0.1", "255.255.255.255", "::", "::1", "fe80::1", "fc00::1", "ff02::1", "::ffff:127.0.0.1"),
    *("::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "fd00:ec2::254", "::127.0.0.1", "::ffff:0:127.0.0.1"),
    *("64:ff9b:1::7f00:1", "fec0::1", "5f00::1", "2001:0:7f00:1::"),
)


@pytest.mark.parametrize("address", PRIVATE)
def test_what_is_not_public_is_not_reached(address: str) -> None:
    assert not Gate().is_open(ip_address(address))


@pytest.mark.parametrize("address", ["1.1.1.1", "8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8"])
def test_what_is_public_is_reached(address: str) -> None:
    assert Gate().is_open(ip_address(address))


@pytest.mark.parametrize("host", ["127.0.0.1", "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "[::1]", "0.0.0.0"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_address_in_disguise_is_known(host: str, scheme: str) -> None:
    hook = Webhook(f"{scheme}://{host}:1/", secret=SECRET)

    with pytest.raises(DeadLetter, match="no public address"):
        hook("x", idempotency_key="k", outbox_id="o")


def test_a_name_is_asked_once_and_one_bad_address_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [["93.184.216.34"], ["93.184.216.34", "127.0.0.1"]]
    reached: list[Any] = []

    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in answers.pop(0)]

    def connect(address: Any, timeout: float) -> socket.socket:
        reached.append(address)
        raise ConnectionRefusedError("no")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket, "create_connection", connect)
    hook = Webhook("https://example.com/", secret=SECRET)

    with pytest.raises(ConnectionRefusedError):
        hook("x", idempotency_key="k", outbox_id="o")
    with pytest.raises(DeadLetter, match=r"127\.0\.0\.1"):
        hook("x", idempotency_key="k", outbox_id="o")

    assert reached == [("93.184.216.34", 443)]


def test_plain_http_goes_only_where_it_was_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.216.34", 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)

    with pytest.raises(DeadLetter, match="use https"):
        Webhook("http://example.com/", secret=SECRET)("x", idempotency_key="k", outbox_id="o")


@pytest.mark.parametrize("url", ["file:///etc/passwd", "gopher://x/", "example.com", "https://", "https://a:b@host/"])
def test_a_url_that_is_no_webhook_is_refused(url: str) -> None:
    with pytest.raises(InvalidValue):
        Webhook(url, secret=SECRET)


@pytest.mark.parametrize("options", [{"secret": ""}, {"secret": SECRET, "allow": ["nowhere"]}])
def test_a_webhook_needs_a_secret_and_real_networks(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        Webhook("https://example.com/", **options)


async def test_the_outbox_delivers_through_it(hf: Holdfast, receiver: Receiver) -> None:
    hf.deliver("hook:*")(Webhook(receiver.url, secret=SECRET, allow=HERE))
    outbox_id = await hf.outbox.enqueue({"n": 1}, "hook:crm")

    assert await hf.outbox.flush_once() == only(success=1)

    found = await row(hf, outbox_id)
    assert (found.status, found.result_ref) == ("sent", "200")
    ((_, headers, body),) = receiver.seen
    assert headers["Holdfast-Outbox-Id"] == outbox_id
    assert verify_signature(SECRET, body, headers["Holdfast-Signature"])
