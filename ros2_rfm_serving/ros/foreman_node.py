"""Gives every robot its declared task, over and over, through `ExecuteTask`, as any client would."""

from __future__ import annotations

import array
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from action_msgs.msg import GoalStatus
from rclpy.action import ActionClient
from rclpy.node import Node
from rfm_serving import action, msg, srv

from ros2_rfm_serving.errors import ConfigurationError, UnprovenError
from ros2_rfm_serving.ros.node.changes import Changes
from ros2_rfm_serving.ros.node.doorkeeper import Signing, prover_of_process, verifier_of_process
from ros2_rfm_serving.ros.node.parameters import NOTHING, Spec, Values, When, declare
from ros2_rfm_serving.ros.node.runtime import clock, fleet_names, run_node
from ros2_rfm_serving.ros.node.timers import every, turns_of
from ros2_rfm_serving.ros.wire import bounded, qos
from ros2_rfm_serving.types import TaskOutcome

SILENT_AFTER_S = 10.0
BUSY_PAUSE_S = 2.0
"""Before a robot that works for somebody else, or is not active, is asked again."""
NAME = "foreman"
NEVER_DONE = (
    *(TaskOutcome.BUSY, TaskOutcome.PREEMPTED, TaskOutcome.INACTIVE, TaskOutcome.REJECTED, TaskOutcome.SHUTDOWN),
    TaskOutcome.UNPROVEN,
)
"""Ends of goals that say nothing about the task."""
SPECS = {
    "robots": Spec([""], "Robots to keep at work"),
    "reset_if_offered": Spec([""], "Real robots: their tasks begin without a reset while nobody offers `reset`"),
    "episodes": Spec(0, "Tasks per robot, then stop; 0: without end", 0, when=When.ANY),
    "time_budget_s": Spec(0.0, "Time for a task; 0: the robot's default", 0.0, 1e9, when=When.ANY),
    "end_on_score": Spec(False, "End a task when the simulator's score says success (for evaluation of policies)"),
    "pause_s": Spec(0.5, "Between two tasks of a robot", 0.01, 1e6, when=When.ANY),
    "results_file": Spec("", "Results are appended there, one JSON object a line; empty: nowhere"),
}


class Work(NamedTuple):
    """What may change while they work: from the next task on."""

    episodes: int
    budget_s: float
    pause_s: float


class ForemanNode(Node):
    def __init__(self) -> None:
        super().__init__("foreman")
        self.prover, self.verifier = prover_of_process(), verifier_of_process()
        declared = declare(self, SPECS)
        values = Values(self, SPECS)
        results = values.text("results_file")
        self._results = Path(results) if results else None
        names = fleet_names(self)
        robots = values.distinct("robots")
        if not robots:
            raise ConfigurationError("names no robot", key="robots", fix="write robots: [arm_1, arm_2]")
        optional = set(values.texts("reset_if_offered"))
        self._jobs = {robot: _Job(self, robot, names, reset_is_optional=robot in optional) for robot in robots}
        if values.flag("end_on_score"):
            for robot, job in self._jobs.items():
                topic = names.robot(robot, "world/score")
                bounded.hear(self, msg.EpisodeScore, topic, job.on_score, qos.SCORE, lambda error: None)  # it has been said
        self._work = self._read(NOTHING)
        self._timer = every(self, self._work.pause_s, self._give_work)
        Changes(self, declared, self._accept)

    def _read(self, changed: Mapping[str, Any]) -> Work:
        values = Values(self, SPECS, changed=changed)
        return Work(values.integer("episodes"), values.number("time_budget_s"), values.number("pause_s"))

    def _accept(self, changed: Mapping[str, Any]) -> Callable[[], None]:
        work = self._read(changed)

        def apply() -> None:
            self._work = work
            self.destroy_timer(self._timer)
            self._timer = every(self, work.pause_s, self._give_work)

        return apply

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
            if job.idle and clock() >= job.not_before_s and (not self._work.episodes or job.done < self._work.episodes):
                job.start(self._work.budget_s)


