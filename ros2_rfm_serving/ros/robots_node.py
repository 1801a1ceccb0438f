"""Many robots in one process, on one executor thread: for simulation, and for gateways to robots without this ROS installation.

`robots` lists their names. Every other parameter applies to all robots; `<robot>.<parameter>` overrides it for one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.ros.node.parameters import NOTHING, Spec, Values, When, declare
from ros2_rfm_serving.ros.node.runtime import run_node
from ros2_rfm_serving.ros.robot.declared import SPECS
from ros2_rfm_serving.ros.robot.settings import RobotSettings, declare_robot, robot_settings
from ros2_rfm_serving.ros.robot_node import RobotHost

WHO = {"robots": Spec([""], "Names of the robots, as in the schedule", when=When.UNCONFIGURED)}


class RobotsNode(RobotHost):
    def __init__(self) -> None:
        super().__init__("robots")

    def _declare(self) -> dict[str, Spec]:
        specs = declare(self, WHO)
        for name in Values(self, WHO).texts("robots") or ("",):
            specs |= declare_robot(self, name)
        return specs

    def _settings(self, changed: Mapping[str, Any] = NOTHING) -> list[RobotSettings]:
        names = Values(self, WHO, changed=changed).texts("robots")
        twice = [name for name, count in Counter(names).items() if count > 1]
        if not names or twice:
            problem = f"names {twice[0]!r} twice" if twice else "names no robot"
            raise ConfigurationError(problem, key="robots", fix="write robots: [arm_1, arm_2], each once")
        return [robot_settings(self, name, one_of_many=True, changed=changed) for name in names]


def main() -> None:
    run_node(RobotsNode, __doc__, WHO | SPECS)


if __name__ == "__main__":
    main()
