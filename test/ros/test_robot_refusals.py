"""A robot says in its diagnoses which of its components no server serves, and why."""

from __future__ import annotations

from diagnostic_msgs.msg import DiagnosticStatus

from ros2_rfm_serving.robot import RobotCore
from ros2_rfm_serving.ros.robot.status import Punctuality, Rhythm, diagnosis, status_message
from ros2_rfm_serving.types import SYSTEM2
from test.unit.robot.test_plans import PlannedWorld

WHY = "cameras: the robot has ('front',), the model ('overhead',)"


def said(brain: RobotCore, now_s: float) -> DiagnosticStatus:
    punctuality = Punctuality(0.05, on_grid=True)
    return diagnosis(status_message(brain, "t", punctuality, now_s), brain, punctuality, Rhythm(20.0), 0, {}, now_s)


def test_a_planner_that_does_not_fit_is_a_warning_in_words() -> None:
    made = PlannedWorld()
    made.run(1.0)
    healthy = said(made.brain, made.now_s)
    assert healthy.level == DiagnosticStatus.OK
    planner = made.brain._clients.get(SYSTEM2)
    assert planner is not None
    planner.on_refused(f"home refuses: {WHY}", made.now_s)
    warned = said(made.brain, made.now_s)
    assert warned.level == DiagnosticStatus.WARN and warned.message == f"system2: home refuses: {WHY}"
    assert {pair.key: pair.value for pair in warned.values}["not served system2"].endswith(WHY)
