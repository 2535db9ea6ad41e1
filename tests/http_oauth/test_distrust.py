"""Providers that say what they should not: nothing they say of themselves or of people is taken on trust."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import KeySet, OctKey, RSAKey

from holdfast.credentials.environment import Provider
from holdfast.credentials.providers import Providers
from holdfast.errors import ProviderError
from holdfast.outbound import Gate

CLIENT, NONCE = "us", "the nonce"
KEYS = [RSAKey.generate_key(2048, {"kid": kid, "use": "sig"}, auto_kid=False) for kid in ("a", "b")]


class Scripted(ThreadingHTTPServer):
    """A provider whose every answer a test decides."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.answers: dict[str, tuple[int, Any]] = {}
        self.asked: list[str] = []
        self.describe()
        self.publish(KEYS[0])

    def describe(self, **told: Any) -> None:
        names = ("authorization", "token", "revocation")
        metadata = {
            "issuer": self.url,
            "jwks_uri": f"{self.url}/jwks",
            **{f"{name}_endpoint": f"{self.url}/{name}" for name in names},
            **told,
        }
        self.answers["/.well-known/openid-configuration"] = (200, metadata)

    def publish(self, *keys: RSAKey) -> None:
        self.answers["/jwks"] = (200, KeySet(list(keys)).as_dict(private=False))

    def issue(self, id_token: str) -> None:
        self.answers["/token"] = (200, {"access_token": "at", "token_type": "Bearer", "id_token": id_token})

    def claims(self, **told: Any) -> dict[str, Any]:
        now = int(time.time())
        return {"iss": self.url, "aud": CLIENT, "sub": "alice", "exp": now + 600, "iat": now, "nonce": NONCE, **told}

    def signed(self, claims: dict[str, Any], key: RSAKey = KEYS[0], **header: str) -> str:
        return jwt.encode({"alg": "RS256", "kid": str(key.kid), **header}, claims, key)

    @property
    def provider(self) -> Provider:
        return Provider(name="p", issuer=self.url, client_id=CLIENT, client_secret="s", scopes="openid")


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, Scripted)
        server.asked.append(self.path)
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, body = server.answers.get(self.path, (404, {}))
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    with Scripted() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def providers() -> Providers:
    return Providers(Gate(["127.0.0.0/8"]))


def encoded(part: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


async def claims_of(providers: Providers, scripted: Scripted) -> Any:
    _, claims = await providers.exchange(
        scripted.provider, code="c", verifier="v", redirect_uri="http://here", nonce=NONCE
    )
    return claims


async def test_an_honest_id_token_is_believed(providers: Providers, scripted: Scripted) -> None:
    scripted.issue(scripted.signed(scripted.claims()))

    assert (await claims_of(providers, scripted))["sub"] == "alice"


@pytest.mark.parametrize(
    "told",
    [
        {"iss": "https://evil.example"},
        {"aud": "somebody else"},
        {"aud": ["somebody", "else"]},
        {"aud": [CLIENT, "else"], "azp": "else"},
        {"exp": 1},
        {"exp": None},
        {"nonce": "another"},
        {"nonce": None},
        {"sub": None},
        {"nbf": 1 << 40},
    ],
    ids=str,
)
async def test_an_id_token_for_something_else_is_not(
    providers: Providers, scripted: Scripted, told: dict[str, Any]
) -> None:
    claims = {name: value for name, value in scripted.claims(**told).items() if value is not None}
    scripted.issue(scripted.signed(claims))

    with pytest.raises(ProviderError) as error:
        await claims_of(providers, scripted)

    assert error.value.code == "invalid_id_token"


async def test_only_the_providers_own_signature_counts(providers: Providers, scripted: Scripted) -> None:
    claims = scripted.claims()
    stranger = RSAKey.generate_key(2048, {"kid": "a"}, auto_kid=False)
    shared = OctKey.import_key("s" * 32)
    unsigned = ".".join((encoded({"alg": "none"}), encoded(claims), ""))
    forged = [
        scripted.signed(claims, stranger),
        jwt.encode({"alg": "HS256", "kid": "a"}, claims, shared, algorithms=["HS256"]),
        unsigned,
        "not.a.token",
        scripted.signed(claims)[:-8] + "AAAAAAAA",
    ]
    scripted.describe(id_token_signing_alg_values_supported=["RS256", "HS256", "none"])

    for token in forged:
        scripted.issue(token)
        with pytest.raises(ProviderError) as error:
            await claims_of(providers, scripted)
        assert error.value.code == "invalid_id_token"


async def test_new_keys_of_the_provider_are_fetched_when_they_are_needed(
    providers: Providers, scripted: Scripted
) -> None:
    scripted.issue(scripted.signed(scripted.claims()))
    await claims_of(providers, scripted)
    await claims_of(providers, scripted)
    before = scripted.asked.count("/jwks")
    scripted.publish(*KEYS)
    scripted.issue(scripted.signed(scripted.claims(), KEYS[1]))

    found = await claims_of(providers, scripted)

    assert (before, scripted.asked.count("/jwks"), found["sub"]) == (1, 2, "alice")
    assert scripted.asked.count("/.well-known/openid-configuration") == 1


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (500, b"", "provider_unavailable"),
        (403, b"", "provider_error"),
        (302, b"", "provider_error"),
        (200, b"<html>", "provider_error"),
        (200, b"[]", "provider_error"),
        (
            200,
            {"issuer": "https://evil.example", "authorization_endpoint": "x", "token_endpoint": "y"},
            "provider_error",
        ),
        (200, b'{"issuer": 7}', "provider_error"),
        (200, b"x" * (2 << 20), "provider_unavailable"),
    ],
)
async def test_a_description_that_cannot_be_used_is_refused(
    providers: Providers, scripted: Scripted, status: int, body: Any, code: str
) -> None:
    scripted.answers["/.well-known/openid-configuration"] = (status, body)

    with pytest.raises(ProviderError) as error:
        await providers.metadata(scripted.provider)

    assert error.value.code == code


