"""`Runs`: the commands that people and programs give a run from outside."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Literal

import msgspec

from holdfast.audit.boundaries import Verdict, verdict
from holdfast.errors import Conflict, DatabaseError, InvalidValue, NotFound
from holdfast.identity import check_id, check_name, new_id, new_ids
from holdfast.journal import Executed
from holdfast.protocol import commands, facts
from holdfast.protocol.commands import Command
from holdfast.protocol.decisions import microseconds
from holdfast.protocol.outcomes import UNSET
from holdfast.protocol.state import RunState
from holdfast.protocol.values import clean, fingerprint
from holdfast.runtime.core import Core
from holdfast.runtime.creation import creation
from holdfast.runtime.records import RunInfo, SignalReceipt, run_info

VERDICTS_MAX = 5


class Runs(Core):
    """Create, signal, cancel, pause and answer."""

    async def create_run(self, *, run_id: str | None = None, **options: Any) -> RunInfo:
        """Create a run. With an input it is pending at once, without one it is idle; 0, False, "" and None are inputs.

        The same `key` (or the same `run_id`) with the same arguments answers the run made first.
        """
        command = creation(**self._options(options))
        chosen = new_id() if run_id is None else check_id(run_id, "run_id")
        is_alone = run_id is None and command.key is None and command.fact.lane is None
        unseen = RunState(run_id=chosen) if is_alone else None
        creating = self.journal.submit(chosen, command, known=unseen, checked=True)
        if is_alone and command.fact.has_input:
            self._offer(chosen, command.fact)
        try:
            executed = await creating
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

    def _offer(self, run_id: str, created: facts.RunCreated) -> None:
        """Whoever in this process has nothing to do may take the run as it is made. Its creator sees it pending."""
        for take in self.takers:
            if take(run_id, created):
                return

    async def create_runs(self, requests: Sequence[dict[str, Any]]) -> list[RunInfo]:
        """Create many runs in one commit, all or none."""
        creations: list[tuple[str, commands.Create]] = []
        given: set[str] = set()
        asked = list(requests)
        for request, made_up in zip(asked, new_ids(len(asked)), strict=True):
            options = self._options(request)
            run_id = options.pop("run_id", None)
            if run_id is not None:
                given.add(check_id(run_id, "run_id"))
            creations.append((run_id or made_up, creation(**options)))
        made = await self._made_before([command for _, command in creations])
        new = [item for item in creations if _owned_key(item[1]) not in made]
        # An id that was just made up has no past.
        await self.journal.check_unused([run_id for run_id, _ in new if run_id in given])
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
        executed = await self.command(run_id, command)
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
        return await self._known(run_id, await self.command(run_id, command))

    async def pause(
        self,
        run_id: str,
        step: str,
        kind: Literal["pause", "approval"] = "pause",
        metadata: dict[str, Any] | None = None,
        *,
        expires: float | timedelta | None = None,
    ) -> RunInfo:
        """Open a question to a person. While it is open nobody can claim the run; signals queue.

        Once it expires a pause is over, and an approval fails the run.
        """
        if kind not in ("pause", "approval"):
            raise InvalidValue(f"kind is {kind!r}; use 'pause' or 'approval'")
        notes, repaired = clean(metadata or {})
        command = commands.Pause(
            step=check_name(step, "step"),
            boundary=kind,
            metadata=notes,
            expires_us=None if expires is None else microseconds(expires),
            repaired=repaired,
        )
        return await self._decided(run_id, command)

    async def resume(
        self,
        run_id: str,
        *,
        actor: str | None = None,
        step: str | None = None,
        comment: str | None = None,
        seen_rev: int | None = None,
        key: str | None = None,
    ) -> RunInfo:
        """End the open pause. Refused like `approve`, but nobody has to say who they are."""
        told = {"actor": actor, "step": step, "comment": comment, "seen_rev": seen_rev}
        return await self._resolve(run_id, "resume", key=key, **told)

    async def approve(
        self,
        run_id: str,
        *,
        actor: str | None = None,
        step: str | None = None,
        comment: str | None = None,
        edited: Any = None,
        seen_rev: int | None = None,
        key: str | None = None,
    ) -> RunInfo:
        """Say yes to the open question, perhaps with other arguments than were shown (`edited`).

        `Conflict` (`stale_manual_resolution`) without an actor, for another step or kind, after it expired or was
        answered, and for someone whose `seen_rev` is older than the question. The same answer with the same `key`
        again is the first one.
        """
        told = {"actor": actor, "step": step, "comment": comment, "edited": edited, "seen_rev": seen_rev}
        return await self._resolve(run_id, "approve", key=key, **told)

    async def reject(
        self,
        run_id: str,
        *,
        actor: str | None = None,
        step: str | None = None,
        comment: str | None = None,
        edited: Any = None,
        seen_rev: int | None = None,
        key: str | None = None,
    ) -> RunInfo:
        """Say no. A flow hears it and goes on; any other run ends failed (`rejected`). Refused like `approve`."""
        told = {"actor": actor, "step": step, "comment": comment, "edited": edited, "seen_rev": seen_rev}
        return await self._resolve(run_id, "reject", key=key, **told)

    def _options(self, given: dict[str, Any]) -> dict[str, Any]:
        """What a creation is told, with what this runtime adds; for one user, everything is theirs."""
        options = {"queue": self.queue, **given}
        if self._user_id is not None and options.setdefault("user_id", self._user_id) != self._user_id:
            raise NotFound(f"there is no user {options['user_id']} for {self._user_id}")
        return options

    async def _resolve(self, run_id: str, action: str, **options: Any) -> RunInfo:
        key = options.pop("key", None)
        edited, repaired_edit = clean(options.pop("edited", None))
        values, repaired_values = clean(options)
        values["edited"], repaired = edited, repaired_edit or repaired_values
        keyed = _keyed(key, [action, values])
        command = commands.Resolve(action=action, repaired=repaired, **values, **keyed)
        for _ in range(VERDICTS_MAX):
            found, seen_rev = await self._verdict(run_id, command)
            judged = msgspec.structs.replace(command, statements=found.statements, seen_rev=seen_rev)
            try:
                executed = await self.command(run_id, judged)
            except DatabaseError as error:
                # The proposal that this answers was decided, or proposed anew, a moment ago.
                if not found.statements or error.code != "write_rejected":
                    raise
                continue
            step = found.step(executed.at) if executed.at is not None and executed.decision.refusal is None else None
            await self.audit.announce(*filter(None, [step]))
            return await self._answered(run_id, command, executed)
        raise Conflict(f"what run {run_id} asks about keeps changing; look at it again, then decide")

    async def _verdict(self, run_id: str, command: commands.Resolve) -> tuple[Verdict, int | None]:
        """What the answer means for the proposal that the open question is about, and how much of the run says so.

        No later question is answered by it: that may be about another proposal.
        """
        check_id(run_id, "run_id")
        state = (await self.journal.slices([run_id])).get(run_id) if await self.owns(run_id) else None
        if state is None:
            return Verdict(), command.seen_rev
        boundary, seen = state.boundary, state.rev if command.seen_rev is None else min(command.seen_rev, state.rev)
        if boundary is None or boundary.proposal is None or not command.actor:
            return Verdict(), seen
        told = (boundary.proposal, command.action, command.actor, self._user_id)
        return await verdict(self._store, run_id, *told), seen

    async def _decided(self, run_id: str, command: Command) -> RunInfo:
        return await self._answered(run_id, command, await self.command(run_id, command))

    async def _answered(self, run_id: str, command: Command, executed: Executed) -> RunInfo:
        refusal = executed.decision.refusal
        if refusal == "key_reused":
            raise _key_reused(command.key)
        if refusal is not None and refusal != "not_found":
            raise Conflict(f"run {run_id} does not take this now: {refusal}", code=refusal)
        return await self._known(run_id, executed)

    async def _receipt_again(self, state: RunState, rev: int) -> SignalReceipt:
        """The first answer: a signal that came after the end was kept, but not accepted."""
        if not state.terminal:
            return SignalReceipt(True, None, rev)
        sql = "SELECT 1 FROM {s}journal WHERE thread = $1 AND rev > $2 AND kind = 'run_terminal' LIMIT 1"
        in_time = bool(await self._store.fetch(sql, f"run:{state.run_id}", rev))
        return SignalReceipt(in_time, None if in_time else "terminal", rev)

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


def _owned_key(command: commands.Create) -> tuple[str, str | None]:
    return command.fact.user_id, command.key


def _keyed(key: str | None, body: Any) -> dict[str, Any]:
    return {} if key is None else {"key": check_name(key, "key"), "key_digest": fingerprint(body)}


def _key_reused(key: str | None) -> Conflict:
    return Conflict(f"key {key!r} was used before with another body; choose a new key", code="key_reused")
