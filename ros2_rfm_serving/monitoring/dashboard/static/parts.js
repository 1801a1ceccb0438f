// Elements of several views: states, chips, bars, pictures.

import { attribute, h, helpLink, text } from "./dom.js";

export function pill() {
  const root = h("span", { class: "pill" });
  return { root, update([word, level]) { text(root, word); attribute(root, "data-level", level); } };
}

export function emulated() { return h("span", { class: "chip", title: "Latency from a profile; no model runs", hidden: true }, "EMULATED"); }

// Bar of a share of 1, with a mark at the limit.
export function bar(label) {
  const fill = h("span", { class: "fill" });
  const root = h("span", { class: "bar", role: "img", "aria-label": label }, fill);
  return {
    root,
    update(share, over = false) {
      const known = typeof share === "number";
      fill.style.transform = `scaleX(${known ? Math.min(1, Math.max(0, share)).toFixed(3) : 0})`; // a transform needs no new layout
      attribute(root, "data-level", !known ? "none" : over ? "error" : share > 0.9 ? "warning" : "good");
    },
  };
}

// Update a row of a long list only while it is on the screen.
const rows = new IntersectionObserver((entries) => { for (const { target, isIntersecting } of entries) target.seen(isIntersecting); }, { rootMargin: "200px" });
export function whileSeen(root, write) {
  let visible = false, value = null;
  root.seen = (now) => { visible = now; if (visible && value) write(value); };
  rows.observe(root);
  return { root, update(told) { value = told; if (visible) write(told); }, gone() { rows.unobserve(root); } };
}

const PERIOD_MS = 1000;
const shown = new Set(); // pictures on the screen
const seen = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) if (isIntersecting) { shown.add(target.owner); target.owner.fetch(); } else shown.delete(target.owner);
});

setInterval(() => { if (!document.hidden) for (const part of shown) part.fetch(); }, PERIOD_MS);

// Camera image, updated once a second while it is on the screen.
export function picture(robot, camera = "any") {
  const image = h("img", { alt: `Camera of ${robot}`, hidden: true, decoding: "async" });
  const none = h("span", { class: "none" }, "no picture");
  const root = h("div", { class: "picture" }, image, none);
  let busy = false, url = null;
  const show = (blob) => {
    const before = url;
    url = blob ? URL.createObjectURL(blob) : null;
    if (url) image.src = url; else image.removeAttribute("src");
    image.hidden = !url; none.hidden = Boolean(url);
    if (before) URL.revokeObjectURL(before);
  };
  const part = {
    root,
    gone() { seen.unobserve(root); shown.delete(part); show(null); },
    async fetch() {
      if (busy) return;
      busy = true;
      try {
        const answer = await fetch(`/api/robots/${encodeURIComponent(robot)}/cameras/${encodeURIComponent(camera)}`);
        show(answer.status === 200 ? await answer.blob() : null);
      } catch { show(null); } finally { busy = false; }
    },
  };
  root.owner = part;
  seen.observe(root);
  return part;
}

// Obstacle of a robot or a server: its own reason, or its refusals of the last seconds, with a link each.
export function obstacle(tag = "p") {
  const root = h(tag, { class: "why" });
  let shown = null;
  return {
    root,
    update(words, refusing, help = "") {
      const told = JSON.stringify([words, refusing, help]);
      if (told === shown) return;
      shown = told;
      const reasons = words ? [] : (refusing ?? []);
      const parts = words ? [help ? helpLink(help, words) : words] : reasons.flatMap((one, i) => [i ? "; " : "refuses: ", helpLink(one.reason, one.meaning)]);
      root.replaceChildren(...parts);
      attribute(root, "title", root.textContent || null);
    },
  };
}

// Explained refusals, most frequent first.
export function refusedList() {
  const root = h("dd", { "data-figure": "refused" });
  let shown = null;
  return {
    root,
    update(refused) {
      const told = JSON.stringify(refused);
      if (told === shown) return;
      shown = told;
      root.replaceChildren(...(refused?.length ? [h("ul", { class: "refused" }, refused.map((one) =>
        h("li", {}, `${one.count} x `, helpLink(one.reason, one.meaning), " ", h("span", { class: "faint" }, one.reason))))] : ["nothing"]));
    },
  };
}

// Counters by name, the largest first.
export function counters(root, counted, nothing = "none") {
  const entries = Object.entries(counted ?? {}).sort((a, b) => b[1] - a[1]);
  text(root, entries.map(([name, count]) => `${name} ${count}`).join(", ") || nothing);
}
