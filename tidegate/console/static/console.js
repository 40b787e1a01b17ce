// The page: asks once for what is known, then follows what is new.

import { byId, bytes, clock, count, el, rate, seconds, watermark } from "./dom.js";
import { drawCharts, drawLegend, drawTimeline, keepLast, keepSamples } from "./charts.js";
import { drawGraph } from "./graph.js";

const known = { live: true, number: -1, streams: [], samples: [], epochs: [], events: [] };
let updateGraph = () => {}, chosen = null, tab = null;

// The token comes behind the # of the URL, and does not stay there: URLs are copied and shown.
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) {
  sessionStorage.setItem("tidegate-token", given);
  history.replaceState(null, "", location.pathname);
}
const token = sessionStorage.getItem("tidegate-token") ?? "";

async function ask(path, body) {
  const change = { method: "POST", headers: { "X-Tidegate-Token": token, "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const answer = await fetch(path, body === undefined ? {} : change);
  const content = await answer.json();
  if (answer.ok) return content;
  const error = new Error([content.error, content.hint && `Hint: ${content.hint}`].filter(Boolean).join("\n"));
  error.code = content.code;
  throw error;
}

function take(news) {
  known.number = news.number;
  known.streams = news.streams;
  known.samples = keepSamples(known.samples, news.samples);
  known.epochs = keepLast(known.epochs, news.epochs, 512);
  known.events = keepLast(known.events, news.events, 200);
  // A page that nobody sees is not drawn.
  if (document.hidden) return;
  draw();
  if (news.events.length) { drawEvents(); loadGraph(); }
  if (news.epochs.length || news.events.length) loadCheckpoints();
}

function draw() {
  drawState();
  drawTiles();
  updateGraph(known.streams);
  drawTimeline(byId("timeline"), known.epochs);
  drawCharts(byId("charts"), known.samples, known.epochs);
  if (chosen && tab === "Numbers") byId("detail-body").replaceChildren(numbersTable(runningOf(chosen)));
}

function drawState() {
  const states = known.streams.map((stream) => stream.state);
  const waiting = known.streams.some((stream) => stream.error);
  let state = ["failed", "starting", "running", "stopped", "finished"].find((one) => states.includes(one)) ?? "nothing runs";
  if (state === "running" && waiting) state = "waiting";
  if (!known.live) state = "data directory";
  byId("state").textContent = state;
  byId("state").className = `pill ${state}`;
}

function drawTiles() {
  const sum = (read) => known.streams.reduce((total, stream) => total + (read(stream) ?? 0), 0);
  const lags = known.streams.map((stream) => stream.watermark_lag_seconds).filter((lag) => lag !== null);
  const last = known.epochs.at(-1);
  const tiles = [
    ["rows in", `${rate(sum((s) => s.rows_in_per_second))}`, `${count(sum((s) => s.rows_in))} in all`],
    ["rows out", `${rate(sum((s) => s.rows_out_per_second))}`, `${count(sum((s) => s.rows_out))} in all`],
    ["last epoch", last ? (last.seconds === null ? String(last.epoch) : seconds(last.seconds)) : "–", last ? `number ${last.epoch}` : ""],
    ["watermark lag", lags.length ? seconds(Math.max(...lags)) : "–", lags.length ? "the furthest" : ""],
    ["state", bytes(sum((s) => s.state_bytes)), `open windows: ${count(sum((s) => s.open_windows))}`],
    ["late rows", count(sum((s) => s.late_rows)), ""],
    ["dead letters", count(sum((s) => s.dead_letters)), sum((s) => s.lost) ? `${count(sum((s) => s.lost))} lost` : ""],
  ];
  byId("tiles").replaceChildren(...tiles.map(([name, value, more]) =>
    el("div", { class: "tile" }, el("span", {}, name), el("b", {}, value), el("span", {}, more))));
}

function drawEvents() {
  byId("events").replaceChildren(...[...known.events].reverse().map((event) =>
    el("li", { class: event.level }, el("time", {}, clock(event.time)), [event.stream, event.text].filter(Boolean).join(": "))));
}

async function loadGraph() {
  try {
    updateGraph = drawGraph(byId("graph"), await ask("/api/graph"), choose);
    updateGraph(known.streams);
    mark();
  } catch (error) {
    byId("graph").replaceChildren(problem(error));
  }
}

const problem = (error) => el("pre", { class: "error" }, error.message);

// What stands below the graph: the plan, the SQL and rows of what was chosen.

function choose(node) {
  chosen = node.kind === "operator" ? { ...node, kind: "stream", id: `stream:${node.stream.toLowerCase()}`, name: node.stream } : node;
  mark();
  byId("detail").hidden = false;
  byId("detail-head").replaceChildren(`${chosen.kind} ${chosen.name}`);
  const tabs = chosen.kind === "stream" ? ["Plan", "SQL", "Rows", "Numbers"] : ["SQL"];
  show(tabs.includes(tab) ? tab : tabs[0], tabs);
  byId("detail").scrollIntoView({ block: "nearest", behavior: "smooth" });
}

function mark() {
  for (const group of document.querySelectorAll(".node")) group.classList.toggle("chosen", group.dataset.id === chosen?.id);
}

async function show(name, tabs) {
  tab = name;
  const body = byId("detail-body"), about = chosen;
  byId("tabs").replaceChildren(...tabs.map((one) =>
    el("button", { type: "button", role: "tab", "aria-selected": String(one === name), click: () => show(one, tabs) }, one)));
  body.replaceChildren(el("p", { class: "soft" }, name === "Rows" ? "waiting for rows…" : "…"));
  let content;
  try {
    content = await detailOf(name, about);
  } catch (error) {
    content = problem(error);
  }
  // Another one may have been chosen meanwhile.
  if (tab === name && chosen === about) body.replaceChildren(content);
}

async function detailOf(name, about) {
  if (name === "Rows") return rowsTable(await ask("/api/peek", { stream: about.name, rows: 50 }));
  if (name === "Numbers") return numbersTable(runningOf(about));
  const found = await ask(`/api/objects/${encodeURIComponent(about.name)}`);
  return el("pre", {}, name === "Plan" ? (found.plan ?? "it has no plan of its own") : found.sql);
}

const runningOf = (node) => known.streams.find((stream) => stream.name.toLowerCase() === node.name.toLowerCase());

function rowsTable({ columns, rows }) {
  if (!rows.length) return el("p", { class: "soft" }, "no rows came in the last seconds");
  return table(columns, rows);
}

function numbersTable(stream) {
  if (!stream) return el("p", { class: "soft" }, "it does not run");
  const operators = stream.operators.map((one) => [one.name, watermark(one.watermark), count(one.rows), count(one.groups), bytes(one.bytes), count(one.late_rows), one.open_windows]);
  const own = [["state", known.live ? stream.state : "as of its last epoch"], ["error", stream.error ?? "none"], ["epoch", stream.epoch ?? "none"], ["rows in", count(stream.rows_in)], ["rows out", count(stream.rows_out)],
    ["watermark", watermark(stream.watermark)], ["late rows", count(stream.late_rows)], ["dead letters", count(stream.dead_letters)], ["behind", count(stream.behind)], ["lost", count(stream.lost)]];
  return el("div", {}, table(["", "now"], own), el("p"), operators.length ? table(["operator", "watermark", "rows", "groups", "bytes", "late", "open windows"], operators) : null);
}

function table(columns, rows) {
  const cell = (value) => {
    if (value === null) return el("td", { class: "null" }, "NULL");
    if (value instanceof Node) return el("td", {}, value);
    return el("td", typeof value === "number" ? { class: "number" } : {}, typeof value === "object" ? JSON.stringify(value) : String(value));
  };
  return el("table", {}, el("thead", {}, el("tr", {}, ...columns.map((name) => el("th", {}, name)))),
    el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map(cell)))));
}

