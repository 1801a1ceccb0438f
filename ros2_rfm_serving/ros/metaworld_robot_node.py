"""A Meta-World arm as a robot on the graph: cameras, joint states and state out, commands in, reset as a service.

Control runs at `control_rate_hz` of wall time; one period is one standard Meta-World step of 12.5 ms of physics. At 20 Hz the
arm therefore moves at a quarter of its natural speed: declared in every score as `declared_time_scale`, measured beside it as
`real_time_factor`. A period that begins late is counted, never made up for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from rclpy.node import Node
from rfm_serving import msg
from std_srvs.srv import Trigger

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.descriptor import Interface
from ros2_rfm_serving.ros.node.changes import Changes
from ros2_rfm_serving.ros.node.own_name import named
from ros2_rfm_serving.ros.node.parameters import Spec, Values, When, choice, declare
from ros2_rfm_serving.ros.node.runtime import clock, fleet_names, run_node
from ros2_rfm_serving.ros.node.timers import every
from ros2_rfm_serving.ros.wire import qos
from ros2_rfm_serving.ros.wire.convert import stamped
from ros2_rfm_serving.ros.worlds.metaworld import make_interface
from ros2_rfm_serving.types import Array
from ros2_rfm_serving.worlds.metaworld import ACTION_NAMES, PHYSICS_STEP_S, STAGED_TASKS, TASKS, MetaworldArm
from ros2_rfm_serving.worlds.obstacles import KINDS, draw_obstacle

NOTHING = "nothing"
IN_THE_WAY = (NOTHING, *KINDS)
SPECS = {
    "robot": Spec("", "Robot name; empty: the last part of the namespace"),
    "task": Spec("reach", "Meta-World task", choices=tuple(TASKS | STAGED_TASKS)),
    "seed": Spec(0, "Of the first episode's randomisation; episode k uses seed + k", 0, 2**31 - 1, when=When.ANY),
    "control_rate_hz": Spec(20.0, "Control periods per second of wall time", 0.1, 1000.0),
    "camera_rate_hz": Spec(5.0, "Frames per second of wall time", 0.01, 1000.0, when=When.ANY),
    "image_size_px": Spec(96, "Width and height of the images", 8, 2048),
    "interface": choice(Interface.NATIVE, "native, or foreign: as if it were somebody else's robot"),
    "obstacle": Spec(NOTHING, "In the cameras' way", choices=IN_THE_WAY, when=When.ANY),
    "lose_workpiece": Spec(
        False, "It comes to lie out of reach when an episode begins: nobody can finish, and somebody has to notice", when=When.ANY
    ),
}
GRIPPER = ACTION_NAMES.index("gripper")


class MetaworldRobotNode(Node):
    def __init__(self) -> None:
        super().__init__("metaworld_robot")
        declared, values = declare(self, SPECS), Values(self, SPECS)
        self._robot = named("robot", values.text("robot") or self.get_namespace().rsplit("/", 1)[-1])
        self._task = values.text("task")
        rate_hz = values.number("control_rate_hz")
        self._period_s = 1.0 / rate_hz
        self._arm = MetaworldArm(self._task, image_size_px=values.integer("image_size_px"))
        self._stage_rng = np.random.default_rng([values.integer("seed"), 1])
        self._look(values)
        self._put_in_the_way(values.text("obstacle"))
        Changes(self, declared, self._accept)
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

        self._interface = make_interface(values.text("interface"), self, name, self._on_command, self._period_s)
        self._score = self.create_publisher(msg.EpisodeScore, name("world/score"), qos.SCORE)
        self.create_service(Trigger, name("reset"), self._on_reset)
        self._timer = every(self, self._period_s, self._on_period)
        self.get_logger().info(f"{self._task} at {rate_hz:g} Hz, time scale {PHYSICS_STEP_S / self._period_s:g}, seed {self._seed}")

    def _accept(self, changed: Mapping[str, Any]) -> Callable[[], None]:
        """Raises: `ConfigurationError`."""
        values = Values(self, SPECS, changed=changed)
        if values.flag("lose_workpiece") and not self._arm.task.has_loose_object:
            raise ConfigurationError(
                f"{self._task} has no workpiece that could be lost", key="lose_workpiece", fix="set it to false"
            )

        def apply() -> None:
            self._look(values)
            if "obstacle" in changed:
                self._put_in_the_way(values.text("obstacle"))

        return apply

    def _look(self, values: Values) -> None:
        """What may change while it runs."""
        self._seed, self._loses_workpiece = values.integer("seed"), values.flag("lose_workpiece")
        self._frame_every = max(1, round(values.number("control_rate_hz") / values.number("camera_rate_hz")))

    def _on_command(self, action: Array | None) -> None:
        if action is None:
            self.get_logger().warning("refused a command that is not 4 finite numbers", throttle_duration_sec=5.0)
            return
        self._overwritten += self._command is not None
        self._command = action

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
        self._score.publish(stamped(score, self))

    def stop(self) -> None:
        self.destroy_timer(self._timer)  # another period would open the renderer anew
        self._arm.close()


def main() -> None:
    run_node(MetaworldRobotNode, __doc__, SPECS)


if __name__ == "__main__":
    main()
