// Who was lost, held, refused, replanned, and why; the newest first.

import { h, keyed, link, text } from "./dom.js";
import { clock } from "./format.js";
import { state } from "./store.js";

function make() {
  const time = h("time"), subject = h("span", { class: "who" }), what = h("span", { class: "what" }), why = h("span", { class: "why" });
  const root = h("li", {}, time, h("p", {}, subject, " ", what, " ", why));
  let shown = false;
  return {
    root,
    update(event) {
      if (shown) return; // an event does not change
      shown = true;
      root.dataset.level = event.level;
      text(time, clock(event.time));
      const page = event.kind === "robot" || event.kind === "server" ? event.kind : event.name in state.robots ? "robot" : "server";
      const there = event.name in state.robots || event.name in state.servers;
      subject.append(there ? link(page, event.name) : event.name);
      text(what, event.what);
      text(why, event.why);
    },
  };
}

export function eventList(limit, concerns = () => true) {
  const list = h("ol", { class: "events" }), none = h("p", { class: "faint" }, "Nothing has happened since this page was started.");
  return {
    root: h("div", {}, none, list),
    update() {
      const events = state.events.filter(concerns).slice(0, limit);
      none.hidden = events.length > 0;
      keyed(list, events.map((event) => [String(event.number), event]), make);
    },
  };
}

export function eventsView() {
  const list = eventList(400);
  return { root: h("section", { class: "view" }, h("h1", {}, "Events"), list.root), update: list.update };
}
