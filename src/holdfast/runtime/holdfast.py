"""`Holdfast`: the commands and questions about runs that callers use."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from typing import Any, Literal, Self

import msgspec

from holdfast import ambient
from holdfast.ambient import Clock
from holdfast.errors import Conflict, DatabaseError, InvalidEntry, InvalidValue, LeaseLost, NotFound
from holdfast.fsck import FsckReport, fsck, rebuild
from holdfast.identity import check_id, check_name, hash_token, new_id
from holdfast.journal import Executed, Journal, Limits, RunPlanner
from holdfast.moments import from_us, to_us
from holdfast.protocol import commands, facts
from holdfast.protocol.commands import Command
from holdfast.protocol.events import view
from holdfast.protocol.facts import ROOT, Fact
from holdfast.protocol.outcomes import UNSET, Continue, Done, Fail, Ok, Outcome, Retry, Wait
from holdfast.protocol.state import RunState
from holdfast.protocol.values import clean, fingerprint, whole_number
from holdfast.runtime.creation import creation
from holdfast.runtime.records import Claim, Event, RunInfo, SignalReceipt, run_info
from holdfast.store import Beat, Claimed, ClaimRequest, Store, connect

LOST = ("stale_claim", "expired_claim", "terminal_run")
LEASE_MS_MAX = 1 << 40
CLAIMS_MAX = 10_000
POLL_S = 0.5


class Holdfast:
    """A durable runtime on one database: a path, `sqlite:///…`, `:memory:` or `postgresql://…`.

    Use it as an async context manager, or call `open` and `close`. Opening migrates; that is safe to repeat.
    """

    def __init__(
        self,
        url: str = "holdfast.db",
        *,
        clock: Clock | None = None,
        lease_ms: int = 30_000,
        queue: str = "default",
        schema: str = "holdfast",
        max_body_bytes: int = 8 << 20,
        grouped: bool = True,
    ) -> None:
        self.lease_ms = lease_ms
        self.queue = check_id(queue, "queue")
        database = connect(url, _microseconds(clock), schema=check_id(schema, "schema"))
        self._store: Store[RunState] = Store(database, RunPlanner(), grouped=grouped)
        self.journal = Journal(self._store, Limits(max_body_bytes))
        self.owner_id = f"hf-{new_id()}"

    async def open(self) -> Self:
        await self._store.open()
        return self

    async def close(self) -> None:
        await self.journal.close()
        await self._store.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def create_run(self, *, run_id: str | None = None, **options: Any) -> RunInfo:
        """Create a run. With an input it is pending at once, without one it is idle; 0, False, "" and None are inputs.

        The same `key` (or the same `run_id`) with the same arguments answers the run made first.
        """
        command = creation(**{"queue": self.queue, **options})
        chosen = new_id() if run_id is None else check_id(run_id, "run_id")
        unseen = RunState(run_id=chosen) if run_id is None and command.key is None else None
        try:
            executed = await self.journal.execute(chosen, command, known=unseen)
        except DatabaseError as error:
            if error.code == "write_rejected":
                await self._check_session(command.fact)
            raise
        self._check_created(executed, command)
        if command.key is not None and executed.decision.repeat_rev is not None:
            return await self._existing(executed.state.keys[command.key].run_id)
        if executed.decision.repeat_rev is not None:
            return await self._existing(chosen)
        value = command.fact.input if command.fact.has_input else None
        return run_info(executed.state, pending_input=value, output=None)

    async def create_runs(self, requests: Sequence[dict[str, Any]]) -> list[RunInfo]:
        """Create many runs in one commit, all or none."""
        creations: list[tuple[str, commands.Create]] = []
        for request in requests:
            options = {"queue": self.queue, **request}
            run_id = options.pop("run_id", None)
            chosen = new_id() if run_id is None else check_id(run_id, "run_id")
            creations.append((chosen, creation(**options)))
        made = await self._made_before([command for _, command in creations])
        new = [item for item in creations if _owned_key(item[1]) not in made]
        try:
            states = await self.journal.create_all(new) if new else []
        except Conflict:
            for _, command in creations:
                await self._check_session(command.fact)
            raise
        infos = {
            run_id: run_info(state, pending_input=command.fact.input, output=None)
            for state, (run_id, command) in zip(states, new, strict=True)
        }
        return [
            infos[run_id] if run_id in infos else await self._existing(made[_owned_key(command)])
            for run_id, command in creations
        ]

    async def signal(
        self,
        run_id: str,
        input: Any = UNSET,
        *,
        name: str | None = None,
        key: str | None = None,
        interrupt: bool = False,
    ) -> SignalReceipt:
        """Put an input into the run's mailbox. Never raises for an unknown or finished run; the receipt says so."""
        check_id(run_id, "run_id")
        has_input = input is not UNSET
        value, repaired = clean(input if has_input else None)
        label = None if name is None else check_name(name, "name")
        command = commands.Signal(
            signal_id=new_id(),
            name=label,
            has_input=has_input,
            input=value,
            interrupt=interrupt,
            repaired=repaired,
            **_keyed(key, [label, has_input, value, interrupt]),
        )
        executed = await self.journal.execute(run_id, command)
        decision = executed.decision
        if decision.refusal == "key_reused":
            raise _key_reused(key)
        if decision.refusal == "not_found":
            return SignalReceipt(False, "not_found", None)
        if decision.repeat_rev is not None:
            return await self._receipt_again(executed.state, decision.repeat_rev)
        return SignalReceipt(decision.refusal is None, decision.refusal, executed.first_rev)

    async def cancel(
        self, run_id: str, reason: str | None = None, *, force: bool = False, actor: str | None = None
    ) -> RunInfo:
        """Ask the run to stop and return at once. Nobody works on it, or `force`: it is over now."""
        (why, who), repaired = clean([reason, actor])
        command = commands.Cancel(reason=why, actor=who, force=force, repaired=repaired)
        return await self._known(run_id, await self.journal.execute(run_id, command))

    async def pause(
        self,
        run_id: str,
        step: str,
        kind: Literal["pause", "approval"] = "pause",
        metadata: dict[str, Any] | None = None,
    ) -> RunInfo:
        """Open a question to a person. While it is open nobody can claim the run; signals queue."""
        if kind not in ("pause", "approval"):
            raise InvalidValue(f"kind is {kind!r}; use 'pause' or 'approval'")
        notes, repaired = clean(metadata or {})
        command = commands.Pause(step=check_name(step, "step"), boundary=kind, metadata=notes, repaired=repaired)
        return await self._decided(run_id, command)

    async def resume(
        self, run_id: str, *, actor: str | None = None, step: str | None = None, key: str | None = None
    ) -> RunInfo:
        return await self._resolve(run_id, "resume", actor=actor, step=step, key=key)

    async def approve(
        self,
        run_id: str,
        *,
        actor: str,
        step: str | None = None,
        comment: str | None = None,
        edited: Any = None,
        key: str | None = None,
    ) -> RunInfo:
        return await self._resolve(run_id, "approve", actor=actor, step=step, comment=comment, edited=edited, key=key)

    async def reject(
        self, run_id: str, *, actor: str, step: str | None = None, comment: str | None = None, key: str | None = None
    ) -> RunInfo:
        return await self._resolve(run_id, "reject", actor=actor, step=step, comment=comment, key=key)

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
        count = whole_number(limit, "limit", 0, CLAIMS_MAX)
        tokens = {new_id(): ambient.random_token() for _ in range(count)}
        request = ClaimRequest(
            queues=(check_id(self.queue if queue is None else queue, "queue"),),
            clogs=None if clogs is None else tuple(check_id(clog, "clog_id") for clog in clogs),
            claim_ids=tuple(tokens),
            claim_token_hashes=tuple(hash_token(token) for token in tokens.values()),
            owner_id=check_id(self.owner_id if owner is None else owner, "owner"),
            lease_us=self._lease_us(lease_ms),
        )
        found = await self.journal.claim(request)
        spare = tokens.keys() - {item.claim_id for item in found}
        taken: list[tuple[Claimed, str]] = []
        for item in found:
            claim_id = item.claim_id or await self._take_over(item, request, spare.pop(), tokens)
            if claim_id is not None:
                taken.append((item, claim_id))
        return await self._claims([item._replace(claim_id=claim_id) for item, claim_id in taken], tokens)

    async def heartbeat(self, claim: Claim, lease_ms: int | None = None) -> datetime:
        """Start the lease anew and answer its end. A lost claim raises `LeaseLost`."""
        lease_us = self._lease_us(lease_ms)
        beat = Beat(claim.run_id, claim.runnable_key, claim.claim_id, hash_token(claim.token))
        for beaten in await self._store.heartbeat([beat], lease_us):
            return from_us(beaten.lease_until)
        # Not extended at once: it is lost, or someone is writing to the run this very moment. Ask alone.
        command = commands.Heartbeat(**_fence(claim), lease_us=lease_us)
        executed = await self.journal.execute(claim.run_id, command)
        _check_fence(executed, claim)
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
        return await self._fenced(claim, commands.Release(**_fence(claim)))

    async def emit(self, claim: Claim, type: str, data: Any = None) -> int:
        """Show something to whoever watches; answers its seq once it is on disk."""
        value, repaired = clean(data)
        events = ((check_name(type, "type", longest=128), value),)
        command = commands.Emit(**_fence(claim), events=events, repaired=repaired)
        executed = await self.journal.execute(claim.run_id, command)
        _check_fence(executed, claim)
        return executed.first_rev

    async def get_run(self, run_id: str, as_of: int | datetime | None = None) -> RunInfo | None:
        """The run now, after a revision, or as it was at an instant."""
        check_id(run_id, "run_id")
        if as_of is None:
            state = (await self.journal.slices([run_id])).get(run_id)
        elif isinstance(as_of, datetime):
            state = await self.journal.state(run_id, at=_instant(as_of))
        else:
            state = await self.journal.state(run_id, rev=whole_number(as_of, "as_of", -(1 << 62), 1 << 62))
        return None if state is None else await self._info(state)

    async def find_run(self, *, key: str, user_id: str = "local") -> RunInfo | None:
        """The run that this key made."""
        sql = "SELECT run_id FROM {s}keys WHERE scope = $1 AND key = $2"
        scope = f"user:{check_id(user_id, 'user_id')}"
        rows = await self._store.fetch(sql, scope, check_name(key, "key"))
        return await self.get_run(rows[0][0]) if rows else None

    async def events(self, run_id: str, after: int = 0, *, follow: bool = False) -> AsyncIterator[Event]:
        """The run's public events in order, from after a seq. With `follow`, until the run is over."""
        listener = self._store.listen(f"run:{check_id(run_id, 'run_id')}")
        try:
            while True:
                found = await self.journal.facts(run_id, after, 500)
                for entry, fact in found:
                    after = entry.rev
                    shown = view(fact)
                    is_end = isinstance(fact, facts.RunTerminal)
                    if is_end and not await self._ended_at(run_id, entry.rev):
                        continue
                    if shown:
                        yield Event(seq=entry.rev, at=from_us(entry.at), **shown._asdict())
                    if is_end:
                        return
                if not found:
                    if not follow:
                        return
                    await listener.wait(POLL_S)
        finally:
            listener.close()

    async def fsck(self, run_id: str | None = None) -> FsckReport:
        """Refold the journal and prove that the rows agree. Changes nothing."""
        return await fsck(self.journal, run_id)

    async def rebuild(self, run_id: str | None = None) -> FsckReport:
        """Write the rows anew from the journal, then check. The journal is never changed."""
        return await rebuild(self.journal, run_id)

    async def _ended_at(self, run_id: str, rev: int) -> bool:
        """Did the run take this end? One written by hand may have been refused."""
        state = (await self.journal.slices([run_id])).get(run_id)
        return state is None or state.ended_rev == rev

    async def _settle(self, claim: Claim, outcome: Outcome) -> RunInfo:
        cleaned, repaired = _clean_outcome(outcome)
        return await self._fenced(claim, commands.Settle(**_fence(claim), outcome=cleaned, repaired=repaired))

    async def _fenced(self, claim: Claim, command: Command) -> RunInfo:
        executed = await self.journal.execute(claim.run_id, command)
        _check_fence(executed, claim)
        return await self._info(executed.state)

    async def _resolve(self, run_id: str, action: str, **options: Any) -> RunInfo:
        key = options.pop("key", None)
        edited, repaired_edit = clean(options.pop("edited", None))
        values, repaired_values = clean(options)
        values["edited"], repaired = edited, repaired_edit or repaired_values
        keyed = _keyed(key, [action, values])
        return await self._decided(run_id, commands.Resolve(action=action, repaired=repaired, **values, **keyed))

    async def _decided(self, run_id: str, command: Command) -> RunInfo:
        executed = await self.journal.execute(check_id(run_id, "run_id"), command)
        refusal = executed.decision.refusal
        if refusal == "key_reused":
            raise _key_reused(command.key)
        if refusal is not None and refusal != "not_found":
            raise Conflict(f"run {run_id} does not take this now: {refusal}", code=refusal)
        return await self._known(run_id, executed)

    async def _known(self, run_id: str, executed: Executed) -> RunInfo:
        if executed.decision.refusal == "not_found":
            raise NotFound(f"there is no run {run_id}")
        return await self._info(executed.state)

    async def _receipt_again(self, state: RunState, rev: int) -> SignalReceipt:
        """The first answer: a signal that came after the end was kept, but not accepted."""
        if not state.terminal:
            return SignalReceipt(True, None, rev)
        sql = "SELECT 1 FROM {s}journal WHERE thread = $1 AND rev > $2 AND kind = 'run_terminal' LIMIT 1"
        in_time = bool(await self._store.fetch(sql, f"run:{state.run_id}", rev))
        return SignalReceipt(in_time, None if in_time else "terminal", rev)

    async def _existing(self, run_id: str) -> RunInfo:
        found = await self.get_run(run_id)
        if found is None:
            raise NotFound(f"there is no run {run_id}")
        return found

    def _check_created(self, executed: Executed, command: commands.Create) -> None:
        match executed.decision.refusal:
            case "key_reused":
                raise _key_reused(command.key)
            case "id_reused":
                raise Conflict("this run id was used before, with other arguments", code="id_reused")

    async def _made_before(self, creations: Sequence[commands.Create]) -> dict[tuple[str, str | None], str]:
        """The runs that these users' keys have made already; a key of another body is a `Conflict`."""
        made: dict[tuple[str, str | None], str] = {}
        for command in creations:
            if command.key is None:
                continue
            sql = "SELECT run_id, body_digest FROM {s}keys WHERE scope = $1 AND key = $2"
            for run_id, body_digest in await self._store.fetch(sql, f"user:{command.fact.user_id}", command.key):
                if body_digest != command.key_digest:
                    raise _key_reused(command.key)
                made[_owned_key(command)] = run_id
        return made

    async def _check_session(self, fact: facts.RunCreated) -> None:
        rows = await self._store.fetch("SELECT user_id FROM {s}sessions WHERE session_id = $1", fact.session_id)
        if rows and rows[0][0] != fact.user_id:
            raise NotFound(f"there is no session {fact.session_id} for {fact.user_id}")

    async def _take_over(
        self, item: Claimed, request: ClaimRequest, claim_id: str, tokens: dict[str, str]
    ) -> str | None:
        """Claim an item whose lease ran out; None if that ended the run, or someone was faster."""
        command = commands.Claim(
            runnable_key=item.key,
            claim_id=claim_id,
            claim_token_hash=hash_token(tokens[claim_id]),
            owner_id=request.owner_id,
            lease_us=request.lease_us,
        )
        executed = await self.journal.execute(item.run_id, command, exact=True)
        claimed = any(isinstance(fact, facts.AttemptClaimed) for fact in executed.decision.facts)
        return claim_id if claimed else None

    async def _claims(self, taken: Sequence[Claimed], tokens: dict[str, str]) -> list[Claim]:
        """What their holders need to know, read for all of them at once."""
        states = await self.journal.slices([item.run_id for item in taken])
        held = [(item, state.work[item.key]) for item in taken if (state := states[item.run_id]).work.get(item.key)]
        inputs, unreadable = await self._inputs(
            [(item.run_id, work.input_rev) for item, work in held if work.input_rev]
        )
        return [
            Claim(
                run_id=item.run_id,
                runnable_key=item.key,
                tick_id=item.claim_id,
                claim_id=item.claim_id,
                token=tokens[item.claim_id],
                lease_until=from_us(work.claim.lease_until),
                attempt=work.attempt,
                input=getattr(inputs.get((item.run_id, work.input_rev or 0)), "input", None),
            )
            for item, work in held
            if item.claim_id is not None and work.claim is not None and work.claim.claim_id == item.claim_id
            if item.run_id not in unreadable
        ]

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

    async def _info(self, state: RunState) -> RunInfo:
        root = state.work.get(ROOT)
        next_rev = root.input_rev if root and root.claim is None else None
        places = [(state.run_id, rev) for rev in (next_rev, state.output_rev) if rev is not None]
        bodies = await self.journal.facts_at(places) if places else {}
        pending = bodies.get((state.run_id, next_rev or 0))
        ended = bodies.get((state.run_id, state.output_rev or 0))
        return run_info(state, pending_input=getattr(pending, "input", None), output=getattr(ended, "output", None))

    def _lease_us(self, lease_ms: int | None) -> int:
        return whole_number(self.lease_ms if lease_ms is None else lease_ms, "lease_ms", 1, LEASE_MS_MAX) * 1_000


