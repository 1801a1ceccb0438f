// The fleet at a glance: robots by task, servers, what happened.

import { attribute, h, keyed, link, table, text } from "./dom.js";
import { eventList } from "./eventline.js";
import { NONE, hz, ms, percent, robotState, robotWhy, successes } from "./format.js";
import { emulated, picture, pill, whileSeen } from "./parts.js";
import { scheduleFacts } from "./scheduleview.js";
import { serverCard } from "./serverviews.js";
import { state } from "./store.js";

const MOST_CARDS = 24; // robots; more are rows of a table, without pictures
const MOST_SERVERS = 12;
const order = new Intl.Collator(undefined, { numeric: true });

function robotCard(name) {
  const word = pill(), chip = emulated(), why = h("p", { class: "why" }), camera = picture(name);
  const figures = Object.fromEntries(["staleness", "trip", "actions", "success"].map((key) => [key, h("dd", { "data-figure": key })]));
  const labels = { staleness: "staleness", trip: "round trip", actions: "actions/s", success: "success" };
  const root = h("article", { class: "card robot" }, camera.root,
    h("div", { class: "body" },
      h("header", {}, h("h3", {}, link("robot", name)), word.root, chip), why,
      h("dl", { class: "figures" }, Object.entries(labels).map(([key, label]) => h("div", {}, h("dt", {}, label), figures[key])))));
  return {
    root,
    gone: camera.gone,
    update(row) {
      const how = robotState(row);
      word.update(how); chip.hidden = !row.emulated; attribute(root, "data-level", how[1]);
      text(why, robotWhy(row)); attribute(why, "title", why.textContent || null);
      text(figures.staleness, ms(row.staleness_s)); text(figures.trip, ms(row.p50_s)); text(figures.actions, hz(row.actions_hz)); text(figures.success, successes(row));
    },
  };
}

function robotRow(name) {
  const word = pill(), chip = emulated(), why = h("span", { class: "why" }), server = h("td");
  const figures = [0, 1, 2, 3].map(() => h("td", { class: "number" }));
  const root = h("tr", {}, h("th", { scope: "row" }, link("robot", name)), h("td", {}, word.root, " ", chip, " ", why), server, figures);
  return whileSeen(root, (row) => {
    word.update(robotState(row)); chip.hidden = !row.emulated; text(why, robotWhy(row)); text(server, row.server || NONE);
    [ms(row.staleness_s), ms(row.p50_s), hz(row.actions_hz), successes(row)].forEach((words, i) => text(figures[i], words));
  });
}

function taskGroup(dense) {
  return (task) => {
    const about = h("span", { class: "faint" });
    const title = h("h2", {}, task, " ", about);
    const rows = dense ? table([["robot"], ["state"], ["server"], ["staleness", "number"], ["round trip", "number"], ["actions/s", "number"], ["success", "number"]], `Robots of ${task}`)
      : { root: h("div", { class: "cards" }), body: null };
    const body = rows.body ?? rows.root;
    const root = h("section", { class: "task" }, title, rows.root);
    return {
      root,
      gone() { for (const part of body.kept?.values() ?? []) part.gone?.(); },
      update([robots, told]) {
        root.classList.toggle("many", dense || robots.length > 1); root.classList.toggle("dense", dense);
        const rate = told.episodes ? `success ${told.successes}/${told.episodes}, ${percent(told.successes / told.episodes)} (${percent(told.low)} to ${percent(told.high)})` : "no episode scored";
        text(about, `${told.robots} robot${told.robots === 1 ? "" : "s"} · ${rate}`);
        keyed(body, robots, dense ? robotRow : robotCard);
      },
    };
  };
}

function summary() {
  const list = h("p", { class: "summary", role: "status" });
  return {
    root: list,
    update() {
      const words = new Map();
      for (const row of Object.values(state.robots)) { const [word] = robotState(row); words.set(word, (words.get(word) ?? 0) + 1); }
      const parts = [...words].sort((a, b) => b[1] - a[1]).map(([word, number]) => `${number} ${word}`);
      const total = Object.keys(state.robots).length;
      text(list, total ? `${total} robot${total === 1 ? "" : "s"}: ${parts.join(", ")}` : "No robot was heard.");
    },
  };
}

export function fleetView() {
  const facts = scheduleFacts(), counts = summary(), servers = h("div", { class: "cards servers" }), events = eventList(40);
  const more = h("p", { class: "faint" }), tasks = h("div", { class: "tasks" }), filter = h("input", { type: "search", placeholder: "Filter  ( / )", "aria-label": "Filter robots", class: "filter" });
  let dense = null, sorted = { key: null, names: [] };

  function names() { // sorted once, as long as nobody comes or goes
    const there = Object.keys(state.robots), key = there.join();
    if (key !== sorted.key) sorted = { key, names: there.sort(order.compare) };
    return sorted.names;
  }

  function groups() {
    const wanted = filter.value.trim().toLowerCase();
    const found = new Map();
    for (const name of names()) {
      const row = state.robots[name];
      if (wanted && !`${name} ${row.task} ${robotState(row)[0]} ${row.server}`.toLowerCase().includes(wanted)) continue;
      if (!found.has(row.task)) found.set(row.task, []);
      found.get(row.task).push([name, row]);
    }
    return [...found].sort(([a], [b]) => order.compare(a, b)).map(([task, robots]) => [task, [robots, state.tasks[task] ?? { robots: robots.length, episodes: 0 }]]);
  }

  function update() {
    facts.update(); counts.update(); events.update();
    const known = Object.entries(state.servers);
    keyed(servers, known.slice(0, MOST_SERVERS), serverCard);
    text(more, known.length > MOST_SERVERS ? `and ${known.length - MOST_SERVERS} more: see Servers` : "");
    const many = Object.keys(state.robots).length > MOST_CARDS;
    if (many !== dense) { dense = many; tasks.replaceChildren(); for (const part of tasks.kept?.values() ?? []) part.gone?.(); tasks.kept = new Map(); }
    keyed(tasks, groups(), taskGroup(dense));
  }

  filter.addEventListener("input", update);
  return {
    root: h("section", { class: "view fleet" },
      h("div", { class: "main" }, facts.root, h("h2", { class: "above" }, "Servers"), servers, more,
        h("div", { class: "tools" }, counts.root, h("span", { class: "spring" }), filter), tasks),
      h("aside", { "aria-label": "Events" }, h("h2", {}, "Events"), events.root)),
    update,
    gone() { for (const group of tasks.kept?.values() ?? []) group.gone(); },
  };
}
