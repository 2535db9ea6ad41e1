// One page over the API: what it shows is the event log of a run, read again from the last id after every break.
// Everything a run says is shown as text.
"use strict";

const base = new URL(".", document.baseURI).pathname.replace(/\/$/, "");
const element = (id) => document.getElementById(id);
// Of the run that is followed: `told` is what it said, `items` are the elements that show it, `words` is how it does.
const nothing = { run: null, cursor: 0, stream: null, told: [], items: [], words: null, step: null, tries: 0 };
const state = { session: null, ...nothing };
const SPEECH = ["text", "reasoning", "final"];

async function call(method, path, body) {
  const headers = body === undefined ? {} : { "Content-Type": "application/json" };
  if (method === "POST") headers["Idempotency-Key"] = crypto.randomUUID();
  const answer = await fetch(base + path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  const value = await answer.json().catch(() => ({}));
  if (!answer.ok) throw Object.assign(new Error(value.detail || answer.statusText), { status: answer.status });
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

// What was said, without what ticks said that were given up, but for what those may keep.
function valid(told) {
  const given = told.filter((event) => event.type === "tick_abandoned");
  const isIn = (event) => ([first, last]) => first <= event.seq && event.seq <= last;
  const isGone = (event) => given.some((each) => each.tick_id === event.tick_id && each.from_seq <= event.seq
    && event.seq < each.seq && !(each.keep || []).some(isIn(event)));
  return told.filter((event) => !SPEECH.includes(event.type) || !isGone(event));
}

// What a run has said as items to show: text goes on in its bubble, and `final` stands for all text since the last one.
function itemsOf(told) {
  const items = [];
  let said = [];
  const last = () => items[items.length - 1];
  const add = (kind, text, id) => { items.push({ kind, text, id }); return last(); };
  for (const event of valid(told)) {
    const text = String(event.content ?? event.value ?? "");
    if (event.type === "text") {
      if (said.includes(last())) last().text += text;
      else said.push(add("assistant", text));
    } else if (event.type === "reasoning") {
      if (last() && last().kind === "reasoning") last().text += text;
      else add("reasoning", text);
    } else if (event.type === "final") {
      for (const item of said.slice(0, -1)) items.splice(items.indexOf(item), 1);
      if (said.length) said[said.length - 1].text = text;
      else add("assistant", text);
      said = [];
    } else if (event.type === "tool_call") {
      const again = items.some((item) => item.id !== undefined && item.id === event.tool_call_id);
      if (!again) add("tool", `${event.tool} ${JSON.stringify(event.args)}`, event.tool_call_id);
    } else if (event.type === "tool_result") {
      const result = typeof event.result === "string" ? event.result : JSON.stringify(event.result);
      add("tool", `→ ${event.is_error ? "error: " : ""}${result}`);
    } else if (event.type === "error") add("error", `error: ${event.message ?? event.error ?? ""}`);
  }
  return items;
}

// Show it. Whoever looks at the end goes on looking at it, whoever has scrolled away stays there.
function draw() {
  const list = element("messages");
  const isAtEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 60;
  const items = itemsOf(state.told);
  items.forEach((item, place) => {
    const shown = state.items[place] || document.createElement("li");
    if (shown.className !== item.kind) shown.className = item.kind;
    if (shown.textContent !== item.text) shown.textContent = item.text;
    if (!state.items[place]) { list.append(shown); state.items.push(shown); }
  });
  for (const surplus of state.items.splice(items.length)) surplus.remove();
  if (isAtEnd) list.scrollTop = list.scrollHeight;
}

let isDue = false;

// Words come faster than a screen can show them.
function drawSoon() {
  if (!isDue) requestAnimationFrame(() => { isDue = false; draw(); });
  isDue = true;
}

// JSON as short as it can be; what is no JSON stays as it is.
function compact(text) {
  try { return JSON.stringify(JSON.parse(text)); } catch { return text; }
}

function say(words) { element("state").textContent = words; }

// What the run is doing: after a break it is said again.
function tell(words) { state.words = words; say(words); }

function busy(is) {
  element("cancel").disabled = !is;
  element("send").disabled = is;
}

async function listSessions() {
  const found = await call("GET", "/api/sessions");
  const items = found.map((session) => {
    const item = document.createElement("li");
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = session.title || session.last_user_message || `Session ${session.session_id.slice(0, 8)}`;
    button.setAttribute("aria-current", String(session.session_id === state.session));
    button.addEventListener("click", () => guarded(() => open(session.session_id)));
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
  Object.assign(state, { ...nothing, told: [], items: [] });
  element("question").hidden = true;
  busy(false);
}

function follow(runId, cursor) {
  if (state.stream) state.stream.close();
  // What was shown of another run stays where it is.
  if (runId !== state.run) Object.assign(state, { run: runId, told: [], items: [], words: null });
  state.cursor = cursor;
  busy(true);
  say("connecting");
  const stream = new EventSource(`${base}/api/runs/${runId}/events?cursor=${cursor}`);
  state.stream = stream;
  stream.onopen = () => { state.tries = 0; say(state.words || "streaming"); };
  // Whatever else a run says is not for us.
  for (const [type, react] of Object.entries(reactions)) {
    stream.addEventListener(type, (event) => {
      if (typeof event.data !== "string") return;
      const data = JSON.parse(event.data);
      state.cursor = Number(event.lastEventId) || state.cursor;
      state.told.push(data);
      react(data);
      if (type === "text" || type === "reasoning") drawSoon();
      else draw();
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
    } catch (error) {
      if ([404, 410].includes(error.status)) ended("gone");
      else retry();
    }
  }, delay);
}

const nobody = () => {};

const reactions = {
  run_started: (data) => { tell("running"); busy(true); facts(data.run_id); },
  run_waiting: (data) => { if (element("question").hidden) tell("waiting"); facts(data.run_id); },
  run_retrying: (data) => tell(`trying again: ${data.error || ""}`),
  run_idle: () => { tell("resting"); busy(false); },
  text: nobody,
  reasoning: nobody,
  final: nobody,
  tick_abandoned: nobody,
  tool_call: nobody,
  tool_result: nobody,
  approval_requested: (data) => {
    tell("asks you");
    state.step = data.step;
    element("asks").textContent = `${data.step}: ${JSON.stringify(data.metadata)}`;
    element("question").hidden = false;
  },
  approval_resolved: () => { element("question").hidden = true; tell("running"); },
  approval_expired: () => { element("question").hidden = true; },
  cancel_requested: () => tell("cancelling"),
  reset: () => { state.told = []; },
  error: nobody,
  done: (data) => { ended(data.status); },
};

function ended(status) {
  if (state.stream) state.stream.close();
  state.stream = null;
  busy(false);
  element("question").hidden = true;
  tell(status);
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
  if (!message || element("send").disabled) return;
  busy(true);
  try {
    if (!state.session) await open((await call("POST", "/api/sessions", {})).session_id);
    busy(true);
    const run = await call("POST", "/api/runs", { session_id: state.session, message });
    field.value = "";
    show("user", message);
    follow(run.run_id, 0);
  } catch (error) {
    busy(false);
    throw error;
  }
  await listSessions();
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
