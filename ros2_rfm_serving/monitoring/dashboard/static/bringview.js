// Form for `rfm check` of a user's robot: on files that are pasted, or named on the page's machine.

import { h, prose, text } from "./dom.js";
import { checkFiles } from "./control.js";

const STEPS = [
  ["Describe", "Write a factory entry and the robot's file: docs/integrate.md, or `rfm connect`, which finds topics on the graph."],
  ["Check", "Check both here, or with `rfm check`. What is called valid starts."],
  ["Run", "Start it with `rfm up` or `rfm robot`, and look at its tile on the first page: what is in its way is written there."],
  ["Give a task", "Use the button on the robot's page, or `rfm task ROBOT`."],
];

export function bringView() {
  const named = h("input", { "aria-label": "File on this page's machine", placeholder: "/home/me/factory.yaml", size: "40" });
  const factory = h("textarea", { "aria-label": "Descriptor", rows: "14", spellcheck: "false", placeholder: "paste factory.yaml here" });
  const robotName = h("input", { "aria-label": "Name of the robot's file", value: "robot.yaml", title: "As the descriptor names it" });
  const robot = h("textarea", { "aria-label": "Robot's file", rows: "8", spellcheck: "false", placeholder: "and the robot's file, if it has one" });
  const live = h("input", { type: "checkbox", id: "check-live" });
  const verdict = h("p", { class: "summary", role: "status" }), lines = h("pre", { class: "output", hidden: true }), command = h("p", { class: "faint" });
  const button = h("button", { type: "submit", class: "strong" }, "Check");

  async function submit(event) {
    event.preventDefault();
    const texts = {};
    if (!named.value.trim()) {
      texts["factory.yaml"] = factory.value;
      if (robot.value.trim()) texts[robotName.value.trim() || "robot.yaml"] = robot.value;
    }
    button.disabled = true; lines.hidden = true; text(verdict, "checking ..."); text(command, "");
    try {
      const told = await checkFiles({ file: named.value.trim() || "factory.yaml", texts, live: live.checked });
      if (!told) return text(verdict, "A check takes the token: unlock first.");
      text(verdict, told.valid ? "valid" : "not valid"); verdict.dataset.level = told.valid ? "good" : "error";
      text(lines, told.lines.join("\n")); lines.hidden = !told.lines.length;
      text(command, `In a shell: ${told.command}`);
    } catch (error) { text(verdict, error.message); verdict.dataset.level = "error"; } finally { button.disabled = false; }
    return undefined;
  }

  return {
    root: h("section", { class: "view bring" }, h("h1", {}, "Bring your robot"),
      h("ol", { class: "steps" }, STEPS.map(([title, words]) => h("li", {}, h("strong", {}, title), " ", prose(words)))),
      h("form", { onsubmit: submit },
        h("label", {}, "A file on this page's machine ", named),
        h("p", { class: "faint" }, "or paste:"), factory,
        h("label", {}, "The robot's file, as the descriptor names it ", robotName), robot,
        h("p", { class: "tools" }, live, h("label", { for: "check-live" }, "compare it with the running graph as well"), h("span", { class: "spring" }), button)),
      verdict, lines, command),
    update() {},
  };
}
