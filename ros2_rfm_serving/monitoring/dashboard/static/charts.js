// Line charts of the last minutes, drawn by uPlot. They use the page's colours, so that they follow light and dark.

/* global uPlot */
import { h, text } from "./dom.js";

const HEIGHT_PX = 150;
const dark = matchMedia("(prefers-color-scheme: dark)");
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const FONT = "11px system-ui, sans-serif";

function axes(unit, time) {
  const common = { stroke: () => colour("--faint"), font: FONT, grid: { stroke: () => colour("--line"), width: 1 }, ticks: { show: false } };
  const minutes = (_, values) => values.map((value) => (value === 0 ? "now" : value % 60 === 0 ? `${value / 60} min` : `${value} s`));
  return [
    { ...common, size: 24, space: 60, values: time ? minutes : (_, values) => values.map((value) => (Number.isInteger(value) ? String(value) : "")),
      ...(time ? { incrs: [10, 30, 60, 120] } : {}) },
    { ...common, size: 58, space: 28, values: (_, values) => values.map((value) => unit(value)) },
  ];
}

// Draw a chart. lines: [label, colour's variable, whether it is filled]. options: unit(value), max, limit(), which returns a level to mark.
export function chart(title, lines, { unit, max = null, limit = null, limitName = "", time = true, marks = null, from = 0 }) {
  const legend = h("ul", { class: "legend" }), box = h("div", { class: "plot" });
  const readout = h("span", { class: "faint readout" });
  const root = h("figure", { class: "chart" }, h("figcaption", {}, title, readout), box, legend);
  let plot = null, data = null;
  const shown = (limitName ? [...lines, [limitName, "--limit"]] : lines);

  function write() {
    legend.replaceChildren(...shown.map(([label, name]) => {
      const swatch = h("span", { class: "swatch" });
      swatch.style.background = colour(name);
      return h("li", {}, swatch, label);
    }));
  }

  function range(_, low, high) {
    if (max !== null) return [0, max];
    const lowest = low ?? 0, highest = high ?? 0;
    if (from === null) {
      const room = 0.08 * (highest - lowest || 1);
      return [lowest - room, highest + room];
    }
    const bottom = Math.min(from, lowest), top = Math.max(highest, bottom + 1e-3);
    return [bottom, top + 0.08 * (top - bottom)];
  }

  function draw() {
    plot?.destroy();
    write();
    const series = shown.map(([label, name, filled]) => ({
      label, stroke: () => colour(name), width: name === "--limit" ? 1 : 1.6, dash: name === "--limit" ? [5, 4] : [], spanGaps: false,
      points: { show: false }, fill: filled ? () => `color-mix(in srgb, ${colour(name)} 30%, ${colour("--card")})` : undefined,
    }));
    plot = new uPlot({
      width: Math.max(box.clientWidth, 120), height: HEIGHT_PX, padding: [8, 18, 0, 0], legend: { show: false },
      scales: { x: { time: false, ...(time ? { range: (_, low, high) => [Math.min(low ?? -60, -60), Math.max(high ?? 0, 0)] } : {}) }, y: { range } },
      axes: axes(unit, time), series: [{}, ...series], cursor: { points: { size: 5 }, drag: { x: false, y: false } },
      hooks: { setCursor: [point], draw: marks ? [marks] : [] },
    }, data, box);
  }

  function point(self) {
    const at = self.cursor.idx;
    if (at === null || at === undefined) return text(readout, "");
    const values = shown.map(([label], i) => `${label} ${self.data[i + 1]?.[at] === null || self.data[i + 1]?.[at] === undefined ? "–" : unit(self.data[i + 1][at])}`);
    return text(readout, values.join(" · "));
  }

  const resized = new ResizeObserver(() => plot?.setSize({ width: Math.max(box.clientWidth, 120), height: HEIGHT_PX }));
  resized.observe(box);
  dark.addEventListener("change", draw_if);
  function draw_if() { if (data) draw(); }

  return {
    root,
    update(x, columns) {
      if (!x) return;
      const level = limit?.() ?? null;
      data = [x, ...columns.map((column) => column ?? x.map(() => null)), ...(limitName ? [x.map(() => level)] : [])];
      if (plot) plot.setData(data); else if (box.isConnected) draw();
    },
    gone() { resized.disconnect(); dark.removeEventListener("change", draw_if); plot?.destroy(); plot = null; },
  };
}

// Draw the newest chunk: a line per action over its rows, with the fixed prefix and the execution horizon.
const SHADES = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7", "--c8"];
export function chunkChart() {
  const root = h("div", {}, h("p", { class: "faint" }, "No chunk has come since this page looks."));
  let inner = null, names = "", told = null;
  function marks(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    if (told?.delay > 0) {
      ctx.fillStyle = `color-mix(in srgb, ${colour("--faint")} 18%, transparent)`;
      ctx.fillRect(bbox.left, bbox.top, Math.max(0, plot.valToPos(told.delay - 0.5, "x", true) - bbox.left), bbox.height);
    }
    if (told?.horizon > 0) {
      const x = plot.valToPos(told.horizon - 0.5, "x", true);
      ctx.strokeStyle = colour("--limit"); ctx.setLineDash([5, 4]); ctx.beginPath(); ctx.moveTo(x, bbox.top); ctx.lineTo(x, bbox.top + bbox.height); ctx.stroke();
    }
    ctx.restore();
  }
  return {
    root,
    update(chunk) {
      if (!chunk) return;
      told = chunk;
      const wanted = chunk.names.join(" ");
      if (wanted !== names || !inner) {
        inner?.gone(); names = wanted;
        inner = chart("Actions by control step", chunk.names.map((name, i) => [name, SHADES[i % SHADES.length]]),
          { unit: (value) => String(Number(value.toPrecision(2))), time: false, marks, from: null });
        root.replaceChildren(inner.root, h("p", { class: "faint" }, "Shaded: held fixed to what was being executed. Dashed: how far it is to be executed."));
      }
      const steps = chunk.columns[0]?.map((_, i) => i) ?? [];
      inner.update(steps, chunk.columns);
    },
    gone() { inner?.gone(); },
  };
}
