"""`Claims`: the queue-style protocol for runners that bring their own loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from holdfast import ambient
from holdfast.errors import Conflict, InvalidEntry, LeaseLost
from holdfast.identity import check_id, check_name, hash_token, new_ids
from holdfast.journal import Executed
from holdfast.moments import from_us
from holdfast.protocol import commands, facts
from holdfast.protocol.commands import Command
from holdfast.protocol.decide import REV_MOVED
from holdfast.protocol.facts import ROOT, AttemptClaimed, Fact, RunCreated
from holdfast.protocol.outcomes import UNSET, Continue, Done, Fail, Ok, Outcome, Retry, Wait
from holdfast.protocol.settle import WORKFLOW_TICK
from holdfast.protocol.state import RunState, Work
from holdfast.protocol.values import clean, whole_number
from holdfast.redaction import HIDDEN
from holdfast.runtime.records import Claim, RunInfo
from holdfast.runtime.runs import Runs
from holdfast.runtime.sequences import SEQ_MAX, SEQ_MOVED, standing_after
from holdfast.store import Beat, Claimed, ClaimRequest

LOST = ("stale_claim", "expired_claim", "terminal_run")
CLAIMS_MAX = 10_000
ROUNDS_MAX = 100


class Taken(NamedTuple):
    """A claim, its run as the claim found it, and the fact that holds the tick's input."""

    claim: Claim
    state: RunState
    fact: Fact | None

    @property
    def about(self) -> dict[str, Any]:
        """What lines of the log say of the tick."""
        work = self.state.work[self.claim.runnable_key]
        return {
            "run_id": self.claim.run_id,
            "session_id": self.state.session_id,
            "user_id": self.state.user_id,
            "worker_id": None if work.claim is None else work.claim.owner_id,
            "attempt": self.claim.attempt,
        }


