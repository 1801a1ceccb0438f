// Explanation of a state, a loss or a refusal counter, with its remedy.

import { h, prose, text } from "./dom.js";
import { eventList } from "./eventline.js";
import { ask, state } from "./store.js";

export function helpView(key) {
  const meaning = h("dd"), remedy = h("dd"), problem = h("p", { class: "problem" }), who = h("dd");
  const events = eventList(30, (event) => event.help === key);
  ask(`/api/help/${encodeURIComponent(key)}`).then((told) => { text(meaning, told.meaning); remedy.replaceChildren(...prose(told.remedy)); }, (error) => text(problem, error.message));
  return {
    root: h("section", { class: "view" }, h("h1", {}, key.replaceAll("_", " ")), problem,
      h("dl", { class: "facts" }, h("dt", {}, "what it means"), meaning, h("dt", {}, "what to do"), remedy, h("dt", {}, "now at"), who),
      h("p", { class: "faint note help" }, prose("`rfm why`, in a shell, looks at the factory for six seconds and names causes with figures; docs/runbook.md has all of them.")),
      h("h2", {}, "Events"), events.root),
    update() {
      const names = [...Object.entries(state.robots), ...Object.entries(state.servers)]
        .filter(([, row]) => row.refusing?.some((one) => one.reason === key) || row.shown === key).map(([name]) => name);
      text(who, names.join(", ") || "nobody");
      events.update();
    },
  };
}
