// List of events by cause, with their reasons; the newest first.

import { h, helpLink, keyed, link, text } from "./dom.js";
import { clock } from "./format.js";
import { state } from "./store.js";

export const CAUSES = {
  lost: ["lost and back", "Robots and servers that fell silent, came back, left or were restarted"],
  state: ["states", "Changes of the fail-safe state of robots, and of the state of servers"],
  stopped: ["stops", "Robots that were paused or stopped, or wait for a person"],
  held: ["held", "Robots that had no action to execute for several control periods"],
  refused: ["refusals", "What robots and servers have refused, each reason once in ten seconds"],
  task: ["tasks", "Tasks that people gave through this page, and how they ended"],
  schedule: ["schedule", "New schedules, and what became of the scheduler"],
  order: ["orders", "What people ordered through this page"],
};

function make() {
  const time = h("time"), subject = h("span", { class: "who" }), what = h("span", { class: "what" }), why = h("span", { class: "why" });
  const root = h("li", {}, time, h("p", {}, subject, " ", what, " ", why));
  let shown = false;
  return {
    root,
    update(event) {
      if (shown) return; // an event does not change
      shown = true;
      root.dataset.level = event.level; root.dataset.cause = event.cause;
      text(time, clock(event.time));
      const page = event.kind === "robot" || event.kind === "server" ? event.kind : event.name in state.robots ? "robot" : "server";
      const there = event.name in state.robots || event.name in state.servers;
      subject.append(there ? link(page, event.name) : event.name);
      what.append(event.help ? helpLink(event.help, event.what) : event.what);
      text(why, event.why);
    },
  };
}

export function eventList(limit, concerns = () => true) {
  const list = h("ol", { class: "events" }), none = h("p", { class: "faint" });
  return {
    root: h("div", {}, none, list),
    update() {
      const events = state.events.filter(concerns).slice(0, limit);
      text(none, state.events.length ? "No event fits." : "Nothing has happened since this page was started.");
      none.hidden = events.length > 0;
      keyed(list, events.map((event) => [String(event.number), event]), make);
    },
  };
}

// Button per cause with the number of its events. Pressed causes are shown; without one, all causes are.
export function eventsView() {
  const wanted = new Set();
  const filter = h("input", { type: "search", placeholder: "Filter  ( / )", "aria-label": "Filter events", class: "filter" });
  const fits = (event) => {
    const words = filter.value.trim().toLowerCase();
    return (!wanted.size || wanted.has(event.cause)) && (!words || `${event.name} ${event.what} ${event.why}`.toLowerCase().includes(words));
  };
  const list = eventList(400, fits);
  const chips = Object.entries(CAUSES).map(([cause, [label, title]]) => {
    const count = h("span", { class: "faint" });
    const button = h("button", { type: "button", class: "cause", title, "aria-pressed": "false", "data-cause": cause, onclick: () => {
      if (!wanted.delete(cause)) wanted.add(cause);
      button.setAttribute("aria-pressed", String(wanted.has(cause)));
      list.update();
    } }, label, " ", count);
    return { cause, button, count };
  });
  filter.addEventListener("input", list.update);
  return {
    root: h("section", { class: "view" }, h("h1", {}, "Events"),
      h("div", { class: "tools", role: "group", "aria-label": "Causes" }, chips.map((chip) => chip.button), h("span", { class: "spring" }), filter), list.root),
    update() {
      const counts = {};
      for (const event of state.events) counts[event.cause] = (counts[event.cause] ?? 0) + 1;
      for (const chip of chips) text(chip.count, String(counts[chip.cause] ?? 0));
      list.update();
    },
  };
}
