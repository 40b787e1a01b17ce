// Charts of the last ten minutes with one line per stream, and the timeline of epochs.

import { bytes, clock, count, el, rate, seconds, svg } from "./dom.js";

const SAMPLES = 600, EPOCHS = 60, WIDTH = 300, HEIGHT = 84, STEPS = ["plan", "run", "commit", "publish"];

const CHARTS = [
  { title: "Rows in", read: (s) => s.in, show: rate },
  { title: "Rows out", read: (s) => s.out, show: rate },
  { title: "Watermark lag", read: (s) => s.lag, show: seconds },
  { title: "State", read: (s) => s.state, show: bytes },
  { title: "Late rows", read: (s) => s.late, show: count },
];

export const keepLast = (list, added, limit) => list.concat(added).slice(-limit);
export const keepSamples = (list, added) => keepLast(list, added, SAMPLES);

const colors = new Map();
// A stream keeps its color when other streams are added or dropped.
function color(stream) {
  if (!colors.has(stream)) colors.set(stream, `var(--series-${(colors.size % 8) + 1})`);
  return colors.get(stream);
}

export function drawCharts(container, samples, epochs) {
  const charts = CHARTS.map((chart) => drawChart(chart, samples));
  const durations = epochs.filter((epoch) => epoch.seconds !== null).slice(-EPOCHS).map((epoch) => epoch.seconds);
  const epochChart = drawLines("Epoch time", seconds, [{ name: "epochs", values: durations, stroke: "var(--accent)" }]);
  container.replaceChildren(streamLegend(samples), ...charts, epochChart);
}

function streamLegend(samples) {
  const names = Object.keys(samples.at(-1)?.streams ?? {});
  return el("p", { class: "legend wide" }, ...names.map((name) => {
    const dot = el("i");
    dot.style.background = color(name);
    return el("span", {}, dot, name);
  }));
}

function drawChart({ title, read, show }, samples) {
  const names = [...new Set(samples.flatMap((sample) => Object.keys(sample.streams)))];
  const series = names.map((name) => ({
    name,
    values: samples.map((sample) => (sample.streams[name] ? read(sample.streams[name]) : null)),
    stroke: color(name),
  }));
  return drawLines(title, show, series.filter(({ values }) => values.some((value) => value !== null)));
}

function drawLines(title, show, series) {
  const max = Math.max(...series.flatMap(({ values }) => values.filter((value) => value !== null)), 0);
  const latest = series.map(({ values }) => values.at(-1)).filter((value) => value !== null && value !== undefined);
  const current = latest.length ? show(Math.max(...latest)) : "–";
  const paths = series.map(({ name, values, stroke }) => svg("path", { d: linePath(values, max), stroke }, svg("title", {}, name)));
  return el("article", { class: "chart" }, el("h3", {}, title, el("span", {}, `${current} (max ${show(max)})`)),
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": title },
      svg("line", { class: "axis", x1: 0, x2: WIDTH, y1: HEIGHT - 1, y2: HEIGHT - 1 }), ...paths));
}

// A line with a gap where a value is null.
function linePath(values, max) {
  let d = "", drawing = false;
  values.forEach((value, index) => {
    if (value === null) { drawing = false; return; }
    const x = (index / Math.max(values.length - 1, 1)) * WIDTH;
    const y = HEIGHT - 2 - (max > 0 ? Math.max(value, 0) / max : 0) * (HEIGHT - 8);
    d += `${drawing ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    drawing = true;
  });
  return d;
}

export function drawLegend(container) {
  container.replaceChildren(...STEPS.map((step) => el("span", {}, el("i", { class: step }), step)));
}

// One bar per epoch, divided into its steps. Without step durations, a bar shows the number of rows.
export function drawTimeline(container, epochs) {
  const last = epochs.slice(-EPOCHS), height = 112, width = 1000, slot = width / EPOCHS;
  if (!last.length) { container.replaceChildren(el("p", { class: "soft" }, "No epoch yet. The first one runs when rows arrive.")); return; }
  const timed = last.some((epoch) => epoch.seconds !== null);
  const size = (epoch) => (timed ? epoch.seconds : epoch.rows_in);
  const max = Math.max(...last.map(size), timed ? 0.001 : 1);
  const bars = last.map((epoch, index) => {
    const steps = timed ? epoch.steps : [{ step: "run", seconds: epoch.rows_in }];
    let top = height;
    const parts = steps.map(({ step, seconds: length }) => {
      const barHeight = (length / max) * (height - 6);
      top -= barHeight;
      return svg("rect", { class: step, x: index * slot + 1, y: top, width: slot - 2, height: barHeight });
    });
    return svg("g", {}, svg("title", {}, describe(epoch)), ...parts);
  });
  const scale = timed ? `highest bar ${seconds(max)}` : `highest bar ${count(max)} rows`;
  const text = `epochs ${last[0].epoch} to ${last.at(-1).epoch}, last at ${clock(last.at(-1).started_at)}; ${scale}`;
  container.replaceChildren(svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": text },
    svg("line", { class: "axis", x1: 0, x2: width, y1: height, y2: height }), ...bars), el("p", { class: "soft" }, text));
}

function describe(epoch) {
  const steps = epoch.steps.map(({ step, seconds: length }) => `${step} ${seconds(length)}`).join(", ");
  return `${epoch.pipeline}, epoch ${epoch.epoch} at ${clock(epoch.started_at)}: ${count(epoch.rows_in)} rows in, ${count(epoch.rows_out)} rows out${steps && `; ${steps}`}`;
}