// Checkpoints

let loading = false;
async function loadCheckpoints() {
  if (loading) return;
  loading = true;
  try {
    const found = await ask("/api/checkpoints");
    const rows = found.map((one) => [one.name ?? "", one.pipeline, one.epoch, watermark(one.time), count(one.rows_in), bytes(one.state_bytes),
      el("button", { type: "button", disabled: token ? null : "", click: () => restore(one) }, "Restore")]);
    byId("checkpoints").replaceChildren(found.length ? table(["name", "pipeline", "epoch", "time (UTC)", "rows in", "state", ""], rows)
      : el("p", { class: "soft" }, "none yet: every epoch is one for a while"));
  } catch (error) {
    byId("checkpoints").replaceChildren(problem(error));
  } finally {
    // An epoch may come every tenth of a second; a list of them need not.
    setTimeout(() => { loading = false; }, 1500);
  }
}

async function restore(checkpoint, message, keepSinks = false) {
  const dialog = byId("dialog"), what = checkpoint.name ? `checkpoint ${checkpoint.name}` : `epoch ${checkpoint.epoch} of ${checkpoint.pipeline}`;
  byId("question").textContent = message ?? `Go back to ${what}? Streams stop, and go on from there.`;
  byId("keep-sinks").checked = keepSinks;
  byId("keep-sinks-label").hidden = !message;
  dialog.returnValue = "no";
  dialog.showModal();
  await new Promise((done) => { dialog.addEventListener("close", done, { once: true }); });
  if (dialog.returnValue !== "yes") return;
  try {
    const wanted = checkpoint.name ? { checkpoint: checkpoint.name } : { checkpoint: checkpoint.epoch };
    await ask("/api/restore", { ...wanted, pipeline: checkpoint.pipeline, keep_sinks: byId("keep-sinks").checked });
  } catch (error) {
    if (error.code === "TG-610") { restore(checkpoint, error.message); return; }
    byId("checkpoints").prepend(problem(error));
  }
}

async function keep() {
  byId("keep").disabled = true;
  try {
    await ask("/api/checkpoints", {});
  } catch (error) {
    byId("checkpoints").prepend(problem(error));
  }
  byId("keep").disabled = !token;
}

// Following

function follow() {
  const events = new EventSource(`/api/events?since=${known.number}`);
  events.onmessage = (message) => take(JSON.parse(message.data));
  events.onerror = () => {
    events.close();
    byId("state").textContent = "connection lost";
    byId("state").className = "pill lost";
    setTimeout(start, 2000);
  };
}

async function start() {
  try {
    const state = await ask("/api/state");
    Object.assign(known, { live: state.live, samples: [], epochs: [], events: [] });
    byId("title").textContent = state.title;
    document.title = `${state.title} · Tidegate`;
    take(state);
    drawEvents();
    await Promise.all([loadGraph(), loadCheckpoints()]);
    follow();
  } catch {
    setTimeout(start, 2000);
  }
}

drawLegend(byId("legend"));
byId("keep").addEventListener("click", keep);
byId("keep").disabled = !token;
document.addEventListener("visibilitychange", () => { if (!document.hidden) { draw(); drawEvents(); loadCheckpoints(); } });
start();
