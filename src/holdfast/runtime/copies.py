"""`Copies`: runs made from runs, in this database and in files that can be carried to another."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from holdfast.errors import Conflict, InvalidValue, NotFound
from holdfast.identity import check_id, new_id
from holdfast.journal import Journal, RunPlanner, copies
from holdfast.protocol import commands, facts
from holdfast.protocol.state import RunState
from holdfast.protocol.values import whole_number
from holdfast.runtime import irreversible
from holdfast.runtime.records import RunInfo
from holdfast.runtime.retention import Retention
from holdfast.store import Entry, Store, connect

REV_MAX = (1 << 31) - 1
_UNSCHEDULED = """
    SELECT key, planned_rev FROM {s}runnables
    WHERE run_id = $1 AND scheduled_rev IS NULL AND status = 'planned'
    ORDER BY planned_rev
"""


class Copies(Retention):
    """Fork, replay, export and import."""

    async def fork(
        self,
        run_id: str,
        at_rev: int | None = None,
        *,
        new_run_id: str | None = None,
        allow_irreversible: bool = False,
    ) -> RunInfo:
        """Begin a new run with the first `at_rev` entries of this one (all of them, if not told), and go on from there.

        A claim that was open then counts as released; its storage comes along, what it sent outside does not. Steps
        whose results are copied never run again; an irreversible one that would is refused as by `replay`.
        """
        await self._existing(run_id)
        rev = REV_MAX if at_rev is None else whole_number(at_rev, "at_rev", 1, REV_MAX)
        chosen = new_id() if new_run_id is None else check_id(new_run_id, "new_run_id")
        lines = await self.journal.facts(run_id, limit=rev)
        if not lines or (at_rev is not None and len(lines) < rev):
            raise NotFound(f"run:{run_id} is at revision {len(lines)}; {rev} does not exist yet")
        if allow_irreversible is not True:
            await self._check_reversible(run_id, [fact for _, fact in lines])
        await copies.fork(self.journal, run_id, chosen, lines)
        # Cut in the middle of a commit, a workflow has work that only the rest of that commit would have planned.
        await self._repair(chosen)
        return await self._existing(chosen)

    async def replay(self, run_id: str, *, new_run_id: str | None = None, allow_irreversible: bool = False) -> RunInfo:
        """Create a new run as this one was created: the same clog, input and options, and nothing of its history.

        Everything is done again. Where that includes a step marked irreversible, of the run or of a child, it is a
        `Conflict` (`irreversible`) that names the step, unless `allow_irreversible` is exactly True.
        """
        await self._existing(run_id)
        if allow_irreversible is not True:
            await self._check_reversible(run_id)
        chosen = new_id() if new_run_id is None else check_id(new_run_id, "new_run_id")
        created = (await self.journal.facts_at([(run_id, 1)]))[run_id, 1]
        assert isinstance(created, facts.RunCreated)
        fact = replace(created, parent=None, key=None, key_digest=None, replayed_from=run_id)
        executed = await self.journal.execute(chosen, commands.Create(fact=fact))
        self._check_created(executed, commands.Create(fact=fact))
        return await self._existing(chosen)

    async def _check_reversible(self, run_id: str, kept: Sequence[facts.Fact] = ()) -> None:
        """Raise if a copy that begins with these facts would do an irreversible step again.

        Children that it would start anew do again what they did, so they count too.
        """
        known = irreversible.answered(kept)
        family = [run_id]
        for each in family:
            told = [fact for _, fact in await self.journal.facts(each)]
            started = (fact.child_run_id for fact in told if isinstance(fact, facts.ChildRunStarted))
            family += [child for child in started if child not in known]
            for step, name in irreversible.begun(told).items():
                if each != run_id or step not in known:
                    whose = "" if each == run_id else f" of child run {each}"
                    text = f"step {name!r}{whose} cannot be taken back, and the new run would do it again"
                    raise Conflict(f"{text}; to have that, say allow_irreversible=True", code="irreversible")

    async def _repair(self, run_id: str) -> None:
        """Schedule what was planned and never scheduled, then apply what was completed and never applied."""
        planned = await self._store.fetch(_UNSCHEDULED, run_id)
        found = await self.journal.facts_at([(run_id, rev) for _, rev in planned])
        inputs: dict[str, Any] = {key: getattr(found[run_id, rev], "input", None) for key, rev in planned}
        await self.journal.execute(run_id, commands.Recover(inputs=inputs))

    async def export_run(self, run_id: str, path: str | os.PathLike[str]) -> None:
        """Write the run into a new SQLite file: a database of its own, with the same id, revisions and instants.

        A file that is already there is a `Conflict`. The file appears whole or not at all.
        """
        await self._existing(run_id)
        entries = [entry for entry, _ in await self.journal.facts(run_id)]
        target = Path(path)
        await asyncio.to_thread(_check_free, target)
        # In a folder beside it, so that it can take its place in one step.
        async with _folder(target.parent) as folder:
            async with _opened(folder / "run.db") as journal:
                await copies.restore(journal.store, entries)
            await asyncio.to_thread(_move, folder / "run.db", target)

    async def import_run(self, path: str | os.PathLike[str]) -> RunInfo:
        """Bring the run of an exported file into this database, as it is there. The file is left alone.

        A run that is here already is not touched; another one under its id is a `Conflict`.
        """
        async with _folder(None) as folder:
            await asyncio.to_thread(_copy, Path(path), folder / "run.db")
            async with _opened(folder / "run.db") as journal:
                entries = await _only_run(journal, Path(path))
        created = facts.decode(entries[0].kind, entries[0].data)
        if self._user_id is not None and getattr(created, "user_id", None) != self._user_id:
            raise NotFound(f"there is no run of {self._user_id} in {path}")
        run_id = await copies.restore(self._store, entries)
        await self.journal.settle_down(run_id)
        return await self._existing(run_id)


@contextlib.asynccontextmanager
async def _folder(beside: Path | None) -> AsyncIterator[Path]:
    """A folder that is gone afterwards, with all that SQLite keeps beside a file."""
    made = await asyncio.to_thread(tempfile.mkdtemp, prefix=".holdfast-", dir=beside)
    try:
        yield Path(made)
    finally:
        await asyncio.to_thread(shutil.rmtree, made, ignore_errors=True)


@contextlib.asynccontextmanager
async def _opened(path: Path) -> AsyncIterator[Journal]:
    store: Store[RunState] = Store(connect(str(path), None), RunPlanner())
    await store.open()
    journal = Journal(store)
    try:
        yield journal
    finally:
        await journal.close()
        await store.close()


async def _only_run(journal: Journal, path: Path) -> Sequence[Entry]:
    run_ids = [row[0] for row in await journal.store.fetch("SELECT run_id FROM {s}runs ORDER BY run_id LIMIT 2")]
    if len(run_ids) != 1:
        what = "more than one run" if run_ids else "no run"
        raise InvalidValue(f"{path} holds {what}; import the file of an export")
    return [entry for entry, _ in await journal.facts(run_ids[0])]


def _check_free(path: Path) -> None:
    if path.exists():
        raise Conflict(f"{path} is there already; choose another file", code="file_exists")
    if not path.parent.is_dir():
        raise NotFound(f"the folder {path.parent} does not exist; create it first")


def _copy(path: Path, place: Path) -> None:
    """Also what SQLite has not yet put into the file itself."""
    if not path.is_file():
        raise NotFound(f"there is no file {path}")
    shutil.copyfile(path, place)
    wal = Path(f"{path}-wal")
    if wal.exists():
        shutil.copyfile(wal, f"{place}-wal")


def _move(path: Path, target: Path) -> None:
    try:
        # A link is refused where a file stands, so two exports never overwrite each other.
        os.link(path, target)
    except FileExistsError:
        _check_free(target)
    except OSError:
        # Not every filesystem knows links.
        _check_free(target)
        os.rename(path, target)
