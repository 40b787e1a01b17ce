"""What flows where: sources, operators, streams and sinks, and the edges between them."""

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
class Node:
    """Something that rows come from, go through or go to."""

    id: str
    # source, lookup, operator, stream or sink
    kind: str
    name: str
    # What it is: a connector, say.
    detail: str = ""
    # The stream whose numbers are its own.
    stream: str = ""


@dataclass(frozen=True)
class Edge:
    source: str
    target: str


@dataclass
class Graph:
    """Nodes by their ids, in the order of their declaration; edges go forward."""

    nodes: dict[str, Node] = field(default_factory=dict)
    edges: dict[Edge, None] = field(default_factory=dict)

    def add(self, node: Node) -> str:
        self.nodes.setdefault(node.id, node)
        return node.id

    def connect(self, source: str, target: str) -> None:
        self.edges[Edge(source, target)] = None


def graph_of(catalog: Catalog) -> Graph:
    """The graph of everything that is declared."""
    graph = Graph()
    for source in catalog.of(Source):
        graph.add(Node(_id("source", source.name), "source", source.name, source.connector))
    for table in catalog.of(LookupTable):
        graph.add(Node(_id("lookup", table.name), "lookup", table.name, table.connector))
    for stream in catalog.of(Stream):
        detail = "materialized view" if stream.materialized else ""
        node = Node(_id("stream", stream.name), "stream", stream.name, detail, stream.name)
        for feeder in _feeders(graph, stream.plan, stream.name):
            graph.connect(feeder, node.id)
        graph.add(node)
    for side in catalog.of(SideStream):
        _add_side(graph, catalog, side)
    for sink in catalog.of(Sink):
        _add_sink(graph, sink.name, sink.connector, sink.source)
    return graph


def _feeders(graph: Graph, node: n.Node, stream: str) -> list[str]:
    """The nodes from which the rows of a plan come; operators on the way are added."""
    if isinstance(node, n.Scan):
        return [_id("source", node.source.name)]
    if isinstance(node, n.LookupScan):
        return [_id("lookup", node.table.name)]
    if isinstance(node, n.SideScan):
        return [_id("stream", node.side.name)]
    if isinstance(node, n.Inlined):
        return [_id("stream", node.name)]
    below = [feeder for child in node.inputs for feeder in _feeders(graph, child, stream)]
    if node.stateless:
        return below
    name = kind_of(node).name(node)
    number = sum(item.stream == stream and item.kind == "operator" for item in graph.nodes.values())
    own = graph.add(Node(f"operator:{stream.lower()}:{number}", "operator", name, "", stream))
    for feeder in below:
        graph.connect(feeder, own)
    return [own]


def _add_side(graph: Graph, catalog: Catalog, side: SideStream) -> None:
    kind = "source" if isinstance(catalog.get(side.parent), Source) else "stream"
    node = Node(_id("stream", side.name), "stream", side.name, side.holds.value, side.name)
    graph.connect(_id(kind, side.parent), graph.add(node))


def _add_sink(graph: Graph, name: str, connector: str, stream: str) -> None:
    sink = graph.add(Node(_id("sink", name), "sink", name, connector, stream))
    graph.connect(_id("stream", stream), sink)


def graph_of_manifests(manifests: Iterator[Manifest]) -> Graph:
    """As much of it as epochs tell, where declarations are not known."""
    graph = Graph()
    for manifest in manifests:
        for name, stream in manifest.streams.items():
            target = _id("stream", name)
            operators = [o.name for o in manifest.operators.values() if o.stream == name]
            feeders = [
                graph.add(Node(_id("source", source), "source", source, state.connector))
                for source, state in stream.sources.items()
            ]
            for number, operator in enumerate(operators):
                own = Node(f"operator:{name}:{number}", "operator", operator, "", name)
                graph.add(own)
                for feeder in feeders:
                    graph.connect(feeder, own.id)
                feeders = [own.id]
            graph.add(Node(target, "stream", name, "", name))
            for feeder in feeders:
                graph.connect(feeder, target)
        for name, sink in manifest.sinks.items():
            _add_sink(graph, name, sink.connector, sink.stream)
    return graph


