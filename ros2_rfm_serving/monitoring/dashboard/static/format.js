// Figures as people read them. An unknown value is a dash.

export const NONE = "–";

const known = (value) => typeof value === "number" && Number.isFinite(value);

export function ms(seconds) {
  if (!known(seconds)) return NONE;
  if (seconds === 0) return "0 ms";
  if (seconds >= 10) return `${seconds.toFixed(1)} s`;
  return seconds < 0.01 ? `${(seconds * 1e3).toFixed(1)} ms` : `${(seconds * 1e3).toFixed(0)} ms`;
}
export function hz(rate) { return known(rate) ? rate.toFixed(1) : NONE; }
export function count(value) { return known(value) ? String(value) : NONE; }
export function percent(share, digits = 0) { return known(share) ? `${(share * 100).toFixed(digits)} %` : NONE; }
export function ago(seconds) {
  if (!known(seconds)) return "not heard yet";
  return seconds < 120 ? `silent for ${seconds} s` : `silent for ${Math.floor(seconds / 60)} min`;
}
export function clock(seconds) { return new Date(seconds * 1000).toLocaleTimeString([], { hour12: false }); }
export function successes(row) { return row.episodes ? `${row.successes}/${row.episodes}` : NONE; }

const LEVELS = { ready: "good", loading: "warning", draining: "warning", failed: "error", hung: "error" }; // of servers

// Return [word, level]: level names a colour, and the word has the same meaning. The server decides both, for the terminal and for this page.
export function robotState(row) { return [row.shown ?? NONE, row.level ?? "stale"]; }

export function serverState(row) {
  if (row.lost) return ["lost", "error"];
  if (row.stale) return [row.silent_s === null ? "silent" : "stale", "stale"];
  return [row.state ?? NONE, LEVELS[row.state] ?? "warning"];
}

export function robotWhy(row) { return row.obstacle ?? ""; }
export function serverWhy(row) { return row.stale ? ago(row.silent_s) : row.detail || ""; }
