"""The graph of the console, and where its nodes stand."""

from __future__ import annotations

import pytest

from tests.compiling import compile_with_sources
from tidegate.checkpoint.manifest import (
    Manifest,
    OperatorState,
    SinkState,
    SourceState,
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
    def test_rows_flow_from_sources_through_operators_and_streams_to_sinks(self) -> None:
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

    def test_manifests_tell_it_too(self) -> None:
        manifest = Manifest(
            0,
            1,
            2,
            0,
            {"t": StreamState("t1", {"s": SourceState("kafka", {"password": "hunter2"})})},
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


def a_graph(*edges: str) -> StreamGraph:
    graph = StreamGraph()
    for edge in edges:
        for name in edge:
            graph.add(GraphNode(name, "stream", name))
        graph.connect(edge[0], edge[1])
    return graph


class TestLayout:
    def test_a_node_stands_after_all_that_feed_it(self) -> None:
        graph = a_graph("ab", "bc", "ac", "dc", "ce")
        placed = layout(graph)
        for edge in graph.edges:
            assert placed.positions[edge.source][0] < placed.positions[edge.target][0]
        assert placed.positions["c"][0] == 2
        assert placed.layers == 4

    def test_no_two_stand_in_one_place_nor_on_an_edge(self) -> None:
        graph = a_graph("ab", "bc", "cd", "ad", "ac", "xb", "xd", "yd")
        placed = layout(graph)
        bends = [point for path in placed.paths.values() for point in path[1:-1]]
        places = [*placed.positions.values(), *bends]
        assert len(places) == len(set(places))
        assert [layer for layer, _ in placed.paths[GraphEdge("a", "d")]] == [0, 1, 2, 3]

    def test_edges_do_not_cross_where_they_need_not(self) -> None:
        placed = layout(a_graph("ad", "be", "cf", "dg", "eh", "fi", "ag"))
        rows = {name: row for name, (_, row) in placed.positions.items()}
        assert rows["d"] < rows["e"] < rows["f"]
        assert rows["g"] < rows["h"] < rows["i"]

    @pytest.mark.parametrize("edges", [(), ("ab", "ba"), ("aa",)])
    def test_it_always_ends(self, edges: tuple[str, ...]) -> None:
        assert set(layout(a_graph(*edges)).positions) == set("".join(edges))

    def test_an_edge_to_nowhere_has_no_place(self) -> None:
        graph = a_graph("ab")
        graph.connect("b", "gone")
        assert list(layout(graph).paths) == [GraphEdge("a", "b")]
