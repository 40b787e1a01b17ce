// The graph of sources, operators, streams and sinks, with rates and watermarks on its edges.
// The server assigns layers and rows to nodes; this module converts them to pixels.

import { bytes, count, rate, svg, timestamp } from "./dom.js";

const WIDTH = 168, HEIGHT = 52, GAP_X = 86, GAP_Y = 26, MARGIN = 14, MIN_SCALE = 0.75;

const x = (layer) => MARGIN + layer * (WIDTH + GAP_X);
const y = (row) => MARGIN + row * (HEIGHT + GAP_Y);

// Draw the graph and return a function that updates its numbers. `select` is called with a clicked node.
export function drawGraph(container, graph, select) {
  const width = x(graph.layers) - GAP_X + MARGIN, height = y(graph.rows) - GAP_Y + MARGIN;
  const nodes = new Map(graph.nodes.map((node) => [node.id, node]));
  const edges = graph.edges.map((edge) => drawEdge(edge, nodes));
  const boxes = graph.nodes.map((node) => drawNode(node, select));
  const readers = readersOf(graph, nodes);
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "The graph of streams" },
    ...edges.map((edge) => edge.path), ...boxes.map((box) => box.group), ...edges.map((edge) => edge.label));
  // The drawing shrinks to fit, but not below a readable size: then it scrolls.
  Object.assign(drawing.style, { width: "100%", maxWidth: `${width}px`, minWidth: `${width * MIN_SCALE}px` });
  container.replaceChildren(drawing);
  return (streams) => {
    const byName = new Map(streams.map((stream) => [stream.name.toLowerCase(), stream]));
    edges.forEach((edge) => updateEdge(edge, byName, readers));
    boxes.forEach((box) => updateNode(box, byName, streams));
  };
}

function drawEdge(edge, nodes) {
  const points = edge.path.map(([layer, row]) => [x(layer), y(row) + HEIGHT / 2]);
  const last = points.length - 1;
  let d = `M ${points[0][0] + WIDTH} ${points[0][1]}`;
  for (let i = 1; i <= last; i += 1) {
    const [toX, toY] = points[i], fromX = points[i - 1][0] + WIDTH, fromY = points[i - 1][1];
    d += ` C ${fromX + GAP_X / 2} ${fromY}, ${toX - GAP_X / 2} ${toY}, ${toX} ${toY}`;
    // A bend passes straight through its layer.
    if (i < last) d += ` L ${toX + WIDTH} ${toY}`;
  }
  const middleX = (points[last - 1][0] + WIDTH + points[last][0]) / 2;
  const middleY = (points[last - 1][1] + points[last][1]) / 2;
  const rateLabel = svg("tspan", { x: middleX, dy: 0 }), watermarkLabel = svg("tspan", { x: middleX, dy: 13 });
  const label = svg("text", { class: "edge-label soft", x: middleX, y: middleY - 4 }, rateLabel, watermarkLabel);
  return { path: svg("path", { class: "edge", d }), label, rateLabel, watermarkLabel, source: nodes.get(edge.source), target: nodes.get(edge.target) };
}

// The rate of rows in is known per stream, for all its sources together; the rate of rows out only
// for the last operator of a stream. Late rows and dead letters have counters, but no rates.
function updateEdge(edge, byName, readers) {
  const fromSource = edge.source.kind === "source";
  const stream = fromSource ? readers.runningStream(edge.target, byName) : byName.get(edge.source.stream.toLowerCase());
  const toSideStream = edge.target.detail === "late rows" || edge.target.detail === "dead letters";
  const isOutput = edge.source.kind === "stream" || (edge.source.kind === "operator" && edge.target.kind === "stream");
  let rowsPerSecond = null;
  if (stream && fromSource && !toSideStream) rowsPerSecond = stream.rows_in_per_second;
  else if (stream && isOutput && !toSideStream) rowsPerSecond = stream.rows_out_per_second;
  const sum = fromSource && stream && readers.sourceCount(stream.name) > 1 ? "Σ " : "";
  edge.rateLabel.textContent = rowsPerSecond === null ? "" : sum + rate(rowsPerSecond);
  const operator = stream?.operators.find((item) => item.name === edge.source.name);
  edge.watermarkLabel.textContent = fromSource || toSideStream ? "" : timestamp(operator?.watermark ?? stream?.watermark).slice(11);
  edge.path.classList.toggle("moving", rowsPerSecond > 0);
}

// A stream that only other streams read has no status: it runs as a part of those.
function readersOf(graph, nodes) {
  const successors = new Map(), sourceCounts = new Map();
  for (const { source, target } of graph.edges) successors.set(source, [...(successors.get(source) ?? []), target]);
  const runningStream = (node, byName) => byName.get(node.stream.toLowerCase()) ??
    (successors.get(node.id) ?? []).map((id) => runningStream(nodes.get(id), byName)).find(Boolean);
  const reachable = (id, visited) => {
    if (visited.has(id)) return visited;
    visited.add(id);
    (successors.get(id) ?? []).forEach((next) => reachable(next, visited));
    return visited;
  };
  for (const source of graph.nodes.filter((node) => node.kind === "source")) {
    for (const id of reachable(source.id, new Set())) sourceCounts.set(id, (sourceCounts.get(id) ?? 0) + 1);
  }
  return { runningStream, sourceCount: (name) => sourceCounts.get(`stream:${name.toLowerCase()}`) ?? 1 };
}

function drawNode(node, select) {
  const detail = svg("text", { class: "soft", x: 12, y: 39 }, truncate(node.detail || node.kind, 25));
  const group = svg("g", {
    class: `node ${node.kind}`, transform: `translate(${x(node.layer)} ${y(node.row)})`, tabindex: 0, role: "button",
    "aria-label": `${node.kind} ${node.name}`, "data-id": node.id,
    click: () => select(node),
    keydown: (event) => { if (event.key === "Enter") select(node); },
  }, svg("title", {}, `${node.kind} ${node.name}`), svg("rect", { width: WIDTH, height: HEIGHT, rx: node.kind === "operator" ? 4 : 10 }),
  svg("text", { class: "name", x: 12, y: 22 }, truncate(node.name, 21)), detail);
  return { node, group, detail };
}

function updateNode({ node, group, detail }, byName, streams) {
  const stream = byName.get(node.stream.toLowerCase());
  group.classList.toggle("failed", stream?.state === "failed" && node.kind === "stream");
  if (node.kind === "operator") {
    // The operators of a stream without status belong to the streams that read it.
    const owner = [stream, ...streams].find((item) => item?.operators.some((operator) => operator.name === node.name));
    const operator = owner?.operators.find((item) => item.name === node.name);
    if (operator) detail.textContent = truncate(`${bytes(operator.bytes)}, ${operator.rows ? `${count(operator.rows)} rows` : `${count(operator.groups)} groups`}`, 25);
  } else if (node.kind === "stream" && stream) {
    detail.textContent = truncate(`${count(stream.rows_out)} rows${stream.late_rows ? `, ${count(stream.late_rows)} late` : ""}`, 25);
  }
}

const truncate = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);
