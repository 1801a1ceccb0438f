// Commands of operators. Every command is confirmed, carries the token, and its outcome is shown.

import { h, prose, text } from "./dom.js";
import { state } from "./store.js";

const CONSEQUENCES = {
  pause: "It finishes nothing more until it is resumed: the robot holds where it is.",
  resume: "It goes on with its task.",
  abort: "Its task ends as failed.",
  release: "It leaves the schedule and gets no more actions from the servers.",
  admit: "It joins the schedule; a robot that does not fit has the factory planned anew.",
  cancel: "Its task ends here; the robot stops at once. A program, such as the foreman, may give it the next one: pause it to keep it still.",
  task: "It starts at once. A task of a program, such as the foreman, ends for it.",
  drain: "The server takes nothing new and answers what it has. Robots turn to their standby, or hold.",
  activate: "The server takes sessions and requests again.",
};
// Labels of the buttons; the dialog's own button has another word for not doing it.
const titled = (action) => (action === "cancel" ? "Cancel task" : action[0].toUpperCase() + action.slice(1));
const $ = (id) => document.getElementById(id);
const KEY = "rfm-token";
let token = sessionStorage.getItem(KEY) ?? "", who = "";

function show() {
  text($("person"), who ? `Control: ${who}` : "Unlock");
  $("person").title = who ? "Lock again" : "Tasks, orders and checks take a token";
}

async function identify(given) {
  if (!/^[!-~]+$/.test(given)) throw new Error("That is no token: paste the one that was printed when the page was started.");
  const answer = await fetch("/api/whoami", { headers: { authorization: `Bearer ${given}` } });
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.problem);
  token = given; who = told.name;
  sessionStorage.setItem(KEY, token);
  show();
}

function forget() { token = who = ""; sessionStorage.removeItem(KEY); show(); }

// Open a dialog and return whether it was submitted. It stays open when `submit` throws, with the error as the reason.
function run(dialog, problem, submit) {
  const form = dialog.querySelector("form");
  text(problem, "");
  return new Promise((resolve) => {
    let busy = false, done = false;
    const close = () => {
      form.removeEventListener("submit", onSubmit);
      form.querySelector("[value=cancel]").removeEventListener("click", cancel);
      dialog.removeEventListener("close", close);
      resolve(done);
    };
    const cancel = () => dialog.close();
    const onSubmit = async (event) => {
      event.preventDefault();
      if (busy) return;
      busy = true;
      try { await submit(); done = true; dialog.close(); } catch (error) { text(problem, error.message); } finally { busy = false; }
    };
    form.addEventListener("submit", onSubmit);
    form.querySelector("[value=cancel]").addEventListener("click", cancel);
    dialog.addEventListener("close", close);
    dialog.showModal();
  });
}

async function unlock() {
  $("token").value = "";
  return run($("unlock"), $("unlock-problem"), () => identify($("token").value.trim()));
}

let hiding = 0;
function toast(words, level) {
  const box = $("toast");
  text(box, words); box.dataset.level = level; box.hidden = false;
  clearTimeout(hiding);
  hiding = setTimeout(() => { box.hidden = true; }, 6000);
}

export const checkFiles = (wanted) => runTool("/api/check", wanted);

async function runTool(path, wanted) {
  if (!who && !(await unlock())) return null;
  const answer = await fetch(path, {
    method: "POST", headers: { authorization: `Bearer ${token}`, "content-type": "application/json" }, body: JSON.stringify(wanted),
  });
  const told = await answer.json();
  if (answer.status === 401) forget();
  if (!answer.ok) throw new Error(told.problem);
  return told;
}

// Result of `rfm why` for one robot or server: a button, and below it the causes with evidence and remedies.
export function whyBox(name) {
  const box = h("div", { class: "causes" });
  const button = h("button", { type: "button", class: "act", title: "Looks at it for six seconds, as rfm why does, and names the causes", onclick: look }, "Why?");
  async function look() {
    button.disabled = true; box.replaceChildren(h("p", { class: "faint" }, "looking for the causes, for some eight seconds ..."));
    try {
      const told = await runTool("/api/why", { name });
      if (!told) box.replaceChildren();
      else if (told.problem) box.replaceChildren(h("p", { class: "problem" }, told.problem));
      else if (!told.findings.length) box.replaceChildren(h("p", { class: "faint" }, `Nothing is wrong: seen for ${told.looked_s} s.`));
      else box.replaceChildren(...told.findings.map((one) => h("div", { class: "card cause", title: `Cause: ${one.cause}` },
        h("h3", {}, `${one.cause}${one.about ? `: ${one.about}` : ""}`), one.evidence.map((words) => h("p", { class: "why" }, words)),
        h("p", {}, h("strong", {}, "What helps: "), prose(one.mend)))));
    } catch (error) { box.replaceChildren(h("p", { class: "problem" }, error.message)); } finally { button.disabled = false; }
  }
  return { button, box };
}

// Give a robot a task that is entered in a dialog. offers: {tasks, reset}, from the graph.
export async function giveTask(robot, offers) {
  if (!who && !(await unlock())) return;
  text($("task-title"), `Give ${robot} a task`);
  text($("task-text"), CONSEQUENCES.task);
  $("task-instruction").value = $("task-budget").value = ""; // values of another robot must not remain
  $("task-reset").checked = offers.reset; $("task-reset").disabled = !offers.reset;
  text($("task-reset-label"), offers.reset ? "bring robot and workpiece to the start first" : "the robot offers no reset");
  await run($("task"), $("task-problem"), () => send({
    action: "task", target: robot, instruction: $("task-instruction").value.trim(), budget_s: Number($("task-budget").value) || 0, reset: $("task-reset").checked,
  }));
}

async function send(wanted) {
  const answer = await fetch("/api/control", {
    method: "POST",
    headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
    body: JSON.stringify({ ...wanted, confirmed: true }),
  });
  const told = await answer.json();
  if (answer.status === 401) forget();
  if (!answer.ok) throw new Error(told.message ?? told.problem);
  toast(`${wanted.target}: ${told.message || "done"}`, "good");
}

export async function order(action, target, task = "") {
  if (!who && !(await unlock())) return;
  text($("confirm-title"), `${titled(action)}: ${target}?`);
  text($("confirm-text"), CONSEQUENCES[action]);
  text($("confirm-do"), titled(action));
  await run($("confirm"), $("confirm-problem"), () => send({ action, target, task }));
}

export function orderButton(action, target) {
  return h("button", { type: "button", class: `act ${action}`, title: CONSEQUENCES[action], onclick: () => order(action, target) }, titled(action));
}

export function admitForm() {
  const tasks = h("select", { "aria-label": "Task" });
  const name = h("input", { "aria-label": "Robot", placeholder: "robot's name", pattern: "[A-Za-z][A-Za-z0-9_]{0,99}", required: true });
  const root = h("form", { class: "admit", onsubmit: (event) => { event.preventDefault(); order("admit", name.value, tasks.value); } },
    h("span", {}, "Admit a robot"), name, tasks, h("button", { type: "submit" }, "Admit"));
  return {
    root,
    update() {
      const known = Object.keys(state.tasks).filter((task) => task !== "no task");
      if (known.join() !== [...tasks.options].map((option) => option.value).join()) {
        tasks.replaceChildren(...known.map((task) => h("option", { value: task }, task)));
      }
    },
  };
}

export function begin() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) { token = given; history.replaceState(null, "", "#/"); }
  $("person").addEventListener("click", () => (who ? forget() : unlock()));
  show();
  if (token) identify(token).catch(forget);
}
