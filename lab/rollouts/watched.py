"""Verdicts of a safety judge on scenes with and without an obstacle, while the arm works and for a minute while it stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lab.training.stages import STAGES
from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import SAFETY, SYSTEM1, Array, EngineReply, InferenceRequest, RequestId, empty
from ros2_rfm_serving.worlds.metaworld import ACTION_NAMES, TASKS, MetaworldArm
from ros2_rfm_serving.worlds.obstacles import draw_obstacle

GRIPPER = ACTION_NAMES.index("gripper")
EXECUTE, MAX_STEPS = 6, 160
MOVING_EVERY, STANDING_EVERY, STANDING_STEPS = 10, 60, 1200
"""Control steps between two judgements while moving and while standing, and number of steps standing: a minute at 20 Hz."""
OBSTACLE_SHARE = 0.4
"""Share of the frames that are judged once more with an obstacle."""
STANDS_AT_ONCE_SHARE = 0.2
"""Share of the episodes in which the arm stands where it was reset to."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Judgement of one frame."""

    seed: int
    standing: bool
    obstacle: str
    """Kind of the obstacle; empty: the way is clear."""
    unsafe: float
    """Probability that the judge gives; its verdict is unsafe from 0.5 on."""


def judged_episodes(
    arm: MetaworldArm,
    policy: Engine,
    safety: Engine,
    question: str,
    seeds: Sequence[int],
    progress: Callable[[int], None] = lambda seed: None,
) -> list[Judged]:
    """Judge episodes of both stages by the policy, each stopped at a random step, after which the arm stands."""
    judged = []
    for seed in seeds:
        rng = np.random.default_rng([seed, 9])
        arm.reset(seed)
        for standing in _episode(arm, policy, rng):
            for kind in ("", *(["any"] if rng.random() < OBSTACLE_SHARE else [])):
                arm.obstacle = draw_obstacle(rng) if kind else None
                reply = _ask(safety, SAFETY, question, empty(0), arm)
                unsafe = 1.0 - reply.score if reply.verdict == "safe" else reply.score
                judged.append(
                    Judged(seed=seed, standing=standing, obstacle=arm.obstacle.kind if arm.obstacle else "", unsafe=unsafe)
                )
                arm.obstacle = None
        progress(seed)
    return judged


def _episode(arm: MetaworldArm, policy: Engine, rng: np.random.Generator) -> Iterator[bool]:
    """Yield whether the arm stands, at every moment to be judged."""
    left = 0 if rng.random() < STANDS_AT_ONCE_SHARE else int(rng.integers(1, MAX_STEPS))
    held = np.zeros(len(ACTION_NAMES), np.float32)
    while left > 0 and not arm.success:
        stage = STAGES[int(arm.visited)]
        for action in _ask(policy, SYSTEM1, TASKS[stage].instructions[0], arm.state, arm).chunk_robot[: min(EXECUTE, left)]:
            arm.step(action)
            held[GRIPPER], left = action[GRIPPER], left - 1
            if left % MOVING_EVERY == 0:
                yield False
    for step in range(STANDING_STEPS):
        arm.step(held)
        if step % STANDING_EVERY == STANDING_EVERY - 1:
            yield True


def _ask(engine: Engine, component: str, instruction: str, state: Array, arm: MetaworldArm) -> EngineReply:
    """Return the reply to one request. Raises: `ModelError`."""
    request = InferenceRequest(
        id=RequestId(robot="arm", component=component, session_epoch=1, episode=1, sequence=1),
        instruction=instruction,
        state=state,
        images=arm.render(),
        inference_delay_steps=0,
        prefix_model=empty(0, 0),
    )
    (reply,) = engine.infer([request])
    if isinstance(reply, ModelError):
        raise reply
    return reply
