"""The console: history, responses, access checks and data sources. Without Spark."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from starlette.testclient import TestClient

from tests.support.compiling import compile_text
from tests.support.console import STATUS, StubProvider
from tests.support.pipelines import PipelineHarness, PythonPipeline
from tidegate.checkpoint.checkpoints import Checkpoints, RestoreRequest
from tidegate.checkpoint.manifest import Manifest, OperatorState, StreamState
from tidegate.console.app import STATIC, TOKEN_HEADER, ConsoleServer, build_app, updates
from tidegate.console.history import ConsoleHistory
from tidegate.console.providers import DirectoryProvider, SessionProvider
from tidegate.errors import DataDirectoryError, RunError
from tidegate.observe.server import Address
from tidegate.observe.status import State
from tidegate.observe.timeline import EpochDurations
from tidegate.runtime.directory import DataDirectory
from tidegate.session.saved_catalog import save_declarations

HERE = Address("127.0.0.1", 8571)
TOKEN = "a-token"


@pytest.fixture
def provider() -> StubProvider:
    return StubProvider()


@pytest.fixture
def history(provider: StubProvider) -> ConsoleHistory:
    return ConsoleHistory(provider, clock=lambda: 100.0)


@pytest.fixture
def client(history: ConsoleHistory) -> TestClient:
    return TestClient(build_app(history, HERE, TOKEN), base_url="http://127.0.0.1:8571")


def allowed(client: TestClient, path: str, content: Any) -> Any:
    return client.post(path, json=content, headers={TOKEN_HEADER: TOKEN})


class TestHistory:
    def test_samples_and_epochs_are_kept_once(
        self, provider: StubProvider, history: ConsoleHistory
    ) -> None:
        history.update()
        provider.recent_epochs.append(EpochDurations("main", 4, 51.0))
        history.update()
        updates = history.since(-1)
        assert [epoch["epoch"] for epoch in updates["epochs"]] == [3, 4]
        assert updates["epochs"][0]["seconds"] == 1.5
        assert [sample["number"] for sample in updates["samples"]] == [1, 2]
        assert updates["samples"][0]["streams"]["bids"]["in"] == 5.0
        assert [epoch["epoch"] for epoch in history.since(1)["epochs"]] == [4]

    def test_lag_of_historical_data_is_unknown(
        self, provider: StubProvider, history: ConsoleHistory
    ) -> None:
        for lag in (5.0, 300_000_000.0):
            provider.current_statuses = (replace(STATUS, watermark_lag_seconds=lag),)
            history.update()
        assert [sample["streams"]["bids"]["lag"] for sample in history.samples] == [5.0, None]

    def test_changed_states_and_errors_are_events(
        self, provider: StubProvider, history: ConsoleHistory
    ) -> None:
        for state, error in [
            (State.RUNNING, None),
            (State.RUNNING, "the sink out: unavailable"),
            (State.RUNNING, "the sink out: unavailable"),
            (State.RUNNING, None),
            (State.FAILED, "division by zero"),
        ]:
            provider.current_statuses = (replace(STATUS, state=state, error=error),)
            history.update()
        assert [(event["level"], event["text"]) for event in history.events] == [
            ("info", "running"),
            ("error", "the sink out: unavailable"),
            ("info", "recovered"),
            ("error", "division by zero"),
        ]

    def test_failing_provider_is_reported_once(
        self, provider: StubProvider, history: ConsoleHistory
    ) -> None:
        provider.error = RunError("TG-608", "the disk is unavailable")
        history.update()
        history.update()
        provider.error = None
        history.update()
        assert [event["text"] for event in history.events] == ["the disk is unavailable", "running"]
        assert history.since(0)["events"], "open pages receive the event"

    def test_history_is_bounded(self, provider: StubProvider, history: ConsoleHistory) -> None:
        for number in range(700):
            provider.recent_epochs = [EpochDurations("main", number, 0.0)]
            provider.current_statuses = (replace(STATUS, error=str(number)),)
            history.update()
        assert (len(history.samples), len(history.epochs), len(history.events)) == (600, 512, 200)

    def test_updates_are_streamed(self, history: ConsoleHistory) -> None:
        async def follow() -> list[str]:
            history.update()
            stream = updates(history, -1)
            messages = [await anext(stream)]
            history.update()
            messages.append(await anext(stream))
            history.close()
            return messages + [rest async for rest in stream]

        first, second = asyncio.run(follow())
        assert first.startswith("data: ") and first.endswith("\n\n")
        assert len(json.loads(first[6:])["epochs"]) == 1
        assert json.loads(second[6:])["epochs"] == [], "sent with the first update"


class TestRequests:
    def test_page_and_static_files(self, client: TestClient) -> None:
        page = client.get("/")
        assert page.status_code == 200 and "<title>Tidegate</title>" in page.text
        for name in [path.name for path in STATIC.iterdir()]:
            assert client.get(f"/static/{name}").status_code == 200
            text = (STATIC / name).read_text("utf-8")
            links = text.replace("http://www.w3.org/2000/svg", "")
            assert "http://" not in links and "https://" not in links, "no external resources"
        assert client.get("/static/../app.py").status_code == 404

    def test_state(self, client: TestClient, history: ConsoleHistory) -> None:
        history.update()
        state = client.get("/api/state").json()
        assert (state["title"], state["live"], state["number"]) == ("shop.sql", True, 1)
        (stream,) = state["streams"]
        assert (stream["name"], stream["state"], stream["rows_in"]) == ("bids", "running", 10)
        assert stream["operators"][0]["bytes"] == 7

    def test_graph(self, client: TestClient, provider: StubProvider) -> None:
        provider.catalog = compile_text(
            "CREATE SOURCE s (a BIGINT) WITH (connector = 'memory');"
            "CREATE STREAM t AS SELECT a FROM s;"
        ).catalog
        graph = client.get("/api/graph").json()
        assert [(n["id"], n["layer"], n["row"]) for n in graph["nodes"]] == [
            ("source:s", 0, 0),
            ("stream:t", 1, 0),
        ]
        assert graph["edges"] == [
            {"source": "source:s", "target": "stream:t", "path": [[0, 0], [1, 0]]}
        ]

    def test_describe(self, client: TestClient, provider: StubProvider) -> None:
        assert client.get("/api/objects/bids").json()["plan"] == "the plan"
        provider.error = RunError("TG-201", "bidz is not declared", hint="did you mean bids?")
        answer = client.get("/api/objects/bidz")
        assert (answer.status_code, answer.json()) == (
            409,
            {"code": "TG-201", "error": "bidz is not declared", "hint": "did you mean bids?"},
        )

    def test_metrics_and_health(self, client: TestClient, provider: StubProvider) -> None:
        assert 'tidegate_rows_in_total{stream="bids"} 10' in client.get("/metrics").text
        assert client.get("/health").status_code == client.get("/ready").status_code == 200
        provider.current_statuses = (replace(STATUS, state=State.FAILED, error="gone"),)
        assert client.get("/health").json() == {
            "status": "failing",
            "problems": ["bids is failed: gone"],
        }

    def test_data_directory_has_no_metrics_or_health(self) -> None:
        app = build_app(ConsoleHistory(StubProvider(live=False)), HERE, TOKEN)
        client = TestClient(app, base_url="http://localhost")
        for path in ("/metrics", "/health", "/ready"):
            assert client.get(path).status_code == 404

    def test_peek(self, client: TestClient, provider: StubProvider) -> None:
        answer = allowed(client, "/api/peek", {"stream": "bids", "rows": 5})
        assert answer.json() == {"columns": ["a", "b"], "rows": [[1, "eA=="], [None, None]]}
        assert provider.calls == [("peek", "bids", 5)]

    def test_create_checkpoint(
        self, client: TestClient, provider: StubProvider, history: ConsoleHistory
    ) -> None:
        assert allowed(client, "/api/checkpoints", {}).json() == {"name": "checkpoint-1"}
        assert provider.calls == [("create_checkpoint", None)]
        assert [event["text"] for event in history.events] == ["created checkpoint 'checkpoint-1'"]

    def test_restore(
        self, client: TestClient, provider: StubProvider, history: ConsoleHistory
    ) -> None:
        content = {"checkpoint": 7, "pipeline": "main", "keep_sinks": True}
        answer = allowed(client, "/api/restore", content)
        assert answer.json() == {"warnings": ["rows appear twice"]}
        assert provider.calls == [("restore", RestoreRequest(7, True, "main"))]
        assert [event["level"] for event in history.events] == ["info", "warning"]

    def test_rejected_restore(self, client: TestClient, provider: StubProvider) -> None:
        provider.error = RunError("TG-610", "sinks have rows", hint="keep them")
        answer = allowed(client, "/api/restore", {"checkpoint": "before"})
        assert (answer.status_code, answer.json()["code"]) == (409, "TG-610")
        assert provider.calls == [("restore", RestoreRequest("before"))]

    @pytest.mark.parametrize(
        ("path", "content"),
        [
            ("/api/peek", {}),
            ("/api/peek", {"stream": 1}),
            ("/api/peek", {"stream": "bids", "rows": 0}),
            ("/api/peek", {"stream": "bids", "rows": 501}),
            ("/api/peek", {"stream": "bids", "rows": True}),
            ("/api/peek", []),
            ("/api/checkpoints", {"name": 1}),
            ("/api/restore", {}),
            ("/api/restore", {"checkpoint": True}),
            ("/api/restore", {"checkpoint": 1, "pipeline": 2}),
        ],
    )
    def test_invalid_requests_are_rejected(
        self, client: TestClient, provider: StubProvider, path: str, content: Any
    ) -> None:
        assert allowed(client, path, content).status_code == 400
        assert provider.calls == []

    def test_invalid_json_is_rejected(self, client: TestClient) -> None:
        answer = client.post("/api/peek", content="{", headers={TOKEN_HEADER: TOKEN})
        assert (answer.status_code, answer.json()) == (
            400,
            {"error": "the request body is not valid JSON"},
        )
        assert client.get("/api/events?since=x").status_code == 400


ACTIONS = ["/api/peek", "/api/checkpoints", "/api/restore"]


class TestAccess:
    @pytest.mark.parametrize("path", ACTIONS)
    @pytest.mark.parametrize("token", [None, "", "a-toke", "a-token2", "A-TOKEN", "é"])
    def test_actions_need_the_token(
        self, client: TestClient, provider: StubProvider, path: str, token: str | None
    ) -> None:
        headers = {} if token is None else {TOKEN_HEADER: token.encode()}
        answer = client.post(path, json={"stream": "bids", "checkpoint": 1}, headers=headers)
        assert (answer.status_code, provider.calls) == (403, [])

    @pytest.mark.parametrize("path", ACTIONS)
    def test_get_requests_perform_no_action(
        self, client: TestClient, provider: StubProvider, path: str
    ) -> None:
        client.get(f"{path}?token={TOKEN}&stream=bids&checkpoint=1")
        assert provider.calls == []

    def test_token_outside_the_header_is_ignored(
        self, client: TestClient, provider: StubProvider
    ) -> None:
        client.cookies.set("token", TOKEN)
        answer = client.post(f"/api/restore?token={TOKEN}", json={"checkpoint": 1, "token": TOKEN})
        assert (answer.status_code, provider.calls) == (403, [])

    @pytest.mark.parametrize("path", ["/", "/api/state", "/metrics", "/static/style.css"])
    def test_foreign_host_names_are_rejected(self, client: TestClient, path: str) -> None:
        assert client.get(path, headers={"Host": "evil.example:8571"}).status_code == 403
        assert client.get(path, headers={"Host": "localhost:9999"}).status_code == 200

    @pytest.mark.parametrize(
        "origin", ["http://evil.example", "http://127.0.0.1:9999", "null", "https://localhost:8571"]
    )
    def test_foreign_origins_are_rejected(
        self, client: TestClient, provider: StubProvider, origin: str
    ) -> None:
        assert client.get("/api/state", headers={"Origin": origin}).status_code == 403
        headers = {"Origin": origin, TOKEN_HEADER: TOKEN}
        assert (
            client.post("/api/restore", json={"checkpoint": 1}, headers=headers).status_code == 403
        )
        assert provider.calls == []

    def test_own_origin_is_accepted(self, client: TestClient, provider: StubProvider) -> None:
        headers = {"Origin": "http://127.0.0.1:8571", TOKEN_HEADER: TOKEN}
        answer = client.post("/api/restore", json={"checkpoint": 1}, headers=headers)
        assert answer.status_code == 200

    def test_cors_preflight_is_rejected(self, client: TestClient) -> None:
        answer = client.options("/api/restore", headers={"Origin": "http://evil.example"})
        assert answer.status_code == 403
        assert not [name for name in answer.headers if name.startswith("access-control")]

    @pytest.mark.parametrize("path", ["/", "/api/state", "/nothing", "/api/restore"])
    def test_security_headers(self, client: TestClient, path: str) -> None:
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"

    def test_page_complies_with_its_content_security_policy(self) -> None:
        page = (STATIC / "index.html").read_text("utf-8")
        assert "<style" not in page and " style=" not in page and "onclick" not in page
        for script in STATIC.glob("*.js"):
            text = script.read_text("utf-8")
            for word in ("innerHTML", "insertAdjacentHTML", "document.write", "eval("):
                assert word not in text, (
                    f"{script.name}: values must be inserted as text, not markup"
                )


class TestServer:
    def test_serves_and_streams_until_closed(self) -> None:
        server = ConsoleServer(StubProvider(), Address("127.0.0.1", 0))
        try:
            assert server.url == f"http://127.0.0.1:{server.address.port}/#token={server.token}"
            connection = http.client.HTTPConnection("127.0.0.1", server.address.port, timeout=30)
            connection.request("GET", "/api/events")
            answer = connection.getresponse()
            assert answer.getheader("content-type") == "text/event-stream; charset=utf-8"
            line = answer.readline().decode()
            assert json.loads(line.removeprefix("data: "))["streams"][0]["name"] == "bids"
            with pytest.raises(RunError, match="TG-511"):
                ConsoleServer(StubProvider(), server.address)
        finally:
            server.close()
        assert not server._thread.is_alive()

    def test_each_server_has_its_own_token(self) -> None:
        first, second = (ConsoleServer(StubProvider(), Address("127.0.0.1", 0)) for _ in range(2))
        first.close()
        second.close()
        assert first.token != second.token and len(first.token) == 32


class StubSession:
    """The part of a session that the console uses, over a pipeline without Spark."""

    def __init__(self, harness: PipelineHarness, pipeline: PythonPipeline) -> None:
        self.catalog = harness.catalog
        self.pipeline = pipeline
        self.warnings: list[Any] = []
        self.status = lambda: tuple(pipeline.status())
        self.timelines = lambda: [pipeline.timeline]
        self._checkpoints = Checkpoints({"main": pipeline.manifests}, lambda connector: False)
        self.checkpoints = self._checkpoints.list_all

    def checkpoint(self, name: str | None) -> str:
        return self._checkpoints.create(name)["main"].name

    def restore(self, checkpoint: str | int, sinks: str | None, pipeline: str | None) -> None:
        done = self._checkpoints.restore(RestoreRequest(checkpoint, sinks == "keep", pipeline))
        self.warnings = [warning for item in done for warning in item.warnings]


class TestRunningSession:
    @pytest.fixture
    def client(self, tmp_path: Path) -> TestClient:
        harness = PipelineHarness(tmp_path)
        harness.insert(1, 2, 3)
        session = StubSession(harness, harness.run())
        source = SessionProvider(cast(Any, session), "harness.sql")
        history = ConsoleHistory(source)
        history.update()
        return TestClient(build_app(history, HERE, TOKEN), base_url="http://localhost:8571")

    def test_shows_the_pipeline(self, client: TestClient) -> None:
        state = client.get("/api/state").json()
        assert [(s["name"], s["state"], s["rows_in"]) for s in state["streams"]] == [
            ("t0", "finished", 6),
            ("t1", "finished", 6),
        ]
        assert [(e["epoch"], e["rows_in"]) for e in state["epochs"]] == [(0, 4), (1, 4), (2, 4)]
        steps = [step["step"] for step in state["epochs"][0]["steps"]]
        assert steps == ["plan", "run", "commit", "publish"]
        assert 'tidegate_epoch_seconds_count{pipeline="main"} 3' in client.get("/metrics").text
        assert "source:s" in [node["id"] for node in client.get("/api/graph").json()["nodes"]]

    def test_creates_and_restores_checkpoints(self, client: TestClient) -> None:
        assert allowed(client, "/api/checkpoints", {"name": "good"}).status_code == 200
        listed = client.get("/api/checkpoints").json()
        assert [(c["name"], c["epoch"]) for c in listed] == [("good", 2), (None, 1), (None, 0)]
        rejected = allowed(client, "/api/restore", {"checkpoint": 1, "pipeline": "main"})
        assert (rejected.status_code, rejected.json()["code"]) == (409, "TG-610")
        content = {"checkpoint": 1, "pipeline": "main", "keep_sinks": True}
        done = allowed(client, "/api/restore", content)
        assert done.status_code == 200 and "duplicated" in done.json()["warnings"][0]
        assert client.get("/api/checkpoints").json()[0]["generation"] == 1

    def test_unknown_names_get_a_hint(self, client: TestClient) -> None:
        assert client.get("/api/objects/kept").json()["hint"] == "did you mean kept1?"
        sink = client.get("/api/objects/kept0").json()
        assert sink["plan"] is None and sink["sql"].startswith("CREATE SINK kept0")


class TestStoredDirectory:
    @pytest.fixture
    def harness(self, tmp_path: Path) -> PipelineHarness:
        harness = PipelineHarness(tmp_path)
        directory = DataDirectory(tmp_path / "data")
        directory.open()
        harness.store = directory.pipeline("main")
        harness.insert(1, 2)
        harness.run()
        save_declarations(directory, harness.catalog)
        directory.close()
        return harness

    @pytest.fixture
    def source(self, harness: PipelineHarness) -> DirectoryProvider:
        return DirectoryProvider(str(harness.folder / "data"))

    @pytest.fixture
    def held(self, harness: PipelineHarness) -> Iterator[DataDirectory]:
        directory = DataDirectory(harness.folder / "data")
        directory.open()
        yield directory
        directory.close()

    def test_reads_while_another_process_holds_the_lock(
        self, source: DirectoryProvider, held: DataDirectory
    ) -> None:
        history = ConsoleHistory(source)
        history.update()
        client = TestClient(build_app(history, HERE, TOKEN), base_url="http://localhost")
        state = client.get("/api/state").json()
        assert state["live"] is False
        assert [(s["name"], s["rows_in"], s["epoch"]) for s in state["streams"]] == [
            ("t0", 4, 1),
            ("t1", 4, 1),
        ]
        nodes = {node["id"] for node in client.get("/api/graph").json()["nodes"]}
        assert {"source:s", "stream:t0", "sink:kept1"} <= nodes
        described = client.get("/api/objects/T0").json()
        assert described["sql"] == "CREATE STREAM t0 AS SELECT a FROM s;"
        assert described["plan"].startswith("stream t0")
        assert [c["epoch"] for c in client.get("/api/checkpoints").json()] == [1, 0]

    def test_new_epochs_are_read(self, harness: PipelineHarness, source: DirectoryProvider) -> None:
        source.statuses()
        harness.insert(3)
        harness.run(until_end=True)
        (status, _) = source.statuses()
        assert (status.rows_in, status.epoch) == (6, 2)
        assert [(epoch.epoch, epoch.rows_in) for epoch in source.epochs()] == [(1, 0), (2, 4)]

    def test_counters_start_at_the_first_epoch(self, source: DirectoryProvider) -> None:
        window = OperatorState("t0", "window_aggregate", "f", report={"late_rows": 3})
        manifest = Manifest(0, 5, 2, 0, {"t0": StreamState("1234", rows_in=9)}, {"t0.1": window})
        status = source._status(manifest, "t0")
        assert (status.rows_in, status.late_rows) == (9, 3)

    def test_actions_fail_while_another_process_holds_the_lock(
        self, source: DirectoryProvider, held: DataDirectory
    ) -> None:
        with pytest.raises(DataDirectoryError, match="TG-602"):
            source.restore(RestoreRequest(0, keep_sink_rows=True))
        with pytest.raises(DataDirectoryError, match="TG-602"):
            source.create_checkpoint("x")

    def test_restores(self, harness: PipelineHarness, source: DirectoryProvider) -> None:
        assert source.create_checkpoint("good") == "good"
        warnings = source.restore(RestoreRequest(0, keep_sink_rows=True))
        assert "duplicated" in warnings[0]
        assert source.checkpoints()[0].generation == 1
        assert [status.rows_in for status in source.statuses()] == [2, 2]

    def test_graph_without_saved_declarations(
        self, harness: PipelineHarness, source: DirectoryProvider
    ) -> None:
        (harness.folder / "data" / "_declarations.json").unlink()
        assert "operator:t0:0" in source.graph().nodes, "taken from manifests"
        with pytest.raises(RunError, match="TG-201"):
            source.describe("t0")

    def test_only_stored_rows_can_be_peeked(self, source: DirectoryProvider) -> None:
        with pytest.raises(RunError, match="TG-802"):
            source.peek("t0", 5)


def test_secrets_are_masked() -> None:
    catalog = compile_text(
        "CREATE SOURCE s (a BIGINT) WITH (connector = 'postgres', database = 'd', table = 't', "
        "password = 'hunter2');"
        "CREATE STREAM t AS SELECT a FROM s;"
    ).catalog
    session = SimpleNamespace(catalog=catalog, explain=lambda name: "plan")
    source = SessionProvider(cast(Any, session), "x")
    client = TestClient(build_app(ConsoleHistory(source), HERE, TOKEN), base_url="http://localhost")
    text = client.get("/api/objects/s").text + client.get("/api/graph").text
    assert "hunter2" not in text and "***" in text
