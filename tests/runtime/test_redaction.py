"""One redaction policy: what people look at carries no secrets, what programs read back is untouched."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Context, DeadLetter, Done, Fail, FlowContext, Holdfast, Ok, Retry, RetryPolicy, RunInfo, Workflow
from holdfast.redaction import _PATTERNS, HIDDEN, PASSING_MAX, Redaction, is_sensitive, logger
from tests.conftest import Opener
from tests.contract.builders import claim_one, create, look
from tests.runtime.clogs import on_advance

CANARY = "c4nary"
ENVIRONMENT = f"{CANARY}-environment-3f9a"
SETTINGS = f"{CANARY}-settings-81bc"
SECRETS = {
    "header": f"Authorization: Bearer {CANARY}.header.value",
    "basic": f"authorization=Basic {CANARY}==",
    "bearer": f"curl said Bearer {CANARY}bearer",
    "url": f"postgresql://ann:{CANARY}-url@host/db",
    "assignment": f"api_key={CANARY}-assignment, and more",
    "quoted": f"{{'password': '{CANARY} quoted'}}",
    "provider": f"sk-{CANARY}-0123456789abcdef",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJjNG5hcnkiOjF9eyJjNG5hcnk.c4nary-signature",
    "environment": f"the variable was {ENVIRONMENT}!",
    "settings": f"the setting was {SETTINGS}!",
    "pem": f"-----BEGIN RSA PRIVATE KEY-----\n{CANARY}\n-----END RSA PRIVATE KEY-----",
}
NAMED = {
    "access_token": CANARY,
    "X-Api-Key": CANARY,
    "nested": [{"client_secret": CANARY, "headers": {"Authorization": CANARY, "Cookie": CANARY}}],
    "claimToken": {"any": ["shape", CANARY]},
}


@pytest.fixture
async def watched(another: Opener, monkeypatch: pytest.MonkeyPatch) -> Holdfast:
    """A runtime that was opened while the environment held a secret, and was told another one."""
    monkeypatch.setenv("SOME_SERVICE_SECRET", ENVIRONMENT)
    hf = await another(persist_payloads=True)
    hf.redaction.hide(SETTINGS)
    return hf


async def everything(hf: Holdfast, configuration: str) -> str:
    """Every value of every table."""
    if configuration == "postgres":
        schema = hf.journal.store._database.prefix.strip('".')
        sql = "SELECT table_name FROM information_schema.tables WHERE table_schema = $1"
        tables = [row[0] for row in await hf.journal.store.fetch(sql, schema)]
    else:
        tables = [row[0] for row in await hf.journal.store.fetch("SELECT name FROM sqlite_master WHERE type = 'table'")]
    assert {"journal", "runs", "tool_calls", "turns", "steps", "outbox", "outbox_audits"} <= set(tables)
    rows = [(name, await hf.journal.store.fetch(f"SELECT * FROM {{s}}{name}")) for name in tables]
    return "\n".join(f"{name} {row!r}" for name, found in rows for row in found)


async def deliver_in_vain(hf: Holdfast, text: str) -> None:
    """One row that is tried again, one that is dead, both with everything in their errors."""

    @hf.deliver("again")
    async def again(payload: Any, **_: Any) -> None:
        raise ConnectionError(text)

    @hf.deliver("never")
    async def never(payload: Any, **_: Any) -> None:
        raise DeadLetter(text)

    for space in ("again", "never"):
        await hf.outbox.enqueue({"to": "ann"}, space)
    counts = await hf.outbox.flush_once()
    assert sum(counts.values()) == 2


async def deliver_by_hand(hf: Holdfast, text: str) -> tuple[str, list[str]]:
    """Rows whose worker writes its own token into its errors; the token, and what was shown."""
    for number in range(2):
        await hf.outbox.enqueue(number, "by-hand")
    rows = await hf.outbox.claim_outbox("w1")
    shown = [repr(row) for row in rows]
    token = rows[0].token
    assert token is not None
    error = f"{token} {token.partition('.')[2]} {text}"
    await hf.outbox.fail_retry(rows[0].outbox_id, "w1", error, rows[0].created_at, token)
    await hf.outbox.mark_dead_by_worker(rows[1].outbox_id, "w1", error, token)
    await hf.outbox.reconcile()
    return token.partition(".")[2], [*shown, repr(await hf.outbox.audits()), repr(await hf.outbox.rows("dead"))]


async def propose_in_vain(hf: Holdfast, text: str) -> list[str]:
    """Edits that fail and go stale with everything in their reasons."""
    for name in ("failed", "stale"):
        await hf.audit.record_edit_proposed(name, diffs_json=[{"path": "a.py"}])
    await hf.audit.record_edit_failed("failed", text)
    await hf.audit.record_edit_stale("stale", text)
    return [repr(await hf.audit.list_edit_proposals())]


async def send_from_a_run(hf: Holdfast) -> RunInfo:
    """A run that hears of a dead letter; its sink is the one that fails with everything."""

    async def advance(given: Any, ctx: Context) -> Any:
        await ctx.outbox("never", {"to": "bob"})
        return Ok()

    on_advance(hf, advance, "sender")
    run = await create(hf, clog_id="sender", input=1, queue="senders")
    await hf.advance(queues=["senders"])
    assert (await hf.outbox.flush_once())["outbox_flush_dead"] == 1
    await hf.journal.sweep()
    assert "outbox_dead" in [event.type async for event in hf.events(run.run_id)]
    return run


async def fail_a_flow(hf: Holdfast, text: str) -> RunInfo:
    @hf.flow("dripping", retry=RetryPolicy(max_attempts=1))
    async def dripping(ctx: FlowContext, given: Any) -> None:
        def leak() -> None:
            raise RuntimeError(text)

        await ctx.step("leak", leak)

    run = await hf.start(dripping, session_id="s", metadata={**NAMED, "note": text}, queue="flows")
    await hf.advance(queues=["flows"])
    return run


async def fail_a_workflow(hf: Holdfast, text: str) -> RunInfo:
    flow = Workflow("leaking")

    @flow.step(retry=RetryPolicy(max_attempts=1))
    async def leak(ctx: Context, input: Any) -> None:
        raise RuntimeError(text)

    hf.register(flow)
    run = await hf.start(flow, session_id="s", metadata={**NAMED, "note": text}, queue="flows")
    for _ in range(2):
        await hf.advance(queues=["flows"])
    return run


@pytest.mark.clause("SB-3", "C-25", "C-13")
async def test_no_canary_is_found_in_any_table_stream_or_log(
    watched: Holdfast, configuration: str, caplog: pytest.LogCaptureFixture
) -> None:
    hf = watched
    text = "\n".join(SECRETS.values())
    shown: list[str] = []

    def leaks(args: Any) -> None:
        raise ValueError(text)

    async def advance(given: Any, ctx: Context) -> Any:
        with pytest.raises(ValueError, match=CANARY):
            await ctx.tool("leaks", {**NAMED, "note": text}, leaks)
        await ctx.child("chat", key="k", metadata=NAMED)
        if given == "raise":
            raise RuntimeError(text)
        return Retry(text) if given == "retry" else Fail(text)

    on_advance(hf, advance)
    caplog.set_level(logging.DEBUG)
    runs = [await create(hf, input=way, metadata={**NAMED, "note": text}) for way in ("raise", "retry", "fail")]
    await hf.advance(max_runs=3)
    asked = await create(hf, queue="other")
    await hf.pause(asked.run_id, "go", kind="approval", metadata={**NAMED, "note": text})
    await hf.reject(asked.run_id, actor="ada", comment=text)
    stopped = await create(hf, queue="other")
    await hf.cancel(stopped.run_id, reason=text)
    claimed = await create(hf, queue="runner")
    claim = await claim_one(hf, "runner")
    await hf.fail(claim, f"{claim.token} {text}", retry=False)
    await hf.audit.upsert_conversation_turn("t", message_id="m", kind="user", content=text)
    await hf.audit.record_tool_call_requested("r", "c", tool_name="t", arguments_json={**NAMED, "note": text})
    await hf.audit.record_tool_call_done("r", "c", status="failed", error_kind="e", error_msg=text)
    await hf.audit.record_tool_call_requested("r", "d", tool_name="t", arguments_json=[text])
    await hf.audit.record_tool_call_done("r", "d", status="completed", outcome_json={**NAMED, "note": text})
    await deliver_in_vain(hf, text)
    runs += [await fail_a_workflow(hf, text), await fail_a_flow(hf, text), await send_from_a_run(hf)]
    outbox_token, told = await deliver_by_hand(hf, text)
    shown += [*told, *await propose_in_vain(hf, text)]
    logger("holdfast.worker").error("something broke: %s", text, exc_info=RuntimeError(text))
    for run in (*runs, asked, stopped, claimed):
        shown += [repr(event) async for event in hf.events(run.run_id)]
        shown += [
            repr(await hf.inspect(run.run_id)),
            repr(await hf.explain(run.run_id)),
            repr(await look(hf, run.run_id)),
            repr(await hf.as_of(run.run_id)),
            repr(await hf.diff(run.run_id, 0)),
        ]
    found = {"tables": await everything(hf, configuration), "streams": "\n".join(shown), "logs": caplog.text}

    for where, dumped in found.items():
        assert HIDDEN in dumped, where
        assert claim.token not in dumped, where
        assert outbox_token not in dumped, where
        for line in dumped.splitlines():
            assert CANARY not in line, (where, line[:2_000])


@pytest.mark.clause("C-13", "SB-3")
async def test_what_a_program_reads_back_is_what_it_wrote(watched: Holdfast) -> None:
    hf = watched
    secret = {**NAMED, "text": list(SECRETS.values())}
    read: list[Any] = []

    async def advance(given: Any, ctx: Context) -> Any:
        read.append(given)
        (stored,) = await ctx.read(("run",))
        if stored is None:
            await ctx.write(("run.set", given))
            await ctx.outbox("post", given)
            read.append(await ctx.tool("echo", given, lambda args: args))
            return Retry("again")
        read.append(stored)
        read.append(await ctx.tool("echo", given, lambda args: "never called"))
        await ctx.emit("mine", given)
        return Done(given)

    on_advance(hf, advance)
    run = await create(hf, input=secret)
    await hf.drain()

    assert read == [secret] * 5
    assert (await look(hf, run.run_id)).output == secret
    assert [event.data async for event in hf.events(run.run_id) if event.type == "mine"] == [secret]
    ((payload,),) = await hf.journal.store.fetch("SELECT payload FROM {s}outbox")
    assert json.loads(payload) == secret
    (answered,) = [event.data async for event in hf.events(run.run_id) if event.type == "tool_result"]
    assert answered["result"]["access_token"] == HIDDEN
    assert CANARY not in repr(answered)


@pytest.mark.clause("SB-3")
@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        *((word, True) for word in ("access_token", "api_key", "authorization", "claim_token", "credential")),
        *((word, True) for word in ("password", "private_key", "refresh_token", "secret", "token")),
        *(
            (word, True)
            for word in ("X-Api-Key", "clientSecret", "OPENAI_API_KEY", "Proxy-Authorization", "session token")
        ),
        *(
            (word, False)
            for word in ("max_tokens", "tokens", "token_count", "claim_token_hash", "key", "secretary", "")
        ),
    ],
)
def test_a_name_tells_whether_it_holds_a_secret(name: str, hidden: bool) -> None:
    assert is_sensitive(name) is hidden
    assert (Redaction().masked({name: "value"})[name] == HIDDEN) is hidden


@pytest.mark.clause("C-25")
def test_a_text_for_people_is_short_and_whole() -> None:
    scrubbed = Redaction().scrubbed("ä" * 5_000)

    assert len(scrubbed.encode()) <= 2_048
    assert scrubbed.endswith("…")
    for words in ("nothing to hide: 3 tokens", "token validation failed", "a bearer understands basic authentication"):
        assert Redaction().scrubbed(words) == words


def test_of_secrets_that_pass_the_latest_are_hidden() -> None:
    redaction = Redaction(["lasting-secret"])
    for number in range(PASSING_MAX + 1):
        redaction.hide_for_now(f"passing-{number:04d}")
        redaction.hide_for_now("passing-0001")

    assert redaction.hidden(f"passing-{PASSING_MAX:04d} and lasting-secret") == f"{HIDDEN} and {HIDDEN}"
    assert redaction.hidden("passing-0000 is long gone") == "passing-0000 is long gone"
    redaction.hide_for_now("short")
    assert redaction.hidden("short words stay") == "short words stay"


def test_words_of_the_environment_are_no_secrets() -> None:
    redaction = Redaction.of_environment({"DB_PASSWORD": "short", "API_TOKEN": "long-enough", "HOME": "/home/someone"})

    assert redaction.hidden("short long-enough /home/someone") == f"short {HIDDEN} /home/someone"


@pytest.mark.parametrize(
    "part", ["x", "a_", "token ", 'token="', "sk-", "://", "eyJ", "-----BEGIN ", "Bearer ", "=", "é"]
)
def test_however_long_a_text_is_it_is_read_once(part: str) -> None:
    since = time.monotonic()

    Redaction().hidden(part * (1_000_000 // len(part)))

    assert time.monotonic() - since < 5


@given(
    st.lists(
        st.one_of(
            st.sampled_from([*SECRETS.values(), *NAMED]),
            st.sampled_from(
                [*("=", ": ", '"', "'", " ", "-", "_", "\n", "K", "ſ", "İ", "ı"), f"{CANARY}0123456789abcdef"]
            ),
            st.sampled_from(
                ["Api Key", "SECRET", "ſecret", "toKen", "paſſword", "gho_", "Bearer", "eyJ", "AKIA", "://"]
            ),
            st.text(max_size=4),
        ),
        max_size=12,
    ).map("".join)
)
def test_a_shape_whose_signs_are_missing_is_not_there(text: str) -> None:
    looked_at = text
    for shape, instead, _ in _PATTERNS:
        looked_at = shape.sub(instead, looked_at)

    assert Redaction().hidden(text) == looked_at


def test_a_secret_that_comes_into_the_environment_later_is_hidden_too(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    longer = f"{ENVIRONMENT}-and-more"
    known = Redaction([ENVIRONMENT])
    log = logger("holdfast.worker")
    log.warning("before: %s", longer)
    monkeypatch.setenv("LATE_TOKEN", longer)
    log.warning("after: %s", longer)
    monkeypatch.delenv("LATE_TOKEN")
    log.warning("gone: %s", longer)

    assert known.secrets == (ENVIRONMENT,)
    hidden, whole = f"{HIDDEN}-and-more", HIDDEN
    assert caplog.messages == [f"before: {hidden}", f"after: {whole}", f"gone: {hidden}"]


def test_the_environment_is_searched_once_for_many_lines_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    log = logger("holdfast.worker")
    searched: list[int] = []
    search = Redaction.of_environment

    def counted() -> Redaction:
        searched.append(1)
        return search()

    def say() -> None:
        assert log.filter(log.makeRecord(log.name, logging.WARNING, __file__, 1, "tick %s was lost", ("t1",), None))

    monkeypatch.setattr(Redaction, "of_environment", staticmethod(counted))
    monkeypatch.setenv("ANOTHER_SECRET", f"{CANARY}-once")

    for _ in range(200):
        say()
    assert len(searched) == 1
    monkeypatch.setenv("ANOTHER_SECRET", f"{CANARY}-twice")
    say()
    assert len(searched) == 2
