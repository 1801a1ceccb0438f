"""All four components around a simulated arm in lockstep: the two-stage task without a network or a machine's own delays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lab.rollouts.closed_loop import Loop, schedule_of
from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.robot import RobotConfig, TaskGoal
from ros2_rfm_serving.types import Array
from ros2_rfm_serving.worlds.base import FRAME_EVERY
from ros2_rfm_serving.worlds.metaworld import ACTION_NAMES, MetaworldArm

GRIPPER = ACTION_NAMES.index("gripper")


@dataclass(frozen=True, kw_only=True)
class StagedTrial:
    """Result of one attempt; steps are control steps."""

    seed: int
    success: bool
    """Whether both stages were done, also if no component noticed."""
    visited: bool
    """Whether the first stage was done."""
    outcome: str
    """Outcome that the robot reported for its task; NONE: done."""
    steps: int
    """Steps to success, or until the attempt was over."""
    unsafe: int
    """Unsafe verdicts that stopped the arm without an obstacle."""


def run_staged_trials(
    arm: MetaworldArm,
    engines: Mapping[str, Engine],
    config: RobotConfig,
    instruction: str,
    seeds: Sequence[int],
    *,
    rates_hz: Mapping[str, float],
    delay_steps: int,
    budget_s: float,
    progress: Callable[[StagedTrial], None] = lambda trial: None,
) -> list[StagedTrial]:
    """Run one attempt per seed, which ends by the monitor's verdict or with its budget. rates_hz: of periodic components."""
    trials = []
    for seed in seeds:
        arm.reset(seed)
        loop = Loop(engines, config, delay_steps, schedule_of(engines, rates_hz))
        trials.append(_trial(arm, loop, TaskGoal(task="task", instruction=instruction, time_budget_s=budget_s, reset=False), seed))
        progress(trials[-1])
    return trials


def _trial(arm: MetaworldArm, loop: Loop, goal: TaskGoal, seed: int) -> StagedTrial:
    images, held, steps, done_after = arm.render(), np.zeros(len(ACTION_NAMES), np.float32), 0, 0

    def period(command: Array | None) -> None:
        held[GRIPPER] = held[GRIPPER] if command is None else command[GRIPPER]  # it keeps its effort while the arm stands
        arm.step(held if command is None else command)

    loop.step(arm.state, images, lambda command: None)  # this step opens the sessions
    run = loop.brain.start(goal, loop.now_s)
    while run.result is None:
        loop.step(arm.state, images, period)
        steps += 1
        done_after = done_after or steps * arm.success
        if steps % FRAME_EVERY == 0:
            images = arm.render()
    return StagedTrial(
        seed=seed,
        success=arm.success,
        visited=arm.visited,
        outcome=run.result.outcome.name,
        steps=done_after or steps,
        unsafe=loop.brain.violations["unsafe"],
    )
