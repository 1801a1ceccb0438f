"""Demonstrations from scripted experts, for `rfm train`.

Most episodes disturb the executed actions while the label stays the expert's own answer in the disturbed state, so that the policy
learns to recover (DART-style noise injection). Disturbances come in bursts with calm between them: the executed actions are stored
beside the label, so that a policy can learn the effect of the actions after a state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ros2_rfm_serving.worlds.base import FRAME_EVERY, Array, Teaching
from ros2_rfm_serving.worlds.metaworld import TASKS, MetaworldArm

ONGOING, DONE, FAILED = 0, 1, 2


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Parameters of the collection of demonstrations."""

    episodes_per_task: int = 100
    noisy_share: float = 0.7
    """Share of episodes whose executed actions are disturbed."""
    max_noise: float = 0.6
    """Largest standard deviation of the disturbance, in action units (full scale 1); a burst's constant part is as large."""
    burst_steps: tuple[int, int] = (1, 12)
    calm_steps: tuple[int, int] = (6, 30)
    steps_after_success: int = 20
    frame_every: int = FRAME_EVERY
    """Control steps between two frames."""
    max_steps: int = 200
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Demonstrations:
    """Successful episodes, concatenated: `n` steps, `f` frames, `c` cameras."""

    state: npt.NDArray[np.float32]
    """[n, S]"""
    action: npt.NDArray[np.float32]
    """[n, A], the expert's clean answers in [-1, 1]."""
    executed: npt.NDArray[np.float32]
    """[n, A], executed actions in [-1, 1]."""
    disturbed: npt.NDArray[np.bool_]
    """[n], whether the executed action differs from the label."""
    episode: npt.NDArray[np.int32]
    """[n]"""
    task: npt.NDArray[np.int32]
    """[n], index into `TASKS`, or into other given tasks."""
    frame: npt.NDArray[np.int32]
    """[n], index of the newest camera frame at that step."""
    images: npt.NDArray[np.uint8]
    """[f, c, size, size, 3]"""
    verdict: npt.NDArray[np.int32]
    """[f], ONGOING, DONE or FAILED"""
    frame_task: npt.NDArray[np.int32]
    """[f]"""
    frame_episode: npt.NDArray[np.int32]
    """[f], so that a held-out split never shares an episode."""

    def save(self, path: str) -> None:
        np.savez(path, **vars(self))

    @staticmethod
    def load(path: str) -> Demonstrations:
        with np.load(path) as arrays:
            return Demonstrations(**{name: arrays[name] for name in arrays.files})

    @staticmethod
    def join(parts: list[Demonstrations]) -> Demonstrations:
        """Concatenate, with episode and frame indices shifted so that they stay unique."""
        frames = np.cumsum([0, *(len(p.images) for p in parts)])
        episodes = np.cumsum([0, *(int(p.frame_episode.max()) + 1 for p in parts)])
        joined = {}
        for name in vars(parts[0]):
            shift = frames if name == "frame" else episodes if name in ("episode", "frame_episode") else None
            arrays = [vars(p)[name] for p in parts]
            if shift is not None:
                arrays = [a + np.int32(s) for a, s in zip(arrays, shift, strict=False)]
            joined[name] = np.concatenate(arrays)
        return Demonstrations(**joined)


def collect(task: str, recipe: Recipe, among: Sequence[str] = tuple(TASKS)) -> Demonstrations:
    """Collect demonstrations of one Meta-World task out of several, with frames of lost workpieces."""
    arm, task_index = MetaworldArm(task), list(among).index(task)
    rng, rows = np.random.default_rng([recipe.seed, task_index]), Rows(task_index)
    show(arm, task, recipe, rng, rows)
    if arm.task.has_loose_object:
        _stage_lost_objects(arm, recipe, rng, rows)
    arm.close()
    return rows.finish()


def show(
    arm: Teaching,
    task: str,
    recipe: Recipe,
    rng: np.random.Generator,
    rows: Rows,
) -> None:
    """Run the expert until `recipe.episodes_per_task` episodes succeeded; failed ones are left out."""
    for seed in range(recipe.seed, recipe.seed + 4 * recipe.episodes_per_task):
        if rows.num_episodes == recipe.episodes_per_task:
            break
        arm.reset(seed)
        rows.keep_if(_run_expert(arm, recipe, rng, rows))
    else:
        raise RuntimeError(
            f"the expert of {task!r} succeeded in only {rows.num_episodes} of {4 * recipe.episodes_per_task} episodes"
        )


