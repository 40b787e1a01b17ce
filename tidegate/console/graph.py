"""What flows where: sources, operators, streams and sinks, and the edges between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

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
