"""Gives every robot its declared task, over and over, through `ExecuteTask`, as any client would."""

from __future__ import annotations

import array
import json
from pathlib import Path
from typing import Any

from action_msgs.msg import GoalStatus
from rclpy.action import ActionClient
from rclpy.node import Node
from rfm_serving import action, msg

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.ros.runtime import clock, fleet_names, parameter, run_node
from ros2_rfm_serving.ros.timers import every
from ros2_rfm_serving.ros.wire import qos

SILENT_AFTER_S = 10.0


class ForemanNode(Node):
    def __init__(self) -> None:
        super().__init__("foreman")
        self._robots = [robot for robot in parameter(self, "robots", [""], "Robots to keep at work") if robot]
        if not self._robots:
            raise ConfigurationError("names no robot", key="robots", fix="write robots: [arm_1, arm_2]")
        self._episodes = parameter(self, "episodes", 0, "Tasks per robot, then stop; 0: without end")
        self._budget_s = parameter(self, "time_budget_s", 0.0, "Time for a task; 0: the robot's default")
        self._until_success = parameter(
            self, "end_on_score", False, "End a task when the simulator's score says success (for evaluation of policies)"
        )
        self._pause_s = parameter(self, "pause_s", 0.5, "Between two tasks of a robot")
        results = parameter(self, "results_file", "", "Results are appended there, one JSON object a line; empty: nowhere")
        self._results = Path(results) if results else None
        names = fleet_names(self)
        self._jobs = {robot: _Job(self, robot, names) for robot in self._robots}
        if self._until_success:
            for robot, job in self._jobs.items():
                self.create_subscription(msg.EpisodeScore, names.robot(robot, "world/score"), job.on_score, qos.SCORE)
        every(self, self._pause_s, self._give_work)

    def record(self, robot: str, result: Any, steps: int) -> None:
        """steps: to the simulator's success; 0: it was none."""
        if self._results:
            fields = {name: getattr(result, name) for name in result.get_fields_and_field_types()}
            line = {"robot": robot, "steps": steps, **{k: list(v) if isinstance(v, array.array) else v for k, v in fields.items()}}
            with self._results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    def _give_work(self) -> None:
        for job in self._jobs.values():
            if job.is_lost(clock()):
                self.get_logger().warning(f"{job.robot} fell silent during its task; it gets a new one")
                job.abandon()
            if job.idle and (not self._episodes or job.done < self._episodes):
                job.start(self._budget_s)


class _Job:
    """One robot's current goal. What a former goal still reports is ignored: `attempt` tells them apart."""

    def __init__(self, node: ForemanNode, robot: str, names: qos.Names) -> None:
        self.robot, self.idle, self.done, self._steps = robot, True, 0, 0
        self._node, self._attempt, self._heard_s = node, 0, 0.0
        self._goal: Any = None
        self._client = ActionClient(node, action.ExecuteTask, names.robot(robot, "execute_task"))

    def start(self, budget_s: float) -> None:
        if not self._client.server_is_ready():
            return
        self.idle, self._heard_s, self._steps = False, clock(), 0
        self._attempt += 1
        attempt = self._attempt
        goal = action.ExecuteTask.Goal(time_budget_s=budget_s, reset=True)
        sending = self._client.send_goal_async(goal, lambda _: self._on_feedback(attempt))
        sending.add_done_callback(lambda future: self._on_answer(attempt, future.result()))

    def is_lost(self, now_s: float) -> bool:
        """A robot tells how it goes twice a second; one that does not has died, and its goal with it."""
        return not self.idle and now_s - self._heard_s > SILENT_AFTER_S

    def abandon(self) -> None:
        self._attempt += 1
        self._goal, self.idle = None, True

    def on_score(self, score: Any) -> None:
        if score.success and not score.finished and self._goal is not None:
            goal, self._goal, self._steps = self._goal, None, score.steps
            goal.cancel_goal_async()

    def _on_feedback(self, attempt: int) -> None:
        if attempt == self._attempt:
            self._heard_s = clock()

    def _on_answer(self, attempt: int, goal: Any) -> None:
        if attempt != self._attempt:
            return
        if goal is None or not goal.accepted:
            self.abandon()
            return
        self._goal = goal
        goal.get_result_async().add_done_callback(lambda future: self._on_result(attempt, future.result()))

    def _on_result(self, attempt: int, answer: Any) -> None:
        if attempt != self._attempt:
            return
        self.abandon()
        if answer is None:
            return
        self.done += 1
        result = answer.result
        self._node.record(self.robot, result, self._steps)
        how = {GoalStatus.STATUS_SUCCEEDED: "succeeded", GoalStatus.STATUS_CANCELED: "canceled"}.get(answer.status, "aborted")
        self._node.get_logger().info(
            f"{self.robot}: episode {result.episode} {how} after {result.duration_s:.1f} s, {result.executed_steps} actions, "
            f"{result.held_steps} held{': ' if result.error_msg else ''}{result.error_msg}"
        )


def main() -> None:
    run_node(ForemanNode, __doc__)


if __name__ == "__main__":
    main()