def _id(kind: str, name: str) -> str:
    return f"{kind}:{name.lower()}"


# ---- Where the nodes of a graph stand: in layers from left to right, so that edges cross little.
#
# A node stands one layer after the last of those that feed it. An edge over several layers has a bend
# in each layer between, which takes part in the ordering like a node; then nothing stands on an edge.

_SWEEPS = 4

# A layer, and the place in it.
Position = tuple[int, float]


@dataclass(frozen=True)
class Layout:
    """Positions of nodes by id, and the points of edges from end to end."""

    positions: dict[str, Position]
    paths: dict[Edge, list[Position]]
    layers: int
    rows: int


def layout(graph: Graph) -> Layout:
    # What is not there has no place, and neither has an edge to it.
    edges = [e for e in graph.edges if e.source in graph.nodes and e.target in graph.nodes]
    depths = _depths(graph, edges)
    chains = {edge: _chain(edge, depths) for edge in edges}
    layers: list[list[str]] = [[] for _ in range(max(depths.values(), default=-1) + 1)]
    for name, depth in depths.items():
        layers[depth].append(name)
    for edge, chain in chains.items():
        for step, name in enumerate(chain[1:-1], depths[edge.source] + 1):
            layers[step].append(name)
    links = [pair for chain in chains.values() for pair in pairwise(chain)]
    ordered = _ordered(layers, links)
    rows = max((len(layer) for layer in ordered), default=0)
    places = {
        name: (depth, place + (rows - len(layer)) / 2)
        for depth, layer in enumerate(ordered)
        for place, name in enumerate(layer)
    }
    return Layout(
        {name: places[name] for name in depths},
        {edge: [places[name] for name in chain] for edge, chain in chains.items()},
        len(ordered),
        rows,
    )


def _depths(graph: Graph, edges: Sequence[Edge]) -> dict[str, int]:
    """By node, how many edges the longest way to it has."""
    depths = dict.fromkeys(graph.nodes, 0)
    # No way is longer than there are nodes, also if edges went in a circle.
    for _ in depths:
        changed = False
        for edge in edges:
            if depths[edge.target] <= depths[edge.source] < len(depths) - 1:
                depths[edge.target] = depths[edge.source] + 1
                changed = True
        if not changed:
            break
    return depths


def _chain(edge: Edge, depths: Mapping[str, int]) -> list[str]:
    """The ends of an edge, and a bend in each layer between them."""
    between = range(depths[edge.source] + 1, depths[edge.target])
    bends = [f"{edge.source}>{edge.target}@{depth}" for depth in between]
    return [edge.source, *bends, edge.target]


def _ordered(layers: Sequence[list[str]], links: Sequence[tuple[str, str]]) -> list[list[str]]:
    """Each node near the middle of its neighbours: forward, backward, and again."""
    before: dict[str, list[str]] = {}
    after: dict[str, list[str]] = {}
    for source, target in links:
        before.setdefault(target, []).append(source)
        after.setdefault(source, []).append(target)
    found = [list(layer) for layer in layers]
    for sweep in range(_SWEEPS):
        forward = sweep % 2 == 0
        neighbours = before if forward else after
        order = range(1, len(found)) if forward else range(len(found) - 2, -1, -1)
        for depth in order:
            beside = found[depth - 1 if forward else depth + 1]
            found[depth] = _by_neighbours(found[depth], beside, neighbours)
    return found


def _by_neighbours(
    layer: Sequence[str], beside: Sequence[str], neighbours: Mapping[str, list[str]]
) -> list[str]:
    places = {name: place / max(len(beside), 1) for place, name in enumerate(beside)}

    def middle(item: tuple[int, str]) -> float:
        place, name = item
        known = [places[other] for other in neighbours.get(name, []) if other in places]
        return sum(known) / len(known) if known else place / len(layer)

    return [name for _, name in sorted(enumerate(layer), key=middle)]
