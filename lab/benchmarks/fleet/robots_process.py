"""Robots of `rfm bench fleet`: many in one process, with their sensors and tasks, hosted as by `robots_node`. Events of each are
written to a file with times of the machine's monotonic clock."""

from __future__ import annotations

import array
import json
import math
from functools import partial
from pathlib import Path
from typing import Any

from rclpy.action import ActionClient
from rclpy.lifecycle import LifecycleState, TransitionCallbackReturn
from rfm_serving import action
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import Float32MultiArray

from lab.benchmarks.fleet.factory import CAMERA, STATE_SIZE
from lab.benchmarks.path.pictures import photograph
from ros2_rfm_serving.ros.node.runtime import clock, parameter, run_node
from ros2_rfm_serving.ros.node.timers import every
from ros2_rfm_serving.ros.robot.body import RobotBody
from ros2_rfm_serving.ros.robot.declared import SPECS
from ros2_rfm_serving.ros.robots_node import WHO, RobotsNode
from ros2_rfm_serving.ros.wire import convert, qos
from ros2_rfm_serving.types import SYSTEM1

IMAGE_PX = (320, 240)
"""Size of an image, 20 KB as a JPEG."""
IMAGE_PERIODS = 2
LOOK_PERIOD_S, TOTAL_PERIOD_S, TASK_PERIOD_S, ANSWER_S = 0.05, 0.5, 1.0, 20.0


class Seen:
    """Last observed state of one robot."""

    def __init__(self, body: RobotBody) -> None:
        self.body = body
        self.scheduler = 0
        self.server = self.answered_by = ""
        self.answers = 0
        self.asked_s = -math.inf
        self.works = False


class FleetRobots(RobotsNode):
    def __init__(self) -> None:
        super().__init__()
        self._notes = Path(parameter(self, "notes", "", "File")).open("w", encoding="utf-8")  # noqa: SIM115 as long as the node
        self._seen: list[Seen] = []
        self._turn = 0
        self._own_timers: list[Any] = []

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        done = super().on_activate(state)
        names = qos.Names()
        self._state = Float32MultiArray(data=array.array("f", bytes(4 * STATE_SIZE)))
        self._image = CompressedImage(format="jpeg")
        convert.put(self._image, "data", array.array("B", photograph(*IMAGE_PX, 1)))
        self._seen = [Seen(body) for body in self._robots]
        self._states = [self.create_publisher(Float32MultiArray, names.robot(b.name, "state"), qos.SENSOR) for b in self._robots]
        topics = [names.robot(body.name, f"camera/{CAMERA}/image/compressed") for body in self._robots]
        self._images = [self.create_publisher(CompressedImage, topic, qos.SENSOR) for topic in topics]
        self._tasks = [ActionClient(self, action.ExecuteTask, names.robot(body.name, "execute_task")) for body in self._robots]
        rate_hz = sum(body.settings.config.control_rate_hz for body in self._robots)
        own = {
            self._sense_next: 1.0 / rate_hz,
            self._give_tasks: TASK_PERIOD_S,
            self._look: LOOK_PERIOD_S,
            self._total: TOTAL_PERIOD_S,
        }
        self._own_timers = [every(self, period_s, work) for work, period_s in own.items()]
        self._note(what="active")
        return done

    def stop(self) -> None:
        """Stop its own work first: robots that stop receive no sensor data and no task, which they would have to refuse."""
        for timer in self._own_timers:
            timer.cancel()
        super().stop()

    def _sense_next(self) -> None:
        """Publish the sensors of the next robot, spread over the period, because the robots of a fleet are independent."""
        period, index = divmod(self._turn, len(self._states))
        self._turn += 1
        if (period + index) % IMAGE_PERIODS == 0:
            self._images[index].publish(self._image)
        self._states[index].publish(self._state)

    def _give_tasks(self) -> None:
        for seen, door in zip(self._seen, self._tasks, strict=True):
            if not seen.works and seen.asked_s + ANSWER_S < clock() and door.server_is_ready():
                seen.asked_s = clock()
                sending = door.send_goal_async(action.ExecuteTask.Goal(time_budget_s=1e6))
                sending.add_done_callback(partial(self._on_answer, seen))

    def _on_answer(self, seen: Seen, done: Any) -> None:
        goal = done.result()
        if goal and goal.accepted:
            seen.works = True
            goal.get_result_async().add_done_callback(lambda _: setattr(seen, "works", False))

    # --- notes ---

    def _note(self, **told: Any) -> None:
        self._notes.write(json.dumps({"at_s": clock(), **told}) + "\n")
        self._notes.flush()

    def _look(self) -> None:
        for seen in self._seen:
            brain, name = seen.body.brain, seen.body.name
            if brain.schedule_follower.scheduler != seen.scheduler:
                seen.scheduler = brain.schedule_follower.scheduler
                self._note(what="follows", robot=name, whom=str(seen.scheduler))
            server = next((server for server, component, _ in brain.sessions if component == SYSTEM1), "")
            if server != seen.server:
                seen.server = server
                self._note(what="session", robot=name, whom=server)
            answers = _answers(brain)
            if answers > seen.answers and server != seen.answered_by and server:
                seen.answered_by = server
                self._note(what="answered", robot=name, whom=server)
            seen.answers = answers

    def _total(self) -> None:
        brains = [seen.body.brain for seen in self._seen]
        told = {"streaming": sum(brain.state.name == "STREAMING" for brain in brains), "answers": sum(map(_answers, brains))}
        late = sum(brain.figures[SYSTEM1].late for brain in brains if SYSTEM1 in brain.figures)
        held = sum(brain.held_ticks for brain in brains)
        self._note(
            what="total", late=late, held=held, refused=dict(sum((brain.refused for brain in brains), start=_none())), **told
        )


def _none() -> Any:
    from collections import Counter

    return Counter()


def _answers(brain: Any) -> int:
    figures = brain.figures.get(SYSTEM1)
    return figures.in_time + figures.late if figures else 0


def main() -> None:
    run_node(FleetRobots, __doc__, WHO | SPECS)


if __name__ == "__main__":
    main()
