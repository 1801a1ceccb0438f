"""A recorded factory of which the server is killed, the robot is paused and the network is cut: a short form of `make shift`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml
from rosbags.highlevel import AnyReader

from ros2_rfm_serving.audit import chain
from ros2_rfm_serving.audit.bag import Bag
from ros2_rfm_serving.audit.verify import verify
from test.shift.checks import Checks
from test.shift.incidents import Cast, Moment, Shift

ROBOT = "push_1"
RFM = (sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli")
RECORDED = {
    "/diagnostics",
    f"/{ROBOT}/command",
    f"/{ROBOT}/execute_task/_action/feedback",
    f"/{ROBOT}/execute_task/_action/status",
    f"/{ROBOT}/joint_states",
    f"/{ROBOT}/rfm/action_chunk",
    f"/{ROBOT}/rfm/audit",
    f"/{ROBOT}/rfm/name",
    f"/{ROBOT}/rfm/status",
    f"/{ROBOT}/state",
    "/rfm/dashboard/audit",
    "/rfm/recorder/audit",
    "/rfm/schedule",
    "/rfm/servers/server_1/audit",
    "/rfm/servers/server_1/name",
    "/rfm/servers/server_1/observation",
    "/rfm/servers/server_1/status",
}


@pytest.mark.thorough
@pytest.mark.alone
@pytest.mark.timeout(400)
def test_a_shift_is_recorded_whole_verified_explained_and_decided_once_more(
    repository: Path, tmp_path: Path, ros_domain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    shift = Shift(RFM, tmp_path / "shift", 20.0, ros_domain, Cast(killed_from=ROBOT, paused=ROBOT, cut=ROBOT))
    moments = shift.run(one_arm(repository, tmp_path))
    bag = tmp_path / "shift" / "bag"
    recorded_whole(Bag(bag))
    with AnyReader([bag]) as reader:  # somebody else's
        for one, _, data in reader.messages():
            reader.deserialize(data, one.msgtype)
    checks = Checks(RFM, bag)
    asked = {moment.what: moment for moment in moments} | {"all is well": Moment("all is well", ROBOT, last_row_s(Bag(bag)))}
    wanted = [asked[what] for what in ("all is well", "a server is killed", "a robot is paused", "a network is cut")]
    seen = list(checks.all(wanted))
    assert [one for one in seen if not one.good] == []


def one_arm(repository: Path, folder: Path) -> Path:
    """Of the quickstart: a robot and its policy."""
    factory = yaml.safe_load((repository / "config" / "factory_quickstart.yaml").read_text())
    factory["push"]["components"].pop("monitor")
    cell = {"server_cluster": {"num_servers": 1, "gpu_type": "CPU"}, "robot_fleet": [{"task": "push", "num_robots": 1}]}
    (folder / "one_arm.yaml").write_text(yaml.safe_dump({**cell, "push": factory["push"]}))
    return folder / "one_arm.yaml"


def recorded_whole(bag: Bag) -> None:
    """From the first to the last word."""
    assert not bag.damages and set(bag.topics) >= RECORDED
    statuses = [bag.read(message) for message in bag.messages("rfm_serving/msg/RobotStatus")]
    assert statuses[-1].episode > 0
    verified = verify(bag.pages)
    assert verified.flaws == () and verified.num_lost == 0
    robot = next(one for one in verified.chains if one.writer == f"robot/{ROBOT}")
    assert robot.begins == 0 and robot.closed  # its last words came before the recording ended
    noted = [(page.writer, record) for page in bag.pages() for record in chain.records(page)]
    chunks = {bag.read(message).id.sequence for message in bag.messages("rfm_serving/msg/ActionChunk")}
    replies = [record for writer, record in noted if writer == "server/server_1" and record["kind"] == "reply"]
    answered = {record["request"]["sequence"] for record in replies if record["result"] is not None}
    asked = {
        request["sequence"]
        for writer, record in noted
        if writer == robot.writer and record["kind"] == "tick"
        for request in record.get("requests") or ()
    }
    assert asked >= chunks >= answered != set()  # whatever was answered is known from its request on
    own = [record for writer, record in noted if writer.startswith("recorder/")]
    commands = [record for writer, record in noted if writer == "dashboard/page" and record["kind"] == "operator_command"]
    assert own[-1]["kind"] == "closed" and not any(record["kind"] == "lost" for record in own)
    assert [record["operator"] for record in commands] == ["shift"] * 2


def last_row_s(bag: Bag) -> float:
    """ROS time, just after the last row that the robot executed."""
    from ros2_rfm_serving.audit.log import AuditLog

    ticks = AuditLog(bag.pages()).of(f"robot/{ROBOT}", "tick")
    return [tick for tick in ticks if tick.body["why"]["source"] == "step"][-1].stamp_s + 1e-4
