// Overview of the fleet: first the activity and obstacle of each robot; then schedule, servers, tasks and events.

import { attribute, h, keyed, link, table, text } from "./dom.js";
import { eventList } from "./eventline.js";
import { NONE, hz, ms, percent, robotState, robotWhy, successes } from "./format.js";
import { emulated, obstacle, picture, pill, whileSeen } from "./parts.js";
import { scheduleFacts } from "./scheduleview.js";
import { serverCard } from "./serverviews.js";
import { state } from "./store.js";

const MOST_CARDS = 12; // robots with pictures
const MOST_TILES = 60; // a larger fleet is a table
const MOST_SERVERS = 12;
const order = new Intl.Collator(undefined, { numeric: true });
const TIPS = {
  staleness: "Age of the observation behind the last executed action", trip: "Median time from request to chunk", actions: "Actions executed per second",
  success: "Succeeded of the episodes that were scored",
};
const LABELS = { staleness: "staleness", trip: "round trip", actions: "actions/s", success: "success" };
const values = (row) => ({ staleness: ms(row.staleness_s), trip: ms(row.p50_s), actions: hz(row.actions_hz), success: successes(row) });

// Tooltip of a robot: all that its tile shows, in whole words.
function tip(name, row) {
  const told = values(row), way = robotWhy(row) || row.refusing?.map((one) => `refuses: ${one.meaning}`).join("; ");
  return [`${name}: ${robotState(row)[0]}`, row.does, way ? `in its way: ${way}` : "nothing is in its way", `task ${row.task}, server ${row.server || "none"}`,
    ...Object.entries(LABELS).map(([key, label]) => `${label}: ${told[key]}`)].filter(Boolean).join("\n");
}

function robotCard(name) {
  return robotTile(name, picture(name));
}

function robotTile(name, camera = null) {
  const word = pill(), chip = emulated(), does = h("p", { class: "does" }), why = obstacle();
  const figures = Object.fromEntries(Object.keys(LABELS).map((key) => [key, h("dd", { "data-figure": key })]));
  const inside = [h("header", {}, h("h3", {}, link("robot", name)), word.root), h("div", { class: "line" }, does, chip), why.root,
    h("dl", { class: "figures" }, Object.entries(LABELS).map(([key, label]) => h("div", { title: TIPS[key] }, h("dt", {}, label), figures[key])))];
  const root = h("article", { class: camera ? "card robot" : "card tile" }, camera?.root, camera ? h("div", { class: "body" }, inside) : inside);
  return {
    root,
    gone() { camera?.gone(); },
    update(row) {
      const how = robotState(row);
      word.update(how); chip.hidden = !row.emulated; attribute(root, "data-level", how[1]); attribute(root, "title", tip(name, row));
      text(does, row.does); why.update(robotWhy(row), row.refusing, row.help);
      for (const [key, shown] of Object.entries(values(row))) text(figures[key], shown);
    },
  };
}

function robotRow(name) {
  const word = pill(), chip = emulated(), why = obstacle("span"), does = h("td"), server = h("td");
  const figures = [0, 1, 2, 3].map(() => h("td", { class: "number" }));
  const root = h("tr", {}, h("th", { scope: "row" }, link("robot", name)), h("td", {}, word.root, " ", chip, " ", why.root), does, server, figures);
  return whileSeen(root, (row) => {
    word.update(robotState(row)); chip.hidden = !row.emulated; why.update(robotWhy(row), row.refusing, row.help); text(server, row.server || NONE);
    text(does, row.does); attribute(root, "title", tip(name, row));
    Object.values(values(row)).forEach((words, i) => text(figures[i], words));
  });
}

// One of three layouts, by the number of robots: cards with pictures, tiles, rows of a table.
function robotList(look) {
  if (look !== "table") return { root: h("div", { class: look === "cards" ? "cards" : "robots" }), make: look === "cards" ? robotCard : robotTile };
  const columns = [["robot"], ["state"], ["does"], ["server"], ...Object.values(LABELS).map((label) => [label, "number"])];
  const { root, body } = table(columns, "Robots");
  return { root: h("div", { class: "dense" }, root), body, make: robotRow };
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

function taskTable() {
  const { root, body } = table([["task"], ["robots", "number"], ["success", "number"], ["95 % interval"]], "Tasks");
  const make = (task) => {
    const cells = [0, 1, 2].map((i) => h("td", { class: i < 2 ? "number" : null }));
    return {
      root: h("tr", {}, h("th", { scope: "row" }, task), cells),
      update(told) {
        const scored = told.episodes > 0;
        const words = [String(told.robots), scored ? `${told.successes}/${told.episodes}, ${percent(told.successes / told.episodes)}` : "none scored", scored ? `${percent(told.low)} to ${percent(told.high)}` : NONE];
        words.forEach((shown, i) => text(cells[i], shown));
      },
    };
  };
  return { root, update() { keyed(body, Object.entries(state.tasks).sort(([a], [b]) => order.compare(a, b)), make); } };
}

export function fleetView() {
  const facts = scheduleFacts(), counts = summary(), servers = h("div", { class: "cards servers" }), events = eventList(40), tasks = taskTable();
  const more = h("p", { class: "faint" }), box = h("div", { class: "fleet-robots" });
  const filter = h("input", { type: "search", placeholder: "Filter  ( / )", "aria-label": "Filter robots", class: "filter", title: "By name, task, state, server or what is in the way" });
  let look = null, list = null, sorted = { key: null, names: [] };

  function names() { // sorted again only when a robot is added, removed or changes its task
    const there = Object.keys(state.robots), key = there.map((name) => `${name} ${state.robots[name].task}`).join();
    if (key !== sorted.key) sorted = { key, names: there.sort((a, b) => order.compare(state.robots[a].task, state.robots[b].task) || order.compare(a, b)) };
    return sorted.names;
  }

  function shown() {
    const wanted = filter.value.trim().toLowerCase();
    return names().map((name) => [name, state.robots[name]]).filter(([name, row]) => !wanted
      || `${name} ${row.task} ${robotState(row)[0]} ${row.does} ${row.obstacle} ${row.server}`.toLowerCase().includes(wanted));
  }

  function update() {
    facts.update(); counts.update(); events.update(); tasks.update();
    const known = Object.entries(state.servers), total = Object.keys(state.robots).length;
    keyed(servers, known.slice(0, MOST_SERVERS), serverCard);
    text(more, known.length > MOST_SERVERS ? `and ${known.length - MOST_SERVERS} more: see Servers` : "");
    const wanted = total > MOST_TILES ? "table" : total > MOST_CARDS ? "tiles" : "cards";
    if (wanted !== look) { gone(); look = wanted; list = robotList(look); box.replaceChildren(list.root); }
    keyed(list.body ?? list.root, shown(), list.make);
  }

  function gone() { for (const part of (list?.body ?? list?.root)?.kept?.values() ?? []) part.gone?.(); }

  filter.addEventListener("input", update);
  return {
    root: h("section", { class: "view" },
      h("div", { class: "tools first" }, counts.root, h("span", { class: "spring" }), filter), box,
      h("div", { class: "fleet" },
        h("div", { class: "main" }, h("h2", {}, "Schedule"), facts.root, h("h2", {}, "Servers"), servers, more, h("h2", {}, "Tasks"), tasks.root),
        h("aside", { "aria-label": "Events" }, h("h2", {}, "Events"), events.root))),
    update,
    gone,
  };
}
