"""`as-of` and `diff`: a run as it was, and what happened since."""

from __future__ import annotations

from holdfast import Holdfast
from holdfast.audit import format_timestamp
from tests.cli.conftest import Office


def instants(office: Office, run_id: str) -> list[str]:
    """The instant of each entry."""

    async def look(hf: Holdfast) -> list[str]:
        entries = await hf.journal.store.read(f"run:{run_id}")
        return [format_timestamp(entry.at) for entry in entries]

    return office.do(look)


def test_a_run_is_shown_as_it_was(office: Office) -> None:
    created, claimed, *_, ended = instants(office, "done")

    statuses = [office.ask("as-of", "done", at, "--json").json["run"]["status"] for at in (created, claimed, ended)]
    then = office.ask("as-of", "done", claimed)

    assert statuses == ["pending", "active", "done"]
    assert then.code == 0
    assert "worker-1" in then.out
    assert "Claims" not in office.ask("as-of", "done", "NOW").out
    assert "go-live" in office.ask("as-of", "asked", "NOW").out


def test_before_its_beginning_there_was_no_run(office: Office) -> None:
    answer = office.ask("as-of", "done", "1000000")

    assert answer.code == 2
    assert "there was no run done" in answer.err
    assert office.ask("as-of", "done", "yesterday").code == 2


def test_what_happened_between_two_instants_is_told(office: Office) -> None:
    created, *_, ended = instants(office, "done")

    found = office.ask("diff", "done", created, ended, "--json").json
    told = office.ask("diff", "done", created, ended)

    assert found["run"]["status"] == ["pending", "done"]
    assert found["run"]["output"] == [None, {"answer": 42}]
    kinds = [entry["kind"] for entry in found["entries"]]
    assert (kinds[0], kinds[-1]) == ("attempt_claimed", "run_terminal")
    assert "pending" in told.out
    assert office.ask("diff", "done", ended, ended).out.startswith("nothing changed")
