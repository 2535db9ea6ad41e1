"""What the environment says: providers by name, secrets from files, and what is missing in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import NotFound
from holdfast.credentials.environment import Site, gate_of, known_provider, login_provider, providers, told
from holdfast.credentials.logins import user_of
from holdfast.errors import HandshakeRefused, Misconfigured

ONE = {"HOLDFAST_OAUTH_OPENAI_ISSUER": "https://auth.example", "HOLDFAST_OAUTH_OPENAI_CLIENT_ID": "us"}


def test_a_provider_is_what_its_variables_say(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("from a file\n")
    environment = {
        **ONE,
        "HOLDFAST_OAUTH_OPENAI_CLIENT_SECRET_FILE": str(tmp_path / "secret"),
        "HOLDFAST_OAUTH_OPENAI_SCOPES": "openid email",
        "HOLDFAST_OAUTH_OPENAI_PARAMS": "prompt=consent&access_type=offline",
        "HOLDFAST_OAUTH_MY_IDP_ISSUER": "https://idp.example",
        "HOLDFAST_OAUTH_MY_IDP_CLIENT_ID": "us too",
    }

    found = providers(environment)

    assert list(found) == ["my_idp", "openai"]
    openai = found["openai"]
    assert (openai.issuer, openai.client_id, openai.client_secret) == ("https://auth.example", "us", "from a file")
    assert (openai.scopes, openai.params) == ("openid email", {"prompt": "consent", "access_type": "offline"})
    assert (found["my_idp"].client_secret, found["my_idp"].scopes) == (None, "openid")
    assert "from a file" not in repr(openai)


def test_half_a_provider_is_refused() -> None:
    with pytest.raises(Misconfigured, match="HOLDFAST_OAUTH_OPENAI_CLIENT_ID is not"):
        providers({"HOLDFAST_OAUTH_OPENAI_ISSUER": "https://auth.example"})


@pytest.mark.parametrize("name", ["nobody", "../etc", "", "OPENAI", "a" * 99])
def test_a_provider_that_is_not_configured_is_not_found(name: str) -> None:
    with pytest.raises(NotFound) as error:
        known_provider(name, ONE)

    assert error.value.code == "unknown_provider"


def test_the_login_provider_has_a_usual_name() -> None:
    assert login_provider({**ONE, "HOLDFAST_LOGIN_PROVIDER": "openai"}).name == "openai"
    with pytest.raises(NotFound, match="HOLDFAST_OAUTH_OIDC_ISSUER"):
        login_provider(ONE)


@pytest.mark.parametrize(
    "url", ["agents.example.org", "ftp://x", "https://", "https://a@b", "https://x/?y", "https://x/#y"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(Misconfigured, match="HOLDFAST_PUBLIC_URL must be"):
        Site.of_environment({"HOLDFAST_PUBLIC_URL": url})


def test_a_site_may_live_below_a_path() -> None:
    site = Site.of_environment({"HOLDFAST_PUBLIC_URL": "https://host.example:8443/agents/"})

    assert (site.url, site.origin) == ("https://host.example:8443/agents", "https://host.example:8443")
    assert (site.is_secure, site.cookie("session")) == (True, "__Host-session")


def test_on_a_desk_there_is_an_address_already() -> None:
    site = Site.of_environment({}, url="http://127.0.0.1:9000")

    assert (site.profile, site.url, site.cookie("session")) == ("dev-local", "http://127.0.0.1:9000", "session")
    assert Site.of_environment({}).url == "http://127.0.0.1:8787"


def test_this_machine_is_reached_from_a_desk_only() -> None:
    prod = {"HOLDFAST_PROFILE": "prod"}

    assert gate_of({}).is_allowed("127.0.0.1")
    assert not gate_of(prod).is_allowed("127.0.0.1")
    assert gate_of({**prod, "HOLDFAST_OUTBOUND_ALLOW": "10.0.0.0/8, 192.168.1.0/24"}).is_allowed("192.168.1.9")
    assert not gate_of({}).is_allowed("169.254.169.254")


def test_an_empty_variable_says_nothing() -> None:
    assert told("HOLDFAST_X", {"HOLDFAST_X": "  "}) is None


@pytest.mark.parametrize(
    ("claims", "environment", "user"),
    [
        ({"sub": "alice"}, {}, "alice"),
        (
            {"sub": "x", "email": "Ada@Example.org", "email_verified": True},
            {"HOLDFAST_LOGIN_CLAIM": "email"},
            "ada@example.org",
        ),
        ({"sub": "alice"}, {"HOLDFAST_LOGIN_ALLOW": "bob, Alice"}, "alice"),
        (
            {"sub": "x", "email": "ada@example.org", "email_verified": True},
            {"HOLDFAST_LOGIN_CLAIM": "email", "HOLDFAST_LOGIN_ALLOW": "@example.org"},
            "ada@example.org",
        ),
    ],
)
def test_who_someone_is(claims: dict[str, object], environment: dict[str, str], user: str) -> None:
    assert user_of(claims, environment) == user


@pytest.mark.parametrize(
    ("claims", "environment"),
    [
        ({}, {}),
        ({"sub": 7}, {}),
        ({"sub": "x", "email": "ada@example.org"}, {"HOLDFAST_LOGIN_CLAIM": "email"}),
        ({"sub": "x", "email": "ada@example.org", "email_verified": "true"}, {"HOLDFAST_LOGIN_CLAIM": "email"}),
        ({"sub": "alice"}, {"HOLDFAST_LOGIN_ALLOW": "bob"}),
        ({"sub": "alice@evil.org"}, {"HOLDFAST_LOGIN_ALLOW": "@example.org"}),
        ({"sub": "example.org"}, {"HOLDFAST_LOGIN_ALLOW": "@example.org"}),
    ],
)
def test_who_stays_outside(claims: dict[str, object], environment: dict[str, str]) -> None:
    with pytest.raises(HandshakeRefused) as error:
        user_of(claims, environment)

    assert error.value.code == "login_refused"


def test_a_name_that_is_no_id_is_told_apart_by_its_issuer() -> None:
    one, other = (user_of({"sub": "a|b", "iss": issuer}, {}) for issuer in ("https://one", "https://other"))

    assert one != other
    assert one == user_of({"sub": "a|b", "iss": "https://one"}, {})