class _Job:
    """One robot's current goal. What a former goal still reports is ignored: `attempt` tells them apart."""

    def __init__(self, node: ForemanNode, robot: str, names: qos.Names, *, reset_is_optional: bool) -> None:
        self.robot, self.idle, self.done, self._steps = robot, True, 0, 0
        self._node, self._attempt, self._heard_s = node, 0, 0.0
        self._goal: Any = None
        self._reset_is_optional, self._reset_name = reset_is_optional, names.robot(robot, "reset")
        self.not_before_s = 0.0
        """When the robot may be asked again."""
        self._signing = Signing(node.prover, robot, node.verifier)
        self._client = ActionClient(node, action.ExecuteTask, names.robot(robot, "execute_task"))
        self._orders: Any = None
        """Where there are certificates: tells the challenge for the next goal, and takes a cancel."""
        if node.prover:
            self._orders = node.create_client(srv.Order, names.robot(robot, "rfm/order"), qos_profile=qos.CONTROL)

    def start(self, budget_s: float) -> None:
        if not self._client.server_is_ready() or not (self._orders is None or self._orders.service_is_ready()):
            return
        self.idle, self._heard_s, self._steps = False, clock(), 0
        self._attempt += 1
        attempt, self._signing = self._attempt, Signing(self._node.prover, self.robot, self._node.verifier)
        reset = not self._reset_is_optional or self._node.count_services(self._reset_name) > 0
        wanted = action.ExecuteTask.Goal(time_budget_s=budget_s, reset=reset, requester=NAME)
        if self._orders is None:
            self._ask(attempt, wanted)
        else:
            asked = self._ordering(self._signing, srv.Order.Request())
            asked.add_done_callback(lambda done: self._prove(attempt, wanted, done.result()))

    def _prove(self, attempt: int, wanted: Any, told: Any) -> None:
        """told: has the challenge."""
        if attempt == self._attempt:
            self._signing.is_anew(wanted, told)
            self._ask(attempt, wanted)

    def _ask(self, attempt: int, wanted: Any) -> None:
        sending = self._client.send_goal_async(wanted, lambda _: self._on_feedback(attempt))
        sending.add_done_callback(lambda future: self._on_answer(attempt, wanted, future.result()))

    def is_lost(self, now_s: float) -> bool:
        """A robot tells how it goes twice a second; one that does not has died, and its goal with it."""
        return not self.idle and now_s - self._heard_s > SILENT_AFTER_S

    def abandon(self) -> None:
        self._attempt += 1
        self._goal, self.idle = None, True

    def on_score(self, score: Any) -> None:
        if score.success and not score.finished and self._goal is not None:
            goal, self._goal, self._steps = self._goal, None, score.steps
            if self._orders is None:
                goal.cancel_goal_async()
            else:
                self._cancel(goal)

    def _ordering(self, signing: Signing, order: Any) -> Any:
        """The future answer: the robot's own, or anybody's of a robot that may have no certificate."""
        return signing.call(self._orders, order, turns_of(self._node).once)

    def _cancel(self, goal: Any) -> None:
        """With a proof, for the challenge that is told first. Of that goal alone: an answer may come when the next task runs."""
        node, attempt, order = self._node, self._attempt, srv.Order.Request(goal=goal.goal_id.uuid)
        signing = Signing(node.prover, self.robot, node.verifier)

        def told(answer: Any) -> None:
            if attempt != self._attempt:
                return
            is_first, order.what = not order.what, "cancel"
            try:
                if signing.is_anew(order, answer) or is_first:  # a robot without a certificate tells no challenge
                    self._ordering(signing, order).add_done_callback(lambda done: told(done.result()))
            except UnprovenError as error:
                node.get_logger().warning(f"{self.robot}: {error}")

        self._ordering(signing, srv.Order.Request()).add_done_callback(lambda done: told(done.result()))

    def _on_feedback(self, attempt: int) -> None:
        if attempt == self._attempt:
            self._heard_s = clock()

    def _on_answer(self, attempt: int, wanted: Any, goal: Any) -> None:
        if attempt != self._attempt:
            return
        if goal is None or not goal.accepted:
            self.abandon()
            return
        self._goal = goal
        goal.get_result_async().add_done_callback(lambda future: self._on_result(attempt, wanted, future.result()))

    def _on_result(self, attempt: int, wanted: Any, answer: Any) -> None:
        if attempt != self._attempt:
            return
        try:
            if answer is not None and self._signing.is_anew(wanted, answer.result):
                self._ask(attempt, wanted)
                return
        except UnprovenError as error:
            answer.result.error_msg = str(error)
        self.abandon()
        if answer is None:
            return
        result = answer.result
        if result.error_code in NEVER_DONE:
            self.not_before_s = clock() + BUSY_PAUSE_S
            log = self._node.get_logger()
            say = log.warning if result.error_code in (TaskOutcome.REJECTED, TaskOutcome.UNPROVEN) else log.debug
            say(f"{self.robot}: {result.error_msg}", throttle_duration_sec=60.0)
            return
        self.done += 1
        self._node.record(self.robot, result, self._steps)
        how = {GoalStatus.STATUS_SUCCEEDED: "succeeded", GoalStatus.STATUS_CANCELED: "canceled"}.get(answer.status, "aborted")
        self._node.get_logger().debug(
            f"{self.robot}: episode {result.episode} {how} after {result.duration_s:.1f} s, {result.executed_steps} actions, "
            f"{result.held_steps} held{': ' if result.error_msg else ''}{result.error_msg}"
        )


def main() -> None:
    run_node(ForemanNode, __doc__, SPECS)


if __name__ == "__main__":
    main()
