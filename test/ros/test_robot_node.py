"""The robot node on its own: its life, how it stops, what it tells, and what it refuses from sensors, servers and schedulers."""

from __future__ import annotations

import array
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.lifecycle import TransitionCallbackReturn
from rclpy.parameter import Parameter
from rfm_serving import action, msg
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import Float32MultiArray

from ros2_rfm_serving.ros.robot.status import Punctuality
from ros2_rfm_serving.ros.robot_node import RobotNode
from ros2_rfm_serving.ros.wire import convert, qos
from test.ros.robot_rig import Rig
from test.unit.fakes import JPEG, schedule

SUCCESS, FAILURE = TransitionCallbackReturn.SUCCESS, TransitionCallbackReturn.FAILURE
PARAMETERS = [
    "robot:=r1",
    "state_size:=3",
    "cameras:=[front]",
    "action_names:=['x','y']",
    "control_rate_hz:=50.0",
    "autostart:=false",
]


class RobotRig(Rig):
    """The robot `r1`, whose sensors the test feeds."""

    def __init__(self) -> None:
        self.node = RobotNode()
        super().__init__(self.node, "r1")
        self.robot = self.robots["r1"]
        self.image = self.peer.create_publisher(CompressedImage, "/r1/camera/front/image/compressed", qos.SENSOR)
        self.chunk = self.peer.create_publisher(msg.ActionChunk, "/r1/rfm/action_chunk", qos.REPLY)
        self.judgement = self.peer.create_publisher(msg.Judgement, "/r1/rfm/judgement", qos.REPLY)
        self.frame = CompressedImage(format="jpeg")
        convert.put(self.frame, "data", array.array("B", JPEG))

    def feed(self) -> None:
        self._feeding = self.peer.create_timer(0.02, self._sense)

    def starve(self) -> None:
        self.peer.destroy_timer(self._feeding)

    def _sense(self) -> None:
        self.image.publish(self.frame)
        self.robot.sense()

    def bring_up(self) -> None:
        assert self.node.trigger_configure() == SUCCESS
        assert self.node.trigger_activate() == SUCCESS

    def work(self) -> Any:
        """A goal's handle, once the robot executes actions for it."""
        self.feed()
        self.schedule.publish(convert.schedule_to(schedule(), "f"))
        handle = self.goal("r1", time_budget_s=600.0)
        self.wait(lambda: self.robot.commands and np.any(self.robot.commands[-1]), "an action")
        return handle

    def result_asked(self, handle: Any) -> Any:
        """The future, once the robot knows that it is asked for."""
        future, (body,) = handle.get_result_async(), self.node._robots
        asking = body._door._action._result_futures[bytes(handle.goal_id.uuid)]._callbacks
        self.wait(lambda: asking, "its knowing that the result is asked for")
        return future

    def count(self, name: str) -> int:
        status = self.robot.status
        return next((c.count for c in status.refused if c.name == name), 0) if status else 0

    def provoke(self, publisher: Any, message: Any, counter: str) -> None:
        """Sends until it is counted: best effort may lose one, discovery may take a moment."""
        for _ in range(120):
            publisher.publish(message)
            end_s = time.monotonic() + 0.7
            while time.monotonic() < end_s and not self.count(counter):
                self.executor.spin_once(timeout_sec=0.02)
            if self.count(counter):
                return
        raise AssertionError(f"{counter} was never counted: {self.robot.status}")


@pytest.fixture
def make_rig(ros_domain: int) -> Iterator[Callable[..., RobotRig]]:
    made: list[RobotRig] = []

    def make(*parameters: str) -> RobotRig:
        rclpy.init(args=["--ros-args", *[part for p in (*PARAMETERS, *parameters) for part in ("-p", p)]])
        made.append(RobotRig())
        return made[0]

    try:
        yield make
    finally:
        for rig in made:
            rig.close()
        rclpy.try_shutdown()


