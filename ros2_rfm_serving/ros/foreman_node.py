"""Gives every robot its declared task, again and again, through `ExecuteTask`, as any client would."""

from __future__ import annotations

import array
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from action_msgs.msg import GoalStatus
from rclpy.node import Node
from rfm_serving import action, msg

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.ros.node.changes import Changes
from ros2_rfm_serving.ros.node.doorkeeper import prover_of_process, verifier_of_process
from ros2_rfm_serving.ros.node.parameters import NOTHING, Spec, Values, When, declare
from ros2_rfm_serving.ros.node.runtime import clock, fleet_names, run_node
from ros2_rfm_serving.ros.node.task_client import TaskClient
from ros2_rfm_serving.ros.node.timers import every
from ros2_rfm_serving.ros.wire import bounded, qos
from ros2_rfm_serving.types import TaskOutcome

SILENT_AFTER_S = 10.0
BUSY_PAUSE_S = 2.0
"""Pause before the next goal to a robot that is inactive or works for another client."""
NAME = "foreman"
NEVER_DONE = (
    *(TaskOutcome.BUSY, TaskOutcome.PREEMPTED, TaskOutcome.INACTIVE, TaskOutcome.REJECTED, TaskOutcome.SHUTDOWN),
    *(TaskOutcome.UNPROVEN, TaskOutcome.NOT_KEPT),
)
"""Outcomes of goals that say nothing about the task."""
SPECS = {
    "robots": Spec([""], "Robots to keep at work"),
    "wait_for_reset": Spec([""], "Simulated robots: their tasks begin once `reset` is offered; others' without, where it is not"),
    "episodes": Spec(0, "Tasks per robot, then stop; 0: without end", 0, when=When.ANY),
    "time_budget_s": Spec(0.0, "Time for a task; 0: the robot's default", 0.0, 1e9, when=When.ANY),
    "end_on_score": Spec(False, "End a task when the simulator's score says success (for evaluation of policies)"),
    "pause_s": Spec(0.5, "Between two tasks of a robot", 0.01, 1e6, when=When.ANY),
    "results_file": Spec("", "Results are appended there, one JSON object a line; empty: nowhere"),
}


class Work(NamedTuple):
    """Settings that may change at run time; they take effect with the next task."""

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
        waiting = set(values.texts("wait_for_reset"))
        self._jobs = {robot: _Job(self, robot, names, waits_for_reset=robot in waiting) for robot in robots}
        if values.flag("end_on_score"):
            for robot, job in self._jobs.items():
                topic = names.robot(robot, "world/score")
                bounded.hear(self, msg.EpisodeScore, topic, job.on_score, qos.SCORE, lambda error: None)  # reported elsewhere
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
        """Append the result to the results file. steps: number of steps until the simulator reported success; 0: no success."""
        if self._results:
            fields = {name: getattr(result, name) for name in result.get_fields_and_field_types()}
            line = {"robot": robot, "steps": steps, **{k: list(v) if isinstance(v, array.array) else v for k, v in fields.items()}}
            with self._results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    def _give_work(self) -> None:
        for job in self._jobs.values():
            if job.is_lost(clock()):
                self.get_logger().warning(f"{job.robot} fell silent during its task; it gets a new one")
                job.client.abandon()
            job.client.poll(clock())
            if job.idle and clock() >= job.not_before_s and (not self._work.episodes or job.done < self._work.episodes):
                job.start(self._work.budget_s)


class _Job:
    """Goals that one robot gets, one after the other."""

    def __init__(self, node: ForemanNode, robot: str, names: qos.Names, *, waits_for_reset: bool) -> None:
        self.robot, self.done, self._steps = robot, 0, 0
        self._node, self._waits_for_reset, self._reset_name = node, waits_for_reset, names.robot(robot, "reset")
        self.not_before_s = 0.0
        """Earliest time of the next goal."""
        self.client = TaskClient(node, robot, names, node.prover, node.verifier)

    @property
    def idle(self) -> bool:
        return not self.client.is_busy

    def start(self, budget_s: float) -> None:
        offers_reset = self._node.count_services(self._reset_name) > 0
        if not self.client.is_ready or (self._waits_for_reset and not offers_reset):
            return
        self._steps = 0
        self.client.start(action.ExecuteTask.Goal(time_budget_s=budget_s, reset=offers_reset, requester=NAME), self._on_end)

    def is_lost(self, now_s: float) -> bool:
        """Return whether the robot has died during its goal: a live robot sends feedback twice a second."""
        return self.client.is_busy and now_s - self.client.heard_s > SILENT_AFTER_S

    def on_score(self, score: Any) -> None:
        if score.success and not score.finished and self.client.is_accepted and not self._steps:
            self._steps = score.steps
            self.client.cancel()

    def _on_end(self, status: int, result: Any) -> None:
        log = self._node.get_logger()
        if result.error_code in NEVER_DONE:
            self.not_before_s = clock() + BUSY_PAUSE_S
            say = log.warning if result.error_code in (TaskOutcome.REJECTED, TaskOutcome.UNPROVEN) else log.debug
            say(f"{self.robot}: {result.error_msg}", throttle_duration_sec=60.0)
            return
        self.done += 1
        self._node.record(self.robot, result, self._steps)
        how = {GoalStatus.STATUS_SUCCEEDED: "succeeded", GoalStatus.STATUS_CANCELED: "canceled"}.get(status, "aborted")
        log.debug(
            f"{self.robot}: episode {result.episode} {how} after {result.duration_s:.1f} s, {result.executed_steps} actions, "
            f"{result.held_steps} held{': ' if result.error_msg else ''}{result.error_msg}"
        )


def main() -> None:
    run_node(ForemanNode, __doc__, SPECS)


if __name__ == "__main__":
    main()
