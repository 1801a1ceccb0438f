"""`rfm up --record`: everything that decisions depended on, from the first to the last word."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from rosbags.highlevel import AnyReader

from ros2_rfm_serving.audit import chain
from ros2_rfm_serving.audit.bag import Bag

RECORDED = {
    "/diagnostics",
    "/idle_arm_1/command",
    "/idle_arm_1/execute_task/_action/feedback",
    "/idle_arm_1/execute_task/_action/status",
    "/idle_arm_1/joint_states",
    "/idle_arm_1/rfm/action_chunk",
    "/idle_arm_1/rfm/name",
    "/idle_arm_1/rfm/status",
    "/idle_arm_1/state",
    "/rfm/recorder/audit",
    "/rfm/schedule",
    "/rfm/servers/server_1/name",
    "/rfm/servers/server_1/observation",
    "/rfm/servers/server_1/status",
}


@pytest.mark.timeout(150)
def test_a_factory_is_recorded_from_its_first_to_its_last_word(repository: Path, tmp_path: Path, ros_domain: int) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli", "up", "config/factory_emulated.yaml", "--seconds", "4"]
    command += ["--record-to", str(tmp_path / "bag"), "--logs", str(tmp_path / "logs"), "--domain", str(ros_domain)]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and "had to be killed" not in done.stdout, done.stdout + done.stderr
    bag = Bag(tmp_path / "bag")
    assert not bag.damages and set(bag.topics) >= RECORDED
    statuses = [bag.read(message) for message in bag.messages("rfm_serving/msg/RobotStatus")]
    assert statuses[0].state == statuses[0].CONNECTING and statuses[-1].episode > 0
    chunks = {bag.read(message).id.sequence for message in bag.messages("rfm_serving/msg/ActionChunk")}
    assert chunks >= set(range(1, max(chunks) + 1))  # from the first on
    own = [record for page in bag.pages() if page.writer.startswith("recorder/") for record in chain.records(page)]
    assert own[-1]["kind"] == "closed" and not any(record["kind"] == "lost" for record in own)
    with AnyReader([tmp_path / "bag"]) as reader:
        for one, _, data in reader.messages():
            reader.deserialize(data, one.msgtype)
