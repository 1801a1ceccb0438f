// Newest state of the factory, and its subscribers. All of it comes from other processes: it is shown as text, never as markup.

export const state = { schedule: {}, robots: {}, servers: {}, tasks: {}, events: [], heardMs: 0, live: false };
const KEPT = 400; // events
const SILENT_MS = 12000; // the server sends a frame at least every 5 s
const HIDDEN_MS = 10000; // a hidden page closes its stream
const listeners = new Set();
let source = null, drawing = false, hiding = 0;

export function listen(listener) { listeners.add(listener); }

function draw() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => { drawing = false; for (const listener of listeners) listener(); });
}

function merge(rows, changed) {
  for (const [name, row] of Object.entries(changed ?? {})) {
    if (row === null) delete rows[name]; else rows[name] = Object.assign(rows[name] ?? {}, row);
  }
}

function take(kind, told) {
  if (kind === "full") for (const key of ["schedule", "robots", "servers", "tasks", "events"]) state[key] = key === "events" ? [] : {};
  Object.assign(state.schedule, told.schedule);
  for (const key of ["robots", "servers", "tasks"]) merge(state[key], told[key]);
  for (const [number, time, level, kindOf, name, what, why, cause, help] of told.events ?? []) {
    state.events.unshift({ number, time, level, kind: kindOf, name, what, why, cause, help });
  }
  state.events.length = Math.min(state.events.length, KEPT);
  state.heardMs = performance.now();
  state.live = true;
  draw();
}

export function connect() {
  source?.close();
  source = new EventSource("/api/stream");
  for (const kind of ["full", "delta"]) source.addEventListener(kind, (event) => take(kind, JSON.parse(event.data)));
  source.onerror = () => { state.live = false; draw(); };
}

setInterval(() => {
  if (document.hidden && !source) return;
  if (performance.now() - state.heardMs > SILENT_MS) {
    state.live = false;
    state.heardMs = performance.now();
    connect();
  }
  draw();
}, 1000);

document.addEventListener("visibilitychange", () => {
  clearTimeout(hiding);
  if (document.hidden) hiding = setTimeout(() => { source?.close(); source = null; }, HIDDEN_MS);
  else if (!source) connect();
});

export async function ask(path) {
  const answer = await fetch(path, { cache: "no-store" });
  if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).problem ?? `${answer.status}`);
  return answer.json();
}
