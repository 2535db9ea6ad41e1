"""What `serve` is to be: said by its flag, else by the environment, else everything."""

from __future__ import annotations

import logging

import pytest

from holdfast.cli.app import Choice, Desk
from holdfast.cli.serving import role_of

VARIABLES = ("HOLDFAST_ROLE", "HOLDFAST_DATABASE_URL", "HOLDFAST_APP")


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.clause("WB-16", "WB-17")
@pytest.mark.parametrize(
    ("flag", "environment", "role"),
    [(None, None, "all"), (None, "api", "api"), (None, "worker", "worker"), ("api", "worker", "api")],
)
def test_the_flag_goes_before_the_environment(
    flag: str | None, environment: str | None, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if environment is not None:
        monkeypatch.setenv("HOLDFAST_ROLE", environment)

    assert role_of(Desk(Choice(db="shared.db")), None, flag) == role


@pytest.mark.clause("WB-16")
@pytest.mark.parametrize("how", ["flag", "environment"])
def test_a_worker_without_a_database_serves_as_all_and_says_so(
    how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if how == "environment":
        monkeypatch.setenv("HOLDFAST_ROLE", "worker")

    with caplog.at_level(logging.WARNING):
        role = role_of(Desk(Choice()), None, "worker" if how == "flag" else None)

    assert role == "all"
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "HOLDFAST_DATABASE_URL" in record.getMessage()


@pytest.mark.clause("WB-16")
@pytest.mark.parametrize("told", ["flag", "HOLDFAST_DATABASE_URL", "HOLDFAST_APP", "app"])
def test_a_worker_that_was_told_where_stays_one(
    told: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if told.startswith("HOLDFAST"):
        monkeypatch.setenv(told, "program:hf" if told == "HOLDFAST_APP" else "shared.db")

    desk = Desk(Choice(db="shared.db" if told == "flag" else None))
    assert role_of(desk, "program:hf" if told == "app" else None, "worker") == "worker"

    assert not caplog.records
