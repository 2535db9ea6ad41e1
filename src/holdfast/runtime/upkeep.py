"""`Upkeep`: the rare operations on whole runs and whole databases."""

from __future__ import annotations

from holdfast.fsck import FsckReport, fsck, rebuild
from holdfast.runtime.questions import Questions


class Upkeep(Questions):
    """Prove, repair."""

    async def fsck(self, run_id: str | None = None) -> FsckReport:
        """Refold the journal and prove that the rows agree. Changes nothing."""
        return await fsck(self.journal, run_id)

    async def rebuild(self, run_id: str | None = None) -> FsckReport:
        """Write the rows anew from the journal, then check. The journal is never changed."""
        return await rebuild(self.journal, run_id)
