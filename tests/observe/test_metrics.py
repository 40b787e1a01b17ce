"""Monitoring of a running pipeline: timeline, metrics, health, logs and spans. Without Spark."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.pipelines import PipelineHarness
from tidegate.cli import errors as cli_errors
from tidegate.cli.screen import JsonLog
from tidegate.errors import Location, RunError, SqlError
from tidegate.observe import timeline as spans
from tidegate.observe.prometheus import StatusCollector, exposition
from tidegate.observe.server import (
    Address,
    MetricsServer,
    StatusSource,
    health,
    readiness,
    same_origin,
)
from tidegate.observe.status import OperatorStatus, State, StreamStatus
from tidegate.observe.timeline import (
    BUCKETS,
    RETAINED_EPOCHS,
    EpochDurations,
    EpochTotals,
    Timeline,
)

ROOT = Path(__file__).parents[2]
STATUS = StreamStatus(
    "bids",
    State.RUNNING,
    epoch=7,
    rows_in=10,
    rows_out=4,
    watermark=datetime(2026, 1, 1, tzinfo=UTC),
    watermark_lag_seconds=2.5,
    late_rows=3,
    dead_letters=1,
    state_bytes=30,
    operators=(
        OperatorStatus("window", bytes=10, open_windows=2),
        OperatorStatus("window", bytes=20),
    ),
    lost_records=5,
    pending_records=6,
    epoch_seconds=0.25,
)


class ManualClock:
    """A clock that tests advance."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def record_epoch(timeline: Timeline, clock: ManualClock, number: int, seconds: float = 1.0) -> None:
    timeline.begin()
    for step in ("plan", "run", "commit", "publish"):
        clock.now += seconds / 4
        assert timeline.end_step(step) == pytest.approx(seconds / 4)
    timeline.end(number, 2, 1)


class TestTimeline:
    def test_records_the_steps_of_an_epoch(self) -> None:
        clock = ManualClock()
        timeline = Timeline("main", clock=clock)
        record_epoch(timeline, clock, 0)
        (epoch,) = timeline.epochs()
        assert (epoch.pipeline, epoch.epoch, epoch.rows_in, epoch.rows_out) == ("main", 0, 2, 1)
        assert epoch.steps == tuple((s, 0.25) for s in ("plan", "run", "commit", "publish"))
        assert epoch.seconds == 1.0

    def test_epoch_that_is_not_ended_is_discarded(self) -> None:
        clock = ManualClock()
        timeline = Timeline("main", clock=clock)
        timeline.begin()
        timeline.end_step("plan")
        record_epoch(timeline, clock, 3)
        assert [(e.epoch, len(e.steps)) for e in timeline.epochs()] == [(3, 4)]

    def test_old_epochs_expire_and_totals_remain(self) -> None:
        clock = ManualClock()
        timeline = Timeline("main", clock=clock)
        for number in range(RETAINED_EPOCHS + 10):
            record_epoch(timeline, clock, number)
        assert [e.epoch for e in timeline.epochs()] == list(range(10, RETAINED_EPOCHS + 10))
        totals = timeline.totals()
        assert (totals.epochs, totals.seconds) == (RETAINED_EPOCHS + 10, RETAINED_EPOCHS + 10)
        below = [count for bound, count in zip(BUCKETS, totals.buckets, strict=True) if bound < 1]
        above = [count for bound, count in zip(BUCKETS, totals.buckets, strict=True) if bound >= 1]
        assert set(below) == {0} and set(above) == {RETAINED_EPOCHS + 10}

    def test_failing_listener_is_ignored(self) -> None:
        def fails(times: EpochDurations) -> None:
            raise OSError("connection refused")

        clock = ManualClock()
        timeline = Timeline("main", fails, clock)
        record_epoch(timeline, clock, 0)
        assert len(timeline.epochs()) == 1

    def test_pipeline_records_its_epochs(self, tmp_path: Path) -> None:
        harness = PipelineHarness(tmp_path)
        harness.insert(1, 2, 3)
        epochs = harness.run().timeline.epochs()
        assert [e.epoch for e in epochs] == [0, 1, 2]
        for epoch in epochs:
            assert [step for step, _ in epoch.steps] == ["plan", "run", "commit", "publish"]
        # Two streams read each row.
        assert [(e.rows_in, e.rows_out) for e in epochs] == [(4, 4)] * 3


