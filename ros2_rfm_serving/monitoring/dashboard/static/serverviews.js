// Views of servers: load, batch, queue, latency against the SLO.

import { attribute, h, keyed, link, section, table, text } from "./dom.js";
import { chart } from "./charts.js";
import { orderButton, whyBox } from "./control.js";
import { eventList } from "./eventline.js";
import { NONE, count, hz, ms, percent, serverState, serverWhy } from "./format.js";
import { bar, emulated, obstacle, pill, refusedList } from "./parts.js";
import { routeTable } from "./scheduleview.js";
import { ask, state } from "./store.js";

const PAGE_MS = 1000;

const batch = (row) => (row.batch === null ? NONE : `${row.batch.toFixed(1)} of ${row.max_batch}`);
const TIPS = {
  load: "Share of time that its engine is busy", "p99 / SLO": "99th percentile of latency, arrival to reply, and the tightest SLO of its robots",
  batch: "Mean requests in a batch, and how many fit", queue: "Requests that wait", "replies/s": "Replies per second", sessions: "Open sessions, and how many it takes",
};
const late = (row) => row.slo_s && row.p99_s !== null && row.p99_s > row.slo_s;

export function serverCard(name) {
  const word = pill(), chip = emulated(), standby = h("span", { class: "chip", hidden: true }, "standby");
  const why = obstacle(), model = h("span", { class: "faint" });
  const load = bar("load"), latency = bar("99th percentile of latency against the SLO");
  const figures = Object.fromEntries(["load", "latency", "batch", "waiting", "rate", "sessions"].map((key) => [key, h("dd", { "data-figure": key })]));
  const root = h("article", { class: "card server", title: `Server ${name}: what it hosts, how busy it is, and whether it keeps its SLO` },
    h("header", {}, h("h3", {}, link("server", name)), word.root, chip, standby),
    h("p", { class: "model" }, model), why.root,
    h("dl", { class: "bars" },
      h("dt", { title: TIPS.load }, "load"), figures.load, h("dd", { class: "wide" }, load.root),
      h("dt", { title: TIPS["p99 / SLO"] }, "p99 / SLO"), figures.latency, h("dd", { class: "wide" }, latency.root)),
    h("dl", { class: "figures" },
      ...[["batch", figures.batch], ["queue", figures.waiting], ["replies/s", figures.rate], ["sessions", figures.sessions]]
        .map(([label, figure]) => h("div", { title: TIPS[label] }, h("dt", {}, label), figure))));
  return {
    root,
    update(row) {
      word.update(serverState(row));
      chip.hidden = !row.emulated; standby.hidden = !row.standby;
      const hosted = [row.model || "no model", row.gpu].filter(Boolean).join(" on ");
      text(model, row.dispatch ? `${hosted}, dispatch ${row.dispatch}` : hosted);
      why.update(serverWhy(row), row.refusing); why.root.hidden = !why.root.textContent;
      attribute(root, "data-level", serverState(row)[1]);
      text(figures.load, percent(row.load)); load.update(row.load);
      text(figures.latency, row.slo_s ? `${ms(row.p99_s)} / ${ms(row.slo_s)}` : ms(row.p99_s));
      latency.update(row.slo_s && row.p99_s !== null ? row.p99_s / row.slo_s : null, late(row));
      text(figures.batch, batch(row)); text(figures.waiting, count(row.waiting)); text(figures.rate, hz(row.rate_hz));
      text(figures.sessions, row.sessions === null ? NONE : `${row.sessions} of ${row.max_sessions}`);
    },
  };
}

