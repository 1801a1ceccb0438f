"""The simulated arm: real physics, real pictures."""

from __future__ import annotations

import numpy as np
import pytest

from ros2_rfm_serving.factory.task import SIMULATED_TASKS
from ros2_rfm_serving.worlds.metaworld import ALL_TASKS, CAMERAS, SEEN_TASKS, STATE_SIZE, TASKS, MetaworldArm, metaworld_arm


@pytest.mark.parametrize("task", TASKS)
def test_the_scripted_expert_succeeds_and_a_seed_repeats_itself(task: str) -> None:
    with metaworld_arm(task) as arm:
        assert sum(_expert_succeeds(arm, seed) for seed in range(3)) >= 2
        arm.reset(7)
        first = arm.state.copy()
        arm.reset(8)
        assert np.abs(arm.state - first).max() > 1e-3, "randomisation is off"
        arm.reset(7)
        np.testing.assert_allclose(arm.state, first, atol=1e-6)
        assert arm.state.shape == (STATE_SIZE,) and np.abs(arm.state[36:39]).max() > 0, "the goal is hidden"


@pytest.mark.parametrize("task", SEEN_TASKS)
def test_the_expert_of_a_task_that_is_learnt_from_images_succeeds_and_a_seed_repeats_itself(task: str) -> None:
    with metaworld_arm(task) as arm:
        assert _expert_succeeds(arm, 1)
        arm.reset(1)
        first = arm.state.copy()
        arm.reset(2)
        assert np.abs(arm.state - first).max() > 1e-3, "randomisation is off"
        arm.reset(1)
        np.testing.assert_allclose(arm.state, first, atol=1e-6)


def test_a_descriptor_may_name_every_task() -> None:
    assert set(SIMULATED_TASKS) == set(ALL_TASKS)


def test_cameras_see_the_arm_move() -> None:
    with metaworld_arm("reach") as arm:
        before = arm.render()
        assert set(before) == set(CAMERAS)
        for _ in range(20):
            arm.step([1, 1, 0, 0])
        after = arm.render()
        for camera in CAMERAS:
            assert before[camera].shape == (96, 96, 3) and before[camera].std() > 10
            assert np.abs(before[camera].astype(int) - after[camera]).max() > 50
        assert len(arm.joint_names) == len(arm.joint_positions) == len(arm.joint_velocities) >= 9


def test_joint_state_follows_the_arm() -> None:
    with metaworld_arm("reach") as arm:
        before = arm.joint_positions
        for _ in range(20):
            arm.step([1, 0, 0, 0])
        assert np.abs(arm.joint_positions - before).max() > 0.01


def _expert_succeeds(arm: MetaworldArm, seed: int) -> bool:
    arm.reset(seed)
    expert = arm.expert()
    for _ in range(250):
        arm.step(expert.get_action(arm.state.astype(np.float64)))
        if arm.success:
            return True
    return False
