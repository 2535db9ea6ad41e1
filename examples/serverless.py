"""No worker anywhere: a function that a timer or a request pokes. It does what is due and says when to come back.

    python examples/serverless.py [database url]

`handler` is what a cloud function would export; the rest plays the timer that calls it.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from time import sleep
from typing import Any

from holdfast import Clog, Context, Done, Holdfast, Wait

BUDGET_MS = 20_000
reminder = Clog("reminder")


@reminder.on_advance
def remind(input: Any, ctx: Context) -> Wait | Done:
    """A plain function: it runs in a thread, and what others await it simply calls."""
    if input is not None:
        return Wait(seconds=input["in_seconds"])
    return Done("time to stand up")


def handler(event: dict[str, Any]) -> dict[str, Any]:
    """Open, advance within the budget, close. Whatever is cut short is found by the next call."""
    hf = Holdfast(event["database"])
    hf.register(reminder)
    with hf.sync:
        if "remind_in" in event:
            hf.sync.create_run(session_id="me", clog_id="reminder", input={"in_seconds": event["remind_in"]})
        result = hf.sync.advance(budget_ms=BUDGET_MS)
        done = [hf.sync.get_run(each.run_id).output for each in result.results if each.status == "done"]
    return {"advanced": result.advanced, "done": done, "next_wake_at": result.next_wake_at}


def main(url: str) -> None:
    answer = handler({"database": url, "remind_in": 1})
    print(f"asked for a reminder: {shown(answer)}")
    while answer["next_wake_at"] is not None:
        sleep(max(0.0, (answer["next_wake_at"] - datetime.now(UTC)).total_seconds()))
        answer = handler({"database": url})
        print(f"poked by the timer:   {shown(answer)}")


def shown(answer: dict[str, Any]) -> str:
    when = answer["next_wake_at"]
    come_back = f"at {when:%H:%M:%S}" if when else "never"
    return f"{answer['advanced']} tick, done {answer['done']}, come back {come_back}"


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "serverless.db")
