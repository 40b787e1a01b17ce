"""Cached graphs, and epochs that need another graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from tidegate.catalog.objects import Source
from tidegate.checkpoint.manifest import Manifest, OperatorState
from tidegate.connectors.base import InputRange, ScanRequest
from tidegate.physical.graph_builder import EpochWork
from tidegate.physical.job_graph import JobGraph, SqlScan, SqlStage
from tidegate.runtime.epoch import EpochPlan, EpochReport
from tidegate.runtime.graphs import EpochJob, GraphCache
from tidegate.runtime.planning import PipelineStream
from tidegate.spark.errors import JobFailed

KEY = ("t", "s")


def job(input_range: InputRange, operators: dict[str, OperatorState] | None = None) -> EpochJob:
    epoch = EpochPlan({KEY: input_range}, False, False, shared_inputs=((KEY,),))
    return EpochJob({}, {}, epoch, Manifest(0, 0, 8, 0, operators=operators or {}), 2, 1_000)


class EmptyGraphs(GraphCache):
    """Builds graphs without programs; ranges for Spark's own readers are part of them."""

    def __init__(self) -> None:
        super().__init__(cast(Any, None), "")
        self.built: list[JobGraph] = []

    def build(
        self, streams: Sequence[PipelineStream], job: EpochJob, work: EpochWork | None = None
    ) -> JobGraph:
        request = ScanRequest(())
        scans = {
            index: SqlScan(cast(Source, None), request, key, input_range)
            for index, (key, input_range) in enumerate(job.epoch.read_by_spark.items())
            if not input_range.splits
        }
        stage = SqlStage("t", ("t",), "", (), {}, scans, 0, None, None)
        self.built.append(JobGraph(("t",), (), (stage,), 8, job.tasks))
        return self.built[-1]


@pytest.fixture
def graphs() -> EmptyGraphs:
    return EmptyGraphs()


PLAIN = job(InputRange({}, [["part"]], 5))


def test_graph_is_built_once_for_epochs_that_differ_in_their_ranges(graphs: EmptyGraphs) -> None:
    graph = graphs.graph((), PLAIN)
    assert graphs.graph((), job(InputRange({"at": 7}, [["next"]], 9))) is graph
    graphs.invalidate()
    assert graphs.graph((), PLAIN) is not graph


def test_input_for_spark_readers_gets_a_separate_graph(graphs: EmptyGraphs) -> None:
    both = job(InputRange({}, [["part"]], 5, spark_read=["a.parquet"]))
    spark_only = job(InputRange({}, [], 5, spark_read=["b.parquet"]))
    graph = graphs.graph((), both)
    assert graphs.graph((), both) is graph
    other = graphs.graph((), spark_only)
    assert other is not graph, "its rows would be skipped, but their offset committed"
    assert graphs.graph((), both) is graph


def test_graph_with_the_ranges_of_one_epoch_is_not_cached(graphs: EmptyGraphs) -> None:
    spark_only = job(InputRange({}, [], 5, spark_read=["b.parquet"]))
    first = graphs.graph((), spark_only)
    assert first.is_single_use
    assert graphs.graph((), spark_only) is not first
    assert not graphs.graphs


@pytest.mark.parametrize(
    "other",
    [
        replace(PLAIN, tasks=1),
        job(InputRange({}, [["part"]], 5, size=1 << 30)),
        replace(PLAIN, epoch=replace(PLAIN.epoch, shared_inputs=((KEY, ("u", "s")),))),
    ],
    ids=["tasks", "size", "shared inputs"],
)
def test_graph_depends_on_tasks_size_and_shared_inputs(
    graphs: EmptyGraphs, other: EpochJob
) -> None:
    graph = graphs.graph((), PLAIN)
    assert graphs.graph((), other) is not graph
    assert graphs.graph((), PLAIN) is graph


def test_graph_depends_on_which_operators_have_the_same_state(
    graphs: EmptyGraphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    shareable = {"t.1", "u.1"}
    monkeypatch.setattr("tidegate.runtime.graphs._shareable_operators", lambda streams: shareable)

    def operators(one: str, two: str) -> dict[str, OperatorState]:
        handles = {"t.1": {"0": [one, 0]}, "u.1": {"0": [two, 0]}}
        return {key: OperatorState(key[0], "w", "f", state) for key, state in handles.items()}

    input_range = InputRange({}, [["part"]], 5)
    equal = graphs.graph((), job(input_range, operators("a", "a")))
    assert graphs.graph((), job(input_range, operators("b", "b"))) is equal
    assert graphs.graph((), job(input_range, operators("b", "c"))) is not equal


def test_large_graphs_are_built_again_if_pre_aggregation_does_not_reduce_rows(
    graphs: EmptyGraphs,
) -> None:
    large = job(InputRange({}, [["part"]], 5, size=1 << 30))
    one, other = graphs.graph((), large), graphs.graph((), PLAIN)
    graphs.learn_reduction(EpochReport(pre_aggregated={"t.1": (1, 100)}))
    assert graphs.graph((), large) is one
    graphs.learn_reduction(EpochReport(pre_aggregated={"t.1": (50, 100)}))
    assert graphs.not_reducing == {"t.1"}
    assert graphs.graph((), large) is not one
    assert graphs.graph((), PLAIN) is other


def test_graphs_are_built_again_after_a_fall_back_to_spark(graphs: EmptyGraphs) -> None:
    graph = graphs.graph((), PLAIN)
    assert not graphs.fall_back_to_spark(JobFailed(RuntimeError("boom")))
    assert graphs.graph((), PLAIN) is graph
    failed = JobFailed(RuntimeError("tidegate.operators.vectorized.VectorFailed: overflow"))
    assert failed.by_vectors
    assert graphs.fall_back_to_spark(failed)
    assert not graphs.vectorized
    assert graphs.graph((), PLAIN) is not graph
    assert not graphs.fall_back_to_spark(failed), "Spark evaluates everything already"


def test_part_of_the_operators_gets_a_graph_once_it_has_occurred_often(graphs: EmptyGraphs) -> None:
    def idle_job() -> EpochJob:
        one = job(InputRange({}, [["part"]], 5))
        groups = ((("t", "s"),), (("t", "idle"),))
        return replace(one, epoch=replace(one.epoch, shared_inputs=groups))

    built = [graphs.graph((), idle_job()) for _ in range(5)]
    assert built[0] is built[1] and built[3] is built[4] and built[1] is not built[3]
    assert len(graphs.built) == 2
    # After a change of the streams, all operators run again.
    graphs.invalidate()
    assert graphs.graph((), idle_job()) is not built[4]
