// Choice of the view, and a sign whether its figures are current.

import { begin } from "./control.js";
import { text } from "./dom.js";
import { bringView } from "./bringview.js";
import { eventsView } from "./eventline.js";
import { fleetView } from "./fleetview.js";
import { helpView } from "./helpview.js";
import { robotView } from "./robotview.js";
import { scheduleView } from "./scheduleview.js";
import { serverView, serversView } from "./serverviews.js";
import { connect, listen, state } from "./store.js";

const VIEWS = { "": fleetView, servers: serversView, schedule: scheduleView, events: eventsView, robot: robotView, server: serverView, help: helpView, bring: bringView };
const main = document.getElementById("main"), factory = document.getElementById("factory"), link = document.getElementById("link");
let view = null;

function route() {
  if (location.hash === "#main") return main.focus();
  const [, kind = "", name = ""] = location.hash.split("/");
  const make = VIEWS[kind] ?? fleetView;
  view?.gone?.();
  let shown = "";
  try { shown = decodeURIComponent(name); } catch { shown = name; }
  view = make(shown);
  main.replaceChildren(view.root);
  const active = { "": "fleet", robot: "fleet", server: "servers", help: "events" }[kind] ?? kind;
  for (const entry of document.querySelectorAll("nav a")) {
    if (entry.dataset.view === active) entry.setAttribute("aria-current", "page"); else entry.removeAttribute("aria-current");
  }
  scrollTo(0, 0);
  return draw();
}

function draw() {
  const named = state.schedule.factory || (state.heardMs ? "no factory heard" : "connecting");
  text(factory, named);
  document.title = `${named} · rfm`;
  text(link, state.live ? "live" : "offline, figures are old");
  link.dataset.level = state.live ? "good" : "error";
  document.body.classList.toggle("old", !state.live && Boolean(state.heardMs));
  view?.update();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) || document.querySelector("dialog[open]")) return;
  if (event.key === "/") { const filter = main.querySelector("[type=search]"); if (filter) { event.preventDefault(); filter.focus(); } }
  const views = ["#/", "#/servers", "#/schedule", "#/events", "#/bring"];
  if (/^[1-5]$/.test(event.key)) location.hash = views[Number(event.key) - 1];
});

begin();
listen(draw);
addEventListener("hashchange", route);
route();
connect();
