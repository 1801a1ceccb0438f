"""Frames of the two-stage task with and without an obstacle, for `rfm train safety` and `rfm train monitor`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ros2_rfm_serving.worlds.metaworld import GOAL, HAND, STAGED_TASKS, TASKS, VISIT_M, VISIT_THEN_PUSH, MetaworldArm
from ros2_rfm_serving.worlds.obstacles import draw_obstacle

Images = npt.NDArray[np.uint8]
SAFE, UNSAFE = 0, 1
ONGOING, DONE, FAILED = 0, 1, 2
STAGES = STAGED_TASKS[VISIT_THEN_PUSH].stages
FRAME_EVERY = 6  # steps
STEPS_AFTER_STAGE = 12
MAX_STEPS = 240
STANDS_SHARE = 0.02
"""Probability per step that the arm stands first."""
LOST_SEED = 500_000


@dataclass(frozen=True, kw_only=True)
class StageFrames:
    """Frames with labels: `f` frames, `c` cameras."""

    images: Images
    """[f, c, size, size, 3]"""
    episode: npt.NDArray[np.int32]
    """[f], so that a held-out split never shares an episode."""
    stage: npt.NDArray[np.int32]
    """[f], index into `STAGES` of the current stage."""
    verdicts: npt.NDArray[np.int32]
    """[f, 2], ONGOING, DONE or FAILED of each stage, whichever is current."""
    obstacle: npt.NDArray[np.int32]
    """[f], SAFE or UNSAFE: whether an obstacle is present."""

    def save(self, path: str) -> None:
        np.savez(path, **vars(self))

    @staticmethod
    def load(path: str) -> StageFrames:
        with np.load(path) as arrays:
            return StageFrames(**{name: arrays[name] for name in arrays.files})


@dataclass(frozen=True, kw_only=True)
class JudgedFrames:
    """Training data of a judge (`lab.training.demonstrated.Frames`)."""

    images: Images
    verdict: npt.NDArray[np.int32]
    frame_task: npt.NDArray[np.int32]
    """Index of the texts of each frame."""
    frame_episode: npt.NDArray[np.int32]


def for_safety(frames: StageFrames) -> JudgedFrames:
    """Return the frames labelled by the presence of an obstacle, with one text for all."""
    return JudgedFrames(
        images=frames.images,
        verdict=frames.obstacle,
        frame_task=np.zeros(len(frames.images), np.int32),
        frame_episode=frames.episode,
    )


def for_monitor(frames: StageFrames) -> JudgedFrames:
    """Return the frames labelled by completion: each one once per stage, with text i on stage i. Obstacles are left to safety."""
    clear = frames.obstacle == SAFE
    images, episode, verdicts = frames.images[clear], frames.episode[clear], frames.verdicts[clear]
    return JudgedFrames(
        images=np.concatenate([images] * len(STAGES)),
        verdict=verdicts.T.ravel(),
        frame_task=np.repeat(np.arange(len(STAGES), dtype=np.int32), len(images)),
        frame_episode=np.concatenate([episode] * len(STAGES)),
    )


def collect_stages(episodes: int, seed: int, progress: Callable[[int, int], None] = lambda done, total: None) -> StageFrames:
    """Run disturbed scripted experts of one stage after the other; half of the frames are repeated with an obstacle."""
    arm = MetaworldArm(VISIT_THEN_PUSH)
    rows = _Rows(arm, np.random.default_rng([seed, 77]))
    for episode in range(episodes):
        arm.reset(seed + episode)
        rows.episode = episode
        _run_stages(arm, rows)
        if episode % 3 == 0:
            arm.reset(seed + LOST_SEED + episode)
            _lose_workpiece(arm, rows)
        progress(episode + 1, episodes)
    arm.close()
    return rows.finish()


class _Rows:
    def __init__(self, arm: MetaworldArm, rng: np.random.Generator) -> None:
        self.arm, self.rng, self.episode = arm, rng, 0
        self._rows: list[tuple[Images, int, int, tuple[int, int], int]] = []

    def frame(self, stage: int, *, lost: bool = False) -> None:
        state = self.arm.state
        visits = np.linalg.norm(state[HAND] - state[GOAL]) < VISIT_M
        verdicts = (FAILED, FAILED) if lost else (int(visits), int(self.arm.at_goal))
        self._keep(stage, verdicts, SAFE)
        if self.rng.random() < 0.5:
            self.arm.obstacle = draw_obstacle(self.rng)
            self._keep(stage, verdicts, UNSAFE)
            self.arm.obstacle = None

    def _keep(self, stage: int, verdicts: tuple[int, int], obstacle: int) -> None:
        self._rows.append((np.stack(list(self.arm.render().values())), self.episode, stage, verdicts, obstacle))

    def finish(self) -> StageFrames:
        images, episode, stage, verdicts, obstacle = zip(*self._rows, strict=True)
        return StageFrames(
            images=np.stack(images),
            episode=np.array(episode, np.int32),
            stage=np.array(stage, np.int32),
            verdicts=np.array(verdicts, np.int32),
            obstacle=np.array(obstacle, np.int32),
        )


def _run_stages(arm: MetaworldArm, rows: _Rows) -> None:
    """Run the stages; most episodes start with the first one, in the others the workpiece is pushed at once."""
    noise = rows.rng.uniform(0.0, 0.6)
    first = 0 if rows.rng.random() < 0.8 else 1
    for stage in range(first, len(STAGES)):
        expert, after = stage_expert(STAGES[stage]), 0
        for step in range(MAX_STEPS):
            if step % FRAME_EVERY == 0:
                rows.frame(stage)
            if rows.rng.random() < STANDS_SHARE:
                _stand(arm, rows, stage)
            action = np.clip(expert.get_action(arm.state.astype(np.float64)), -1, 1) + rows.rng.normal(0.0, noise, 4)
            arm.step(action)
            after += bool(after) or (arm.visited if stage == 0 else arm.at_goal)
            if after > STEPS_AFTER_STAGE:
                break


def _stand(arm: MetaworldArm, rows: _Rows, stage: int) -> None:
    """Let the arm stand without a command, as after a stop or before a task: its elbow sinks, which no short episode shows."""
    for _ in range(int(rows.rng.integers(50, 400))):
        arm.step(np.zeros(4))
    rows.frame(stage)


def _lose_workpiece(arm: MetaworldArm, rows: _Rows) -> None:
    """Record frames with the workpiece out of reach, so that the task cannot be finished."""
    stage = int(rows.rng.integers(len(STAGES)))
    expert = stage_expert(STAGES[stage])
    for _ in range(int(rows.rng.integers(1, 60))):
        arm.step(expert.get_action(arm.state.astype(np.float64)))
    arm.lose_object(rows.rng)
    for _ in range(6):
        for _ in range(int(rows.rng.integers(2, 12))):
            arm.step(np.clip(expert.get_action(arm.state.astype(np.float64)), -1, 1) + rows.rng.normal(0.0, 0.5, 4))
        rows.frame(stage, lost=True)


def stage_expert(stage: str) -> Any:
    """Return a fresh instance of Meta-World's own scripted policy."""
    from metaworld import policies

    return getattr(policies, TASKS[stage].expert)()