def _owned_key(command: commands.Create) -> tuple[str, str | None]:
    return command.fact.user_id, command.key


def _instant(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise InvalidValue("as_of has no timezone; use an aware datetime, for example with tzinfo=UTC")
    return to_us(moment)


def _microseconds(clock: Clock | None) -> Callable[[], int] | None:
    return None if clock is None else lambda: to_us(clock.now())


def _fence(claim: Claim) -> dict[str, Any]:
    return {
        "runnable_key": claim.runnable_key,
        "claim_id": claim.claim_id,
        "claim_token_hash": hash_token(claim.token),
    }


def _keyed(key: str | None, body: Any) -> dict[str, Any]:
    return {} if key is None else {"key": check_name(key, "key"), "key_digest": fingerprint(body)}


def _key_reused(key: str | None) -> Conflict:
    return Conflict(f"key {key!r} was used before with another body; choose a new key", code="key_reused")


def _check_fence(executed: Executed, claim: Claim) -> None:
    refusal = executed.decision.refusal
    if refusal in LOST:
        text = f"the claim on run {claim.run_id} is no longer held; drop the work, another worker has it or will"
        raise LeaseLost(text, code=refusal)
    if refusal is not None:
        raise Conflict(f"run {claim.run_id} refused this: {refusal}", code=refusal)


def _clean_outcome(outcome: Outcome) -> tuple[Outcome, bool]:
    match outcome:
        case Done(output=value):
            cleaned, repaired = clean(value)
            return Done(cleaned), repaired
        case Continue(input=value) if value is not UNSET:
            cleaned, repaired = clean(value)
            return Continue(cleaned), repaired
        case Retry() | Fail():
            cleaned, repaired = clean(outcome.error)
            return msgspec.structs.replace(outcome, error=cleaned), repaired
        case _:
            return outcome, False