def test_a_status_is_not_new_because_a_number_in_its_text_grew(make_rig: Callable[..., RobotRig]) -> None:
    """A robot whose sensors are silent reports how old they are in every control period, and publishes that twice a second."""
    rig, statuses, diagnoses = make_rig(), list[Any](), list[Any]()
    rig.bring_up()
    rig.work()
    rig.starve()
    rig.wait(lambda: "s old" in rig.robot.status.reason, "old readings")
    rig.peer.create_subscription(msg.RobotStatus, "/r1/rfm/status", statuses.append, qos.ROBOT_STATUS)
    rig.peer.create_subscription(DiagnosticArray, "/diagnostics", diagnoses.append, 100)
    rig.wait(lambda: statuses and diagnoses)
    statuses.clear(), diagnoses.clear()
    begin_s = time.monotonic()
    rig.wait(lambda: len(statuses) >= 6, "six statuses")
    took_s = time.monotonic() - begin_s
    assert took_s > 0.7 * 5 * qos.STATUS_PERIOD_S, f"six statuses within {took_s:.2f} s"
    assert len({status.reason for status in statuses}) > 3, "and each has the newest number"
    own = [one for array in diagnoses for one in array.status if one.name == "r1: robot"]
    assert len(own) <= took_s + 3, f"{len(own)} diagnoses within {took_s:.1f} s"


# --- lifecycle ---


def test_the_lifecycle_goes_round_and_round(make_rig: Callable[..., RobotRig]) -> None:
    rig = make_rig()
    for _ in range(2):
        rig.bring_up()
        rig.robot.status = None
        rig.wait(lambda: rig.robot.status is not None, "a status")
        assert rig.node.trigger_deactivate() == SUCCESS
        assert rig.node.trigger_cleanup() == SUCCESS
        rig.wait(lambda: rig.peer.count_subscribers("/r1/state") == 0, "the end of its subscriptions")
        rig.wait(lambda: rig.peer.count_services("/r1/rfm/pause") == 0, "the end of its services")
    assert rig.node.trigger_shutdown() == SUCCESS


def test_wrong_parameters_leave_it_unconfigured_until_they_are_right(make_rig: Callable[..., RobotRig]) -> None:
    rig = make_rig("fallback:=[fly_away]")
    for _ in range(2):
        assert rig.node.trigger_configure() == FAILURE
    rig.wait(lambda: rig.peer.count_subscribers("/r1/state") == 0)
    rig.node.set_parameters([Parameter("fallback", value=["hold"])])
    rig.bring_up()
    rig.wait(lambda: rig.robot.status is not None, "a status")
    assert rig.node.trigger_shutdown() == SUCCESS  # from active
    rig.wait(lambda: rig.peer.count_publishers("/r1/command") == 0, "the end of its publishers")


def test_deactivating_stops_the_robot_and_cleanup_closes_its_session(make_rig: Callable[..., RobotRig]) -> None:
    rig = make_rig("command_type:=velocity", "fallback:=[zero]")
    rig.bring_up()
    handle = rig.work()
    future = handle.get_result_async()
    assert rig.node.trigger_deactivate() == SUCCESS
    rig.starve()
    rig.wait(future.done, "the result")
    assert future.result().result.error_code == action.ExecuteTask.Result.SHUTDOWN
    rig.wait(lambda: not np.any(rig.robot.commands[-1]), "a command to stand still")
    assert not rig.server.closed
    assert rig.node.trigger_cleanup() == SUCCESS
    rig.wait(lambda: rig.server.closed, "the end of the session")
    assert rig.server.closed == [("r1", rig.server.opened["r1"])]


def test_cleanup_while_a_task_runs_tells_whoever_gave_it(make_rig: Callable[..., RobotRig]) -> None:
    rig = make_rig()
    rig.bring_up()
    future = rig.result_asked(rig.work())
    assert rig.node.trigger_deactivate() == SUCCESS and rig.node.trigger_cleanup() == SUCCESS
    rig.wait(future.done, "the result")
    assert future.result().result.error_code == action.ExecuteTask.Result.SHUTDOWN
    rig.wait(lambda: rig.peer.count_services("/r1/execute_task/_action/send_goal") == 0, "the end of its action")


