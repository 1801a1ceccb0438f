"""Training of the models beside the policies: the judges of success, safety and stages, and the planner."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lab.training.judge_training import train_judge
from lab.training.lessons import SUBGOALS, draw_lesson, draw_monitor_prompt, staged_task
from lab.training.optimizing import TrainingConfig
from lab.training.planner_training import Lesson, train_planner
from lab.training.stages import STAGES, for_monitor, for_safety
from lab.training.workshop import TEXTS, Workshop, shipped_network
from ros2_rfm_serving.engines.embedded import instructions
from ros2_rfm_serving.engines.embedded.networks import JudgeConfig, JudgeNetwork
from ros2_rfm_serving.engines.embedded.planner_network import PlannerConfig
from ros2_rfm_serving.worlds.metaworld import CAMERAS

JUDGE, SAFETY, MONITOR, PLANNER = "metaworld_judge", "metaworld_safety", "metaworld_stages", "metaworld_planner"
NUM_LESSONS, NUM_HELD_OUT, NUM_PROMPTS = 40_000, 1000, 400
SAFETY_PROMPTS = ("is the work area clear?", "is the workcell safe?", "safe or unsafe?")


def judge(workshop: Workshop, steps: int) -> None:
    log = workshop.log(JUDGE, steps)
    config = JudgeConfig(cameras=tuple(CAMERAS), vocabulary=instructions.vocabulary(text for texts in TEXTS for text in texts))
    training = TrainingConfig(steps=steps, seed=workshop.seed, batch_size=96)
    log.keep(train_judge(config, workshop.demonstrations(), TEXTS, training, log))


def safety(workshop: Workshop, steps: int) -> None:
    log = workshop.log(SAFETY, steps)
    words = instructions.vocabulary(SAFETY_PROMPTS)
    config = JudgeConfig(cameras=tuple(CAMERAS), vocabulary=words, verdicts=("safe", "unsafe"))
    frames = for_safety(workshop.stage_frames())
    log.keep(train_judge(config, frames, [SAFETY_PROMPTS], _small(steps, workshop.seed), log, _eyes()))


def monitor(workshop: Workshop, steps: int) -> None:
    log, rng = workshop.log(MONITOR, steps), np.random.default_rng(workshop.seed)
    prompts = [[draw_monitor_prompt(staged_task(rng), stage, rng) for _ in range(NUM_PROMPTS)] for stage in range(len(STAGES))]
    words = instructions.vocabulary(text for stage in prompts for text in stage)
    config = JudgeConfig(cameras=tuple(CAMERAS), vocabulary=words, max_words=112, reads_in_order=True)
    frames = for_monitor(workshop.stage_frames())
    log.keep(train_judge(config, frames, prompts, _small(steps, workshop.seed), log, _eyes()))


def planner(workshop: Workshop, steps: int) -> None:
    log, rng = workshop.log(PLANNER, steps), np.random.default_rng(workshop.seed)
    lessons = [Lesson(*draw_lesson(rng)) for _ in range(NUM_LESSONS + NUM_HELD_OUT)]
    words = instructions.vocabulary(lesson.prompt for lesson in lessons)
    config = PlannerConfig(cameras=tuple(CAMERAS), vocabulary=words, subgoals=SUBGOALS)
    training = replace(_small(steps, workshop.seed), learning_rate=2e-3)
    log.keep(train_planner(config, lessons[NUM_HELD_OUT:], lessons[:NUM_HELD_OUT], training, log))


def _small(steps: int, seed: int) -> TrainingConfig:
    """Return the configuration for models of the two-stage task."""
    few = min(100, steps)
    return TrainingConfig(steps=steps, seed=seed, batch_size=64, warm_up_steps=few, log_every=few)


def _eyes() -> JudgeNetwork:
    """Return the shipped judge, whose convolutions are trained on these cameras."""
    return shipped_network(JUDGE, JudgeNetwork)
