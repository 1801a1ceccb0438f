"""A Meta-World arm as a robot on the graph: cameras, joint states and state out, commands in, reset as a service.

Control runs at `control_rate_hz` of wall time; one period is one standard Meta-World step of 12.5 ms of physics. At 20 Hz the
arm therefore moves at a quarter of its natural speed: declared in every score as `declared_time_scale`, measured beside it as
`real_time_factor`. A period that begins late is counted, never made up for.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from rcl_interfaces.msg import SetParametersResult
from rclpy.node import Node
from rfm_serving import msg
from std_srvs.srv import Trigger

from ros2_rfm_serving.ros.runtime import clock, fleet_names, parameter, run_node
from ros2_rfm_serving.ros.wire import qos
from ros2_rfm_serving.ros.worlds.metaworld import make_interface
from ros2_rfm_serving.types import Array
from ros2_rfm_serving.worlds.metaworld import ACTION_NAMES, PHYSICS_STEP_S, STAGED_TASKS, TASKS, MetaworldArm
from ros2_rfm_serving.worlds.obstacles import KINDS, draw_obstacle

NOTHING = "nothing"
IN_THE_WAY = (NOTHING, *KINDS)
GRIPPER = ACTION_NAMES.index("gripper")


class MetaworldRobotNode(Node):
    def __init__(self) -> None:
        super().__init__("metaworld_robot")
        self._robot = parameter(self, "robot", self.get_namespace().rsplit("/", 1)[-1] or "robot", "Robot name")
        self._task = parameter(self, "task", "reach", f"Meta-World task: {', '.join(TASKS | STAGED_TASKS)}")
        self._seed = parameter(self, "seed", 0, "Of the first episode's randomisation; episode k uses seed + k")
        rate_hz = parameter(self, "control_rate_hz", 20.0, "Control periods per second of wall time")
        camera_rate_hz = parameter(self, "camera_rate_hz", 5.0, "Frames per second of wall time")
        size_px = parameter(self, "image_size_px", 96, "Width and height of the images")
        self._loses_workpiece = parameter(
            self,
            "lose_workpiece",
            False,
            "It comes to lie out of reach when an episode begins: nobody can finish; may be set at any time",
        )
        obstacle = parameter(self, "obstacle", NOTHING, f"In the cameras' way: {', '.join(IN_THE_WAY)}; may be set at any time")
        interface = parameter(self, "interface", "native", "native, or foreign: as if it were somebody else's robot")
        self._period_s = 1.0 / rate_hz
        self._frame_every = max(1, round(rate_hz / camera_rate_hz))
        self._arm = MetaworldArm(self._task, image_size_px=size_px)
        self._stage_rng = np.random.default_rng([self._seed, 1])
        self._put_in_the_way(obstacle)
        self.add_on_set_parameters_callback(self._on_parameters)
        self._seed_now = self._seed
        self._episode = self._steps = self._tick_count = self._late = self._overwritten = 0
        self._success = self._finished = False
        self._command: Any = None
        self._held = np.zeros(len(ACTION_NAMES), np.float32)
        self._due_s = clock()
        self._stepped: deque[float] = deque()
        self._scored_s = -1.0
        self._real_time_factor = 0.0
        names = fleet_names(self)

        def name(leaf: str) -> str:
            return names.robot(self._robot, leaf)

        self._interface = make_interface(interface, self, name, self._on_command, self._period_s)
        self._score = self.create_publisher(msg.EpisodeScore, name("world/score"), qos.SCORE)
        self.create_service(Trigger, name("reset"), self._on_reset)
        self.create_timer(self._period_s, self._on_period)
        self.get_logger().info(f"{self._task} at {rate_hz:g} Hz, time scale {PHYSICS_STEP_S / self._period_s:g}, seed {self._seed}")

    def _on_command(self, action: Array | None) -> None:
        if action is None:
            self.get_logger().warning("refused a command that is not 4 finite numbers", throttle_duration_sec=5.0)
            return
        self._overwritten += self._command is not None
        self._command = action

    def _on_parameters(self, parameters: list[Any]) -> SetParametersResult:
        """What a person does to the scene while the robot works; everything else is fixed at the start."""
        for wanted in parameters:
            if wanted.name == "obstacle" and wanted.value not in IN_THE_WAY:
                return SetParametersResult(successful=False, reason=f"obstacle is one of {', '.join(IN_THE_WAY)}")
            if wanted.name == "lose_workpiece" and not self._arm.task.has_loose_object:
                return SetParametersResult(successful=False, reason=f"{self._task} has no workpiece that could be lost")
        for wanted in parameters:
            if wanted.name == "obstacle":
                self._put_in_the_way(wanted.value)
            elif wanted.name == "lose_workpiece":
                self._loses_workpiece = wanted.value
        return SetParametersResult(successful=True)

    def _put_in_the_way(self, kind: str) -> None:
        """Somewhere else, and looking different, every time."""
        self._arm.obstacle = None if kind == NOTHING else draw_obstacle(self._stage_rng, kind)

    def _on_reset(self, request: Any, response: Any) -> Any:
        if self._episode and not self._finished:
            self._publish_score(finished=True)
        self._seed_now = self._seed + self._episode
        self._episode += 1
        self._arm.reset(self._seed_now)
        if self._loses_workpiece:
            self._arm.lose_object(self._stage_rng)
        self._steps, self._success, self._finished, self._command = 0, False, False, None
        self._held = np.zeros(len(ACTION_NAMES), np.float32)
        self._due_s = clock() + self._period_s
        self._stepped.clear()
        self._tick_count = -1  # the next period brings a frame: nobody waits for the camera's turn to see the new scene
        response.success, response.message = True, f"episode {self._episode}, seed {self._seed_now}"
        return response

    def _on_period(self) -> None:
        now_s = clock()
        if now_s - self._due_s > self._period_s:
            self._late += 1
            self._due_s = now_s
        self._due_s += self._period_s
        self._arm.step(self._next_action())
        self._stepped.append(now_s)
        if not self._success:
            self._steps += 1
            if self._arm.success:
                self._success = True
                self._publish_score()
        self._tick_count += 1
        self._publish_sensors(frame=self._tick_count % self._frame_every == 0)
        if now_s - self._scored_s > 1.0:
            self._publish_score(finished=self._finished)

    def _next_action(self) -> Any:
        """The newest command, once; without one the arm stays where it is and the gripper keeps its effort."""
        if self._command is None:
            return self._held
        action, self._command = self._command, None
        self._held = np.zeros_like(action)
        self._held[GRIPPER] = action[GRIPPER]
        return action

    def _publish_sensors(self, *, frame: bool) -> None:
        """State first: the robot answers it while the cameras, which take much longer, are rendered."""
        stamp = self.get_clock().now().to_msg()
        self._interface.publish_state(self._arm, stamp)
        if frame:
            self._interface.publish_images(self._arm.render(), stamp)

    def _publish_score(self, *, finished: bool = False) -> None:
        now_s = self._scored_s = clock()
        while self._stepped and self._stepped[0] < now_s - 5.0:
            self._stepped.popleft()
        span_s = now_s - self._stepped[0] if self._stepped else 0.0
        if span_s > 1.0:  # shorter ones, just after a reset, say nothing
            self._real_time_factor = (len(self._stepped) - 1) * PHYSICS_STEP_S / span_s
        score = msg.EpisodeScore(
            task=self._task,
            episode=self._episode,
            seed=self._seed_now,
            success=self._success,
            finished=finished,
            steps=self._steps,
            declared_time_scale=PHYSICS_STEP_S / self._period_s,
            real_time_factor=self._real_time_factor,
            late_ticks=self._late,
            overwritten_commands=self._overwritten,
        )
        score.header.frame_id = self._robot
        self._score.publish(score)

    def stop(self) -> None:
        self._arm.close()


def main() -> None:
    run_node(MetaworldRobotNode)


if __name__ == "__main__":
    main()
