// View of the schedule: planned and actual routes, and the gap to the bound.

import { attribute, h, keyed, link, table, text } from "./dom.js";
import { admitForm } from "./control.js";
import { NONE, ago, count, hz, ms, percent } from "./format.js";
import { ask, state } from "./store.js";

const PERIOD_MS = 1000;
const BEHIND = 0.8; // share of the planned rate
const TIPS = {
  epoch: "Number of the schedule in force, counted by its scheduler", policy: "Scheduling policy that made it", real: "Chunks that all robots receive per second, now",
  planned: "Predictions per second that the schedule promises", gap: "How far the plan is from the bound of its objective; 0 %: none is better",
};
const PROOF = {
  checked: "States, figures and schedule are proven by certificates; success, real time, pictures and answers are as anybody says them.",
  undated: "Undated: proven by certificates, but no server has answered that it follows this schedule. A recording would look the same.",
  unchecked: "Unproven: the factory signs what it says, and this page has no certificate to check it by.",
};

export function routeTable(label) {
  const columns = [["robot"], ["component"], ["server"], ["standby"], ["planned/s", "number"], ["real/s", "number"], ["SLO", "number"], ["in time", "number"]];
  const { root, body } = table(columns, label);
  const make = () => {
    const cells = columns.map(([, kind]) => h("td", { class: kind }));
    let names = "";
    return {
      root: h("tr", {}, cells),
      update(route) {
        const told = [route.robot, route.server, route.standby, route.on_standby].join(" ");
        if (told !== names) {
          names = told;
          cells[0].replaceChildren(link("robot", route.robot));
          cells[2].replaceChildren(link("server", route.server));
          cells[3].replaceChildren(...(route.standby ? [link("server", route.standby), route.on_standby ? " in use" : ""] : [NONE]));
          attribute(cells[3], "data-level", route.on_standby ? "warning" : null);
        }
        text(cells[1], route.component);
        text(cells[4], route.planned_hz === null ? "unlimited" : hz(route.planned_hz)); text(cells[5], hz(route.real_hz));
        attribute(cells[5], "data-level", route.real_hz !== null && route.planned_hz !== null && route.real_hz < BEHIND * route.planned_hz ? "warning" : null);
        text(cells[6], ms(route.slo_s)); text(cells[7], percent(route.attained, 1));
      },
    };
  };
  return { root, update(routes) { keyed(body, routes.map((route) => [`${route.robot} ${route.component} ${route.server}`, route]), make); } };
}

export function scheduleFacts() {
  const facts = Object.fromEntries(["epoch", "policy", "real", "planned", "gap"].map((key) => [key, h("dd", { "data-figure": key })]));
  const stale = h("p", { class: "problem" }), proof = h("p", { class: "faint", "data-figure": "proof" });
  const labels = { epoch: "schedule", policy: "policy", real: "predictions/s", planned: "planned", gap: "gap to the bound" };
  return {
    root: h("div", {}, h("dl", { class: "tiles" }, Object.entries(labels).map(([key, label]) => h("div", { title: TIPS[key] }, h("dt", {}, label), facts[key]))), stale, proof),
    update() {
      const told = state.schedule;
      text(facts.epoch, told.epoch ? count(told.epoch) : NONE); text(facts.policy, told.policy || NONE);
      text(facts.planned, hz(told.planned_hz)); text(facts.real, hz(told.real_hz)); text(facts.gap, percent(told.gap, 1));
      text(stale, !told.stale ? "" : told.silent_s === null ? "No schedule was heard." : `The scheduler is ${ago(told.silent_s)}; this is its last word.`);
      text(proof, PROOF[told.proof] ?? "");
    },
  };
}

export function scheduleView() {
  const facts = scheduleFacts(), routes = routeTable("Who asks whom"), admit = admitForm(), problem = h("p", { class: "problem" });
  const filter = h("input", { type: "search", placeholder: "Filter  ( / )", "aria-label": "Filter routes", class: "filter" });
  const timer = setInterval(look, PERIOD_MS);
  async function look() {
    if (document.hidden) return;
    try {
      const wanted = filter.value.trim().toLowerCase();
      const { routes: told } = await ask("/api/schedule");
      routes.update(told.filter((route) => !wanted || `${route.robot} ${route.component} ${route.server} ${route.task}`.toLowerCase().includes(wanted)));
      text(problem, "");
    } catch (error) { text(problem, error.message); }
  }
  filter.addEventListener("input", look);
  look();
  return {
    root: h("section", { class: "view" }, h("h1", {}, "Schedule"), facts.root,
      h("div", { class: "tools" }, filter, h("span", { class: "spring" }), admit.root), problem, routes.root),
    update() { facts.update(); admit.update(); },
    gone() { clearInterval(timer); },
  };
}
