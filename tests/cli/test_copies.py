"""Whole runs: forked, replayed, carried in files, deleted and swept away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import Done, FlowContext, Holdfast, RunInfo
from tests.cli.conftest import Office


@pytest.fixture
def bureau(tmp_path: Path) -> Office:
    bureau = Office(str(tmp_path / "runs.db"))
    assert bureau.ask("migrate").code == 0
    return bureau


async def finish(hf: Holdfast) -> RunInfo:
    await hf.create_run(session_id="s", clog_id="chat", input=1, run_id="r1")
    (claim,) = await hf.claim_next()
    return await hf.complete(claim, Done("well"))


@pytest.mark.clause("C-12")
def test_a_run_travels_in_a_file(bureau: Office, tmp_path: Path) -> None:
    bureau.do(finish)
    elsewhere = Office(str(tmp_path / "elsewhere.db"))

    assert bureau.ask("export", "r1", str(tmp_path / "r1.db")).code == 0
    first = elsewhere.ask("import", str(tmp_path / "r1.db"), "--json")
    again = elsewhere.ask("import", str(tmp_path / "r1.db"), "--json")

    assert (first.code, first.json["status"], first.json["output"]) == (0, "done", "well")
    assert again.json == first.json
    assert elsewhere.ask("fsck").code == 0


def test_a_run_can_begin_again_from_anywhere(bureau: Office) -> None:
    bureau.do(finish)

    forked = bureau.ask("fork", "r1", "--at-rev", "1", "--json")
    replayed = bureau.ask("replay", "r1", "--json")

    assert [(answer.code, answer.json["status"]) for answer in (forked, replayed)] == [(0, "pending")] * 2
    assert len({"r1", forked.json["run_id"], replayed.json["run_id"]}) == 3
    assert bureau.ask("recover", forked.json["run_id"]).code == 0
    assert bureau.ask("fsck").code == 0


@pytest.mark.clause("O-51", "C-4")
def test_a_deleted_run_is_gone_and_a_purged_one_leaves_nothing(bureau: Office) -> None:
    bureau.do(finish)

    assert "r1 is deleted" in bureau.ask("delete", "r1").out
    assert bureau.ask("inspect", "r1").code == 2
    assert bureau.ask("journal", "r1").code == 0
    assert "r1 is purged" in bureau.ask("purge", "r1").out
    assert bureau.do(lambda hf: hf.journal.read("run:r1")) == []


@pytest.mark.clause("O-64")
def test_gc_takes_what_ended_long_ago(bureau: Office) -> None:
    bureau.do(finish)

    assert "0 runs removed" in bureau.ask("gc", "--ttl", "1d").out
    assert bureau.ask("gc", "--ttl", "0s", "--json").json == {"removed": 1}
    refused = bureau.ask("gc", "--ttl", "soon")
    assert (refused.code, "90s, 30m, 12h or 7d" in refused.err) == (2, True)


def test_a_replay_of_what_cannot_be_taken_back_needs_a_word(bureau: Office) -> None:
    async def charge(hf: Holdfast) -> None:
        @hf.flow("shop")
        async def shop(ctx: FlowContext, input: Any) -> None:
            await ctx.step("charge", lambda: None, irreversible=True)

        await hf.start(shop, session_id="s", run_id="shop")
        await hf.advance()

    bureau.do(charge)
    refused = bureau.ask("replay", "shop")
    early = bureau.ask("fork", "shop", "--at-rev", "2")

    assert (refused.code, early.code) == (1, 1)
    assert "'charge'" in refused.err
    assert bureau.ask("replay", "shop", "--allow-irreversible", "--json").json["status"] == "pending"
    assert bureau.ask("fork", "shop", "--at-rev", "2", "--allow-irreversible").code == 0
    assert bureau.ask("fork", "shop").code == 0
