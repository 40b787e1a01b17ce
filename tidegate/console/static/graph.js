// The graph of sources, operators, streams and sinks, with rates and watermarks on its edges.
// The server has laid it out in layers and rows; here they become pixels.

import { bytes, count, rate, svg, watermark } from "./dom.js";

const WIDTH = 168, HEIGHT = 52, GAP_X = 104, GAP_Y = 26, MARGIN = 14, SMALLEST = 0.7;

const x = (layer) => MARGIN + layer * (WIDTH + GAP_X);
const y = (row) => MARGIN + row * (HEIGHT + GAP_Y);

export function drawGraph(place, graph, choose) {
  const width = x(graph.layers) - GAP_X + MARGIN, height = y(graph.rows) - GAP_Y + MARGIN;
  const nodes = new Map(graph.nodes.map((node) => [node.id, node]));
  const edges = graph.edges.map((edge) => drawEdge(edge, nodes));
  const boxes = graph.nodes.map((node) => drawNode(node, choose));
  const readers = readersOf(graph, nodes);
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "The graph of streams" },
    ...edges.map((edge) => edge.path), ...boxes.map((box) => box.group), ...edges.map((edge) => edge.label));
  // It shrinks a little to fit; below that it is scrolled.
  Object.assign(drawing.style, { width: "100%", maxWidth: `${width}px`, minWidth: `${width * SMALLEST}px` });
  place.replaceChildren(drawing);
  return (streams) => {
    const known = new Map(streams.map((stream) => [stream.name.toLowerCase(), stream]));
    edges.forEach((edge) => updateEdge(edge, known, readers));
    boxes.forEach((box) => updateNode(box, known, streams));
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
  const middle = (points[last - 1][0] + WIDTH + points[last][0]) / 2;
  const height = (points[last - 1][1] + points[last][1]) / 2;
  const speed = svg("tspan", { x: middle, dy: 0 }), mark = svg("tspan", { x: middle, dy: 13 });
  const label = svg("text", { class: "edge-label soft", x: middle, y: height - 4 }, speed, mark);
  return { path: svg("path", { class: "edge", d }), label, speed, mark, source: nodes.get(edge.source), target: nodes.get(edge.target) };
}

// What a stream reads is known of all its sources together, what it gives out of its last step only;
// late rows and dead letters are counted elsewhere.
function updateEdge(edge, known, readers) {
  const reading = edge.source.kind === "source";
  const stream = reading ? readers.running(edge.target, known) : known.get(edge.source.stream.toLowerCase());
  const side = edge.target.detail === "late rows" || edge.target.detail === "dead letters";
  const last = edge.source.kind === "stream" || (edge.source.kind === "operator" && edge.target.kind === "stream");
  let speed = null;
  if (stream && reading && !side) speed = stream.rows_in_per_second;
  else if (stream && last && !side) speed = stream.rows_out_per_second;
  const all = reading && stream && readers.sources(stream.name) > 1 ? "Σ " : "";
  edge.speed.textContent = speed === null ? "" : all + rate(speed);
  const operator = stream?.operators.find((item) => item.name === edge.source.name);
  edge.mark.textContent = reading || side ? "" : watermark(operator?.watermark ?? stream?.watermark).slice(11);
  edge.path.classList.toggle("moving", speed > 0);
}

// A stream that only other streams read runs with them.
function readersOf(graph, nodes) {
  const after = new Map(), counted = new Map();
  for (const { source, target } of graph.edges) after.set(source, [...(after.get(source) ?? []), target]);
  const running = (node, known) => known.get(node.stream.toLowerCase()) ??
    (after.get(node.id) ?? []).map((id) => running(nodes.get(id), known)).find(Boolean);
  const reach = (id, seen) => {
    if (seen.has(id)) return seen;
    seen.add(id);
    (after.get(id) ?? []).forEach((next) => reach(next, seen));
    return seen;
  };
  for (const node of graph.nodes.filter((one) => one.kind === "source")) {
    for (const id of reach(node.id, new Set())) counted.set(id, (counted.get(id) ?? 0) + 1);
  }
  return { running, sources: (name) => counted.get(`stream:${name.toLowerCase()}`) ?? 1 };
}

function drawNode(node, choose) {
  const detail = svg("text", { class: "soft", x: 12, y: 39 }, short(node.detail || node.kind, 25));
  const group = svg("g", {
    class: `node ${node.kind}`, transform: `translate(${x(node.layer)} ${y(node.row)})`, tabindex: 0, role: "button",
    "aria-label": `${node.kind} ${node.name}`, "data-id": node.id,
    click: () => choose(node),
    keydown: (event) => { if (event.key === "Enter") choose(node); },
  }, svg("title", {}, `${node.kind} ${node.name}`), svg("rect", { width: WIDTH, height: HEIGHT, rx: node.kind === "operator" ? 4 : 10 }),
  svg("text", { class: "name", x: 12, y: 22 }, short(node.name, 21)), detail);
  return { node, group, detail };
}

function updateNode({ node, group, detail }, known, streams) {
  const stream = known.get(node.stream.toLowerCase());
  group.classList.toggle("failed", stream?.state === "failed" && node.kind === "stream");
  if (node.kind === "operator") {
    // Operators of a stream that others read run with those.
    const owner = [stream, ...streams].find((item) => item?.operators.some((one) => one.name === node.name));
    const operator = owner?.operators.find((one) => one.name === node.name);
    if (operator) detail.textContent = short(`${bytes(operator.bytes)}, ${count(operator.rows || operator.groups)} kept`, 25);
  } else if (node.kind === "stream" && stream) {
    detail.textContent = short(`${count(stream.rows_out)} rows${stream.late_rows ? `, ${count(stream.late_rows)} late` : ""}`, 25);
  }
}

const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
