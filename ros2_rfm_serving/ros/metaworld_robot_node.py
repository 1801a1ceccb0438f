"""A Meta-World arm as a robot on the graph, with events staged around it (`simulated_robot_node` has the rest).

One period of `control_rate_hz` is one standard Meta-World step of 12.5 ms of physics: at 20 Hz the arm moves at a quarter of its
natural speed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.task import InterfaceEntry
from ros2_rfm_serving.ros.node.parameters import Spec, Values, When, choice
from ros2_rfm_serving.ros.node.runtime import run_node
from ros2_rfm_serving.ros.simulated_robot_node import OF_ALL, SimulatedNode
from ros2_rfm_serving.ros.worlds import native
from ros2_rfm_serving.ros.worlds.metaworld import make_interface
from ros2_rfm_serving.ros.worlds.native import Commanded
from ros2_rfm_serving.worlds.metaworld import ALL_TASKS, MetaworldArm
from ros2_rfm_serving.worlds.obstacles import KINDS, draw_obstacle

NOTHING = "nothing"
IN_THE_WAY = (NOTHING, *KINDS)
SPECS = {
    "task": Spec("reach", "Meta-World task", choices=tuple(ALL_TASKS)),
    **OF_ALL,
    "interface": choice(InterfaceEntry.NATIVE, "native, or foreign: as if it were somebody else's robot"),
    "obstacle": Spec(NOTHING, "In the cameras' way", choices=IN_THE_WAY, when=When.ANY),
    "lose_workpiece": Spec(
        False, "It comes to lie out of reach when an episode begins: nobody can finish, and somebody has to notice", when=When.ANY
    ),
}


class MetaworldRobotNode(SimulatedNode[MetaworldArm]):
    def __init__(self) -> None:
        super().__init__(SPECS)

    def make_robot(self, values: Values) -> MetaworldArm:
        arm = MetaworldArm(values.text("task"), image_size_px=values.integer("image_size_px"))
        self._stage_rng = np.random.default_rng([values.integer("seed"), 1])
        self._loses_workpiece = values.flag("lose_workpiece")
        self._put_in_the_way(arm, values.text("obstacle"))
        return arm

    def make_interface(self, values: Values, name: Callable[[str], str], commanded: Commanded) -> native.Interface[MetaworldArm]:
        return make_interface(values.text("interface"), self, name, commanded, self.arm, self.period_s)

    def check(self, values: Values) -> None:
        if values.flag("lose_workpiece") and not self.arm.task.has_loose_object:
            raise ConfigurationError(
                f"{values.text('task')} has no workpiece that could be lost", key="lose_workpiece", fix="set it to false"
            )

    def changed(self, names: Mapping[str, Any], values: Values) -> None:
        self._loses_workpiece = values.flag("lose_workpiece")
        if "obstacle" in names:
            self._put_in_the_way(self.arm, values.text("obstacle"))

    def after_reset(self) -> None:
        if self._loses_workpiece:
            self.arm.lose_object(self._stage_rng)

    def _put_in_the_way(self, arm: MetaworldArm, kind: str) -> None:
        """Place an obstacle at a new random position with a new appearance."""
        arm.obstacle = None if kind == NOTHING else draw_obstacle(self._stage_rng, kind)


def main() -> None:
    run_node(MetaworldRobotNode, __doc__, SPECS)


if __name__ == "__main__":
    main()