class Rows:
    """Steps and frames collected so far; those of a failed episode are removed."""

    def __init__(self, task: int) -> None:
        self.task = task
        """Task of the next rows, index into `TASKS`."""
        self.num_episodes = 0
        self.steps: list[tuple[Array, Array, Array, bool, int, int, int]] = []
        self.frames: list[tuple[npt.NDArray[np.uint8], int, int, int]] = []
        self._mark = (0, 0)

    def frame(self, arm: Teaching, verdict: int) -> None:
        self.frames.append((np.stack(list(arm.render().values())), verdict, self.num_episodes, self.task))

    def step(self, state: Array, label: Array, executed: Array, *, disturbed: bool) -> None:
        self.steps.append((state, label, executed, disturbed, self.num_episodes, self.task, len(self.frames) - 1))

    def keep_if(self, success: bool) -> None:
        if success:
            self.num_episodes += 1
            self._mark = (len(self.steps), len(self.frames))
        else:
            del self.steps[self._mark[0] :], self.frames[self._mark[1] :]

    def finish(self) -> Demonstrations:
        state, action, executed, disturbed, episode, task, frame = zip(*self.steps, strict=True)
        images, verdict, frame_episode, frame_task = zip(*self.frames, strict=True)
        return Demonstrations(
            state=np.stack(state),
            action=np.stack(action),
            executed=np.stack(executed),
            disturbed=np.array(disturbed, bool),
            episode=np.array(episode, np.int32),
            task=np.array(task, np.int32),
            frame=np.array(frame, np.int32),
            images=np.stack(images),
            verdict=np.array(verdict, np.int32),
            frame_task=np.array(frame_task, np.int32),
            frame_episode=np.array(frame_episode, np.int32),
        )


class Disturbance:
    """Bursts of noise around a constant push with calm between them; clean episodes have none."""

    def __init__(self, recipe: Recipe, rng: np.random.Generator, arm: Teaching) -> None:
        self._recipe, self._rng, self._pushed = recipe, rng, arm.pushed_actions
        self._noisy = rng.random() < recipe.noisy_share
        self._left, self._in_burst = int(rng.integers(1, recipe.calm_steps[1])), False
        self._push, self._noise = np.zeros(len(arm.action_names)), 0.0

    def next(self) -> npt.NDArray[np.float64] | None:
        """Return the disturbance of the next action; None: there is none."""
        if not self._noisy:
            return None
        if not self._left:
            self._in_burst = not self._in_burst
            self._left = int(self._rng.integers(*(self._recipe.burst_steps if self._in_burst else self._recipe.calm_steps)))
            self._noise = self._rng.uniform(0.1, self._recipe.max_noise)
            self._push[self._pushed] = self._rng.uniform(-1, 1, len(self._push[self._pushed])) * self._recipe.max_noise
        self._left -= 1
        return self._push + self._rng.normal(0.0, self._noise, len(self._push)) if self._in_burst else None


def _run_expert(arm: Teaching, recipe: Recipe, rng: np.random.Generator, rows: Rows) -> bool:
    expert = arm.expert()
    disturbance = Disturbance(recipe, rng, arm)
    after = 0
    for step in range(recipe.max_steps):
        if step % recipe.frame_every == 0:
            rows.frame(arm, DONE if arm.success else ONGOING)
        answer = expert.get_action(arm.state.astype(np.float64))
        show_step(arm, answer, disturbance.next() if after == 0 else None, rows)
        after += arm.success or after > 0
        if after > recipe.steps_after_success:
            return True
    return False


def show_step(arm: Teaching, answer: npt.ArrayLike, noise: npt.NDArray[np.float64] | None, rows: Rows) -> None:
    """Record the expert's answer as the label, and execute it with the noise added."""
    label = np.clip(answer, -1, 1).astype(np.float32)
    executed = label if noise is None else np.clip(label + noise, -1, 1).astype(np.float32)
    rows.step(arm.state, label, executed, disturbed=noise is not None)
    arm.step(executed)


def _stage_lost_objects(arm: MetaworldArm, recipe: Recipe, rng: np.random.Generator, rows: Rows) -> None:
    """Record frames in which the workpiece is out of reach, so that the task cannot be finished: the monitor's FAILED."""
    for episode in range(recipe.episodes_per_task):
        arm.reset(recipe.seed + 500_000 + episode)
        expert = arm.expert()
        for _ in range(int(rng.integers(1, 40))):
            arm.step(expert.get_action(arm.state.astype(np.float64)))
        arm.lose_object(rng)
        for _ in range(3):
            for _ in range(int(rng.integers(2, 12))):
                arm.step(rng.uniform(-1, 1, 4))
            rows.frame(arm, FAILED)
        rows.num_episodes += 1
