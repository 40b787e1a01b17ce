"""Data directory, input and output on an object store that stops for a while; the driver is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.real.s3 import BUCKET, S3, SECRETS
from tests.spark.kill_campaign import Campaign
from tests.spark.kill_program import STREAMS
from tests.support.sessions import eventually

pytestmark = pytest.mark.spark


class RemoteCampaign(Campaign):
    """A campaign whose program has all of its files on the object store."""

    def __init__(self, folder: Path, seed: int, s3: S3) -> None:
        super().__init__(folder, seed)
        self.s3 = s3

    def _directories(self) -> list[str]:
        return [f"s3://{BUCKET}/{name}" for name in ("data", "in", "out")]

    def add_file(self) -> None:
        super().add_file()
        for path in self.inputs.glob(f"*/{self.files - 1:06d}.*"):
            self.s3.put(f"in/{path.parent.name}/{path.name}", path.read_bytes())

    def _epochs(self) -> int:
        names = self.s3.names("data/_pipelines/main/manifests/")
        return max((int(name.split("-")[-1].split(".")[0]) + 1 for name in names), default=0)

    def fetch(self) -> None:
        outputs = [f"data/{stream}/out/" for stream in STREAMS]
        for name in (name for prefix in ("out/", *outputs) for name in self.s3.names(prefix)):
            path = self.data.parent / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.s3.get(name))


def test_outages_of_the_store_and_a_killed_driver_lose_no_rows(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    for name, value in {**s3.environment, "TMPDIR": str(temporary)}.items():
        monkeypatch.setenv(name, value)
    campaign = RemoteCampaign(tmp_path, 5, s3)
    for _ in range(4):
        campaign.add_file()
    s3.stop()
    rejected = campaign.run_to_end()
    assert "TG-613" in rejected and "the server does not respond" in rejected
    s3.start()
    process = campaign._start()
    try:
        assert process.stdout is not None and process.stdout.readline() == "running\n"
        eventually(lambda: campaign._epochs() >= 1, 120)
        s3.stop()
        waiting = process.stdout.readline()
        s3.start()
        assert "waiting: " in waiting and "the server does not respond" in waiting
        goal = campaign._epochs() + 1
        eventually(lambda: campaign._epochs() >= goal, 120)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        output = process.communicate()[0]
    campaign.add_file()
    assert campaign.run_to_end() == "done, 0 late rows"
    campaign.fetch()
    assert campaign.differences() == {}
    logs = [path.read_bytes() for path in temporary.glob("*.log")]
    assert len(logs) == 2
    stored = [s3.get(name) for name in s3.names("")]
    for text in [*logs, *stored, *map(str.encode, (output, waiting, rejected))]:
        assert not any(secret.encode() in text for secret in SECRETS)
