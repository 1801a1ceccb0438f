"""Many robots in one process: what they share, what each has for itself, and that none suffers from another."""

from __future__ import annotations

import array
import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rclpy
from rclpy.lifecycle import TransitionCallbackReturn
from rclpy.parameter import Parameter
from rfm_serving import action
from sensor_msgs.msg import CompressedImage

from lab.benchmarks.fleet.factory import Shape
from lab.benchmarks.fleet.factory import robots as fleet_robots
from lab.benchmarks.fleet.robots_process import FleetRobots
from ros2_rfm_serving.factory.nodes import parameter_file
from ros2_rfm_serving.ros.node.runtime import executor
from ros2_rfm_serving.ros.robot.body import RobotBody
from ros2_rfm_serving.ros.robots_node import RobotsNode
from ros2_rfm_serving.ros.wire import convert, qos
from ros2_rfm_serving.types import Schedule
from test.ros.robot_rig import Rig
from test.unit.fakes import JPEG, schedule

SUCCESS, FAILURE = TransitionCallbackReturn.SUCCESS, TransitionCallbackReturn.FAILURE
NAMES = ("r1", "r2", "r3")
SHARED: dict[str, Any] = {
    "robots": list(NAMES),
    "state_size": 3,
    "cameras": ["front"],
    "action_names": ["x", "y"],
    "control_rate_hz": 50.0,
    "task": "stack",
    "autostart": False,
}


class FleetRig(Rig):
    """Feeds the sensors of every robot."""

    def __init__(self) -> None:
        self.node = RobotsNode()
        super().__init__(self.node, *NAMES)
        topics = [f"/{robot}/camera/front/image/compressed" for robot in NAMES]
        self._images = [self.peer.create_publisher(CompressedImage, topic, qos.SENSOR) for topic in topics]
        self._frame = CompressedImage(format="jpeg")
        convert.put(self._frame, "data", array.array("B", JPEG))

    def bring_up(self) -> None:
        assert self.node.trigger_configure() == SUCCESS
        assert self.node.trigger_activate() == SUCCESS

        self.peer.create_timer(0.02, self._sense)

    def work(self, *robots: str) -> dict[str, Any]:
        """The handle of each robot's goal, once all execute actions."""
        routes = tuple(route for robot in NAMES for route in schedule(robot).routes)
        whole = Schedule(epoch=1, placements=schedule().placements, routes=routes, predicted_actions_hz=1.0, policy="test")
        self.schedule.publish(convert.schedule_to(whole, "f"))
        handles = {robot: self.goal(robot, time_budget_s=600.0) for robot in robots}
        for robot in robots:
            self.acts(robot)
        return handles

    def acts(self, robot: str) -> None:
        commands = self.robots[robot].commands
        commands.clear()
        self.wait(lambda: commands and np.any(commands[-1]), f"an action of {robot}")

    def _sense(self) -> None:
        for image, robot in zip(self._images, self.robots.values(), strict=True):
            image.publish(self._frame)
            robot.sense()


@pytest.fixture
def make_rig(ros_domain: int, tmp_path: Path) -> Iterator[Callable[..., FleetRig]]:
    made: list[FleetRig] = []

    def make(**own: Any) -> FleetRig:
        file = tmp_path / "robots.yaml"
        file.write_text(parameter_file({**SHARED, **own}))
        rclpy.init(args=["--ros-args", "--params-file", str(file)])
        made.append(FleetRig())
        return made[0]

    try:
        yield make
    finally:
        for rig in made:
            rig.close()
        rclpy.try_shutdown()


def num_threads() -> int:
    """Of the process, those of the middleware included; not those of earlier tests that nothing has collected yet."""
    gc.collect()
    return len(list(Path("/proc/self/task").iterdir()))


def most_threads(rig: FleetRig) -> int:
    """Of some moments: a thread may just be on its way."""
    return max(num_threads() for _ in range(5) if not rig.spin(0.3))


def test_each_robot_has_a_name_a_task_and_a_session_of_its_own(make_rig: Callable[..., FleetRig]) -> None:
    rig = make_rig(r2={"task": "sort", "default_budget_s": 7.0})
    rig.bring_up()
    rig.work(*NAMES)
    assert sorted(rig.server.opened) == list(NAMES) and len(set(rig.server.opened.values())) == len(NAMES)
    rig.wait(lambda: all(robot.status for robot in rig.robots.values()), "a status of each")
    assert [robot.status.task for robot in rig.robots.values()] == ["stack", "sort", "stack"]
    assert [body.brain.config.default_budget_s for body in rig.node._robots] == [25.0, 7.0, 25.0]
    rig.wait(lambda: set(rig.diagnostics) == {f"{robot}: robot" for robot in NAMES}, "diagnostics of each")
    assert rig.peer.count_publishers("/diagnostics") == 1 and rig.peer.count_subscribers("/rfm/schedule") == 1

    refused = rig.result(rig.goal("r1", task="sort"))  # it is r2's
    assert refused.error_code == action.ExecuteTask.Result.REJECTED and "'stack'" in refused.error_msg


