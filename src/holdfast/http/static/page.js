// One page over the API: what it shows is the event log of a run, read again from the last id after every break.
// Everything a run says is shown as text.
"use strict";

const base = new URL(".", document.baseURI).pathname.replace(/\/$/, "");
const element = (id) => document.getElementById(id);
const state = { session: null, run: null, cursor: 0, stream: null, bubble: null, tries: 0 };

async function call(method, path, body) {
  const headers = body === undefined ? {} : { "Content-Type": "application/json" };
  if (method === "POST") headers["Idempotency-Key"] = crypto.randomUUID();
  const answer = await fetch(base + path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  const value = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(value.detail || answer.statusText);
  return value;
}

function show(kind, text) {
  const item = document.createElement("li");
  item.className = kind;
  item.textContent = text;
  element("messages").append(item);
  item.scrollIntoView({ block: "end" });
  return item;
}

// Say more; whoever looks at the end goes on looking at it, whoever has scrolled away stays there.
function write(item, text) {
  const list = element("messages");
  const isAtEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 60;
  item.textContent = text;
  if (isAtEnd) list.scrollTop = list.scrollHeight;
}

// JSON as short as it can be; what is no JSON stays as it is.
function compact(text) {
  try { return JSON.stringify(JSON.parse(text)); } catch { return text; }
}

function say(words) { element("state").textContent = words; }

function busy(is) { element("cancel").disabled = !is; }

async function listSessions() {
  const found = await call("GET", "/api/sessions");
  const items = found.map((session) => {
    const item = document.createElement("li");
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = session.title || session.last_user_message || `Session ${session.session_id.slice(0, 8)}`;
    button.setAttribute("aria-current", String(session.session_id === state.session));
    button.addEventListener("click", () => open(session.session_id));
    item.append(button);
    return item;
  });
  element("sessions").replaceChildren(...items);
  return found;
}

async function open(sessionId) {
  leave();
  state.session = sessionId;
  element("title").textContent = `Session ${sessionId.slice(0, 8)}`;
  element("messages").replaceChildren();
  const session = await call("GET", `/api/sessions/${sessionId}`);
  if (state.session !== sessionId) return;
  for (const message of session.messages) {
    // What the newest run said comes from its stream, from the start.
    if (message.run_id === session.run_id && message.role !== "user") continue;
    const used = message.tool_calls && message.tool_calls[0].function;
    if (used) show("tool", `${used.name} ${compact(used.arguments)}`);
    else if (message.role === "tool") show("tool", `→ ${compact(message.content)}`);
    else show(message.role, message.content);
  }
  if (session.run_id) follow(session.run_id, 0);
  else say("ready");
  await listSessions();
}

function leave() {
  if (state.stream) state.stream.close();
  Object.assign(state, { run: null, cursor: 0, stream: null, bubble: null, tries: 0 });
  element("question").hidden = true;
  busy(false);
}

function follow(runId, cursor) {
  if (state.stream) state.stream.close();
  Object.assign(state, { run: runId, cursor, bubble: cursor ? state.bubble : null });
  busy(true);
  say("connecting");
  const stream = new EventSource(`${base}/api/runs/${runId}/events?cursor=${cursor}`);
  state.stream = stream;
  stream.onopen = () => { state.tries = 0; say("streaming"); };
  for (const [type, react] of Object.entries(reactions)) {
    stream.addEventListener(type, (event) => {
      if (typeof event.data !== "string") return;
      const data = JSON.parse(event.data);
      state.cursor = Number(event.lastEventId) || state.cursor;
      react(data);
    });
  }
  stream.onerror = () => {
    if (stream !== state.stream) return;
    say("reconnecting");
    // A browser comes back by itself unless it was refused; then we do, from where we were.
    if (stream.readyState === EventSource.CLOSED) retry();
  };
}

function retry() {
  const runId = state.run;
  const delay = Math.min(10000, 500 * 2 ** state.tries++) * (0.5 + Math.random() / 2);
  setTimeout(async () => {
    if (runId !== state.run) return;
    try {
      const run = await call("GET", `/api/runs/${runId}`);
      if (["completed", "failed", "cancelled"].includes(run.status) && run.state !== "idle") ended(run.status);
      else follow(runId, state.cursor);
    } catch { retry(); }
  }, delay);
}

function bubble(tick) {
  if (!state.bubble || state.bubble.tick !== tick) {
    const item = show("assistant", "");
    state.bubble = { item, tick };
  }
  return state.bubble.item;
}

const reactions = {
  run_started: (data) => { say("running"); facts(data.run_id); },
  run_waiting: (data) => { if (element("question").hidden) say("waiting"); facts(data.run_id); },
  run_retrying: (data) => say(`trying again: ${data.error || ""}`),
  text: (data) => { const item = bubble(data.tick_id); write(item, item.textContent + (data.content ?? data.value ?? "")); },
  reasoning: (data) => show("reasoning", String(data.content ?? data.value ?? "")),
  final: (data) => { write(bubble(data.tick_id), data.content ?? data.value ?? ""); },
  tick_abandoned: (data) => {
    if (state.bubble && state.bubble.tick === data.tick_id) { state.bubble.item.remove(); state.bubble = null; }
  },
  tool_call: (data) => { state.bubble = null; show("tool", `${data.tool} ${JSON.stringify(data.args)}`); },
  tool_result: (data) => show("tool", `→ ${typeof data.result === "string" ? data.result : JSON.stringify(data.result)}`),
  approval_requested: (data) => {
    say("asks you");
    state.step = data.step;
    element("asks").textContent = `${data.step}: ${JSON.stringify(data.metadata)}`;
    element("question").hidden = false;
    state.bubble = null;
  },
  approval_resolved: () => { element("question").hidden = true; say("running"); },
  approval_expired: () => { element("question").hidden = true; },
  cancel_requested: () => say("cancelling"),
  reset: () => { element("messages").replaceChildren(); state.bubble = null; },
  error: (data) => show("tool", `error: ${data.message ?? data.error ?? ""}`),
  done: (data) => { ended(data.status); },
};

function ended(status) {
  if (state.stream) state.stream.close();
  state.stream = null;
  busy(false);
  element("question").hidden = true;
  say(status);
  facts(state.run);
  listSessions().catch((error) => say(error.message));
}

async function facts(runId) {
  if (!runId) return;
  // They are beside the conversation: a server that is away for a moment is told of there.
  const run = await call("GET", `/api/runs/${runId}`).catch(() => null);
  if (!run || runId !== state.run) return;
  const rows = ["run_id", "status", "state", "clog_id", "attempt", "deliveries", "rev", "owner_id", "error_message"]
    .filter((name) => run[name] !== null && run[name] !== undefined)
    .flatMap((name) => {
      const term = document.createElement("dt");
      const value = document.createElement("dd");
      term.textContent = name;
      value.textContent = String(run[name]);
      return [term, value];
    });
  element("facts").replaceChildren(...rows);
}

async function guarded(work) {
  try { await work(); } catch (error) { say(error.message); }
}

async function send() {
  const field = element("message");
  const message = field.value.trim();
  if (!message) return;
  if (!state.session) await open((await call("POST", "/api/sessions", {})).session_id);
  field.value = "";
  show("user", message);
  const run = await call("POST", "/api/runs", { session_id: state.session, message });
  follow(run.run_id, 0);
}

function decide(verdict) {
  return call("POST", `/api/runs/${state.run}/${verdict}`, { step: state.step });
}

element("composer").addEventListener("submit", (event) => { event.preventDefault(); guarded(send); });
element("message").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); guarded(send); }
});
element("cancel").addEventListener("click", () => guarded(() => call("POST", `/api/runs/${state.run}/cancel`, {})));
element("approve").addEventListener("click", () => guarded(() => decide("approve")));
element("reject").addEventListener("click", () => guarded(() => decide("reject")));
element("new").addEventListener("click", () => guarded(async () => open((await call("POST", "/api/sessions", {})).session_id)));
guarded(async () => {
  const found = await listSessions();
  if (found.length) await open(found[0].session_id);
});
