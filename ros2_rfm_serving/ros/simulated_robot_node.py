"""A simulated robot on the graph, of any simulator: cameras, joint states and state out, commands in, reset as a service.

Control runs at `control_rate_hz` of wall time; one period is one step of the simulator. Every score declares the ratio of simulated
to wall time as `declared_time_scale`, beside the measured `real_time_factor`. A period that begins late is counted, never made up
for.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import numpy as np
from rclpy.node import Node
from rfm_serving import msg
from std_srvs.srv import Trigger

from ros2_rfm_serving.ros.node.changes import Changes
from ros2_rfm_serving.ros.node.own_name import named
from ros2_rfm_serving.ros.node.parameters import Spec, Values, When, declare
from ros2_rfm_serving.ros.node.runtime import EXIT_FAILED, clock, fleet_names, run_node
from ros2_rfm_serving.ros.node.timers import every
from ros2_rfm_serving.ros.wire import qos
from ros2_rfm_serving.ros.wire.convert import stamped
from ros2_rfm_serving.ros.worlds.native import Commanded, Interface, NativeInterface
from ros2_rfm_serving.types import Array
from ros2_rfm_serving.worlds.base import SimulatedRobot, WorldSpec
from ros2_rfm_serving.worlds.registry import build_world

OF_ALL = {
    "robot": Spec("", "Robot name; empty: the last part of the namespace"),
    "seed": Spec(0, "Of the first episode's randomisation; episode k uses seed + k", 0, 2**31 - 1, when=When.ANY),
    "control_rate_hz": Spec(20.0, "Control periods per second of wall time", 0.1, 1000.0),
    "camera_rate_hz": Spec(5.0, "Frames per second of wall time", 0.01, 1000.0, when=When.ANY),
    "image_size_px": Spec(96, "Width and height of the images", 8, 2048),
    "action_names": Spec([""], "Columns of its commands, as who sends them has it; other than its own: it does not start"),
}
SPECS = {
    "simulator": Spec("", "Which: metaworld, an entry point of ros2_rfm_serving.worlds, or package.module:function"),
    "task": Spec("", "Of the simulator"),
    **OF_ALL,
}
FAILS_FOR_S = 2.0
"""Time without a successful period after which the process ends."""
Robot = TypeVar("Robot", bound=SimulatedRobot)


class SimulatedNode(Node, Generic[Robot]):
    """Base of nodes that simulate a robot. Subclasses implement `make_robot` and what is special to one simulator."""

    def __init__(self, specs: Mapping[str, Spec]) -> None:
        super().__init__("simulated_robot")
        self.specs = specs
        declared, values = declare(self, specs), Values(self, specs)
        self._name = named("robot", values.text("robot") or self.get_namespace().rsplit("/", 1)[-1])
        self._task = values.text("task")
        rate_hz = values.number("control_rate_hz")
        self.period_s = 1.0 / rate_hz
        self.arm = self.make_robot(values)
        self._understand(values)
        self._take(values)
        Changes(self, declared, self._accept)
        self._seed_now = self._seed
        self._episode = self._steps = self._tick_count = self._late = self._overwritten = self._silent_steps = 0
        self._success = self._finished = False
        self._command: Array | None = None
        self._last = self._nothing()
        self._due_s = clock()
        self._stepped: deque[float] = deque()
        self._scored_s = -1.0
        self._real_time_factor = 0.0
        self._failing_since_s = math.inf
        names = fleet_names(self)

        def name(leaf: str) -> str:
            return names.robot(self._name, leaf)

        self._interface = self.make_interface(values, name, self._on_command)
        self._score = self.create_publisher(msg.EpisodeScore, name("world/score"), qos.SCORE)
        self.create_service(Trigger, name("reset"), self._on_reset)
        self._timer = every(self, self.period_s, self._on_period)
        scale = self.arm.step_s / self.period_s
        self.get_logger().info(f"{self._task} at {rate_hz:g} Hz, time scale {scale:g}, seed {self._seed}")

    def make_robot(self, values: Values) -> Robot:
        """Return the simulated robot. Raises: `ConfigurationError`."""
        raise NotImplementedError

    def _understand(self, values: Values) -> None:
        """Check the order of the action columns. Raises: `ConfigurationError`.
        A command is an array, so the same names in another order would move other joints."""
        told, own = values.texts("action_names"), tuple(self.arm.action_names)
        if told and told != own:
            fix = "name the same in its robot file, in this order"
            raise values.wrong("action_names", f"{self._task} takes {', '.join(own)}", fix)

    def make_interface(self, values: Values, name: Callable[[str], str], commanded: Commanded) -> Interface[Robot]:
        return NativeInterface(self, name, commanded, self.arm)

    def check(self, values: Values) -> None:
        """Check parameters that are about to change. Raises: `ConfigurationError`."""

    def changed(self, names: Mapping[str, Any], values: Values) -> None:
        """Apply parameters that have changed."""

    def after_reset(self) -> None:
        """Prepare the episode that begins."""

    def _nothing(self) -> Array:
        return np.zeros(len(self.arm.action_names), np.float32)

    def _accept(self, changed: Mapping[str, Any]) -> Callable[[], None]:
        """Check changed parameters and return the function that applies them. Raises: `ConfigurationError`."""
        values = Values(self, self.specs, changed=changed)
        self.check(values)

        def apply() -> None:
            self._take(values)
            self.changed(changed, values)

        return apply

    def _take(self, values: Values) -> None:
        """Read the parameters that may change at run time."""
        self._seed = values.integer("seed")
        self._frame_every = max(1, round(values.number("control_rate_hz") / values.number("camera_rate_hz")))

    def _on_command(self, action: Array | None) -> None:
        if action is None:
            wanted = f"refused a command that is not {len(self.arm.action_names)} finite numbers"
            self.get_logger().warning(wanted, throttle_duration_sec=5.0)
            return
        self._overwritten += self._command is not None
        self._command = action

    def _on_reset(self, request: Any, response: Any) -> Any:
        if self._episode and not self._finished:
            self._publish_score(finished=True)
        self._seed_now = self._seed + self._episode
        self._episode += 1
        self.arm.reset(self._seed_now)
        self.after_reset()
        self._steps, self._success, self._finished, self._command = 0, False, False, None
        self._last, self._silent_steps = self._nothing(), 0
        self._due_s = clock() + self.period_s
        self._stepped.clear()
        self._tick_count = -1  # the next period renders a frame, so that the new scene is seen at once
        response.success, response.message = True, f"episode {self._episode}, seed {self._seed_now}"
        return response

    def _on_period(self) -> None:
        """Run one period. A simulator that fails permanently ends the process, and the supervisor starts another."""
        began_s = clock()
        try:
            self._step()
        except Exception as error:
            self._failing_since_s = min(self._failing_since_s, began_s)
            if clock() - self._failing_since_s < FAILS_FOR_S:
                raise
            self.get_logger().fatal(f"the simulator has failed for {FAILS_FOR_S:g} s: {error!r}; this process ends")
            raise SystemExit(EXIT_FAILED) from error
        self._failing_since_s = math.inf

    def _step(self) -> None:
        now_s = clock()
        if now_s - self._due_s > self.period_s:
            self._late += 1
            self._due_s = now_s
        self._due_s += self.period_s
        self.arm.step(self._next_action())
        self._stepped.append(now_s)
        if not self._success:
            self._steps += 1
            if self.arm.success:
                self._success = True
                self._publish_score()
        self._tick_count += 1
        self._publish_sensors(frame=self._tick_count % self._frame_every == 0)
        if now_s - self._scored_s > 1.0:
            self._publish_score(finished=self._finished)

    def _next_action(self) -> Array:
        """Return the newest command, once; without a new one return what the robot's drives do."""
        if self._command is None:
            self._silent_steps += 1
            return self.arm.idle(self._last, self._silent_steps)
        self._last, self._command, self._silent_steps = self._command, None, 0
        return self._last

    def _publish_sensors(self, *, frame: bool) -> None:
        """Publish the state first: a robot can act on it while the cameras, which take much longer, are rendered."""
        stamp = self.get_clock().now().to_msg()
        self._interface.publish_state(self.arm, stamp)
        if frame:
            self._interface.publish_images(self.arm.render(), stamp)

    def _publish_score(self, *, finished: bool = False) -> None:
        now_s = self._scored_s = clock()
        while self._stepped and self._stepped[0] < now_s - 5.0:
            self._stepped.popleft()
        span_s = now_s - self._stepped[0] if self._stepped else 0.0
        if span_s > 1.0:  # shorter spans, just after a reset, are not representative
            self._real_time_factor = (len(self._stepped) - 1) * self.arm.step_s / span_s
        score = msg.EpisodeScore(
            task=self._task,
            episode=self._episode,
            seed=self._seed_now,
            success=self._success,
            finished=finished,
            steps=self._steps,
            declared_time_scale=self.arm.step_s / self.period_s,
            real_time_factor=self._real_time_factor,
            late_ticks=self._late,
            overwritten_commands=self._overwritten,
        )
        score.header.frame_id = self._name
        self._score.publish(stamped(score, self))

    def stop(self) -> None:
        self.destroy_timer(self._timer)  # another period would open the renderer again
        self.arm.close()


class SimulatedRobotNode(SimulatedNode[SimulatedRobot]):
    def __init__(self) -> None:
        super().__init__(SPECS)

    def make_robot(self, values: Values) -> SimulatedRobot:
        spec = WorldSpec(task=values.text("task"), image_size_px=values.integer("image_size_px"))
        return build_world(values.text("simulator"), spec)


def main() -> None:
    run_node(SimulatedRobotNode, __doc__, SPECS)


if __name__ == "__main__":
    main()
