"""A world without a simulator: a trolley on a rail, whose drive goes on at half speed when it is told nothing."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ros2_rfm_serving.worlds.base import Array, WorldSpec

TOP_SPEED = 0.1


class Trolley:
    action_names = ("speed",)
    cameras = ("above",)
    step_s = 0.1
    joint_names = ("rail",)
    instructions = ("go to the mark", "reach the mark")
    state_columns = (0, 1, 2, 3, 4, 5)
    relative_pairs = ((3, 0),)
    pushed_actions = slice(0, 1)

    def __init__(self, task: str, size_px: int) -> None:
        self.task, self._size_px, self.closed = task, size_px, False
        self.taken: list[float] = []
        self.reset(0)

    def reset(self, seed: int) -> None:
        self._at, self._mark = np.random.default_rng(seed).uniform(-1, 1, 2)

    @property
    def state(self) -> Array:
        return np.array([self._at, 0, 0, self._mark, 0, 0], np.float32)

    @property
    def success(self) -> bool:
        return bool(abs(self._at - self._mark) < TOP_SPEED)

    @property
    def joint_positions(self) -> npt.NDArray[np.float64]:
        return np.array([self._at])

    @property
    def joint_velocities(self) -> npt.NDArray[np.float64]:
        return np.array([self.taken[-1] if self.taken else 0.0])

    def step(self, action: npt.ArrayLike) -> None:
        (speed,) = np.clip(np.asarray(action, np.float64), -1, 1)
        self.taken.append(float(speed))
        self._at += TOP_SPEED * speed

    def idle(self, last: Array, silent_steps: int) -> Array:
        return last * 0.5**silent_steps

    def render(self) -> dict[str, npt.NDArray[np.uint8]]:
        picture = np.zeros((self._size_px, self._size_px, 3), np.uint8)
        picture[:, int((self._at % 1) * self._size_px)] = 255
        return {"above": picture}

    def close(self) -> None:
        self.closed = True

    def expert(self) -> Expert:
        return Expert()


class Expert:
    def get_action(self, state: npt.NDArray[np.float64]) -> npt.ArrayLike:
        return [(state[3] - state[0]) / TOP_SPEED]


def build(spec: WorldSpec) -> Trolley:
    return Trolley(spec.task, spec.image_size_px)


class Crane(Trolley):
    """What hangs from it never moves."""

    action_names = ("speed", "hoist")


def crane(spec: WorldSpec) -> Crane:
    return Crane(spec.task, spec.image_size_px)


class Broken(Trolley):
    def step(self, action: npt.ArrayLike) -> None:
        raise RuntimeError("unstable")


def broken(spec: WorldSpec) -> Broken:
    return Broken(spec.task, spec.image_size_px)


def half(spec: WorldSpec) -> object:
    """That somebody has only begun."""
    return Expert()