export function serversView() {
  const cells = [["server"], ["state"], ["model"], ["load", "number"], ["batch", "number"], ["queue", "number"], ["replies/s", "number"],
    ["p50", "number"], ["p99", "number"], ["planned p99", "number"], ["SLO", "number"], ["sessions", "number"], ["robots", "number"], ["refused", "number"]];
  const { root, body } = table(cells, "Servers");
  const make = (name) => {
    const word = pill(), chip = emulated(), model = h("span"), why = h("div", { class: "why" });
    const figures = cells.slice(3).map(([, kind]) => h("td", { class: kind }));
    const row = h("tr", {}, h("th", { scope: "row" }, link("server", name)), h("td", {}, word.root, why), h("td", {}, model, " ", chip), figures);
    return {
      root: row,
      update(value) {
        word.update(serverState(value)); text(why, serverWhy(value)); text(model, value.model || NONE); chip.hidden = !value.emulated;
        const shown = [percent(value.load), batch(value), count(value.waiting), hz(value.rate_hz), ms(value.p50_s), ms(value.p99_s),
          ms(value.planned_p99_s), ms(value.slo_s), value.sessions === null ? NONE : `${value.sessions} of ${value.max_sessions}`, count(value.robots), count(value.refused)];
        shown.forEach((words, i) => text(figures[i], words));
        attribute(figures[5], "data-level", late(value) ? "error" : null);
      },
    };
  };
  const none = h("p", { class: "faint" }, "No server was heard.");
  return {
    root: h("section", { class: "view" }, h("h1", {}, "Servers"), none, root),
    update() {
      const rows = Object.entries(state.servers);
      none.hidden = rows.length > 0; root.hidden = !rows.length;
      keyed(body, rows, make);
    },
  };
}

export function serverView(name) {
  const causes = whyBox(name), card = serverCard(name), problem = h("p", { class: "problem" });
  const events = eventList(30, (event) => event.name === name);
  const refused = refusedList(), replaced = h("dd"), refetched = h("dd"), epoch = h("dd");
  const routes = routeTable(`Who asks ${name}`);
  const slo = () => state.servers[name]?.slo_s;
  const latency = chart("Latency, arrival to reply", [["99th percentile", "--queue"], ["median", "--accent"]], { unit: ms, limit: slo, limitName: "SLO" });
  const parts = chart("Where it goes, mean of all replies", [["queue and inference", "--queue", true], ["inference", "--inference", true]], { unit: ms });
  const load = chart("Load", [["share of time that the engine is busy", "--accent", true]], { unit: percent, max: 1 });
  const rate = chart("Replies per second", [["replies/s", "--accent"]], { unit: hz });
  const timer = setInterval(look, PAGE_MS);
  async function look() {
    if (document.hidden) return;
    try {
      const told = await ask(`/api/servers/${encodeURIComponent(name)}`), past = told.history;
      text(problem, "");
      latency.update(past.ago_s, [past.p99_s, past.p50_s]);
      const queue = past.queue_s?.map((wait, i) => (wait === null || past.inference_s[i] === null ? null : wait + past.inference_s[i]));
      parts.update(past.ago_s, [queue, past.inference_s]);
      load.update(past.ago_s, [past.load]); rate.update(past.ago_s, [past.rate_hz]);
      refused.update(told.refused); text(replaced, count(told.counters.superseded)); text(refetched, count(told.counters.refetched));
      text(epoch, count(told.epoch)); routes.update(told.routes);
    } catch (error) { text(problem, error.message); }
  }
  look();
  return {
    root: h("section", { class: "view" },
      h("header", { class: "title" }, h("h1", {}, name), h("span", { class: "spring" }), causes.button, orderButton("drain", name), orderButton("activate", name)),
      causes.box, problem,
      h("div", { class: "split" },
        h("div", {}, card.root,
          section("Counted since its start", h("dl", { class: "facts" }, h("dt", {}, "refused"), refused.root, h("dt", {}, "replaced by newer"), replaced,
            h("dt", {}, "asked anew"), refetched, h("dt", {}, "schedule"), epoch)),
          section("Events", events.root)),
        h("div", {}, latency.root, parts.root, load.root, rate.root, section("Who asks it", routes.root)))),
    update() { if (state.servers[name]) card.update(state.servers[name]); events.update(); },
    gone() { clearInterval(timer); for (const one of [latency, parts, load, rate]) one.gone(); },
  };
}