class Claims(Runs):
    """Take due work, keep it, settle it. Everything a holder writes is fenced by its claim."""

    async def claim_next(
        self,
        queue: str | None = None,
        *,
        owner: str | None = None,
        lease_ms: int | None = None,
        limit: int = 1,
        clogs: Sequence[str] | None = None,
    ) -> list[Claim]:
        """Take up to `limit` due items. Each is this caller's alone until its lease ends."""
        queues = (check_id(self.queue if queue is None else queue, "queue"),)
        chosen = None if clogs is None else [check_id(clog, "clog_id") for clog in clogs]
        taken = await self.take(queues, clogs=chosen, owner=owner, lease_ms=lease_ms, limit=limit, looks_again=True)
        return [item.claim for item in taken]

    async def take(
        self,
        queues: Sequence[str] | None,
        *,
        clogs: Sequence[str] | None = None,
        owner: str | None = None,
        lease_ms: int | None = None,
        limit: int = 1,
        due_by: int | None = None,
        passed: Sequence[str] = (),
        looks_again: bool = False,
        sticky: bool = False,
    ) -> list[Taken]:
        """Claims with what their executor needs to know; `queues=None` is every queue, `clogs` as `Registry.names`.

        A claim may be over before it is heard of. An executor knows by its own clock; for anybody else `looks_again`.
        """
        if self._user_id is not None:
            raise Conflict("work is claimed for everybody, not for one user; use the runtime itself")
        count = whole_number(limit, "limit", 0, CLAIMS_MAX)
        tokens = dict(zip(new_ids(count), ambient.random_tokens(count), strict=True))
        request = ClaimRequest(
            queues=None if queues is None else tuple(check_id(queue, "queue") for queue in queues),
            clogs=None if clogs is None else tuple(clogs),
            claim_ids=tuple(tokens),
            claim_token_hashes=tuple(hash_token(token) for token in tokens.values()),
            owner_id=check_id(self.owner_id if owner is None else owner, "owner"),
            lease_us=self._lease_us(lease_ms),
            due_by=due_by,
            passed=tuple(passed),
            sticky=sticky,
        )
        for _ in range(ROUNDS_MAX):
            found = await self.journal.claim(request)
            if not found:
                return self._noted([], ())
            spare = tokens.keys() - {item.claim_id for item in found}
            # All at once: the leases of those that are held already are running.
            late = [item for item in found if item.claim_id is None]
            asked = await asyncio.gather(
                *(self._taken_over(item, request, spare.pop(), tokens) for item in late), return_exceptions=True
            )
            held = [item for item in (*found, *asked) if isinstance(item, Claimed) and item.claim_id is not None]
            if held:
                told = {} if looks_again else self._told(held, request)
                return self._noted(await self._taken(held, told, tokens), late)
            for error in asked:
                if isinstance(error, BaseException):
                    raise error
            # All that was found had to be ended instead; there may be more behind it.
        return []

    def take_new(
        self, run_id: str, created: RunCreated, *, claim_id: str, owner: str, lease_ms: int
    ) -> Coroutine[Any, Any, Taken | None]:
        """Take a run whose creation was submitted just before, in the same commit; None if it was not created.

        The claim is ordered by this call; its answer may be awaited later.
        """
        token = ambient.random_token()
        command = commands.Claim(
            runnable_key=ROOT,
            claim_id=claim_id,
            claim_token_hash=hash_token(token),
            owner_id=owner,
            lease_us=self._lease_us(lease_ms),
        )
        return self._taken_new(run_id, created, command, token, self.journal.submit_claim(run_id, command))

    async def heartbeat(self, claim: Claim, lease_ms: int | None = None) -> datetime:
        """Start the lease anew and answer its end. A lost claim raises `LeaseLost`."""
        lease_us = self._lease_us(lease_ms)
        beat = Beat(claim.run_id, claim.runnable_key, claim.claim_id, hash_token(claim.token))
        for beaten in await self._store.heartbeat([beat], lease_us):
            return from_us(beaten.lease_until)
        # Not extended at once: it is lost, or someone is writing to the run this very moment. Ask alone.
        command = commands.Heartbeat(**fence_of(claim), lease_us=lease_us)
        executed = await self.journal.execute(claim.run_id, command)
        check_fence(executed, claim.run_id)
        assert executed.at is not None
        return from_us(executed.at + lease_us)

    async def complete(self, claim: Claim, result: Any = None) -> RunInfo:
        """End the tick: an outcome is applied, anything else is `Done(result)`. The same again answers the same."""
        is_outcome = isinstance(result, Ok | Done | Continue | Wait | Retry | Fail)
        return await self._settle(claim, result if is_outcome else Done(result))

    async def fail(self, claim: Claim, error: str, *, retry: bool = True) -> RunInfo:
        """End the tick with an error: tried again later, or for good."""
        return await self._settle(claim, Retry(error) if retry else Fail(error))

    async def release(self, claim: Claim) -> RunInfo:
        """Give the claim back unused: at once claimable, nothing counted."""
        return await self._fenced(claim, commands.Release(**fence_of(claim)))

    async def emit(self, claim: Claim, type: str, data: Any = None, *, expected_seq: int | None = None) -> int:
        """Show something to whoever watches; answers its seq once it is on disk.

        With `expected_seq` only if that is the seq of the run's last event: otherwise a `Conflict` (`seq_moved`), and
        nothing is written. Where the very event that is asked for follows it already, the answer is its seq.
        """
        value, repaired = clean(data)
        event = (check_name(type, "type", longest=128), value)
        command = commands.Emit(**fence_of(claim), events=(event,), repaired=repaired)
        if expected_seq is not None:
            return await self._emit_after(claim, command, whole_number(expected_seq, "expected_seq", 0, SEQ_MAX))
        executed = await self.journal.execute(claim.run_id, command)
        check_fence(executed, claim.run_id)
        return executed.first_rev

    async def _emit_after(self, claim: Claim, command: commands.Emit, seq: int) -> int:
        """Compare, then write at the very revision that was compared; what is no event may come in between."""
        for _ in range(ROUNDS_MAX):
            standing = await standing_after(self.journal, claim.run_id, seq)
            if standing.is_after(command.events[0], claim.claim_id):
                return standing.next_seq
            if standing.rev is None:
                text = f"the last event of run {claim.run_id} is not {seq}; read what happened since, then decide anew"
                raise Conflict(text, code=SEQ_MOVED)
            asked = msgspec.structs.replace(command, expected_rev=standing.rev)
            executed = await self.journal.execute(claim.run_id, asked)
            if executed.decision.refusal != REV_MOVED:
                check_fence(executed, claim.run_id)
                return executed.first_rev
        raise Conflict(f"run {claim.run_id} moves too fast to compare with; try again", code=SEQ_MOVED)

    async def _settle(self, claim: Claim, outcome: Outcome) -> RunInfo:
        cleaned, repaired = clean_outcome(_without_token(outcome, claim.token))
        plan = None if claim.runnable_key == ROOT else await self._plan(claim.run_id)
        if plan is not None and isinstance(cleaned, Ok | Done):
            _check_nobody_is_asked(plan, claim.runnable_key)
        return await self._fenced(
            claim, commands.Settle(**fence_of(claim), outcome=cleaned, repaired=repaired, plan=plan)
        )

    async def _plan(self, run_id: str) -> commands.Plan | None:
        """What a workflow's steps are followed by: a runner of one's own need not know its definition."""
        state = (await self.journal.slices([run_id])).get(run_id)
        definition = await self.journal.definition(state) if state else None
        return commands.Plan(graph=definition.graph) if definition else None

    async def _fenced(self, claim: Claim, command: Command) -> RunInfo:
        executed = await self.journal.execute(claim.run_id, command)
        check_fence(executed, claim.run_id)
        return await self._info(executed.state)

    async def _taken_over(
        self, item: Claimed, request: ClaimRequest, claim_id: str, tokens: dict[str, str]
    ) -> Claimed | None:
        """The item whose lease ran out, claimed; None if that ended its run, or someone was faster."""
        command = commands.Claim(
            runnable_key=item.key,
            claim_id=claim_id,
            claim_token_hash=hash_token(tokens[claim_id]),
            owner_id=request.owner_id,
            lease_us=request.lease_us,
        )
        executed = await self.journal.execute(item.run_id, command, exact=True)
        work = executed.state.work.get(item.key)
        is_ours = work is not None and work.claim is not None and work.claim.claim_id == claim_id
        return item._replace(claim_id=claim_id) if is_ours else None

    async def _taken_new(
        self,
        run_id: str,
        created: RunCreated,
        command: commands.Claim,
        token: str,
        submitted: Coroutine[Any, Any, Executed],
    ) -> Taken | None:
        executed = await submitted
        if executed.at is None:
            return None
        work = executed.state.work[ROOT]
        assert work.claim is not None
        # As it was stored: what its creator gave is the creator's.
        fact = facts.decode(created.kind, facts.encode(created))
        item = Claimed(run_id, ROOT, command.claim_id, executed.at)
        taken = Taken(_claim(item, work, work.claim.lease_until, token, fact), executed.state, fact)
        return self._noted([taken], ())[0]

    def _told(self, held: Sequence[Claimed], request: ClaimRequest) -> dict[str, tuple[RunState, Fact]]:
        """The runs that have just begun, which their claims told whole, each with the fact that holds its input."""
        hashes = dict(zip(request.claim_ids, request.claim_token_hashes, strict=True))
        told: dict[str, tuple[RunState, Fact]] = {}
        for item in held:
            if item.first is not None and (begun := self.journal.begun(item, _claimed(item, request, hashes))):
                told[item.run_id] = begun
        return told

    async def _taken(
        self, held: Sequence[Claimed], told: dict[str, tuple[RunState, Fact]], tokens: dict[str, str]
    ) -> list[Taken]:
        """What their holders need to know: what was told, and the rest read."""
        read = await self._read([item for item in held if item.run_id not in told])
        answer: list[Taken] = []
        for item in held:
            known = told.get(item.run_id) or read.get((item.run_id, item.key))
            if known is None:
                continue
            state, fact = known
            work = state.work.get(item.key)
            if work and work.claim and work.claim.claim_id == item.claim_id:
                claim = _claim(item, work, work.claim.lease_until, tokens[work.claim.claim_id], fact)
                answer.append(Taken(claim, state, fact))
        return answer

    def _noted(self, taken: list[Taken], late: Sequence[Claimed]) -> list[Taken]:
        """The same, told to whoever counts. `late` are the items that were found with a lease that had run out."""
        observer = self.journal.observer
        if observer is None:
            return taken
        over = {(item.run_id, item.key) for item in late}
        waited_us = [
            state.at - state.work[claim.runnable_key].visible_at
            for claim, state, _ in taken
            if (claim.run_id, claim.runnable_key) not in over
        ]
        taken_over = len(taken) - len(waited_us)
        observer.claimed(waited_us, taken_over=taken_over, lost=len(over) - taken_over)
        return taken

    async def _read(self, held: Sequence[Claimed]) -> dict[tuple[str, str], tuple[RunState, Fact | None]]:
        """The runs of these items and the facts that hold their inputs, for all of them at once."""
        if not held:
            return {}
        # Siblings of one workflow show the same run.
        states = await self.journal.slices(list(dict.fromkeys(item.run_id for item in held)))
        works = {item: state.work[item.key] for item in held if (state := states[item.run_id]).work.get(item.key)}
        inputs, unreadable = await self._inputs(
            [(item.run_id, work.input_rev) for item, work in works.items() if work.input_rev]
        )
        return {
            (item.run_id, item.key): (states[item.run_id], inputs.get((item.run_id, work.input_rev or 0)))
            for item, work in works.items()
            if item.run_id not in unreadable
        }

    async def _inputs(self, places: list[tuple[str, int]]) -> tuple[dict[tuple[str, int], Fact], set[str]]:
        """The inputs, and the runs whose journal cannot be read: a damaged run must not cost its neighbours theirs."""
        try:
            return await self.journal.facts_at(places), set()
        except InvalidEntry:
            if len(places) == 1:
                return {}, {places[0][0]}
        found: dict[tuple[str, int], Fact] = {}
        unreadable: set[str] = set()
        for place in places:
            one, broken = await self._inputs([place])
            found |= one
            unreadable |= broken
        return found, unreadable


