"""A sink that posts to a URL: signed, within a time, to public addresses only, and never redirected.

The request's body is the payload as canonical JSON. Its headers:

    Idempotency-Key      the delivery key: the same for every try, of this row and of its twins
    Holdfast-Outbox-Id   the row
    Holdfast-Signature   t=<unix seconds>,v1=<hex>

where `v1` is HMAC-SHA256 with the shared secret over `<t>.<body>`. `verify_signature` is the receiver's half.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import io
import socket
import ssl
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from holdfast import ambient
from holdfast.errors import AddressRefused, DeadLetter, DeliveryFailed, InvalidValue
from holdfast.outbound import Gate, Place
from holdfast.protocol.values import canonical

TIMEOUT_S = 30.0
ANSWER_MAX = 64 << 10
SHOWN_MAX = 200
SIGNATURE = "Holdfast-Signature"
TOLERANCE_S = 300
_TRY_AGAIN = frozenset({408, 409, 425, 429})


class Webhook:
    """Posts each payload to one URL. A 2xx is success; 408, 409, 425, 429 and 5xx are tried again, when the receiver
    says so (`Retry-After`) or by the backoff; every other answer, redirects included, is a dead letter.

    `allow` names networks that are not public but may be reached; only to those may a URL be plain `http`.
    """

    def __init__(
        self,
        url: str,
        *,
        secret: str | bytes,
        timeout: float = TIMEOUT_S,
        allow: Sequence[str] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
            raise InvalidValue("a webhook needs an http or https URL with a host and without a password")
        if not secret:
            raise InvalidValue("a webhook needs a secret to sign with")
        self._secure = parts.scheme == "https"
        self._host = parts.hostname
        self._port = parts.port or (443 if self._secure else 80)
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._netloc = parts.netloc
        self._secret = secret.encode() if isinstance(secret, str) else secret
        self._timeout = timeout
        self._gate = Gate(allow)
        self._headers = dict(headers or {})
        self._tls = ssl.create_default_context() if self._secure else None

    def __call__(self, payload: Any, *, idempotency_key: str, outbox_id: str) -> str:
        """Post; answer the status. Blocks, so the outbox calls it in a thread."""
        body = canonical(payload).encode()
        place = self._place()
        headers = {
            **self._headers,
            "Host": self._netloc,
            "Content-Type": "application/json",
            "User-Agent": "holdfast",
            "Connection": "close",
            "Idempotency-Key": idempotency_key,
            "Holdfast-Outbox-Id": outbox_id,
            SIGNATURE: sign(self._secret, body, ambient.wall_us() // 1_000_000),
        }
        connection = _Pinned(self._host, place, Deadline(self._timeout), self._tls)
        try:
            connection.request("POST", self._target, body, headers)
            with connection.getresponse() as answer:
                return self._judged(answer, _beginning(answer))
        except http.client.HTTPException as error:
            raise DeliveryFailed(f"{self._host} does not speak HTTP: {type(error).__name__}") from error
        finally:
            connection.close()

    def _place(self) -> Place:
        try:
            place = self._gate.resolve(self._host, self._port)
            if not self._secure:
                self._gate.check_plain(self._host, place)
        except AddressRefused as error:
            raise DeadLetter(str(error)) from error
        return place

    def _judged(self, answer: http.client.HTTPResponse, body: bytes) -> str:
        status = answer.status
        if 200 <= status < 300:
            return str(status)
        shown = body[:SHOWN_MAX].decode(errors="replace")
        text = f"{self._host} answered {status}: {shown}"
        if status in _TRY_AGAIN or status >= 500:
            raise DeliveryFailed(text, status=status, retry_after=_seconds(answer.getheader("Retry-After")))
        if 300 <= status < 400:
            text = f"{self._host} answered {status}; redirects are not followed, use the final URL"
        raise DeadLetter(text)


class Deadline:
    """The end of the time that one exchange has, however many parts it comes in."""

    def __init__(self, seconds: float) -> None:
        self._at = ambient.monotonic() + seconds

    def left_s(self) -> float:
        left = self._at - ambient.monotonic()
        if left <= 0:
            raise TimeoutError("the receiver took too long to answer")
        return left


class _Pinned(http.client.HTTPConnection):
    """A connection to an address that was judged; the name is used for the certificate only."""

    def __init__(self, host: str, place: Place, deadline: Deadline, tls: ssl.SSLContext | None) -> None:
        super().__init__(host, place.port)
        self._place = place
        self._deadline = deadline
        self._tls = tls

    def connect(self) -> None:
        plain = socket.create_connection((self._place.address, self._place.port), self._deadline.left_s())
        try:
            plain.settimeout(self._deadline.left_s())
            sock = plain if self._tls is None else self._tls.wrap_socket(plain, server_hostname=self.host)
        except BaseException:
            plain.close()
            raise
        self.sock = _Timed(sock, self._deadline)


class _Timed:
    """A socket as `http.client` uses one, on which no number of small steps lasts longer than the deadline."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._sock = sock
        self._deadline = deadline

    def sendall(self, data: Any) -> None:
        self._sock.settimeout(self._deadline.left_s())
        self._sock.sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        # The socket stays open for this reader, as for its own, though the connection closes it meanwhile.
        return io.BufferedReader(_TimedReader(self._sock, self._deadline))

    def close(self) -> None:
        self._sock.close()


class _TimedReader(io.RawIOBase):
    """Reads whatever has come, and waits for it no longer than the deadline."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._sock = sock
        self._deadline = deadline
        self._raw = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(self._deadline.left_s())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _beginning(answer: http.client.HTTPResponse) -> bytes:
    """As much of the answer as anybody looks at: no receiver can keep us reading for ever."""
    found = b""
    while len(found) < ANSWER_MAX and (part := answer.read1(ANSWER_MAX - len(found))):
        found += part
    return found


def sign(secret: bytes, body: bytes, at_s: int) -> str:
    """The value of the signature's header."""
    mac = hmac.new(secret, f"{at_s}.".encode() + body, hashlib.sha256)
    return f"t={at_s},v1={mac.hexdigest()}"


def verify_signature(
    secret: str | bytes, body: bytes, header: str, *, tolerance_s: int = TOLERANCE_S, now_s: int | None = None
) -> bool:
    """For receivers: was this body signed with our secret, and not long ago?"""
    given = dict(part.partition("=")[::2] for part in header.split(","))
    key = secret.encode() if isinstance(secret, str) else secret
    try:
        at_s = int(given.get("t", ""))
    except ValueError:
        return False
    now = ambient.wall_us() // 1_000_000 if now_s is None else now_s
    expected = sign(key, body, at_s).partition("v1=")[2]
    return abs(now - at_s) <= tolerance_s and hmac.compare_digest(expected, given.get("v1", ""))


def _seconds(value: str | None) -> float | None:
    """`Retry-After` as seconds; a date is not worth a parser."""
    return float(value) if value is not None and value.isascii() and value.isdigit() and len(value) < 10 else None