class TestMetrics:
    SUMS = EpochTotals("main", 2, 50.0, (("plan", 0.5), ("run", 1.5)), (0, 1) + (2,) * 9)

    def text(self, *statuses: StreamStatus, accept: str = "") -> str:
        body, _ = exposition(StatusCollector(statuses, [self.SUMS], "1.2"), accept)
        return body.decode()

    def samples(self, *statuses: StreamStatus) -> dict[tuple[str, ...], float]:
        """Return values by metric name and labels such as `stream=bids`, in alphabetical order."""
        families = text_string_to_metric_families(self.text(*statuses))
        samples = [sample for family in families for sample in family.samples]
        values = {
            (s.name, *(f"{label}={text}" for label, text in sorted(s.labels.items()))): s.value
            for s in samples
        }
        assert len(values) == len(samples), "Prometheus rejects a series that appears twice"
        return values

    def test_streams(self) -> None:
        values = self.samples(STATUS)
        for name, value in {
            "rows_in_total": 10,
            "rows_out_total": 4,
            "late_rows_total": 3,
            "dead_letters_total": 1,
            "lost_records_total": 5,
            "behind_records": 6,
            "watermark_timestamp_seconds": 1767225600.0,
            "watermark_lag_seconds": 2.5,
            "open_windows": 2,
            "last_epoch": 7,
            "last_epoch_seconds": 0.25,
            "stream_error": 0,
        }.items():
            assert values[f"tidegate_{name}", "stream=bids"] == value, name
        assert values["tidegate_stream_state", "state=running", "stream=bids"] == 1
        assert values["tidegate_stream_state", "state=failed", "stream=bids"] == 0
        assert values["tidegate_build_info", "version=1.2"] == 1

    def test_operators_with_one_name_are_one_series(self) -> None:
        assert self.samples(STATUS)["tidegate_state_bytes", "operator=window", "stream=bids"] == 30

    def test_epochs_are_a_histogram(self) -> None:
        values = self.samples()
        assert values["tidegate_epoch_seconds_bucket", "le=0.1", "pipeline=main"] == 1
        assert values["tidegate_epoch_seconds_bucket", "le=+Inf", "pipeline=main"] == 2
        assert values["tidegate_epoch_seconds_count", "pipeline=main"] == 2
        assert values["tidegate_epoch_seconds_sum", "pipeline=main"] == 2.0
        assert values["tidegate_epoch_step_seconds_total", "pipeline=main", "step=run"] == 1.5

    def test_unknown_values_are_left_out(self) -> None:
        body, _ = exposition(StatusCollector([StreamStatus("s", State.STARTING)], [], "1"))
        names = " ".join(re.findall(r"^# TYPE (\S+)", body.decode(), re.M))
        assert "rows_in" in names
        assert "watermark" not in names and "epoch" not in names and "behind" not in names

    def test_every_metric_has_one_type_and_one_help_line(self) -> None:
        text = self.text(STATUS, StreamStatus("t", State.FAILED))
        typed = re.findall(r"^# TYPE (\S+) (?:counter|gauge|histogram)$", text, re.M)
        assert len(typed) == len(set(typed)) == text.count("# HELP")
        names = set(re.findall(r"^(\w+)\{", text, re.M))
        assert {re.sub(r"(?<=epoch_seconds)_(bucket|sum|count)$", "", n) for n in names} == set(
            typed
        )

    def test_label_values_are_escaped(self) -> None:
        assert 'stream="a\\"\\\\\\n"' in self.text(StreamStatus('a"\\\n', State.RUNNING))

    def test_accept_header_selects_the_format(self) -> None:
        openmetrics = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
        assert self.text(STATUS, accept=openmetrics).endswith("# EOF\n")
        assert "# EOF" not in self.text(STATUS, accept="text/plain")

    def test_dashboard_uses_existing_metrics(self) -> None:
        dashboard = (ROOT / "examples" / "grafana.json").read_text("utf-8")
        assert json.loads(dashboard)["panels"]
        used = set(re.findall(r"tidegate_\w+", dashboard))
        names = set(re.findall(r"^(\w+)\{", self.text(STATUS), re.M))
        assert used and used <= names