# --- stopping ---


def test_a_cancel_stops_the_robot_before_its_next_tick(make_rig: Callable[..., RobotRig]) -> None:
    rig = make_rig("command_type:=velocity", "fallback:=[zero]")
    rig.bring_up()
    handle = rig.work()
    (body,) = rig.node._robots
    body.tick = lambda *_, **__: None  # no tick sees the cancel
    rig.spin(0.3)
    rig.robot.commands.clear()
    handle.cancel_goal_async()
    rig.wait(lambda: rig.robot.commands, "the command to stand still")
    assert not np.any(rig.robot.commands[0])
    del body.tick
    assert rig.result(handle).error_code == action.ExecuteTask.Result.CANCELED


@pytest.mark.parametrize("tick", ["state", "timer"])
def test_a_robot_whose_sensors_fall_silent_is_told_to_stand(make_rig: Callable[..., RobotRig], tick: str) -> None:
    rig = make_rig("command_type:=velocity", "fallback:=[zero]", "max_observation_age_s:=0.2", f"tick:={tick}")
    rig.bring_up()
    handle = rig.work()
    rig.starve()
    rig.wait(lambda: not np.any(rig.robot.commands[-1]), "the command to stand still")
    rig.robot.commands.clear()
    rig.spin(0.3)
    assert not np.any(rig.robot.commands)
    handle.cancel_goal_async()  # a task ends without sensors too
    assert rig.result(handle).error_code == action.ExecuteTask.Result.CANCELED


def test_of_more_states_than_control_periods_some_begin_none_and_that_is_said(make_rig: Callable[..., RobotRig]) -> None:
    rig = make_rig("control_rate_hz:=5.0")  # ten times as many states come
    rig.bring_up()
    rig.work()
    rig.robot.commands.clear()
    begun_s = time.monotonic()
    rig.spin(3.0)
    assert 3 <= len(rig.robot.commands) <= 3 + 5.0 * (time.monotonic() - begun_s)
    rig.wait(lambda: "begin no control period" in rig.values("r1").get("state_rate_misfit", ""), "the misfit")


def test_people_pause_resume_and_abort(make_rig: Callable[..., RobotRig]) -> None:
    rig = make_rig()
    rig.bring_up()
    services = rig.robot.services
    refused = rig.call(services["abort"])
    assert not refused.success and refused.message
    assert not rig.call(services["resume"]).success
    handle = rig.work()
    assert rig.call(services["pause"]).success
    rig.wait(lambda: rig.robot.status.paused, "the pause")
    rig.wait(lambda: rig.diagnostics["r1: robot"].level != DiagnosticStatus.OK, "the pause in diagnostics")
    rig.robot.commands.clear()
    rig.spin(0.3)
    assert all(not np.any(command) for command in rig.robot.commands)
    assert rig.call(services["resume"]).success
    rig.wait(lambda: rig.robot.commands and np.any(rig.robot.commands[-1]), "actions again")
    assert rig.call(services["abort"]).success
    result = rig.result(handle)
    assert result.error_code == action.ExecuteTask.Result.ABORTED and result.error_msg


