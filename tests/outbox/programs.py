"""A process that delivers: `python -m tests.outbox.programs <json>`.

Its receiver is a folder that outlives it: each delivery appends its key to `log`, and has an effect (a file named like
its key) unless there is one already. Told so, the process kills itself right after its delivery, before the ack.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from holdfast import Holdfast


def receive(folder: Path, key: str, payload: Any) -> None:
    with (folder / "log").open("a") as log:
        log.write(f"{key}\n")
    try:
        (folder / key).touch(exist_ok=False)
    except FileExistsError:
        return


async def main(told: dict[str, Any]) -> None:
    folder = Path(told["folder"])
    async with Holdfast(told["url"], schema=told["schema"]) as hf:

        @hf.deliver("email")
        async def deliver(payload: Any, *, idempotency_key: str) -> str:
            receive(folder, idempotency_key, payload)
            if told["dies"]:
                os.kill(os.getpid(), signal.SIGKILL)
            return "m-1"

        while (await hf.outbox.report()).statuses["pending"]:
            await hf.outbox.flush_once(limit=told["limit"], lease_seconds=told["lease_s"])
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