class TestHealth:
    @pytest.mark.parametrize(
        ("state", "error", "healthy", "ready"),
        [
            (State.STARTING, None, True, False),
            (State.RUNNING, None, True, True),
            (State.RUNNING, "the sink out: unavailable", True, False),
            (State.FINISHED, None, True, True),
            (State.STOPPED, None, True, False),
            (State.FAILED, "division by zero", False, False),
        ],
    )
    def test_states(self, state: State, error: str | None, healthy: bool, ready: bool) -> None:
        statuses = [STATUS, StreamStatus("t", state, error=error)]
        assert (health(statuses).ok, readiness(statuses).ok) == (healthy, ready)
        problems = readiness(statuses).problems
        assert problems == (
            () if ready else (f"t is {state.value}{f': {error}' if error else ''}",)
        )

    def test_without_streams_healthy_and_not_ready(self) -> None:
        assert health([]).status_code == 200
        assert readiness([]).status_code == 503


class TestAddresses:
    @pytest.mark.parametrize(
        ("text", "host", "port"),
        [
            ("9464", "127.0.0.1", 9464),
            ("0.0.0.0:80", "0.0.0.0", 80),
            ("localhost:0", "localhost", 0),
            ("[::1]:9464", "::1", 9464),
        ],
    )
    def test_valid_addresses(self, text: str, host: str, port: int) -> None:
        assert Address.from_text(text) == Address(host, port)

    @pytest.mark.parametrize(
        "text", ["", "host", ":80", "h:x", "h:70000", "::1:80", "[::1:80", "h:-1"]
    )
    def test_invalid_addresses(self, text: str) -> None:
        assert Address.from_text(text) is None

    @pytest.mark.parametrize(
        "host", ["127.0.0.1", "localhost:9", "LOCALHOST", "[::1]:80", "127.1.2.3"]
    )
    def test_loopback_names_are_accepted(self, host: str) -> None:
        assert Address("127.0.0.1", 80).accepts_host(host)

    @pytest.mark.parametrize(
        "host",
        ["", "evil.example", "evil.example:80", "localhost.evil.example", "10.0.0.1", "[", "a@b"],
    )
    def test_foreign_names_are_rejected(self, host: str) -> None:
        assert not Address("127.0.0.1", 80).accepts_host(host)

    def test_public_server_accepts_ip_addresses_and_its_own_name(self) -> None:
        anywhere = Address("0.0.0.0", 80)
        assert anywhere.accepts_host("10.0.0.1:80") and anywhere.accepts_host("localhost")
        assert not anywhere.accepts_host("evil.example")
        assert Address("stats.example", 80).accepts_host("stats.example:80")

    def test_origins(self) -> None:
        assert same_origin("http://localhost:80", "localhost:80")
        assert not same_origin("http://localhost:81", "localhost:80")
        assert not same_origin("null", "localhost")


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    served = MetricsServer(
        Address("127.0.0.1", 0), StatusSource(lambda: (STATUS,), lambda: [TestMetrics.SUMS], "1")
    )
    yield served
    served.close()


def get(server: MetricsServer, path: str, host: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.address.port, timeout=10)
    connection.request("GET", path, headers={"Host": host} if host else {})
    response = connection.getresponse()
    body = response.read().decode()
    connection.close()
    return response.status, body


