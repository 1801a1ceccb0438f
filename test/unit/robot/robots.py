"""A robot brain with its surroundings, as the tests of `robot/` use it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ros2_rfm_serving.faults import FaultPlan
from ros2_rfm_serving.robot import RobotConfig, RobotCore, Sensors, TaskGoal, TickResult
from ros2_rfm_serving.robot.config import ComponentClientConfig, FailSafeConfig
from ros2_rfm_serving.types import (
    Array,
    EncodedImage,
    ObservationRequest,
)
from test.unit.fakes import CONTRACT, JPEG, NAMES, grant, schedule
from test.unit.robot import robot_world
from test.unit.robot.robot_world import World

PERIOD_S = 0.05
MAX_LENGTH = 16
"""Rows of the longest chunk that the model may answer with."""
CONFIG = RobotConfig(
    name="r1",
    action_names=NAMES,
    cameras=("front",),
    state_size=3,
    control_rate_hz=1 / PERIOD_S,
    execution_horizon=3,
    max_action_age_s=1.0,
)
GOAL = TaskGoal(task="t", instruction="go", time_budget_s=100.0, reset=False)


def sensors(now_s: float, positions: Array | None = None) -> Sensors:
    image = EncodedImage(camera="front", format="jpeg", data=JPEG)
    return Sensors(state=np.zeros(3, np.float32), state_s=now_s, images=(image,), images_s=now_s, positions=positions)


class Rig:
    """A brain and a virtual clock."""

    def __init__(self, config: RobotConfig = CONFIG) -> None:
        self.brain, self.now_s = RobotCore(config), 0.0
        self.positions: Array | None = None
        """Measured; None: nothing is."""

    def tick(self, steps: int = 1, seen: bool = True) -> TickResult:
        for _ in range(steps):
            self.now_s += PERIOD_S
            if seen:
                self.brain.on_server_status("s1", True, self.now_s)
            tick = self.brain.tick(sensors(self.now_s, self.positions), self.now_s)
        return tick

    def connect(self, epoch: int = 5) -> Rig:
        self.brain.on_schedule(schedule(), self.now_s)
        (opening,) = self.tick().opens
        assert opening[0] == "s1" and opening[1].action_names == NAMES
        contract = replace(CONTRACT, chunk_length=MAX_LENGTH)
        self.brain.on_session_opened("system1", "s1", grant(epoch, contract), self.now_s)
        return self

    def ask(self) -> ObservationRequest:
        for _ in range(100):
            if requests := self.tick().requests:
                return requests[0][1]
        raise AssertionError("no request")


def working(config: RobotConfig = CONFIG) -> Rig:
    rig = Rig(config).connect()
    rig.brain.start(GOAL, rig.now_s)
    return rig


# --- in a world of its own ---

FAILING = RobotConfig(
    name="r1",
    action_names=robot_world.NAMES,
    cameras=("front",),
    state_size=3,
    control_rate_hz=20.0,
    execution_horizon=3,
    max_action_age_s=1.0,
    failsafe=FailSafeConfig(degraded_after_s=0.3, max_offline_s=2.0),
    link=ComponentClientConfig(request_timeout_s=1.0, initial_backoff_s=0.1, max_backoff_s=0.2),
)
FOREVER_S = 1e9


def world(config: RobotConfig = FAILING, **slos_s: float) -> World:
    """With a task from the start. slos_s: by component; those that are not named have none and are not asked."""
    routes = {name: (100.0 if name == "system1" else 4.0, slo_s) for name, slo_s in {"system1": 0.0, **slos_s}.items()}
    made = World(config, FaultPlan(), 0, routes)
    made.brain.on_schedule(made.schedule(), made.now_s)
    begin(made)
    return made


def begin(made: World) -> None:
    made.brain.finish()
    made.brain.start(TaskGoal(task="t", instruction="go", time_budget_s=1000.0, reset=False), made.now_s)
