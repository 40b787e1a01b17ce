// Small charts over the last minutes, one line a stream, and the timeline of epochs.

import { bytes, clock, count, el, rate, seconds, svg } from "./dom.js";

const SAMPLES = 600, EPOCHS = 60, WIDTH = 300, HEIGHT = 84, STEPS = ["cut", "run", "decide", "commit"];

const CHARTS = [
  { title: "Rows in", read: (s) => s.in, show: rate },
  { title: "Rows out", read: (s) => s.out, show: rate },
  { title: "Watermark lag", read: (s) => s.lag, show: seconds },
  { title: "State", read: (s) => s.state, show: bytes },
  { title: "Late rows", read: (s) => s.late, show: count },
];

export const keepLast = (list, news, most) => list.concat(news).slice(-most);
export const keepSamples = (list, news) => keepLast(list, news, SAMPLES);

const colours = new Map();
// A stream keeps its colour, whatever comes and goes beside it.
function colour(stream) {
  if (!colours.has(stream)) colours.set(stream, `var(--series-${(colours.size % 8) + 1})`);
  return colours.get(stream);
}

export function drawCharts(place, samples, epochs) {
  const lines = CHARTS.map((chart) => drawChart(chart, samples));
  const times = epochs.filter((epoch) => epoch.seconds !== null).slice(-EPOCHS);
  const longest = drawLines("Epoch time", seconds, [["epochs", times.map((e) => e.seconds)]]);
  place.replaceChildren(streamLegend(samples), ...lines, longest);
}

function streamLegend(samples) {
  const names = Object.keys(samples.at(-1)?.streams ?? {});
  return el("p", { class: "legend wide" }, ...names.map((name) => {
    const dot = el("i");
    dot.style.background = colour(name);
    return el("span", {}, dot, name);
  }));
}

function drawChart({ title, read, show }, samples) {
  const names = [...new Set(samples.flatMap((sample) => Object.keys(sample.streams)))];
  const series = names.map((name) => [name, samples.map((s) => (s.streams[name] ? read(s.streams[name]) : null))]);
  return drawLines(title, show, series.filter(([, values]) => values.some((value) => value !== null)));
}

function drawLines(title, show, series) {
  const top = Math.max(...series.flatMap(([, values]) => values.filter((v) => v !== null)), 0);
  const now = series.map(([, values]) => values.at(-1)).filter((v) => v !== null && v !== undefined);
  const last = now.length ? show(Math.max(...now)) : "–";
  const paths = series.map(([name, values]) => svg("path", { d: pathOf(values, top), stroke: colour(name) }, svg("title", {}, name)));
  return el("article", { class: "chart" }, el("h3", {}, title, el("span", {}, `${last} (most ${show(top)})`)),
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": title },
      svg("line", { class: "axis", x1: 0, x2: WIDTH, y1: HEIGHT - 1, y2: HEIGHT - 1 }), ...paths));
}

function pathOf(values, top) {
  let d = "", drawing = false;
  values.forEach((value, place) => {
    if (value === null) { drawing = false; return; }
    const across = (place / Math.max(values.length - 1, 1)) * WIDTH;
    const up = HEIGHT - 2 - (top > 0 ? Math.max(value, 0) / top : 0) * (HEIGHT - 8);
    d += `${drawing ? "L" : "M"}${across.toFixed(1)} ${up.toFixed(1)}`;
    drawing = true;
  });
  return d;
}

export function drawLegend(place) {
  place.replaceChildren(...STEPS.map((step) => el("span", {}, el("i", { class: step }), step)));
}

// One bar an epoch, made of its steps; where only manifests are known, a bar is the rows.
export function drawTimeline(place, epochs) {
  const last = epochs.slice(-EPOCHS), height = 112, width = 1000, slot = width / EPOCHS;
  if (!last.length) { place.replaceChildren(el("p", { class: "soft" }, "no epoch yet: they come with the first rows")); return; }
  const timed = last.some((epoch) => epoch.seconds !== null);
  const size = (epoch) => (timed ? epoch.seconds : epoch.rows_in);
  const top = Math.max(...last.map(size), timed ? 0.001 : 1);
  const bars = last.map((epoch, place) => {
    const steps = timed ? epoch.steps : [{ step: "run", seconds: epoch.rows_in }];
    let base = height;
    const parts = steps.map(({ step, seconds: length }) => {
      const tall = (length / top) * (height - 6);
      base -= tall;
      return svg("rect", { class: step, x: place * slot + 1, y: base, width: slot - 2, height: tall });
    });
    return svg("g", {}, svg("title", {}, describe(epoch)), ...parts);
  });
  const scale = timed ? `highest bar ${seconds(top)}` : `highest bar ${count(top)} rows`;
  const text = `epochs ${last[0].epoch} to ${last.at(-1).epoch}, last at ${clock(last.at(-1).began)}; ${scale}`;
  place.replaceChildren(svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": text },
    svg("line", { class: "axis", x1: 0, x2: width, y1: height, y2: height }), ...bars), el("p", { class: "soft" }, text));
}

function describe(epoch) {
  const steps = epoch.steps.map(({ step, seconds: length }) => `${step} ${seconds(length)}`).join(", ");
  return `${epoch.pipeline}, epoch ${epoch.epoch} at ${clock(epoch.began)}: ${count(epoch.rows_in)} rows in, ${count(epoch.rows_out)} out${steps && `; ${steps}`}`;
}