class TestServer:
    def test_serves_metrics_and_health(self, server: MetricsServer) -> None:
        code, body = get(server, "/metrics")
        assert (code, 'tidegate_rows_in_total{stream="bids"} 10' in body) == (200, True)
        assert get(server, "/health?x=1") == (200, '{"status": "ok", "problems": []}')
        assert get(server, "/ready")[0] == 200
        assert get(server, "/etc/passwd")[0] == 404

    def test_rejects_foreign_host_names(self, server: MetricsServer) -> None:
        assert get(server, "/metrics", "evil.example")[0] == 403

    def test_port_in_use_is_an_error(self, server: MetricsServer) -> None:
        with pytest.raises(RunError, match="TG-511"):
            MetricsServer(server.address, StatusSource(lambda: (), lambda: [], "1"))


class TestJsonLog:
    def lines(self, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    def test_epochs_once_a_second_and_errors_immediately(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        clock = ManualClock()
        log = JsonLog(clock)
        away = StreamStatus("bids", State.RUNNING, 8, error="away")
        for seconds, status in [
            (0.0, STATUS),
            (0.2, StreamStatus("bids", State.RUNNING, 8)),
            (0.2, away),
            (5.0, away),
            (5.0, StreamStatus("bids", State.RUNNING, 8)),
        ]:
            clock.now += seconds
            log.show_progress([status])
        lines = self.lines(capsys)
        assert [(line["epoch"], line["error"], line["level"]) for line in lines] == [
            (7, None, "info"),
            (8, "away", "warning"),
            (8, None, "info"),
        ]
        assert lines[0]["watermark"] == "2026-01-01 00:00:00+00:00"
        assert lines[0]["stream"] == "bids" and lines[0]["state"] == "running"

    def test_rows_and_messages(self, capsys: pytest.CaptureFixture[str]) -> None:
        log = JsonLog()
        log.print_line("hello\n")
        log.print_rows("bids", 3, pa.table({"a": [1, None], "b": [b"x", b"y"]}))
        log.print_table("t", ["a"], [(1,)])
        log.print_final_status([STATUS])
        message, rows, table, end = self.lines(capsys)
        assert message["message"] == "hello"
        assert (rows["stream"], rows["epoch"], rows["rows"][1]["a"]) == ("bids", 3, None)
        assert rows["rows"][0]["b"] == "eA=="
        assert table["rows"] == [{"a": 1}]
        assert (end["event"], end["rows_in"]) == ("end", 10)

    def test_errors_are_data(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cli_errors.OPTIONS, "json", True)
        place = Location("SELECT\n x", 8, 9, "a.sql")
        cli_errors.print_diagnostics(
            [SqlError("TG-301", "no x", location=place, hint="try y")], "warning"
        )
        cli_errors.print_error(cli_errors.UsageError("no file"))
        first, second = map(json.loads, capsys.readouterr().err.splitlines())
        assert (first["code"], first["level"], first["hint"]) == ("TG-301", "warning", "try y")
        assert first["place"] == {"file": "a.sql", "line": 2, "column": 2}
        assert (second["message"], second["level"]) == ("no file", "error")


def test_epochs_are_spans() -> None:
    trace = pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = trace.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    times = EpochDurations("main", 5, 1000.0, (("plan", 1.0), ("run", 2.0)), 10, 4)
    spans.export_spans(times, provider)
    plan, run, epoch = exporter.get_finished_spans()
    assert (plan.name, run.name, epoch.name) == ("plan", "run", "epoch")
    assert plan.parent.span_id == run.parent.span_id == epoch.context.span_id
    assert (epoch.start_time, epoch.end_time) == (1000 * 10**9, 1003 * 10**9)
    assert (run.start_time, run.end_time) == (1001 * 10**9, 1003 * 10**9)
    assert epoch.attributes["tidegate.epoch"] == 5
