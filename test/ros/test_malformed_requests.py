"""rclpy hands out no raw bytes of services and actions: only the generated code keeps malformed requests from doing harm. What
holds (docs/networks.md): one that ends before its first list, is of another encoding or announces padding that is not there is read
or dropped, and the next one is answered. What ends later is read on into memory that nobody wrote, where a count may be anything.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rclpy.serialization import serialize_message
from rfm_serving import action, srv

from ros2_rfm_serving.ros.wire.session_messages import session_request_to
from ros2_rfm_serving.types import SessionRequest

from .mirror_engine import NAMES
from .server_fleet import serving

OTHER = "other"
MOST_MB = 64.0
"""More than any request here takes."""


def opening(robot: str) -> Any:
    return session_request_to(
        SessionRequest(robot=robot, component="system1", action_names=NAMES, cameras=("front",), state_size=len(NAMES))
    )


def goal() -> Any:
    return action.Infer.Impl.SendGoalService.Request(goal=action.Infer.Goal())


SERVICES: dict[str, tuple[str, Any]] = {
    "open_session": ("srv.OpenSession.Request", opening(OTHER)),
    "close_session": ("srv.CloseSession.Request", srv.CloseSession.Request(robot=OTHER, component="system1")),
    "reset_episode": ("srv.ResetEpisode.Request", srv.ResetEpisode.Request(robot=OTHER, component="system1")),
    "describe": ("srv.DescribeServer.Request", srv.DescribeServer.Request()),
    "get_schedule": ("srv.GetSchedule.Request", srv.GetSchedule.Request()),
    "infer/_action/send_goal": ("action.Infer.Impl.SendGoalService.Request", goal()),
}


def with_lists() -> dict[str, Any]:
    """The same requests, but that their first list has another count."""
    opened, asked = opening(OTHER), goal()
    opened.action_names, asked.goal.observation.state = [], [1.0]
    return {"open_session": opened, "infer/_action/send_goal": asked}


def first_list(name: str, whole: bytes) -> int:
    """Where its count stands."""
    if name not in with_lists():
        return len(whole)
    other = bytes(serialize_message(with_lists()[name]))
    return next(i for i, (here, there) in enumerate(zip(whole, other, strict=False)) if here != there)


def malformed(name: str, message: Any) -> Iterator[bytes]:
    whole = bytes(serialize_message(message))
    yield from (bytes((0, order, 0, 0)) for order in (0, 1))
    for padding in range(4):
        yield whole[:3] + bytes([padding]) + whole[4:]
    for representation in range(2, 12):
        yield bytes((0, representation)) + whole[2:]
    for at in range(5, first_list(name, whole)):
        yield whole[:at]


@contextmanager
def caller(repository: Path) -> Iterator[Any]:
    """A function that sends bytes to a service of the server's."""
    services = [f"/rfm/servers/s1/{name}={kind}" for name, (kind, _) in SERVICES.items()]
    command = [sys.executable, "-W", "ignore", str(repository / "test" / "ros" / "malformed_caller.py"), *services]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin and process.stdout
    assert int(process.stdout.readline()) == len(services), "nobody listens"

    def send(name: str, data: bytes) -> None:
        process.stdin.write(f"/rfm/servers/s1/{name} {data.hex()}\n")
        process.stdin.flush()
        assert process.stdout.readline() == "sent\n"

    try:
        yield send
    finally:
        process.kill()
        process.wait(timeout=30)


def peak_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def test_malformed_requests_are_dropped_and_the_next_one_is_answered(ros_domain: int, tmp_path: Path, repository: Path) -> None:
    with serving(tmp_path, "r1", max_sessions=100) as (fleet, process), caller(repository) as send:
        send("open_session", bytes(serialize_message(opening(OTHER))))
        fleet.wait(lambda: fleet.status.sessions == 1, what="a whole request from there")
        before_mb = peak_mb(process.pid)
        for name, (_, message) in SERVICES.items():
            for data in malformed(name, message):
                send(name, data)
            assert process.poll() is None, name
        assert fleet.open("r1").success and fleet.ask("r1", 2.0).chunk_robot.data[0] == 2.0
        assert fleet.infer("go").error_code == 0
        assert process.poll() is None and peak_mb(process.pid) - before_mb < MOST_MB
