"""The graph of the console and its layout."""

from __future__ import annotations

import pytest

from tests.support.compiling import compile_with_sources
from tidegate.checkpoint.manifest import (
    Manifest,
    OperatorState,
    SinkState,
    SourceIdentity,
    StreamState,
)
from tidegate.console.graph import (
    GraphEdge,
    GraphNode,
    StreamGraph,
    graph_of,
    graph_of_manifests,
    layout,
)


class TestGraph:
    def test_edges_follow_the_rows_from_sources_to_sinks(self) -> None:
        graph = graph_of(
            compile_with_sources(
                "CREATE STREAM dear AS SELECT auction, price, ts FROM bids WHERE price > 10;"
                "CREATE STREAM n AS SELECT auction, window_end, count(*) AS n FROM dear "
                "GROUP BY auction, TUMBLE(ts, INTERVAL '1' MINUTE) LATE DATA TO late;"
                "CREATE STREAM named AS SELECT c.name FROM n JOIN customers AS c ON n.auction = c.id;"
                "CREATE SINK out FROM named WITH (connector = 'blackhole');"
                "CREATE SINK too_late FROM late WITH (connector = 'memory');"
            ).catalog
        )
        operator = "operator:n:0"
        assert graph.nodes[operator].stream == "n"
        assert {(e.source, e.target) for e in graph.edges} == {
            ("source:bids", "stream:dear"),
            ("stream:dear", operator),
            (operator, "stream:n"),
            ("stream:n", "stream:late"),
            ("stream:n", "stream:named"),
            ("lookup:customers", "stream:named"),
            ("stream:named", "sink:out"),
            ("stream:late", "sink:too_late"),
        }
        assert graph.nodes["sink:out"].detail == "blackhole"
        assert graph.nodes["stream:late"].detail == "late rows"

    def test_graph_of_manifests(self) -> None:
        manifest = Manifest(
            0,
            1,
            2,
            0,
            {"t": StreamState("t1", {"s": SourceIdentity("kafka", {"password": "hunter2"})})},
            {"t.1": OperatorState("t", "window", "f")},
            {"out": SinkState("t", "files")},
        )
        graph = graph_of_manifests(iter([manifest]))
        assert [(e.source, e.target) for e in graph.edges] == [
            ("source:s", "operator:t:0"),
            ("operator:t:0", "stream:t"),
            ("stream:t", "sink:out"),
        ]
        assert "hunter2" not in repr(graph)


def graph_with(*edges: str) -> StreamGraph:
    graph = StreamGraph()
    for edge in edges:
        for name in edge:
            graph.add(GraphNode(name, "stream", name))
        graph.connect(edge[0], edge[1])
    return graph


class TestLayout:
    def test_node_is_placed_after_all_its_inputs(self) -> None:
        graph = graph_with("ab", "bc", "ac", "dc", "ce")
        placement = layout(graph)
        for edge in graph.edges:
            assert placement.positions[edge.source][0] < placement.positions[edge.target][0]
        assert placement.positions["c"][0] == 2
        assert placement.layers == 4

    def test_nodes_and_bends_have_distinct_positions(self) -> None:
        graph = graph_with("ab", "bc", "cd", "ad", "ac", "xb", "xd", "yd")
        placement = layout(graph)
        bends = [point for path in placement.paths.values() for point in path[1:-1]]
        positions = [*placement.positions.values(), *bends]
        assert len(positions) == len(set(positions))
        assert [layer for layer, _ in placement.paths[GraphEdge("a", "d")]] == [0, 1, 2, 3]

    def test_avoidable_crossings_are_avoided(self) -> None:
        placement = layout(graph_with("ad", "be", "cf", "dg", "eh", "fi", "ag"))
        rows = {name: row for name, (_, row) in placement.positions.items()}
        assert rows["d"] < rows["e"] < rows["f"]
        assert rows["g"] < rows["h"] < rows["i"]

    @pytest.mark.parametrize("edges", [(), ("ab", "ba"), ("aa",)])
    def test_cycles_do_not_loop_forever(self, edges: tuple[str, ...]) -> None:
        assert set(layout(graph_with(*edges)).positions) == set("".join(edges))

    def test_edges_to_missing_nodes_are_left_out(self) -> None:
        graph = graph_with("ab")
        graph.connect("b", "gone")
        assert list(layout(graph).paths) == [GraphEdge("a", "b")]
