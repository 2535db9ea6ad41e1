"""A process whose tasks all want the same token at once: `python -m tests.http_oauth.programs <json>`.

It says `ready` once it is open, begins when it reads a line, and writes the tokens that its tasks got.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from holdfast import Holdfast


async def main(told: dict[str, Any]) -> None:
    async with Holdfast(told["url"], schema=told["schema"]) as hf:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        got = await asyncio.gather(*(hf.credentials.access_token("openai") for _ in range(told["tasks"])))
        print(json.dumps(got), flush=True)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
