"""`edits`: proposed edits are listed, shown and decided."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from holdfast import Holdfast
from tests.cli.conftest import Office

BEFORE = "".join(f"line {number}\n" for number in range(20))
DIFFS = [{"path": "src/a.py", "before": BEFORE, "after": BEFORE.replace("line 9\n", "line nine\x1b[31m\n")}]
NAMES = ("pending", "sure", "approved", "denied", "applied", "failed", "stale", "asked")


async def furnish(hf: Holdfast) -> None:
    """An edit in every status, and one that a run asks about."""
    for name in NAMES:
        await hf.audit.record_edit_proposed(name, diffs_json=DIFFS, confidence=0.95 if name == "sure" else 0.5)
    for name in ("approved", "applied", "denied"):
        await hf.audit.record_edit_decision(name, "denied" if name == "denied" else "approved", actor="eve")
    await hf.audit.record_edit_applied("applied", commit_hash="abc123")
    await hf.audit.record_edit_failed("failed", "no such line")
    await hf.audit.record_edit_stale("stale", "src/a.py is not what it was")
    await hf.create_run(run_id="run", session_id="s", clog_id="chat", input=1)
    await hf.pause("run", "edit", kind="approval", metadata={"proposal": "asked"})


@pytest.fixture(params=["sqlite", "postgres"])
def office(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Office]:
    if request.param == "sqlite":
        office = Office(str(tmp_path / "holdfast.db"))
        office.do(furnish)
        yield office
        return
    url, schema = str(request.getfixturevalue("postgres_url")), f"cli_{os.getpid()}_{os.urandom(4).hex()}"
    office = Office(url, schema)
    office.do(furnish)
    yield office
    asyncio.run(_drop(url, schema))


async def _drop(url: str, schema: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
    await connection.close()


def listed(office: Office, *words: str) -> set[str]:
    return {edit["request_id"] for edit in office.ask("edits", *words, "--json").json["edits"]}


def standing(office: Office, edit: str) -> tuple[str, str | None, str]:
    """The edit's status, who decided, and the status of the run that asks."""

    async def see(hf: Holdfast) -> tuple[str, str | None, str]:
        found, run = await hf.audit.get_edit_proposal(edit), await hf.get_run("run")
        assert found is not None
        assert run is not None
        return found.status, found.actor, run.status

    return office.do(see)


@pytest.mark.clause("PB-7")
def test_edits_that_need_people_are_listed_unless_told_otherwise(office: Office) -> None:
    answer = office.ask("edits")

    assert answer.code == 0
    assert "stale" in answer.out
    assert "src/a.py is not what it was" in answer.out
    assert listed(office) == {"pending", "sure", "asked", "failed", "stale"}
    assert listed(office, "--filter", "pending+errored") == {"pending", "sure", "asked", "failed", "stale"}
    assert listed(office, "--filter", "pending") == {"pending", "sure", "asked"}
    assert listed(office, "--filter", "approved") == {"approved", "applied"}
    assert listed(office, "--filter", "errored") == {"failed"}
    assert listed(office, "--filter", "stale") == {"stale"}
    assert listed(office, "--filter", "all") == set(NAMES)
    assert listed(office, "--filter", "all", "--user", "nobody") == set()
    assert len(listed(office, "--filter", "all", "--limit", "3")) == 3
    assert office.ask("edits", "--filter", "others").code == 2


@pytest.mark.clause("PB-7")
def test_an_edit_is_shown_in_three_views(office: Office) -> None:
    minimal = office.ask("edits", "show", "stale", "--mode", "minimal")
    expanded = office.ask("edits", "show", "stale")
    full = office.ask("edits", "show", "stale", "--mode", "full")
    cut = office.ask("edits", "show", "stale", "--mode", "full", "--lines", "10")
    told = office.ask("edits", "show", "applied", "--mode", "minimal", "--json").json

    shown = ["src/a.py", "@@ -10 +10 @@", "-line 9", "+line nine\\x1b[31m"]
    assert [line.strip() for line in minimal.out.splitlines()[-4:]] == shown
    assert " line 6\n line 7\n line 8\n-line 9\n" in expanded.out
    assert " line 5\n" not in expanded.out
    assert " line 0\n" in full.out
    assert cut.out.endswith("… 12 more lines\n")
    assert (told["edit"]["status"], told["edit"]["commit_hash"]) == ("applied", "abc123")
    assert told["preview"][0]["lines"] == ["@@ -10 +10 @@", "-line 9", "+line nine\x1b[31m"]
    for words in (["--mode", "tiny"], ["--lines", "5"], ["--lines", "201"]):
        assert office.ask("edits", "show", "stale", *words).code == 2
    assert office.ask("edits", "show", "unknown").err == "holdfast: there is no proposed edit unknown\n"


@pytest.mark.clause("PB-7", "C-22")
@pytest.mark.parametrize("word", ["approve", "deny"])
def test_a_decision_on_an_edit_answers_the_run_that_asks(office: Office, word: str) -> None:
    decided = {"approve": "approved", "deny": "denied"}[word]

    answer = office.ask("edits", word, "asked", "--actor", "ada")
    again = office.ask("edits", word, "asked", "--actor", "bob", "--json")

    assert (answer.code, answer.out) == (0, f"asked is {decided}\n")
    assert (again.code, again.json["decided"], again.json["edit"]["actor"]) == (0, False, "ada")
    assert standing(office, "asked") == (decided, "ada", "pending" if word == "approve" else "failed")
    assert office.ask("fsck").code == 0


@pytest.mark.clause("PB-7")
@pytest.mark.parametrize("edit", ["applied", "denied"])
@pytest.mark.parametrize("word", ["approve", "deny"])
def test_what_is_settled_is_told_and_stays(office: Office, edit: str, word: str) -> None:
    answer = office.ask("edits", word, edit, "--actor", "ada")

    assert (answer.code, answer.out) == (0, f"{edit} was {edit} before and stays so\n")
    assert standing(office, edit) == (edit, "eve", "paused")


@pytest.mark.clause("PB-7")
def test_what_failed_or_is_stale_is_approved_anew_but_an_approval_is_not_taken_back(office: Office) -> None:
    for edit in ("failed", "stale"):
        assert office.ask("edits", "approve", edit, "--actor", "ada").out == f"{edit} is approved\n"
    answer = office.ask("edits", "deny", "approved", "--actor", "ada")

    assert (answer.code, answer.out) == (1, "")
    assert answer.err == "holdfast: proposal approved is approved and cannot become denied\n"
    assert office.ask("edits", "approve", "unknown").code == 2


@pytest.mark.clause("PB-7")
def test_sure_edits_are_confirmed_only_when_someone_says_so(office: Office) -> None:
    assert office.ask("edits", "auto-confirm").code == 2
    assert standing(office, "sure")[0] == "pending"

    answer = office.ask("edits", "auto-confirm", "--min-confidence", "0.9")
    again = office.ask("edits", "auto-confirm", "--min-confidence", "0.9", "--json")

    assert (answer.code, answer.out) == (0, "sure is approved\n1 approved\n")
    assert again.json == {"approved": []}
    assert standing(office, "sure")[:2] == ("approved", "auto-confirm (confidence >= 0.9)")
    assert office.ask("edits", "auto-confirm", "--min-confidence", "0").code == 2


def test_the_common_options_may_stand_anywhere(office: Office) -> None:
    db = ("--db", office.url, "--schema", office.schema)

    assert office.ask(*db, "edits", "--json", "show", "sure").json["edit"]["request_id"] == "sure"
    assert office.ask("edits", *db, "show", "sure", "--json").json["edit"]["request_id"] == "sure"
