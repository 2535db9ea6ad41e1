"""The webhook sink over TLS: a certificate must be trusted and be for the name, whatever address the name has."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from holdfast import Holdfast
from holdfast.outbox import Webhook, verify_signature
from tests.conftest import FakeClock
from tests.outbox.post import only, row
from tests.outbox.receivers import HERE, SECRET, Receiver

NAME = "hooks.example.com"
Serve = Callable[..., Receiver]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def trusting(authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process trusts the authority and no other, as a host does that was given its certificate."""
    file = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(str(file))
    monkeypatch.setenv("SSL_CERT_FILE", str(file))


@pytest.fixture
def serve() -> Iterator[Serve]:
    opened: list[Receiver] = []

    def one(authority: trustme.CA, *names: str) -> Receiver:
        """A receiver with a certificate for these names."""
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(*names).configure_cert(tls)
        opened.append(Receiver(tls))
        return opened[-1]

    yield one
    for receiver in opened:
        receiver.close()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every name means this host; answers which were asked for."""
    names: list[str] = []
    known = socket.getaddrinfo

    def resolve(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        if host != NAME:
            return known(host, port, *args, **options)
        names.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return names


def hook(receiver: Receiver, host: str = NAME, **options: Any) -> Webhook:
    return Webhook(f"https://{host}:{receiver.port}/hook", **{"secret": SECRET, "allow": HERE, **options})


async def deliver(hf: Holdfast, sink: Webhook) -> str:
    """One row, tried once."""
    hf.deliver("hook")(sink)
    outbox_id = await hf.outbox.enqueue({"n": 1}, "hook")
    await hf.outbox.flush_once()
    return outbox_id


async def test_a_good_certificate_delivers_to_the_address_that_was_judged(
    hf: Holdfast, serve: Serve, authority: trustme.CA, trusting: None, asked: list[str]
) -> None:
    receiver = serve(authority, NAME)

    outbox_id = await deliver(hf, hook(receiver))

    assert (await row(hf, outbox_id)).status == "sent"
    assert asked == [NAME], "a name is asked once; the address that was judged is used"
    ((_, headers, body),) = receiver.seen
    assert headers["Host"] == f"{NAME}:{receiver.port}"
    assert verify_signature(SECRET, body, headers["Holdfast-Signature"])


async def test_an_address_may_have_a_certificate_too(
    hf: Holdfast, serve: Serve, authority: trustme.CA, trusting: None
) -> None:
    receiver = serve(authority, "127.0.0.1")

    outbox_id = await deliver(hf, hook(receiver, "127.0.0.1"))

    assert (await row(hf, outbox_id)).status == "sent"


@pytest.mark.clause("XB-9")
@pytest.mark.parametrize("wrong", ["stranger", "other name", "only the address"])
async def test_a_certificate_that_proves_nothing_is_tried_again_in_words(
    hf: Holdfast, serve: Serve, authority: trustme.CA, trusting: None, asked: list[str], wrong: str
) -> None:
    issuer = trustme.CA() if wrong == "stranger" else authority
    names = {"stranger": NAME, "other name": "crm.example.com", "only the address": "127.0.0.1"}
    receiver = serve(issuer, names[wrong])

    outbox_id = await deliver(hf, hook(receiver))

    found = await row(hf, outbox_id)
    assert (found.status, found.retry_count, found.error_kind) == ("pending", 1, "connection_error")
    assert "certificate" in (found.last_error or "").lower()
    assert (NAME in (found.last_error or "")) == (wrong != "stranger")
    assert receiver.seen == [], "nothing was sent to whom we do not know"


async def test_a_receiver_that_gets_its_certificate_later_gets_its_letter(
    hf: Holdfast, serve: Serve, authority: trustme.CA, trusting: None, asked: list[str], clock: FakeClock
) -> None:
    good, bad = serve(authority, NAME), serve(trustme.CA(), NAME)
    sink = hook(bad)
    hf.deliver("hook", base_seconds=0, max_seconds=0)(sink)
    await hf.outbox.enqueue({"n": 1}, "hook")
    assert await hf.outbox.flush_once() == only(retry=1)

    sink._port = good.port
    clock.advance(5)

    assert await hf.outbox.flush_once() == only(success=1)


def test_without_trust_nothing_is_trusted(serve: Serve, authority: trustme.CA, asked: list[str]) -> None:
    receiver = serve(authority, NAME)

    with pytest.raises(ssl.SSLCertVerificationError):
        hook(receiver)("x", idempotency_key="k", outbox_id="o")

    assert receiver.seen == []
