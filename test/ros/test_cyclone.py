"""Another DDS vendor on the graph: a robot on Eclipse Cyclone DDS, without ROS, beside our nodes as they start by default."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ros2_rfm_serving.ros.node.middleware import OLDER_PROFILES_FILE, PROFILES_FILE, use_profile
from ros2_rfm_serving.shipped import shipped

from .server_fleet import JPEG, serving

SAME_MACHINE = "<Discovery><Peers><Peer address='localhost'/></Peers></Discovery>"
"""What Cyclone DDS needs with ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST, in which ours send no multicast."""
FRAMES = "<General><MaxMessageSize>1400B</MaxMessageSize><FragmentSize>1300B</FragmentSize></General>"
"""And with the profiles for Wi-Fi and WAN, whose sockets take no datagram larger than an Ethernet frame."""
DDS = "{http://www.eprosima.com}"


@contextmanager
def node(executable: str, *arguments: str) -> Iterator[None]:
    command = [sys.executable, "-W", "ignore", "-m", f"ros2_rfm_serving.ros.{executable}", "--ros-args", *arguments]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)


@contextmanager
def cyclone(repository: Path, robot: str, epoch: int, settings: str) -> Iterator[dict[str, list[Any]]]:
    """What it has heard so far, by message."""
    heard: dict[str, list[Any]] = defaultdict(list)
    command = [sys.executable, str(repository / "test" / "ros" / "cyclone_robot.py"), str(repository / "msg"), "s1", robot]
    environment = {**os.environ, "CYCLONEDDS_URI": settings}
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin and process.stdout

    def listen(lines: Any) -> None:
        for line in lines:
            message = json.loads(line)
            heard[message["kind"]].append(message)

    listener = threading.Thread(target=listen, args=(process.stdout,))
    listener.start()
    process.stdin.write(f"{epoch}\n{JPEG.hex()}\n")
    process.stdin.flush()
    try:
        yield heard
    finally:
        process.kill()
        process.wait(timeout=10)
        listener.join(timeout=10)


@pytest.fixture
def no_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (PROFILES_FILE, OLDER_PROFILES_FILE):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("profile", ["", "wan.xml"], ids=["default", "wan"])
def test_a_robot_on_cyclone_dds_hears_the_factory_and_is_served(
    repository: Path, tmp_path: Path, ros_domain: int, no_profile: None, monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    if profile:
        monkeypatch.setenv(PROFILES_FILE, str(shipped("config", "dds", profile)))
    settings = f"<Domain>{SAME_MACHINE}{FRAMES if profile else ''}</Domain>"
    factory = repository / "config" / "factory_emulated.yaml"
    with (
        node("scheduler_node", "-p", f"factory_file:={factory}"),
        node("robot_node", "-r", "__ns:=/arm_1", "-p", "robot:=arm_1"),
        serving(tmp_path, "cyclone_bot") as (fleet, _),
    ):
        assert fleet.open("cyclone_bot").success  # by its operator: services do not cross vendors
        with cyclone(repository, "cyclone_bot", fleet.epochs["cyclone_bot"], settings) as heard:
            everything = ("Schedule", "ServerStatus", "ActionChunk") + (() if profile else ("RobotStatus",))
            fleet.wait(lambda: all(heard[kind] for kind in everything) and len(heard["ActionChunk"]) >= 3, 60, f"for {dict(heard)}")
    chunks = heard["ActionChunk"]
    assert all(chunk["first"][:2] == [0.25, 0.5] and chunk["stamp_ns"] == 7 for chunk in chunks)  # what it sent, mirrored
    assert len({chunk["sequence"] for chunk in chunks}) == len(chunks) and heard["Schedule"][0]["epoch"] > 0


def test_every_shipped_profile_is_understood_by_other_vendors(repository: Path) -> None:
    files = sorted((repository / "config" / "dds").glob("*.xml"))
    assert len(files) == 5
    for file in files:
        (participant,) = ET.parse(file).getroot().iter(f"{DDS}participant")
        assert participant.get("is_default_profile") == "true"
        found = {p.findtext(f"{DDS}name"): p.findtext(f"{DDS}value") for p in participant.iter(f"{DDS}property")}
        assert found["fastdds.type_propagation"] == "disabled", file


def test_a_profile_of_the_users_own_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environment: dict[str, str] = {}
    use_profile(environment=environment)
    assert Path(environment[PROFILES_FILE]).name == "any_vendor.xml" and Path(environment[PROFILES_FILE]).exists()
    for own in ({PROFILES_FILE: "mine.xml"}, {OLDER_PROFILES_FILE: "mine.xml"}, {PROFILES_FILE: ""}):
        environment = dict(own)
        use_profile(environment=environment)
        assert environment == own
    (tmp_path / "DEFAULT_FASTDDS_PROFILES.xml").touch()
    environment = {}
    use_profile(environment=environment)
    assert not environment