def _claimed(item: Claimed, request: ClaimRequest, hashes: dict[str, str]) -> AttemptClaimed:
    """The fact that the store wrote as it took the first item of a run."""
    return AttemptClaimed(
        runnable_key=item.key,
        claim_id=item.claim_id or "",
        claim_token_hash=hashes[item.claim_id or ""],
        owner_id=request.owner_id,
        lease_us=request.lease_us,
    )


def _claim(item: Claimed, work: Work, lease_until: int, token: str, fact: Fact | None) -> Claim:
    assert item.claim_id is not None
    return Claim(
        run_id=item.run_id,
        runnable_key=item.key,
        tick_id=item.claim_id,
        claim_id=item.claim_id,
        token=token,
        lease_until=from_us(lease_until),
        attempt=work.attempt,
        input=getattr(fact, "input", None),
    )


def _check_nobody_is_asked(plan: commands.Plan, key: str) -> None:
    """A question to a person is answered by a person; whoever holds its step may only give it back."""
    node = plan.graph.by_name.get(key)
    if node is not None and node.kind in ("approval", "pause"):
        text = f"step {key} asks a person; release the claim, a worker that has the workflow asks"
        raise Conflict(text, code=WORKFLOW_TICK)


def fence_of(claim: Claim) -> dict[str, Any]:
    return {
        "runnable_key": claim.runnable_key,
        "claim_id": claim.claim_id,
        "claim_token_hash": hash_token(claim.token),
    }


