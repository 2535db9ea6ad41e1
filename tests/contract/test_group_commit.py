"""Many callers, one commit: they share the disk, never an answer and never a fault."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Claim, Conflict, Holdfast, InvalidValue, LeaseLost, NotFound, SignalReceipt
from holdfast.identity import hash_token
from holdfast.protocol import commands
from holdfast.protocol.state import RunState
from tests.conftest import IN_PROCESS, FakeClock
from tests.contract.builders import LEASE_S, claim_one, create, idle, kinds, note, stolen, texts

pytestmark = pytest.mark.parametrize("configuration", IN_PROCESS)

CALLERS = 64
SHARED = 20
"""How many callers at least share one commit, on average."""


class Counted:
    """What the committer and the appender have done since we began to count."""

    def __init__(self, hf: Holdfast) -> None:
        self._committer = hf._store.committer
        self._appender = hf._store.appender
        self._before = self._now()

    def _now(self) -> tuple[int, int, int, int, int]:
        committer, appender = self._committer, self._appender
        return committer.commits, committer.members, committer.intentions, appender.commits, appender.members

    @property
    def commits(self) -> int:
        return self._now()[0] - self._before[0]

    @property
    def members(self) -> int:
        return self._now()[1] - self._before[1]

    @property
    def intentions(self) -> int:
        return self._now()[2] - self._before[2]

    @property
    def append_commits(self) -> int:
        return self._now()[3] - self._before[3]

    @property
    def appends(self) -> int:
        return self._now()[4] - self._before[4]


async def many(hf: Holdfast) -> list[str]:
    runs = await hf.create_runs([{"session_id": "s1", "clog_id": "chat"} for _ in range(CALLERS)])
    return [run.run_id for run in runs]


async def test_a_lost_claim_beside_its_successor_is_refused_once(hf: Holdfast, clock: FakeClock) -> None:
    """Each knows its own part of the run; planned on the other's, a refusal that is on record looked like a new one."""
    run = await create(hf)
    lost = await claim_one(hf)
    (before,) = (await hf.journal.slices([run.run_id])).values()
    clock.advance(LEASE_S)
    held = await claim_one(hf)
    (after,) = (await hf.journal.slices([run.run_id])).values()

    async def say(claim: Claim, known: RunState) -> str | None:
        command = commands.Emit(
            claim_id=claim.claim_id, claim_token_hash=hash_token(claim.token), events=(("note", 1),)
        )
        return (await hf.journal.execute(run.run_id, command, known=known)).decision.refusal

    assert await say(lost, before) == "stale_claim"
    (after,) = (await hf.journal.slices([run.run_id])).values()
    refusals = await asyncio.gather(say(held, after), say(lost, after), say(held, after), say(lost, before))

    assert list(refusals) == [None, "stale_claim", None, "stale_claim"]
    assert (await kinds(hf, run.run_id)).count("anomaly") == 1
    assert (await hf.fsck()).ok


async def test_signals_to_many_runs_share_commits(hf: Holdfast) -> None:
    runs = await many(hf)
    counted = Counted(hf)

    receipts = await asyncio.gather(*(hf.signal(run_id, i) for i, run_id in enumerate(runs)))

    assert receipts == [SignalReceipt(True, None, 2)] * CALLERS
    assert counted.members / counted.commits > SHARED
    claims = await hf.claim_next(limit=CALLERS)
    assert {claim.run_id: claim.input for claim in claims} == {run_id: i for i, run_id in enumerate(runs)}


async def test_signals_to_one_run_share_commits(hf: Holdfast) -> None:
    run = await idle(hf)
    counted = Counted(hf)

    receipts = await asyncio.gather(*(hf.signal(run.run_id, i) for i in range(CALLERS)))

    assert [receipt.rev for receipt in receipts] == list(range(2, CALLERS + 2))
    assert counted.intentions / counted.commits > SHARED
    assert [entry.data["input"] for entry in await hf.journal.read(f"run:{run.run_id}", after=1)] == list(range(64))


async def test_new_runs_share_commits(hf: Holdfast) -> None:
    counted = Counted(hf)

    runs = await asyncio.gather(*(create(hf, input=i) for i in range(CALLERS)))

    assert [run.pending_input for run in runs] == list(range(CALLERS))
    assert counted.members / counted.commits > SHARED


async def test_emits_of_many_claims_share_commits(hf: Holdfast) -> None:
    runs = await many(hf)
    await asyncio.gather(*(hf.signal(run_id, 1) for run_id in runs))
    claims = await hf.claim_next(limit=CALLERS)
    counted = Counted(hf)

    seqs = await asyncio.gather(*(hf.emit(claim, "text", claim.run_id) for claim in claims))

    assert seqs == [4] * CALLERS
    assert counted.members / counted.commits > SHARED
    for claim in claims:
        (last,) = [event async for event in hf.events(claim.run_id, after=3)]
        assert last.data == claim.run_id


async def test_appends_to_many_threads_share_commits(hf: Holdfast) -> None:
    counted = Counted(hf)

    heads = await asyncio.gather(*(hf.journal.append(f"notes {i}", [note(i)] * (1 + i % 2)) for i in range(CALLERS)))

    assert heads == [1 + i % 2 for i in range(CALLERS)]
    assert counted.appends / counted.append_commits > SHARED
    for i in range(CALLERS):
        assert texts(await hf.journal.read(f"notes {i}")) == [i] * (1 + i % 2)


