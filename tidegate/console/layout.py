"""Where the nodes of a graph stand: in layers from left to right, so that edges cross little.

A node stands one layer after the last of those that feed it. An edge over several layers has a bend
in each layer between, which takes part in the ordering like a node; then nothing stands on an edge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tidegate.console.graph import Edge, Graph

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