def check_fence(executed: Executed, run_id: str) -> None:
    """Raise unless the command of a holder was carried out."""
    refusal = executed.decision.refusal
    if refusal in LOST:
        text = f"the claim on run {run_id} is no longer held; drop the work, another worker has it or will"
        raise LeaseLost(text, code=refusal)
    if refusal is not None:
        raise Conflict(f"run {run_id} refused this: {refusal}", code=refusal)


def _without_token(outcome: Outcome, token: str) -> Outcome:
    """A runner that tells its claim in an error must not tell its token."""
    if isinstance(outcome, Retry | Fail) and token in str(outcome.error):
        return msgspec.structs.replace(outcome, error=str(outcome.error).replace(token, HIDDEN))
    return outcome


def clean_outcome(outcome: Outcome) -> tuple[Outcome, bool]:
    """The outcome as it can be stored, and whether that changed it."""
    match outcome:
        case Done(output=value):
            cleaned, repaired = clean(value)
            return Done(cleaned), repaired
        case Continue(input=value) if value is not UNSET:
            cleaned, repaired = clean(value)
            return Continue(cleaned), repaired
        case Retry() | Fail():
            # Some answer with the exception itself, and mean its text.
            error: Any = outcome.error
            cleaned, repaired = clean(str(error) if isinstance(error, Exception) else error)
            return msgspec.structs.replace(outcome, error=cleaned), repaired
        case _:
            return outcome, False