def test_what_fails_in_one_robot_leaves_the_others_at_work(
    make_rig: Callable[..., FleetRig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig()
    rig.bring_up()
    rig.work(*NAMES)
    broken, *others = rig.node._robots

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("on purpose")

    with monkeypatch.context() as patch:
        for name in ("tick", "on_reply", "on_server_status", "on_schedule", "pause"):
            patch.setattr(broken.brain, name, fail)
        patch.setattr(broken, "diagnosis", fail)
        rig.wait(lambda: broken.errors > 20, "errors")
        for robot in others:
            rig.acts(robot.name)
        assert [robot.errors for robot in others] == [0, 0]
        rig.diagnostics.clear()
        rig.wait(lambda: all(f"{robot.name}: robot" in rig.diagnostics for robot in others), "diagnostics of the others")
    rig.acts(broken.name)


def test_more_robots_are_no_more_threads_and_cleanup_takes_leave_of_their_servers(make_rig: Callable[..., FleetRig]) -> None:
    rig = make_rig(robots=["r1"])
    rig.bring_up()
    rig.work("r1")
    threads = most_threads(rig)
    assert rig.node.trigger_deactivate() == SUCCESS and rig.node.trigger_cleanup() == SUCCESS
    rig.wait(lambda: rig.peer.count_services("/r1/execute_task/_action/send_goal") == 0, "the end of its action")
    rig.server.closed.clear()
    rig.node.set_parameters([Parameter("robots", value=list(NAMES))])
    rig.bring_up()
    handles = rig.work(*NAMES)
    rig.wait(lambda: rig.spin(0.3) or num_threads() <= threads, "threads of the one robot alone")  # fewer: an earlier test's ended
    ends = [handle.get_result_async() for handle in handles.values()]
    asked = [body._door._action._result_futures[bytes(handles[body.name].goal_id.uuid)]._callbacks for body in rig.node._robots]
    rig.wait(lambda: all(asked), "their knowing that the results are asked for")
    assert rig.node.trigger_deactivate() == SUCCESS and rig.node.trigger_cleanup() == SUCCESS
    rig.wait(lambda: all(end.done() for end in ends), "the results")
    rig.wait(lambda: sorted(rig.server.closed) == sorted(rig.server.opened.items()), "the end of the sessions")
    for leaf in ("state", "rfm/action_chunk"):
        rig.wait(lambda path=f"/r1/{leaf}": rig.peer.count_subscribers(path) == 0, leaf)
    rig.bring_up()


def test_a_list_of_robots_that_is_wrong_is_refused(make_rig: Callable[..., FleetRig]) -> None:
    rig = make_rig(robots=["r1", "r2", "r1"])
    assert rig.node.trigger_configure() == FAILURE


def test_a_parameter_that_is_wrong_for_one_robot_makes_none(make_rig: Callable[..., FleetRig]) -> None:
    rig = make_rig(r3={"control_rate_hz": -1.0})
    assert rig.node.trigger_configure() == FAILURE
    assert not rig.node._robots and rig.peer.count_subscribers("/r1/state") == 0


def test_the_more_robots_are_made_the_more_turns_none_of_them_misses(
    ros_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timer that was due while others were added was called once for each of them, and then not for as many periods."""
    names, period_s = [f"r{i}" for i in range(16)], 0.5
    own = {"robots": names, "control_rate_hz": 1.0 / period_s, "tick": "timer", "fleet_namespace": "many"}
    file = tmp_path / "robots.yaml"
    file.write_text(parameter_file({**SHARED, **own}))
    turns: Counter[str] = Counter()
    take_turn, activate = RobotBody._on_timer, RobotBody.activate

    def counted(body: RobotBody) -> None:
        turns[body.name] += 1
        take_turn(body)

    def slowly(body: RobotBody) -> None:
        activate(body)
        time.sleep(0.08)

    monkeypatch.setattr(RobotBody, "_on_timer", counted)
    monkeypatch.setattr(RobotBody, "activate", slowly)
    rclpy.init(args=["--ros-args", "--params-file", str(file)])
    node, spinner = RobotsNode(), executor()
    try:
        spinner.add_node(node)
        assert node.trigger_configure() == SUCCESS
        begun_s = time.monotonic()
        assert node.trigger_activate() == SUCCESS
        while not turns["r15"] or time.monotonic() < begun_s + 4 * period_s:
            spinner.spin_once(timeout_sec=0.02)
        assert max(turns.values()) <= 1 + (time.monotonic() - begun_s) / period_s
    finally:
        spinner.shutdown()
        node.destroy_node()
        rclpy.try_shutdown()


def test_before_a_process_ends_nothing_goes_late(make_rig: Callable[..., FleetRig]) -> None:
    """What takes its leave later would be destroyed, on a busy machine, while the executor still has answers for it."""
    rig = make_rig()
    rig.bring_up()
    rig.work("r1")
    rig.node.stop()
    left = len(list(rig.node.clients))
    rig.spin(1.0)
    assert left and len(list(rig.node.clients)) == left


def test_robots_of_the_benchmark_that_end_are_given_nothing_more_to_do(ros_domain: int, tmp_path: Path) -> None:
    file, notes, names = tmp_path / "robots.yaml", tmp_path / "notes.jsonl", ["arm_1", "arm_2"]
    file.write_text(parameter_file(fleet_robots(names, Shape(2, 1, 0, 1.0)) | {"notes": str(notes), "autostart": False}))
    rclpy.init(args=["--ros-args", "--params-file", str(file)])
    node, spinner = FleetRobots(), executor()
    try:
        spinner.add_node(node)
        assert node.trigger_configure() == SUCCESS and node.trigger_activate() == SUCCESS
        end_s = time.monotonic() + 90.0
        while "total" not in notes.read_text() and time.monotonic() < end_s:
            spinner.spin_once(timeout_sec=0.02)
        node.stop()
        said = notes.read_text()
        end_s = time.monotonic() + 1.2
        while time.monotonic() < end_s:
            spinner.spin_once(timeout_sec=0.02)
        assert "total" in said and notes.read_text() == said
    finally:
        spinner.shutdown()
        node.destroy_node()
        rclpy.try_shutdown()
