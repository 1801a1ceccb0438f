"""Who is on the graph is found soon, on a busy machine too, and who is in the schedule without a look."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
from rfm_serving import msg

from ros2_rfm_serving.monitoring.board import Board
from ros2_rfm_serving.operate.running import observing
from ros2_rfm_serving.ros.monitor import discovery
from test.ros.test_dashboard import Plant, living, wait


def test_looks_that_wait_for_the_processor_are_as_frequent(ros_domain: int, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[float] = []

    def slowed(*arguments: Any) -> discovery.There:
        looked.append(time.monotonic())
        time.sleep(0.6)  # as long as others have it
        return look(*arguments)

    look = discovery.look
    monkeypatch.setattr(discovery, "look", slowed)
    with observing(Board([], []), "plant", discover=True):
        wait(lambda: len(looked) >= 3, 20.0)


def test_who_is_in_the_schedule_is_watched_at_once(ros_domain: int, monkeypatch: pytest.MonkeyPatch) -> None:
    board = Board([], [])
    with observing(board, "plant", discover=True) as node:
        monkeypatch.setattr(node, "_look_s", math.inf)
        with living(Plant, ros_domain):
            wait(lambda: board.robots.get("arm_1") and board.robots["arm_1"].state == "STREAMING")
        assert list(board.servers) == ["s1"]


class Rival(Plant):
    """Its schedule has nobody, and nothing else is said."""

    def _tell(self) -> None:
        self.schedule.publish(msg.Schedule(scheduler=4, epoch=90, factory="rival"))


def test_two_schedulers_are_said_and_their_figures_do_not_alternate(ros_domain: int) -> None:
    board, seen = Board([], []), set[str]()
    with observing(board, "plant", discover=True), living(Plant, ros_domain) as plant:
        wait(lambda: board.factory == "f")
        with living(Rival, ros_domain):
            wait(lambda: seen.add(board.factory) or board.disputed_s > -math.inf)
            end_s = time.monotonic() + 1.0
            wait(lambda: seen.add(board.factory) or time.monotonic() > end_s)
            assert seen == {"f"} and (board.schedule_epoch, board.scheduler) == (2, 3)
            plant.schedule.publish = lambda schedule: None  # it ends
            wait(lambda: board.factory == "rival")
