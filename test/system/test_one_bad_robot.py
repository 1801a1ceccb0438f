"""One robot whose process cannot run is no reason to stop the others."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
import yaml

from test.system.test_factory import EMULATED, rfm_up


@pytest.mark.timeout(200)
def test_a_robot_that_cannot_run_is_given_up_and_the_others_work(repository: Path, tmp_path: Path, ros_domain: int) -> None:
    factory = yaml.safe_load((repository / EMULATED).read_text())
    factory["robot_fleet"].append({"task": "broken_arm", "num_robots": 1})
    factory["broken_arm"] = factory["idle_arm"] | {"robot": "broken.yaml"}
    (tmp_path / "factory.yaml").write_text(yaml.safe_dump(factory))
    (tmp_path / "broken.yaml").write_text("/**: {ros__parameters: {control_rate_hz: -1.0}}\n")
    logs = tmp_path / "logs"
    with rfm_up(repository, logs, str(tmp_path / "factory.yaml"), domain=ros_domain) as process:
        end_s = time.monotonic() + 90.0
        while not (says(logs / "broken_arm_1.log", "control_rate_hz") and says(logs / "idle_arm_1.log", "STREAMING")):
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < end_s, [file.read_text() for file in logs.glob("*.log")]
            time.sleep(0.2)
        time.sleep(3.0)  # more than one look of the supervisor
        assert process.poll() is None, "the others were stopped"
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[0]
    assert "broken_arm_1: cannot run as it is configured" in said and "gave up on: broken_arm_1" in said, said
    assert process.returncode == 1


def says(log: Path, words: str) -> bool:
    return log.exists() and words in log.read_text()
