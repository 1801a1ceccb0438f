"""`rfm record` beside real publishers: a process of its own, killed, mended, ended in order; and as a flight recorder."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.node import Node
from rfm_serving import msg
from rosbags.highlevel import AnyReader
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import Float32MultiArray

from ros2_rfm_serving.audit import chain
from ros2_rfm_serving.audit.bag import Bag
from ros2_rfm_serving.audit.codec import digest
from ros2_rfm_serving.audit.verify_bag import verify_bag
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.ros.wire import qos
from test.ros.spinning import living
from test.waiting import eventually

IMAGE = bytes(range(256)) * 100
STATE, STATUS = "/arm_1/state", "/arm_1/rfm/status"


def rfm(repository: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli", "record", *arguments]
    return subprocess.Popen(command, cwd=repository, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def until(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    assert eventually(condition, seconds, lambda: time.sleep(0.1)), what


class Robot(Node):
    """What a robot and its server say, twenty times a second, in real messages."""

    def __init__(self, context: rclpy.Context) -> None:
        super().__init__("told", context=context)
        names = qos.Names()
        self.slowest_s, self.count = 0.0, 0
        self.diagnostics: list[Any] = []
        self.chain = chain.Chain("robot/arm_1", 77)
        status, observation = msg.RobotStatus(task="push"), msg.Observation(instruction="push")
        status.header.frame_id = "arm_1"
        observation.images = [CompressedImage(format="jpeg", data=IMAGE)]
        self._status = status
        self.statuses = [self.create_publisher(msg.RobotStatus, STATUS, qos.ROBOT_STATUS)]
        self._observation = observation
        self._observations = self.create_publisher(msg.Observation, names.server("s1", "observation"), qos.OBSERVATION_SENT)
        self._schedule = self.create_publisher(msg.Schedule, names.schedule, qos.SCHEDULE)
        self._schedule.publish(msg.Schedule(factory="once"))
        self.audit = self.create_publisher(msg.AuditPage, names.robot("arm_1", "rfm/audit"), qos.AUDIT)
        self._states = self.create_publisher(Float32MultiArray, STATE, qos.SENSOR)
        self.create_subscription(DiagnosticArray, "/diagnostics", self.diagnostics.append, 10)
        self.create_timer(0.05, self._say)

    def say_best_effort_too(self) -> None:
        self.statuses.append(self.create_publisher(msg.RobotStatus, STATUS, qos.SENSOR))

    def recorder_says(self) -> tuple[bytes, str] | None:
        """The newest: (level, hardware)."""
        told = [status for array in list(self.diagnostics) for status in array.status if status.name == "recorder: recording"]
        return (told[-1].level, told[-1].hardware_id) if told else None

    def _say(self) -> None:
        begun_s = time.monotonic()
        self._observations.publish(self._observation)
        self._states.publish(Float32MultiArray(data=[float(self.count)]))
        self._status.episode = self.count
        for retries, publisher in enumerate(self.statuses):
            self._status.retries = retries
            publisher.publish(self._status)
        if self.audit.get_subscription_count():
            self._publish_page()
        self.count += 1
        self.slowest_s = max(self.slowest_s, time.monotonic() - begun_s)

    def _publish_page(self) -> None:
        self.chain.note("tick", time.monotonic(), {"number": self.count})
        page = self.chain.page()
        assert page is not None
        text = b"\n".join(page.lines).decode()
        message = msg.AuditPage(writer=page.writer, run=page.run, first=page.first, previous=page.previous, records=text)
        for _ in range(1 + (self.count % 5 == 0)):  # as anybody on the graph may
            self.audit.publish(message)


def read(folder: Path) -> Bag | None:
    try:
        return Bag(folder)
    except RfmError:
        return None


def count(folder: Path, topic: str) -> int:
    bag = read(folder)
    return sum(1 for _ in bag.messages(topics=[topic])) if bag is not None else 0


def statuses(bag: Bag) -> list[tuple[int, int]]:
    """Which publisher's, and its number."""
    read = [bag.read(message) for message in bag.messages(topics=[STATUS])]
    return [(one.retries, one.episode) for one in read]