async def test_a_body_that_is_too_large_fails_alone(hf: Holdfast) -> None:
    runs = await many(hf)
    huge = "x" * (9 << 20)

    answers = await asyncio.gather(
        *(hf.signal(run_id, huge if i == 13 else i) for i, run_id in enumerate(runs)), return_exceptions=True
    )

    assert isinstance(answers[13], InvalidValue)
    assert [answer for i, answer in enumerate(answers) if i != 13] == [SignalReceipt(True, None, 2)] * (CALLERS - 1)
    assert await kinds(hf, runs[13]) == ["run_created"]


async def test_a_write_that_the_database_refuses_fails_alone(hf: Holdfast) -> None:
    await create(hf, session_id="hers", user_id="ada")
    poisoned = (3, 40)

    answers = await asyncio.gather(
        *(create(hf, session_id="hers" if i in poisoned else "s1", run_id=f"r{i}") for i in range(CALLERS)),
        return_exceptions=True,
    )

    assert [i for i, answer in enumerate(answers) if isinstance(answer, NotFound)] == list(poisoned)
    assert sum(not isinstance(answer, Exception) for answer in answers) == CALLERS - len(poisoned)
    assert [await hf.get_run(f"r{i}") for i in poisoned] == [None, None]
    assert await kinds(hf, "r4") == ["run_created"]


async def test_a_refusal_is_an_answer_for_its_caller_only(hf: Holdfast) -> None:
    runs = await many(hf)
    await asyncio.gather(*(hf.signal(run_id, 1) for run_id in runs))
    claims = await hf.claim_next(limit=CALLERS)

    answers = await asyncio.gather(
        *(hf.emit(stolen(claim) if i % 9 == 0 else claim, "text", i) for i, claim in enumerate(claims)),
        return_exceptions=True,
    )

    assert [i for i, answer in enumerate(answers) if isinstance(answer, LeaseLost)] == list(range(0, CALLERS, 9))
    assert [answer for i, answer in enumerate(answers) if i % 9] == [4] * (CALLERS - 8)


async def test_a_conflict_on_one_thread_is_nobody_elses(hf: Holdfast) -> None:
    answers = await asyncio.gather(
        *(hf.journal.append(f"notes {i}", [note(i)], expected_rev=i % 2) for i in range(CALLERS)),
        return_exceptions=True,
    )

    assert [isinstance(answer, Conflict) for answer in answers] == [bool(i % 2) for i in range(CALLERS)]
    assert len(await hf.journal.store.threads()) == CALLERS // 2


async def test_callers_who_give_up_harm_nobody(hf: Holdfast) -> None:
    runs = await many(hf)
    tasks = [asyncio.create_task(hf.signal(run_id, i)) for i, run_id in enumerate(runs)]
    notes = [asyncio.create_task(hf.journal.append("notes", [note(i)])) for i in range(CALLERS)]
    await asyncio.sleep(0)
    for task in (*tasks[::3], *notes[::3]):
        task.cancel()

    answers = await asyncio.gather(*tasks, return_exceptions=True)
    heads = await asyncio.gather(*notes, return_exceptions=True)

    for i, answer in enumerate(answers):
        assert isinstance(answer, asyncio.CancelledError) if i % 3 == 0 else answer == SignalReceipt(True, None, 2)
        assert (await kinds(hf, runs[i])).count("signal_received") <= 1
    written = texts(await hf.journal.read("notes"))
    assert len(set(written)) == len(written)
    for i, head in enumerate(heads):
        assert isinstance(head, asyncio.CancelledError) if i % 3 == 0 else written[int(str(head)) - 1] == i


async def test_a_caller_who_gives_up_while_the_commit_is_on_its_way_harms_nobody(hf: Holdfast) -> None:
    run = await create(hf)
    claim = await claim_one(hf)
    emits = [asyncio.create_task(hf.emit(claim, "text", i)) for i in range(CALLERS)]
    beat = asyncio.create_task(hf.heartbeat(claim))
    for _ in range(3):
        await asyncio.sleep(0)
    for task in (*emits[1::2], beat):
        task.cancel()

    seqs = await asyncio.gather(*emits, return_exceptions=True)
    await asyncio.gather(beat, return_exceptions=True)

    shown = {event.seq: event.data async for event in hf.events(run.run_id) if event.type == "text"}
    assert [shown[int(str(seq))] for seq in seqs[::2]] == list(range(0, CALLERS, 2))
    assert len(set(shown.values())) == len(shown)
    assert (await hf.complete(claim)).status == "done"


@pytest.mark.parametrize("grouped", [True, False])
async def test_grouping_changes_no_answer(database_url: str, schema: str, grouped: bool) -> None:
    async with Holdfast(database_url, schema=schema, grouped=grouped) as holdfast:
        runs = await asyncio.gather(*(create(holdfast, run_id=f"r{i}") for i in range(8)))
        receipts = await asyncio.gather(*(holdfast.signal(run.run_id, 1) for run in runs for _ in range(2)))
        heads = await asyncio.gather(*(holdfast.journal.append("notes", [note(i)]) for i in range(8)))

        assert sorted(receipt.rev or 0 for receipt in receipts) == [2] * 8 + [3] * 8
        assert sorted(heads) == list(range(1, 9))
        commits = await holdfast.journal.store.fetch("SELECT commit_id FROM {s}journal GROUP BY commit_id")
        assert (len(commits) == 32) is not grouped
        assert (await holdfast.fsck()).ok
