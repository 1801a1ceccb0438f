"""The two-stage task, what stands in its way, and what its planner is taught."""

from __future__ import annotations

import numpy as np
import pytest

from lab.training.lessons import SUBGOALS, draw_lesson, draw_monitor_prompt, staged_task
from lab.training.stages import STAGES, UNSAFE, collect_stages, for_monitor, for_safety, stage_expert
from ros2_rfm_serving.engines.embedded import instructions
from ros2_rfm_serving.engines.embedded.planner_network import PlannerConfig
from ros2_rfm_serving.robot.history import ExecutionHistory
from ros2_rfm_serving.worlds.metaworld import STAGED_TASKS, TASKS, VISIT_THEN_PUSH, MetaworldArm, metaworld_arm
from ros2_rfm_serving.worlds.obstacles import KINDS, draw_obstacle


def drive(arm: MetaworldArm, stage: str, steps: int = 250) -> None:
    expert = stage_expert(stage)
    for _ in range(steps):
        if arm.visited if stage == "reach" else arm.at_goal:
            return
        arm.step(expert.get_action(arm.state.astype(np.float64)))


def test_both_stages_count_and_only_in_their_order() -> None:
    with metaworld_arm(VISIT_THEN_PUSH) as arm:
        for seed in (1, 2):
            arm.reset(seed)
            drive(arm, "reach")
            assert arm.visited and not arm.success
            drive(arm, "push")
            assert arm.success
            arm.reset(seed)
            assert not arm.visited
            drive(arm, "push")
            assert arm.at_goal and not arm.success, "the puck was pushed before its goal had been visited"


@pytest.mark.parametrize("kind", KINDS)
def test_both_cameras_see_what_stands_in_the_way_and_physics_does_not(kind: str) -> None:
    rng = np.random.default_rng(0)
    with metaworld_arm(VISIT_THEN_PUSH) as arm:
        arm.reset(1)
        before, state = arm.render(), arm.state.copy()
        changed = []
        for _ in range(5):
            arm.obstacle = draw_obstacle(rng, kind)
            assert arm.obstacle.kind == kind
            seen = arm.render()
            changed.append([np.mean(np.abs(seen[camera].astype(int) - before[camera]).max(axis=-1) > 20) for camera in before])
        assert np.min(np.median(changed, axis=0)) > 0.005
        arm.obstacle = None
        assert all((arm.render()[camera] == before[camera]).all() for camera in before) and (arm.state == state).all()


@pytest.mark.patient
def test_frames_are_labelled_by_stage_and_by_what_stands_in_the_way() -> None:
    frames = collect_stages(2, seed=0)
    safety, monitor = for_safety(frames), for_monitor(frames)
    assert set(safety.verdict) == {0, 1} and 0.2 < (safety.verdict == UNSAFE).mean() < 0.5
    assert len(monitor.verdict) == len(STAGES) * (frames.obstacle == 0).sum() and set(monitor.verdict) == {0, 1, 2}
    assert (monitor.verdict[monitor.frame_task == 0] == 1).any() and (monitor.verdict[monitor.frame_task == 1] == 1).any()


def test_lessons_follow_their_rules() -> None:
    rng = np.random.default_rng(0)
    seen_two, cut = False, 0
    for _ in range(300):
        prompt, plan = draw_lesson(rng)
        assert plan and set(plan) <= set(SUBGOALS) and len(plan) <= PlannerConfig.max_subgoals
        cut += len(instructions.words(prompt)) > PlannerConfig.max_words
        said = prompt.partition("Attempt")[0].partition("Before")[0]
        if "Before" not in prompt and ": " not in prompt:
            assert plan[0] in said and (len(plan) == 1 or said.index(plan[0]) < said.index(plan[1]))
            seen_two |= len(plan) == 2
        if prompt.partition("Before: ")[2].startswith(plan[-1] + ": failed. "):
            raise AssertionError(f"it failed with these words, and is told to try them again: {prompt}")
    assert seen_two and cut < 6, "the end of a prompt is the newest"


@pytest.mark.parametrize("stage", [0, 1])
def test_the_monitor_is_taught_to_judge_what_is_worked_on_now(stage: int) -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        task = staged_task(rng)
        prompt = draw_monitor_prompt(task, stage, rng)
        now = prompt.rpartition("Now: ")[2].rstrip(".")
        assert now in TASKS[STAGED_TASKS[VISIT_THEN_PUSH].stages[stage]].instructions, prompt


def test_the_longest_history_of_the_two_stages_is_read_to_its_end() -> None:
    reach, push = "move the hand to the red mark", "slide the puck to the green mark"
    history = ExecutionHistory()
    for _ in range(5):
        for _ in range(5):
            history.note(push, "no verdict of safety in time")
            history.note(reach, "no verdict of safety in time")
        longest = f"{reach}, then {push}. which subgoals are left? {history.text(push, 1.0, 60.0)}"
        assert len(instructions.words(longest)) <= PlannerConfig.max_words
        history.retry(push, "failed")


def test_a_robots_words_are_those_of_the_lessons() -> None:
    history = ExecutionHistory()
    history.note("reach the red goal", "done")
    history.retry("push the puck to the green goal", "failed")
    rng = np.random.default_rng(0)
    known = {word for _ in range(300) for word in instructions.words(draw_lesson(rng)[0])}
    assert set(instructions.words(history.text("push the puck to the green goal", 1.0, 2.0))) <= known