@pytest.mark.timeout(150)
def test_a_killed_recorder_harms_nobody_and_its_bag_is_mended(repository: Path, tmp_path: Path, ros_domain: int) -> None:
    folder = tmp_path / "bag"
    with living(Robot) as node:
        process = rfm(repository, str(folder))
        try:
            until(lambda: count(folder, STATE) > 20 and count(folder, "/rfm/servers/s1/observation") > 20, "nothing is recorded")
            node.say_best_effort_too()
            until(lambda: sum(which for which, _ in statuses(Bag(folder))) > 5, "who comes with another QoS is not heard")
            until(lambda: node.recorder_says() == (b"\0", "recorder"), "it does not say that all is well")
        finally:
            process.kill()
            process.communicate(timeout=20)
        before = node.count
        until(lambda: node.count > before + 20, "the robot stood still")
        assert node.slowest_s < 20.0, "it waited for who was killed"
    bag = Bag(folder)
    messages = list(bag.messages())
    assert bag.blob(digest(IMAGE)) == IMAGE
    assert [bag.read(message).factory for message in bag.messages(topics=["/rfm/schedule"])] == ["once"]  # said before it came
    for which in (0, 1):
        numbers = [number for publisher, number in statuses(bag) if publisher == which]
        assert len(numbers) == len(set(numbers)) > 5  # none is there twice
    checked = chain.Checked(writer="robot/arm_1", run=77)
    for page in bag.pages():
        if page.writer == checked.writer:
            checked.add(page)
    assert checked.flaws == [] and checked.number > 20
    verdict = verify_bag(Bag(folder))
    assert not verdict.findings and not verdict.is_changed and verdict.num_checked > 50, verdict.findings
    assert verdict.chains.num_repeats > 2, "pages that somebody repeats are not counted"
    with AnyReader([folder]) as reader:  # as it was left: another tool reads the same
        assert sum(1 for _ in reader.messages()) == len(messages)
    assert folder.stat().st_mode & 0o777 == 0o700 and {one.stat().st_mode & 0o777 for one in folder.iterdir()} == {0o600}
    mending = rfm(repository, "--recover", str(folder))
    told, _ = mending.communicate(timeout=60)
    assert mending.returncode == 0 and "bag_0.mcap: mended" in told and f"{len(messages)} messages" in told, told
    with AnyReader([folder]) as reader:
        assert reader.message_count == len(messages)
        for one, _, data in reader.messages():
            reader.deserialize(data, one.msgtype)
    verdict = verify_bag(Bag(folder))
    assert not verdict.findings and not verdict.is_changed, verdict.findings


@pytest.mark.timeout(150)
def test_a_flight_recorder_writes_when_a_person_asks(repository: Path, tmp_path: Path, ros_domain: int) -> None:
    with living(Robot) as node:
        process = rfm(repository, str(tmp_path / "incidents"), "--flight", "20", "--after", "0.5")
        try:
            until(lambda: all(one.get_subscription_count() for one in (node.statuses[0], node.audit)), "nobody listens")
            since = node.count
            until(lambda: node.count > since + 60, "the robot stood still")
            asked = rfm(repository, "--trigger")
            told, _ = asked.communicate(timeout=60)
            assert asked.returncode == 0 and str(tmp_path / "incidents") in told, told
            until(lambda: any((tmp_path / "incidents").iterdir()), "nothing is written")
            time.sleep(1.5)
            process.send_signal(signal.SIGINT)
            told, _ = process.communicate(timeout=30)
            assert process.returncode == 0 and " 0 lost" in told, told
        finally:
            process.kill()
    (folder,) = (tmp_path / "incidents").iterdir()
    bag = Bag(folder)
    assert folder.name.endswith("_person") and not bag.damages
    (began, *_, closed) = [record for page in bag.pages() if page.writer.startswith("recorder/") for record in chain.records(page)]
    assert began["cause"]["kind"] == "person" and closed["kind"] == "closed" and closed["heads"][0]["writer"] == "robot/arm_1"
    assert len(statuses(bag)) > 40
    verdict = verify_bag(bag)
    assert not verdict.findings and not verdict.is_changed and verdict.num_checked > 100, verdict.findings
