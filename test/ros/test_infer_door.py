"""A goal of `infer` that cannot be answered says why."""

from __future__ import annotations

from collections.abc import Callable

from action_msgs.msg import GoalStatus
from rclpy.action import ActionClient
from rfm_serving import action

from test.ros.test_parameter_services import Services, make  # noqa: F401


def test_a_goal_while_no_model_is_served_is_accepted_and_told_so(make: Callable[..., Services]) -> None:  # noqa: F811
    rig = make("model_server", model="", autostart=False)
    client = ActionClient(rig.peer, action.Infer, "/rfm/servers/s1/infer")
    rig.wait(client.server_is_ready, "the action")
    sending = client.send_goal_async(action.Infer.Goal())
    handle = rig.wait(lambda: sending.done() and sending.result(), "an answer")
    assert handle.accepted
    ending = handle.get_result_async()
    told = rig.wait(lambda: ending.done() and ending.result(), "the result")
    assert told.status == GoalStatus.STATUS_ABORTED
    assert told.result.error_code == 200 and "no model is served" in told.result.error_msg
