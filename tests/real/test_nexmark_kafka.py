"""NEXMark over topics of a real broker: what comes out of files comes out of them."""

from __future__ import annotations

import pytest

from tests.real.kafka import Broker
from tidegate.errors import SystemAway
from tidegate.nexmark import commands, topics

pytestmark = pytest.mark.spark
QUERIES = ["q2", "q3", "q12"]


def _rows_out(said: str) -> dict[str, tuple[str, str]]:
    """Rows and late rows of each query."""
    lines = [line.split() for line in said.splitlines() if line.startswith("q")]
    return {cells[0]: (cells[-2], cells[-1]) for cells in lines if cells[0] in QUERIES}


def test_queries_give_out_as_much_as_from_files(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = commands.Wanted(QUERIES, 5_000, None)
    assert commands.run(wanted, "kafka", "blackhole", broker.brokers) == 0
    found = _rows_out(capsys.readouterr().out)
    assert commands.run(wanted, "files", "blackhole") == 0
    assert found == _rows_out(capsys.readouterr().out)
    assert set(found) == set(QUERIES)
    left = broker.admin().list_topics(timeout=10).topics
    assert not [name for name in left if name.startswith("nexmark-")]


def test_brokers_that_are_away_are_named(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.connectors.kafka.client.ANSWER_SECONDS", 0.5)
    with (
        pytest.raises(SystemAway, match=r"127\.0\.0\.1:1"),
        topics.sent(tmp_path_factory.mktemp("events"), "127.0.0.1:1"),
    ):
        pass
