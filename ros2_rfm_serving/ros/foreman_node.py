"""Gives every robot its declared task, over and over, through `ExecuteTask`, as any client would."""

from __future__ import annotations

from typing import Any

from action_msgs.msg import GoalStatus
from rclpy.action import ActionClient
from rclpy.node import Node
from rfm_serving import action, msg

from ros2_rfm_serving.ros import qos
from ros2_rfm_serving.ros.runtime import fleet_names, parameter, run_node


class ForemanNode(Node):
    def __init__(self) -> None:
        super().__init__("foreman")
        self._robots = [robot for robot in parameter(self, "robots", [""], "Robots to keep at work") if robot]
        self._episodes = parameter(self, "episodes", 0, "Tasks per robot, then stop; 0: without end")
        self._budget_s = parameter(self, "time_budget_s", 0.0, "Time for a task; 0: the robot's default")
        self._until_success = parameter(
            self, "end_on_score", False, "End a task when the simulator's score says success (for evaluation of policies)"
        )
        self._pause_s = parameter(self, "pause_s", 0.5, "Between two tasks of a robot")
        names = fleet_names(self)
        self._jobs = {robot: _Job(self, robot, names) for robot in self._robots}
        if self._until_success:
            for robot, job in self._jobs.items():
                self.create_subscription(msg.EpisodeScore, names.robot(robot, "world/score"), job.on_score, qos.SCORE)
        self.create_timer(self._pause_s, self._give_work)

    def _give_work(self) -> None:
        for job in self._jobs.values():
            if job.idle and (not self._episodes or job.done < self._episodes):
                job.start(self._budget_s)

    @property
    def finished(self) -> bool:
        """All robots did what was asked."""
        return bool(self._episodes) and all(job.done >= self._episodes for job in self._jobs.values())


class _Job:
    """One robot's current goal."""

    def __init__(self, node: Node, robot: str, names: qos.Names) -> None:
        self._node, self._robot = node, robot
        self._client = ActionClient(node, action.ExecuteTask, names.robot(robot, "execute_task"))
        self._goal: Any = None
        self.idle = True
        self.done = 0

    def start(self, budget_s: float) -> None:
        if not self._client.server_is_ready():
            return
        self.idle = False
        goal = action.ExecuteTask.Goal(time_budget_s=budget_s, reset=True)
        self._client.send_goal_async(goal).add_done_callback(self._on_answer)

    def on_score(self, score: Any) -> None:
        if score.success and not score.finished and self._goal is not None:
            goal, self._goal = self._goal, None
            goal.cancel_goal_async()

    def _on_answer(self, future: Any) -> None:
        self._goal = future.result()
        if self._goal is None or not self._goal.accepted:
            self._goal, self.idle = None, True
            return
        self._goal.get_result_async().add_done_callback(self._on_result)

    def _on_result(self, future: Any) -> None:
        answer = future.result()
        self._goal, self.idle = None, True
        if answer is None:
            return
        self.done += 1
        result = answer.result
        how = {GoalStatus.STATUS_SUCCEEDED: "succeeded", GoalStatus.STATUS_CANCELED: "canceled"}.get(answer.status, "aborted")
        self._node.get_logger().info(
            f"{self._robot}: episode {result.episode} {how} after {result.duration_s:.1f} s, {result.executed_steps} actions, "
            f"{result.held_steps} held{': ' if result.error_msg else ''}{result.error_msg}"
        )


def main() -> None:
    run_node(ForemanNode)


if __name__ == "__main__":
    main()
