"""A robot that is tried out: a dry run commands nothing and says what it would have commanded; a reduced speed is kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import rclpy
from rclpy.lifecycle import TransitionCallbackReturn
from sensor_msgs.msg import CompressedImage
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory

from ros2_rfm_serving.ros.robot_node import RobotNode
from ros2_rfm_serving.ros.wire import convert, qos
from test.ros.robot_rig import Rig
from test.unit.fakes import JPEG, schedule

LARGEST = 4.0
"""Of the numbers in a chunk of the rig's server, which begin at 1."""
pytestmark = pytest.mark.usefixtures("ros_domain")
VELOCITIES = {
    "robot": "r1",
    "task": "stack",
    "state_size": 3,
    "cameras": ["front"],
    "action_names": ["x", "y"],
    "control_rate_hz": 20.0,
    "autostart": False,
    "tick": "timer",
    "command_type": "velocity",
    "fallback": ["zero"],
    "max_observation_age_s": 5.0,
}


def written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@contextmanager
def robot(**parameters: object) -> Iterator[tuple[Rig, TransitionCallbackReturn]]:
    given = {**VELOCITIES, **parameters}
    rclpy.init(args=["--ros-args", *[part for name, value in given.items() for part in ("-p", f"robot:{name}:={written(value)}")]])
    node = RobotNode()
    rig = Rig(node, "r1")
    try:
        yield rig, node.trigger_configure()
    finally:
        rig.close()
        rclpy.try_shutdown()


def work(rig: Rig, **goal: Any) -> None:
    """Give it a task, and its sensors, until it has a chunk."""
    client = rig.robots["r1"]
    images = rig.peer.create_publisher(CompressedImage, "/r1/camera/front/image/compressed", 1)
    rig.peer.create_timer(0.05, lambda: (client.sense(), images.publish(CompressedImage(format="jpeg", data=JPEG))))
    rig.tested.trigger_activate()
    rig.schedule.publish(convert.schedule_to(schedule(), "f"))
    rig.goal("r1", **goal)
    rig.wait(lambda: client.status and client.status.chunk_rate_hz > 0, "a chunk")


def test_a_dry_run_publishes_nothing_resets_nothing_and_reports_what_it_would_have_commanded() -> None:
    with robot(dry_run=True) as (rig, configured):
        assert configured == TransitionCallbackReturn.SUCCESS
        asked: list[object] = []

        def on_reset(request: Any, response: Any) -> Any:
            asked.append(request)
            return response

        rig.peer.create_service(Trigger, "/r1/reset", on_reset)
        work(rig, reset=True)
        rig.wait(lambda: "dry_run x" in rig.values("r1"), "the report")
        low, high, step = map(float, rig.values("r1")["dry_run x"].split())
        assert 0.0 <= low <= high <= LARGEST
        assert 0.0 <= step <= LARGEST
        assert int(rig.values("r1")["dry_run_commands"]) > 0
        assert "dry run: commands are not published" in rig.robots["r1"].status.reason
        (result,) = rig.tested.set_parameters([rclpy.Parameter("dry_run", value=False)])
        assert not result.successful
        assert rig.tested.count_publishers("/r1/command") == 0
        assert (rig.robots["r1"].commands, asked) == ([], [])


def test_a_reduced_speed_scales_velocities_and_may_be_raised_while_the_robot_works() -> None:
    with robot(speed_scale=0.25) as (rig, configured):
        assert configured == TransitionCallbackReturn.SUCCESS
        work(rig)
        client = rig.robots["r1"]
        rig.wait(lambda: len(client.commands) > 20, "commands")
        assert 0.25 <= max(command.max() for command in client.commands) <= 0.25 * LARGEST
        assert "reduced speed: 25% of what is declared" in client.status.reason
        rig.tested.set_parameters([rclpy.Parameter("speed_scale", value=1.0)])
        rig.wait(lambda: client.commands[-1].max() > 0.25 * LARGEST, "full speed")


DELTA = {"command_type": "delta", "fallback": ["hold"]}
POSITION = {
    "command_type": "position",
    "fallback": ["ramp_down:0.5", "hold"],
    "limits.max_velocity": [2.0, 2.0],
    "limits.max_acceleration": [8.0, 8.0],
    "action_state": [0.0, 1.0],
}
LARGEST_STEPS = [(DELTA, 0.25 * LARGEST), (POSITION, 0.25 * 2.0 / VELOCITIES["control_rate_hz"])]


@pytest.mark.parametrize(("parameters", "most"), LARGEST_STEPS, ids=["displacements", "positions"])
def test_a_reduced_speed_holds_from_the_first_command_to_the_stop(parameters: dict[str, object], most: float) -> None:
    with robot(speed_scale=0.25, **parameters) as (rig, configured):
        assert configured == TransitionCallbackReturn.SUCCESS
        work(rig)
        client = rig.robots["r1"]
        rig.wait(lambda: len(client.commands) > 20, "commands")
        rig.tested.trigger_deactivate()
        rig.spin(0.3)
        commands = np.array(client.commands)
        steps = np.diff(commands, axis=0) if parameters is POSITION else commands
        assert 0.0 < np.abs(steps).max() <= most * 1.001


def test_a_reduced_speed_holds_for_trajectories() -> None:
    with robot(speed_scale=0.25, sink="chunk", sink_topic="/r1/trajectory", **POSITION) as (rig, configured):
        assert configured == TransitionCallbackReturn.SUCCESS
        seen: list[JointTrajectory] = []
        rig.peer.create_subscription(JointTrajectory, "/r1/trajectory", seen.append, qos.COMMAND)
        work(rig)
        rig.wait(lambda: len(seen) > 3, "trajectories")
        for trajectory in seen:
            times_s = [point.time_from_start.sec + 1e-9 * point.time_from_start.nanosec for point in trajectory.points]
            positions = np.array([point.positions for point in trajectory.points])
            velocities = np.array([point.velocities for point in trajectory.points])
            assert np.abs(velocities).max() <= 0.25 * 2.0 * 1.001
            assert (np.abs(np.diff(positions, axis=0)) <= 0.25 * 2.0 * 1.001 * np.diff(times_s)[:, None] + 1e-6).all()


def test_positions_without_a_limit_of_their_velocity_cannot_be_slowed_down() -> None:
    with robot(speed_scale=0.25, command_type="position", fallback=["hold"]) as (_, configured):
        assert configured == TransitionCallbackReturn.FAILURE