def test_a_control_period_that_fails_stops_the_robot_and_the_next_one_goes_on(
    make_rig: Callable[..., RobotRig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig("command_type:=velocity", "fallback:=[zero]")
    rig.bring_up()
    rig.work()
    (body,) = rig.node._robots

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("on purpose")

    with monkeypatch.context() as patch:
        patch.setattr(body.brain, "tick", broken)
        rig.wait(lambda: body.errors > 2, "errors")
        rig.robot.commands.clear()
        rig.wait(lambda: rig.robot.commands, "commands")
        assert not np.any(rig.robot.commands[-1])
    rig.robot.commands.clear()
    rig.wait(lambda: rig.robot.commands and np.any(rig.robot.commands[-1]), "actions again")
    rig.wait(lambda: int(rig.values("r1")["callback_errors"]) > 2, "the errors in diagnostics")


# --- what it tells ---


def test_diagnostics_say_at_once_what_has_changed(make_rig: Callable[..., RobotRig]) -> None:
    rig = make_rig()
    rig.bring_up()
    rig.wait(lambda: "r1: robot" in rig.diagnostics, "diagnostics")
    first = rig.diagnostics["r1: robot"]
    assert first.level == DiagnosticStatus.WARN and first.message and first.hardware_id == "r1"
    rig.work()
    rig.wait(lambda: rig.diagnostics["r1: robot"].level == DiagnosticStatus.OK, "streaming")
    assert {"queue_depth", "tick_late_p99_ms", "retries", "CONNECTING to STREAMING"} <= rig.values("r1").keys()
    told = len(rig.levels["r1: robot"])
    rig.call(rig.robot.services["pause"])
    rig.wait(lambda: len(rig.levels["r1: robot"]) > told)
    assert rig.levels["r1: robot"][told] == DiagnosticStatus.WARN


def test_a_timer_ticks_with_the_newest_readings_and_says_how_late_it_was(make_rig: Callable[..., RobotRig]) -> None:
    rig = make_rig("tick:=timer")
    rig.bring_up()
    handle = rig.work()
    rig.starve()
    ticks = int(rig.wait(lambda: rig.values("r1"))["ticks"])
    rig.wait(lambda: int(rig.values("r1")["ticks"]) > ticks + 20, "ticks without a state")
    assert float(rig.values("r1")["tick_late_p50_ms"]) >= 0.0
    handle.cancel_goal_async()
    assert rig.result(handle).error_code == action.ExecuteTask.Result.CANCELED


def test_punctuality_of_a_grid_and_of_a_rhythm() -> None:
    grid = Punctuality(0.1, on_grid=True)
    for at_s in (1.0, 1.1, 1.23, 1.3, 1.65, 1.7):  # 30 ms late, then 250 ms, two periods of them missed
        grid.ticked(at_s)
    assert grid.missed == 2 and grid.ticks == 6
    assert grid.late_s(0.0, 1.0) == pytest.approx([0.0, 0.25], abs=1e-9)
    rhythm = Punctuality(0.1, on_grid=False)
    for at_s in (1.0, 1.09, 1.18, 1.31):  # faster than declared is no lateness
        rhythm.ticked(at_s)
    assert rhythm.late_s(0.5, 1.0) == pytest.approx([0.0, 0.03], abs=1e-9)
    rhythm.restart()
    rhythm.ticked(9.0)
    assert rhythm.missed == 0


# --- what it refuses ---


def test_hostile_messages_are_counted_and_the_robot_lives_on(make_rig: Callable[..., RobotRig]) -> None:
    rig = make_rig()
    rig.bring_up()
    rig.provoke(rig.robot.state, Float32MultiArray(data=[1.0, float("nan"), 0.0]), "bad_state")
    before = rig.count("bad_state")
    rig.robot.state.publish(Float32MultiArray(data=[1.0] * 100))
    rig.wait(lambda: rig.count("bad_state") > before)

    huge = CompressedImage(format="jpeg")
    convert.put(huge, "data", array.array("B", bytes(50_000_000)))
    rig.provoke(rig.image, huge, "image_too_large")

    lying = msg.ActionChunk()
    lying.chunk_robot.rows, lying.chunk_robot.columns = 1000, 2
    rig.provoke(rig.chunk, lying, "bad_shape")
    unknown = msg.ActionChunk()
    unknown.id.component = "nobody"
    rig.provoke(rig.chunk, unknown, "unknown_component")

    rig.schedule.publish(convert.schedule_to(schedule(epoch=5), "f"))
    rig.wait(lambda: rig.robot.status.schedule_epoch == 5)
    rig.provoke(rig.schedule, convert.schedule_to(schedule(epoch=4), "f"), "stale_schedule")
    foreign = msg.Judgement()
    foreign.id.component = "system1"
    foreign.id.session_epoch = 99
    rig.provoke(rig.judgement, foreign, "stale_epoch")
    assert rig.robot.status.schedule_epoch == 5
