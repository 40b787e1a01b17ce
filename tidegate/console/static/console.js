// The page: loads the history once, then receives updates.

import { byId, bytes, clock, count, el, rate, seconds, timestamp } from "./dom.js";
import { drawCharts, drawLegend, drawTimeline, keepLast, keepSamples } from "./charts.js";
import { drawGraph } from "./graph.js";

const model = { live: true, number: -1, streams: [], samples: [], epochs: [], events: [] };
let updateGraph = () => {}, selected = null, tab = null;

// The token arrives in the fragment of the URL. Remove it there: URLs are copied and displayed.
const tokenInUrl = new URLSearchParams(location.hash.slice(1)).get("token");
if (tokenInUrl) {
  sessionStorage.setItem("tidegate-token", tokenInUrl);
  history.replaceState(null, "", location.pathname);
}
const token = sessionStorage.getItem("tidegate-token") ?? "";

// GET without a body, POST with the token and a body.
async function request(path, body) {
  const post = { method: "POST", headers: { "X-Tidegate-Token": token, "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const response = await fetch(path, body === undefined ? {} : post);
  const content = await response.json();
  if (response.ok) return content;
  const error = new Error([content.error, content.hint && `Hint: ${content.hint}`].filter(Boolean).join("\n"));
  error.code = content.code;
  throw error;
}

function applyUpdate(update) {
  model.number = update.number;
  model.streams = update.streams;
  model.samples = keepSamples(model.samples, update.samples);
  model.epochs = keepLast(model.epochs, update.epochs, 512);
  model.events = keepLast(model.events, update.events, 200);
  // A hidden page is drawn when it becomes visible.
  if (document.hidden) return;
  draw();
  if (update.events.length) { drawEvents(); loadGraph(); }
  if (update.epochs.length || update.events.length) loadCheckpoints();
}

function draw() {
  drawState();
  drawTiles();
  updateGraph(model.streams);
  drawTimeline(byId("timeline"), model.epochs);
  drawCharts(byId("charts"), model.samples, model.epochs);
  if (selected && tab === "Counters") byId("detail-body").replaceChildren(countersTable(statusOf(selected)));
}

function drawState() {
  const states = model.streams.map((stream) => stream.state);
  const waiting = model.streams.some((stream) => stream.error);
  let state = ["failed", "starting", "running", "stopped", "finished"].find((name) => states.includes(name)) ?? "no streams";
  if (state === "running" && waiting) state = "waiting";
  if (!model.live) state = "data directory";
  byId("state").textContent = state;
  byId("state").className = `pill ${state}`;
}

function drawTiles() {
  const sum = (read) => model.streams.reduce((total, stream) => total + (read(stream) ?? 0), 0);
  const lags = model.streams.map((stream) => stream.watermark_lag_seconds).filter((lag) => lag !== null);
  const last = model.epochs.at(-1);
  const tiles = [
    ["rows in", `${rate(sum((s) => s.rows_in_per_second))}`, `${count(sum((s) => s.rows_in))} in total`],
    ["rows out", `${rate(sum((s) => s.rows_out_per_second))}`, `${count(sum((s) => s.rows_out))} in total`],
    ["last epoch", last ? (last.seconds === null ? String(last.epoch) : seconds(last.seconds)) : "–", last ? `number ${last.epoch}` : ""],
    ["watermark lag", lags.length ? seconds(Math.max(...lags)) : "–", lags.length ? "slowest stream" : ""],
    ["state", bytes(sum((s) => s.state_bytes)), `open windows: ${count(sum((s) => s.open_windows))}`],
    ["late rows", count(sum((s) => s.late_rows)), ""],
    ["dead letters", count(sum((s) => s.dead_letters)), sum((s) => s.lost) ? `${count(sum((s) => s.lost))} records lost` : ""],
  ];
  byId("tiles").replaceChildren(...tiles.map(([name, value, note]) =>
    el("div", { class: "tile" }, el("span", {}, name), el("b", {}, value), el("span", {}, note))));
}

function drawEvents() {
  byId("events").replaceChildren(...[...model.events].reverse().map((event) =>
    el("li", { class: event.level }, el("time", {}, clock(event.time)), [event.stream, event.text].filter(Boolean).join(": "))));
}

async function loadGraph() {
  try {
    updateGraph = drawGraph(byId("graph"), await request("/api/graph"), select);
    updateGraph(model.streams);
    markSelected();
  } catch (error) {
    byId("graph").replaceChildren(errorText(error));
  }
}

const errorText = (error) => el("pre", { class: "error" }, error.message);

// Details of the selected node: plan, SQL, rows and counters

function select(node) {
  selected = node.kind === "operator" ? { ...node, kind: "stream", id: `stream:${node.stream.toLowerCase()}`, name: node.stream } : node;
  markSelected();
  byId("detail").hidden = false;
  byId("detail-head").replaceChildren(`${selected.kind} ${selected.name}`);
  const tabs = selected.kind === "stream" ? ["Plan", "SQL", "Rows", "Counters"] : ["SQL"];
  showTab(tabs.includes(tab) ? tab : tabs[0], tabs);
  byId("detail").scrollIntoView({ block: "nearest", behavior: "smooth" });
}

function markSelected() {
  for (const group of document.querySelectorAll(".node")) group.classList.toggle("selected", group.dataset.id === selected?.id);
}

async function showTab(name, tabs) {
  tab = name;
  const body = byId("detail-body"), node = selected;
  byId("tabs").replaceChildren(...tabs.map((other) =>
    el("button", { type: "button", role: "tab", "aria-selected": String(other === name), click: () => showTab(other, tabs) }, other)));
  body.replaceChildren(el("p", { class: "soft" }, name === "Rows" ? "Waiting for rows…" : "…"));
  let content;
  try {
    content = await tabContent(name, node);
  } catch (error) {
    content = errorText(error);
  }
  // The selection may have changed in the meantime.
  if (tab === name && selected === node) body.replaceChildren(content);
}

async function tabContent(name, node) {
  if (name === "Rows") return rowsTable(await request("/api/peek", { stream: node.name, rows: 50 }));
  if (name === "Counters") return countersTable(statusOf(node));
  const description = await request(`/api/objects/${encodeURIComponent(node.name)}`);
  return el("pre", {}, name === "Plan" ? (description.plan ?? "This object has no plan.") : description.sql);
}

const statusOf = (node) => model.streams.find((stream) => stream.name.toLowerCase() === node.name.toLowerCase());

function rowsTable({ columns, rows }) {
  if (!rows.length) return el("p", { class: "soft" }, model.live ? "No rows arrived in the last seconds." : "No rows are stored.");
  return table(columns, rows);
}

function countersTable(stream) {
  if (!stream) return el("p", { class: "soft" }, "This stream has no counters. It is not running, or it runs as a part of other streams.");
  const operators = stream.operators.map((item) => [item.name, timestamp(item.watermark), count(item.rows), count(item.groups), bytes(item.bytes), count(item.late_rows), item.open_windows]);
  const counters = [["state", model.live ? stream.state : "as of the last epoch"], ["error", stream.error ?? "none"], ["epoch", stream.epoch ?? "none"], ["rows in", count(stream.rows_in)], ["rows out", count(stream.rows_out)],
    ["watermark", timestamp(stream.watermark)], ["late rows", count(stream.late_rows)], ["dead letters", count(stream.dead_letters)], ["backlog", count(stream.behind)], ["lost records", count(stream.lost)]];
  return el("div", {}, table(["", "now"], counters), el("p"), operators.length ? table(["operator", "watermark", "rows", "groups", "bytes", "late rows", "open windows"], operators) : null);
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
    const checkpoints = await request("/api/checkpoints");
    const rows = checkpoints.map((checkpoint) => [checkpoint.name ?? "", checkpoint.pipeline, checkpoint.epoch, timestamp(checkpoint.time), count(checkpoint.rows_in), bytes(checkpoint.state_bytes),
      el("button", { type: "button", disabled: token ? null : "", click: () => restore(checkpoint) }, "Restore")]);
    byId("checkpoints").replaceChildren(rows.length ? table(["name", "pipeline", "epoch", "time (UTC)", "rows in", "state", ""], rows)
      : el("p", { class: "soft" }, "No checkpoints yet. The most recent epochs are listed here."));
  } catch (error) {
    byId("checkpoints").replaceChildren(errorText(error));
  } finally {
    // Epochs may take a tenth of a second: do not reload the list for every one.
    setTimeout(() => { loading = false; }, 1500);
  }
}

// Ask for confirmation. `message` is the reason why the first attempt was rejected: some sinks cannot be rolled back.
async function restore(checkpoint, message) {
  const dialog = byId("dialog"), name = checkpoint.name ? `checkpoint ${checkpoint.name}` : `epoch ${checkpoint.epoch} of ${checkpoint.pipeline}`;
  byId("question").textContent = message ?? `Restore ${name}? The streams stop and resume from there.`;
  byId("keep-sinks").checked = false;
  byId("keep-sinks-label").hidden = !message;
  dialog.returnValue = "no";
  dialog.showModal();
  await new Promise((done) => { dialog.addEventListener("close", done, { once: true }); });
  if (dialog.returnValue !== "yes") return;
  try {
    const target = checkpoint.name ? { checkpoint: checkpoint.name } : { checkpoint: checkpoint.epoch };
    await request("/api/restore", { ...target, pipeline: checkpoint.pipeline, keep_sinks: byId("keep-sinks").checked });
  } catch (error) {
    if (error.code === "TG-610") { restore(checkpoint, error.message); return; }
    byId("checkpoints").prepend(errorText(error));
  }
}

async function createCheckpoint() {
  byId("create-checkpoint").disabled = true;
  try {
    await request("/api/checkpoints", {});
  } catch (error) {
    byId("checkpoints").prepend(errorText(error));
  }
  byId("create-checkpoint").disabled = !token;
}

// Updates

function follow() {
  const events = new EventSource(`/api/events?since=${model.number}`);
  events.onmessage = (message) => applyUpdate(JSON.parse(message.data));
  events.onerror = () => {
    events.close();
    byId("state").textContent = "connection lost";
    byId("state").className = "pill lost";
    setTimeout(start, 2000);
  };
}

async function start() {
  try {
    const state = await request("/api/state");
    Object.assign(model, { live: state.live, samples: [], epochs: [], events: [] });
    byId("title").textContent = state.title;
    document.title = `${state.title} · Tidegate`;
    applyUpdate(state);
    drawEvents();
    await Promise.all([loadGraph(), loadCheckpoints()]);
    follow();
  } catch {
    setTimeout(start, 2000);
  }
}

drawLegend(byId("legend"));
byId("create-checkpoint").addEventListener("click", createCheckpoint);
byId("create-checkpoint").disabled = !token;
document.addEventListener("visibilitychange", () => { if (!document.hidden) { draw(); drawEvents(); loadCheckpoints(); } });
start();
