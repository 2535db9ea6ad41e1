"""`Upkeep`: the rare operations on whole runs and whole databases."""

from __future__ import annotations

from holdfast.fsck import FsckReport, fsck, rebuild
from holdfast.runtime.records import RunInfo
from holdfast.runtime.travel import Travel


class Upkeep(Travel):
    """Prove, repair, recover."""

    async def fsck(self, run_id: str | None = None) -> FsckReport:
        """Refold the journal and prove that the rows agree. Changes nothing."""
        await self._check_asked(run_id)
        return await fsck(self.journal, run_id, user_id=self._user_id)

    async def rebuild(self, run_id: str | None = None) -> FsckReport:
        """Write the rows anew from the journal, then check. The journal is never changed."""
        await self._check_asked(run_id)
        return await rebuild(self.journal, run_id, user_id=self._user_id)

    async def recover(self, run_id: str) -> RunInfo:
        """Do what a crash left undone: schedule what was planned, then apply what was completed, then tell others.

        Where nothing was left undone nothing is written, so it may be repeated at any time.
        """
        await self._existing(run_id)
        await self._repair(run_id)
        await self.journal.settle_down(run_id)
        return await self._existing(run_id)

    async def _check_asked(self, run_id: str | None) -> None:
        """One user asks about their own runs only; whoever sees everything may also ask what is left of a lost run."""
        if run_id is not None and self._user_id is not None:
            await self._existing(run_id)