@pytest.mark.parametrize("endpoint", ["javascript:alert(1)", "file:///etc/passwd", "//evil.example", "ftp://x"])
async def test_a_browser_is_sent_to_web_addresses_only(providers: Providers, scripted: Scripted, endpoint: str) -> None:
    scripted.describe(authorization_endpoint=endpoint)

    with pytest.raises(ProviderError, match="not as safe"):
        await providers.metadata(scripted.provider)


async def test_a_provider_without_openid_describes_itself_elsewhere(providers: Providers, scripted: Scripted) -> None:
    moved = scripted.answers.pop("/.well-known/openid-configuration")
    scripted.answers["/.well-known/oauth-authorization-server"] = moved

    found = await providers.metadata(scripted.provider)

    assert found.token_endpoint == f"{scripted.url}/token"


async def test_keys_in_a_private_network_are_not_fetched(providers: Providers, scripted: Scripted) -> None:
    scripted.describe(jwks_uri="http://169.254.169.254/jwks")
    scripted.issue(scripted.signed(scripted.claims()))

    with pytest.raises(ProviderError) as error:
        await claims_of(providers, scripted)

    assert error.value.code == "address_refused"


@pytest.mark.parametrize(
    ("status", "answer", "code"),
    [
        (200, {"token_type": "Bearer"}, "provider_error"),
        (200, {"access_token": "at", "token_type": "mac"}, "provider_error"),
        (200, b"<html>", "provider_error"),
        (200, b'{"access_token": "at", "expires_in": "soon"}', "provider_error"),
        (200, b'{"access_token": "at", "expires_in": Infinity}', "provider_error"),
        (200, b'{"access_token": "at", "expires_in": [1]}', "provider_error"),
        (400, {"error": "invalid_grant"}, "reauth_required"),
        (400, {"error": "invalid_request"}, "provider_error"),
        (401, {"error": "invalid_client"}, "provider_error"),
        (429, b"slow down", "provider_unavailable"),
        (503, b"", "provider_unavailable"),
    ],
)
async def test_what_is_no_token_is_none(
    providers: Providers, scripted: Scripted, status: int, answer: Any, code: str
) -> None:
    scripted.answers["/token"] = (status, answer)

    with pytest.raises(ProviderError) as error:
        await providers.refresh(scripted.provider, "canary-refresh-token")

    assert error.value.code == code
    assert "canary" not in str(error.value)


@pytest.mark.parametrize(
    ("lifetime", "seconds"),
    [
        (3600, 3600),
        ("3600", 3600),
        (3600.9, 3600),
        (-5, 0),
        (None, None),
        (1e300, 315_360_000),
    ],
)
async def test_a_lifetime_is_read_with_care(
    providers: Providers, scripted: Scripted, lifetime: Any, seconds: int | None
) -> None:
    scripted.answers["/token"] = (200, {"access_token": "at", "token_type": "bearer", "expires_in": lifetime})

    tokens = await providers.refresh(scripted.provider, "rt")

    assert (tokens.lifetime_s, "at" in repr(tokens)) == (seconds, False)
