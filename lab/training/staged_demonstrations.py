"""Demonstrations of the two-stage task, for `rfm train staged-policy`: each stage from any state that the other may end in.

The demonstrations of single tasks begin where Meta-World does, high above the table. A stage begins low beside the goal, with the
elbow sunk after a stop, or where a plan was changed half-way: there, a policy that is trained on the former alone hardly moves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from lab.training.demonstrations import DONE, ONGOING, Demonstrations, Disturbance, Recipe, Rows, show_step
from lab.training.stages import STAGES, stage_expert
from ros2_rfm_serving.worlds.base import FRAME_EVERY
from ros2_rfm_serving.worlds.metaworld import ACTION_NAMES, TASKS, VISIT_THEN_PUSH, MetaworldArm

GRIPPER = ACTION_NAMES.index("gripper")
RECIPE = Recipe(episodes_per_task=150, max_noise=0.5)
MAX_INTERRUPTED = 3
"""Largest number of stages before the last one; each lasts for some of `STAGE_STEPS`, done or not."""
STAGE_STEPS = (10, 90)
PLACED_SHARE = 0.3
"""Share of the episodes in which the hand is moved to some place first."""
PLACE_M = ((-0.15, 0.15), (0.5, 0.9), (0.05, 0.3))
STANDS_SHARE, STAND_STEPS = 0.1, (50, 400)
"""Share of the episodes in which the arm stands for a while and its elbow sinks, and the steps of that."""


def collect_staged(recipe: Recipe = RECIPE, progress: Callable[[int, int], None] = lambda done, total: None) -> Demonstrations:
    """Collect interrupted stages and the last one to its end; episodes in which the last one fails are left out."""
    arm, rng, rows = MetaworldArm(VISIT_THEN_PUSH), np.random.default_rng([recipe.seed, 78]), Rows(0)
    for episode in range(recipe.episodes_per_task):
        arm.reset(recipe.seed + episode)
        _begin_anywhere(arm, rng)
        for _ in range(int(rng.integers(MAX_INTERRUPTED + 1))):
            _show(arm, str(rng.choice(STAGES)), int(rng.integers(*STAGE_STEPS)), recipe, rng, rows)
            rows.keep_if(True)  # an episode of its own: no chunk leads from one stage into the next
        rows.keep_if(_show(arm, STAGES[-1], recipe.max_steps, recipe, rng, rows))
        progress(episode + 1, recipe.episodes_per_task)
    arm.close()
    return rows.finish()


def _begin_anywhere(arm: MetaworldArm, rng: np.random.Generator) -> None:
    if rng.random() < PLACED_SHARE:
        place_m, grip = np.array([rng.uniform(*limits) for limits in PLACE_M]), rng.uniform(-1, 1)
        for _ in range(40):
            arm.step(np.append(np.clip(10 * (place_m - arm.state[:3]), -1, 1), grip))
    if rng.random() < STANDS_SHARE:
        for _ in range(int(rng.integers(*STAND_STEPS))):
            arm.step(np.zeros(4))


def _show(arm: MetaworldArm, stage: str, max_steps: int, recipe: Recipe, rng: np.random.Generator, rows: Rows) -> bool:
    """Return whether the workpiece reached its goal and was left there for a while."""
    rows.task = list(TASKS).index(stage)
    expert, disturbance, after = stage_expert(stage), Disturbance(recipe, rng, arm), 0
    for step in range(max_steps):
        if step % FRAME_EVERY == 0:
            rows.frame(arm, DONE if arm.at_goal else ONGOING)
        show_step(arm, _answer(expert, arm), disturbance.next() if after == 0 else None, rows)
        after += arm.at_goal or after > 0
        if after > recipe.steps_after_success and stage == STAGES[-1]:
            return True
    return False


def _answer(expert: Any, arm: MetaworldArm) -> npt.NDArray[np.float64]:
    """Return the expert's answer, with an empty gripper open: Meta-World's own expert opens it by a reset alone."""
    action = np.array(expert.get_action(arm.state.astype(np.float64)))
    action[GRIPPER] = action[GRIPPER] or -1.0
    return action
