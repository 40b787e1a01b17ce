"""The graph of sources, operators, streams and sinks, and its layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import LookupTable, SideStream, Sink, Source, Stream
from tidegate.checkpoint.manifest import Manifest
from tidegate.physical.registry import kind_of
from tidegate.plan import nodes as n


@dataclass(frozen=True)
class GraphNode:
    """A source, lookup table, operator, stream or sink."""

    id: str
    # "source", "lookup", "operator", "stream" or "sink"
    kind: str
    name: str
    # A second line of text: the connector of a source or sink, for example.
    detail: str = ""
    # The stream whose status applies to this node.
    stream: str = ""


@dataclass(frozen=True)
class GraphEdge:
    """Rows flow from the node `source` to the node `target`."""

    source: str
    target: str


@dataclass
class StreamGraph:
    """Nodes by id in the order of declaration, and edges without duplicates."""

    nodes: dict[str, GraphNode] = field(default_factory=dict)
    edges: dict[GraphEdge, None] = field(default_factory=dict)

    def add(self, node: GraphNode) -> str:
        """Add a node, unless its id exists already, and return its id."""
        self.nodes.setdefault(node.id, node)
        return node.id

    def connect(self, source: str, target: str) -> None:
        """Add an edge between two node ids."""
        self.edges[GraphEdge(source, target)] = None


def graph_of(catalog: Catalog) -> StreamGraph:
    """Build the graph of a catalog."""
    graph = StreamGraph()
    for source in catalog.of_type(Source):
        graph.add(GraphNode(_id("source", source.name), "source", source.name, source.connector))
    for table in catalog.of_type(LookupTable):
        graph.add(GraphNode(_id("lookup", table.name), "lookup", table.name, table.connector))
    for stream in catalog.of_type(Stream):
        detail = "materialized view" if stream.materialized else ""
        node = GraphNode(_id("stream", stream.name), "stream", stream.name, detail, stream.name)
        for upstream in _upstream_nodes(graph, stream.plan, stream.name):
            graph.connect(upstream, node.id)
        graph.add(node)
    for side in catalog.of_type(SideStream):
        _add_side_stream(graph, catalog, side)
    for sink in catalog.of_type(Sink):
        _add_sink(graph, sink.name, sink.connector, sink.stream)
    return graph


def _upstream_nodes(graph: StreamGraph, node: n.Node, stream: str) -> list[str]:
    """Return the ids of the nodes that a plan reads from, and add the operators of the plan."""
    if isinstance(node, n.Scan):
        return [_id("source", node.source.name)]
    if isinstance(node, n.LookupScan):
        return [_id("lookup", node.table.name)]
    if isinstance(node, n.SideScan):
        return [_id("stream", node.side.name)]
    if isinstance(node, n.StreamReference):
        return [_id("stream", node.name)]
    upstream = [id_ for child in node.inputs for id_ in _upstream_nodes(graph, child, stream)]
    if node.stateless:
        return upstream
    name = kind_of(node).name(node)
    number = sum(item.stream == stream and item.kind == "operator" for item in graph.nodes.values())
    operator_id = f"operator:{stream.lower()}:{number}"
    graph.add(GraphNode(operator_id, "operator", name, "", stream))
    for id_ in upstream:
        graph.connect(id_, operator_id)
    return [operator_id]


def _add_side_stream(graph: StreamGraph, catalog: Catalog, side: SideStream) -> None:
    kind = "source" if isinstance(catalog.get(side.parent), Source) else "stream"
    node = GraphNode(_id("stream", side.name), "stream", side.name, side.side_kind.value, side.name)
    graph.connect(_id(kind, side.parent), graph.add(node))


def _add_sink(graph: StreamGraph, name: str, connector: str, stream: str) -> None:
    sink = graph.add(GraphNode(_id("sink", name), "sink", name, connector, stream))
    graph.connect(_id("stream", stream), sink)


def graph_of_manifests(manifests: Iterator[Manifest]) -> StreamGraph:
    """Build the graph from manifests, if the declarations are not available.

    Manifests do not contain plans: the operators of a stream are shown as a chain.
    """
    graph = StreamGraph()
    for manifest in manifests:
        for name, stream in manifest.streams.items():
            operators = [o.name for o in manifest.operators.values() if o.stream == name]
            upstream = [
                graph.add(GraphNode(_id("source", source), "source", source, state.connector))
                for source, state in stream.sources.items()
            ]
            for number, operator in enumerate(operators):
                node = GraphNode(f"operator:{name}:{number}", "operator", operator, "", name)
                graph.add(node)
                for id_ in upstream:
                    graph.connect(id_, node.id)
                upstream = [node.id]
            stream_id = graph.add(GraphNode(_id("stream", name), "stream", name, "", name))
            for id_ in upstream:
                graph.connect(id_, stream_id)
        for name, sink in manifest.sinks.items():
            _add_sink(graph, name, sink.connector, sink.stream)
    return graph


def _id(kind: str, name: str) -> str:
    return f"{kind}:{name.lower()}"


# ---- Layout
#
# The graph is drawn in layers from left to right. A node is one layer after the last node that
# feeds it. An edge that spans several layers gets a bend in each layer between. Bends are ordered
# like nodes, so that no edge runs through a node.

# Passes over the layers that reduce crossings, alternately forward and backward.
_ORDERING_PASSES = 4

# A layer and a row in it; layers with fewer nodes are centered, so rows may be fractions.
Position = tuple[int, float]


@dataclass(frozen=True)
class GraphLayout:
    """Positions of nodes by id, and the points of each edge from end to end."""

    positions: dict[str, Position]
    paths: dict[GraphEdge, list[Position]]
    layers: int
    rows: int


def layout(graph: StreamGraph) -> GraphLayout:
    """Compute positions for the nodes and edges of a graph. Edges to missing nodes are left out."""
    edges = [e for e in graph.edges if e.source in graph.nodes and e.target in graph.nodes]
    depths = _depths(graph, edges)
    chains = {edge: _chain(edge, depths) for edge in edges}
    layers: list[list[str]] = [[] for _ in range(max(depths.values(), default=-1) + 1)]
    for id_, depth in depths.items():
        layers[depth].append(id_)
    for edge, chain in chains.items():
        for depth, bend in enumerate(chain[1:-1], depths[edge.source] + 1):
            layers[depth].append(bend)
    links = [pair for chain in chains.values() for pair in pairwise(chain)]
    ordered_layers = _order_layers(layers, links)
    rows = max((len(layer) for layer in ordered_layers), default=0)
    positions = {
        id_: (depth, row + (rows - len(layer)) / 2)
        for depth, layer in enumerate(ordered_layers)
        for row, id_ in enumerate(layer)
    }
    return GraphLayout(
        {id_: positions[id_] for id_ in depths},
        {edge: [positions[id_] for id_ in chain] for edge, chain in chains.items()},
        len(ordered_layers),
        rows,
    )


def _depths(graph: StreamGraph, edges: Sequence[GraphEdge]) -> dict[str, int]:
    """Return the length of the longest path to each node."""
    depths = dict.fromkeys(graph.nodes, 0)
    # No path is longer than the number of nodes; this also ends the search if there is a cycle.
    for _ in depths:
        changed = False
        for edge in edges:
            if depths[edge.target] <= depths[edge.source] < len(depths) - 1:
                depths[edge.target] = depths[edge.source] + 1
                changed = True
        if not changed:
            break
    return depths


def _chain(edge: GraphEdge, depths: Mapping[str, int]) -> list[str]:
    """Return the ids of both ends, and of a bend for each layer between them."""
    layers_between = range(depths[edge.source] + 1, depths[edge.target])
    bends = [f"{edge.source}>{edge.target}@{depth}" for depth in layers_between]
    return [edge.source, *bends, edge.target]


def _order_layers(layers: Sequence[list[str]], links: Sequence[tuple[str, str]]) -> list[list[str]]:
    """Reduce crossings: move every node close to the average row of its neighbors."""
    predecessors: dict[str, list[str]] = {}
    successors: dict[str, list[str]] = {}
    for source, target in links:
        predecessors.setdefault(target, []).append(source)
        successors.setdefault(source, []).append(target)
    ordered = [list(layer) for layer in layers]
    for number in range(_ORDERING_PASSES):
        forward = number % 2 == 0
        neighbors = predecessors if forward else successors
        depths = range(1, len(ordered)) if forward else range(len(ordered) - 2, -1, -1)
        for depth in depths:
            adjacent_layer = ordered[depth - 1 if forward else depth + 1]
            ordered[depth] = _order_by_neighbors(ordered[depth], adjacent_layer, neighbors)
    return ordered


def _order_by_neighbors(
    layer: Sequence[str], adjacent_layer: Sequence[str], neighbors: Mapping[str, list[str]]
) -> list[str]:
    # Rows are relative to the size of their layer, so that layers of different sizes compare.
    rows = {id_: row / max(len(adjacent_layer), 1) for row, id_ in enumerate(adjacent_layer)}

    def average_row(item: tuple[int, str]) -> float:
        row, id_ = item
        neighbor_rows = [rows[other] for other in neighbors.get(id_, []) if other in rows]
        return sum(neighbor_rows) / len(neighbor_rows) if neighbor_rows else row / len(layer)

    return [id_ for _, id_ in sorted(enumerate(layer), key=average_row)]
