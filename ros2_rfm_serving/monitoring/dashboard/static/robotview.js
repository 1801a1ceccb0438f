// View of one robot: latency over time, split into network, queue and inference, the newest chunk, and the last decisions.

import { h, keyed, link, section, table, text } from "./dom.js";
import { chart, chunkChart } from "./charts.js";
import { giveTask, orderButton, whyBox } from "./control.js";
import { eventList } from "./eventline.js";
import { NONE, count, hz, ms, percent, robotState, robotWhy, successes } from "./format.js";
import { counters, emulated, obstacle, picture, pill, refusedList } from "./parts.js";
import { routeTable } from "./scheduleview.js";
import { ask, state } from "./store.js";

const PAGE_MS = 1000;
const FACTS = {
  task: "task", instruction: "instruction", phase: "phase", verdict: "verdict", server: "server", staleness: "staleness", trip: "round trip p50 / p99",
  actions: "actions/s", chunks: "chunks/s", queue: "actions queued", success: "success", episode: "episode", retries: "retries", held: "held periods",
  real: "real time", epoch: "schedule", refused: "refused", fallbacks: "fallbacks", transitions: "transitions",
};

function decisionTable() {
  const columns = [["ago", "number"], ["component"], ["episode / request"], ["server"], ["queue", "number"], ["inference", "number"], ["batch", "number"], ["answer"]];
  const { root, body } = table(columns, "Last decisions");
  const none = h("p", { class: "faint" });
  const make = () => {
    const cells = columns.map(([, kind]) => h("td", { class: kind }));
    return {
      root: h("tr", {}, cells),
      update(one) {
        [`${one.ago_s.toFixed(1)} s`, one.component, `${one.episode} / ${one.sequence}`, one.server, ms(one.queue_s), ms(one.inference_s), count(one.batch), one.answer]
          .forEach((words, i) => text(cells[i], words));
      },
    };
  };
  return {
    root: h("div", {}, none, root),
    update(decisions) {
      text(none, decisions === null ? "Too many robots are looked at: close another page." : "No answer has come since this page looks.");
      none.hidden = Boolean(decisions?.length); root.hidden = !none.hidden;
      keyed(body, (decisions ?? []).map((one) => [`${one.component} ${one.episode} ${one.sequence} ${one.server}`, one]), make);
    },
  };
}

export function robotView(name) {
  const word = pill(), chip = emulated(), does = h("p", { class: "does" }), why = obstacle(), note = h("p", { class: "why" }), refused = refusedList(), problem = h("p", { class: "problem" });
  const facts = Object.fromEntries(Object.keys(FACTS).map((key) => [key, h("dd", { "data-figure": key })]));
  facts.refused = refused.root;
  const causes = whyBox(name);
  let offers = { tasks: false, reset: false };
  const task = h("button", { type: "button", class: "strong act task", disabled: true, onclick: () => giveTask(name, offers) }, "Give a task");
  const cameras = h("div", { class: "cameras" }), events = eventList(30, (event) => event.name === name);
  const decisions = decisionTable(), routes = routeTable(`What ${name} asks for`), chunk = chunkChart();
  const unproven = h("p", { class: "faint note", hidden: true }, "Pictures, the chunk and the decisions have no proof for who looks: anybody may have sent them.");
  let slo = null;
  const latency = chart("Latency of System 1, request to chunk", [["network", "--network", true], ["queue", "--queue", true], ["inference", "--inference", true]],
    { unit: ms, limit: () => slo, limitName: "SLO" });
  const stale = chart("Staleness of the observation behind the executed action", [["staleness", "--accent", true]], { unit: ms });
  const timer = setInterval(look, PAGE_MS);

  async function look() {
    if (document.hidden) return;
    try {
      const told = await ask(`/api/robots/${encodeURIComponent(name)}`), past = told.history;
      text(problem, "");
      slo = told.components.system1?.slo_s ?? null;
      const inference = past.inference_s ?? [], waited = inference.map((run, i) => sum(run, past.queue_s[i]));
      latency.update(past.ago_s, [past.round_trip_s, waited, inference]);
      stale.update(past.ago_s, [past.staleness_s]);
      chunk.update(told.chunk); decisions.update(told.decisions); routes.update(told.routes);
      text(facts.instruction, told.instruction || NONE); text(facts.episode, count(told.episode)); text(facts.retries, count(told.retries));
      text(facts.real, told.real_time === null ? NONE : `${told.real_time.toFixed(2)} of ${told.declared_time?.toFixed(2) ?? NONE}`);
      text(facts.epoch, count(told.epoch));
      for (const key of ["fallbacks", "transitions"]) counters(facts[key], told.counters[key]);
      refused.update(told.refused); text(note, told.note); note.hidden = !told.note;
      offers = told.offers; task.disabled = !offers.tasks;
      task.title = offers.tasks ? "Tell it what to do" : "It offers no execute_task: its node is not configured, or not reached from here";
      keyed(cameras, (told.cameras.length ? told.cameras : ["any"]).map((camera) => [camera, camera]), (camera) => {
        const part = picture(name, camera);
        return { root: h("figure", {}, part.root, h("figcaption", { class: "faint" }, camera === "any" ? "no camera known" : camera)), update() {}, gone: part.gone };
      });
    } catch (error) { text(problem, error.message); }
  }

  function update() {
    events.update();
    unproven.hidden = !["checked", "undated"].includes(state.schedule.proof);
    const row = state.robots[name];
    if (!row) return;
    word.update(robotState(row)); chip.hidden = !row.emulated;
    text(does, row.does); why.update(robotWhy(row), row.refusing, row.help); why.root.hidden = !why.root.textContent;
    text(facts.task, row.task); text(facts.phase, row.phase ?? NONE); text(facts.verdict, row.verdict || NONE);
    if (facts.server.textContent !== (row.server || NONE)) facts.server.replaceChildren(row.server ? link("server", row.server) : NONE);
    text(facts.staleness, ms(row.staleness_s)); text(facts.trip, `${ms(row.p50_s)} / ${ms(row.p99_s)}`);
    text(facts.actions, hz(row.actions_hz)); text(facts.chunks, hz(row.chunks_hz)); text(facts.queue, count(row.queue));
    text(facts.success, row.episodes ? `${successes(row)} (${percent(row.successes / row.episodes)})` : NONE); text(facts.held, count(row.held));
  }

  look();
  return {
    root: h("section", { class: "view" },
      h("header", { class: "title" }, h("h1", {}, name), word.root, chip, h("span", { class: "spring" }),
        causes.button, task, ["cancel", "pause", "resume", "abort", "release"].map((action) => orderButton(action, name))),
      does, why.root, note, causes.box, problem, unproven,
      h("div", { class: "split" },
        h("div", {}, cameras, h("dl", { class: "facts" }, Object.entries(FACTS).flatMap(([key, label]) => [h("dt", {}, label), facts[key]])), section("Events", events.root)),
        h("div", {}, latency.root, h("p", { class: "faint note" }, "Round trip: mean of this robot's requests. Queue and inference: of its own answers while this page is open, before that the mean of its server's; the network is the rest."),
          stale.root, section("The chunk that came last", chunk.root), section("Last decisions", decisions.root), section("What it asks for", routes.root)))),
    update,
    gone() { clearInterval(timer); for (const one of [latency, stale, chunk]) one.gone(); for (const part of cameras.kept?.values() ?? []) part.gone?.(); },
  };
}

const sum = (a, b) => (a === null || b === null ? null : a + b);
