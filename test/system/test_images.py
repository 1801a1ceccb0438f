"""The policies that act by images alone, over DDS: two arms of `config/factory_images.yaml`, a task each, and one server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import rclpy
import yaml
from rclpy.node import Node
from rfm_serving.msg import EpisodeScore, ServerStatus

from ros2_rfm_serving.ros.wire import qos
from test.system.test_factory import rfm_up
from test.waiting import eventually

TASKS = ("handle_press", "coffee_button")
"""Some 35 control steps each."""


class Scores(Node):
    def __init__(self) -> None:
        super().__init__("scores")
        self.done: set[str] = set()
        """Tasks of which an attempt succeeded"""
        self.served = 0
        for task in TASKS:
            self.create_subscription(
                EpisodeScore, f"/{task}_1/world/score", lambda score, task=task: self._take(task, score), qos.SCORE
            )
        self.create_subscription(ServerStatus, "/rfm/servers/server_1/status", self._count, qos.SERVER_STATUS)

    def _take(self, task: str, score: Any) -> None:
        if score.success:
            self.done.add(task)

    def _count(self, status: Any) -> None:
        self.served = max(self.served, status.served)


@pytest.mark.timeout(290)
@pytest.mark.thorough  # two arms that draw their pictures take both cores for over a minute
@pytest.mark.parametrize("head", ["", "flow"])
def test_arms_of_several_tasks_succeed_by_what_their_cameras_show(
    head: str, repository: Path, tmp_path: Path, ros_domain: int
) -> None:
    declared = yaml.safe_load((repository / "config/factory_images.yaml").read_text())
    declared["server_cluster"]["num_servers"] = 1
    declared["robot_fleet"] = [fleet for fleet in declared["robot_fleet"] if fleet["task"] in TASKS]
    kept = {key: value for key, value in declared.items() if key in ("server_cluster", "robot_fleet", *TASKS)}
    for task in TASKS if head else ():
        kept[task]["components"]["system1"]["model"] += f"-{head}"
        kept[task]["robot"] = f"metaworld_images_{head}.yaml"
    factory = tmp_path / "factory.yaml"
    factory.write_text(yaml.safe_dump(kept, sort_keys=False))
    with rfm_up(repository, tmp_path / "logs", str(factory), "--end-on-score", domain=ros_domain):
        rclpy.init()
        scores = Scores()
        try:
            found = eventually(lambda: scores.done == set(TASKS), 200.0, lambda: rclpy.spin_once(scores, timeout_sec=0.05))
            assert found and scores.served > 10, (scores.done, scores.served)
        finally:
            scores.destroy_node()
            rclpy.try_shutdown()
