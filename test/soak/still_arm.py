"""An arm without a simulator, for soaks beside other tests: it is where it is told to be, and its cameras see nothing. It takes
what `emulated/arm-policy` says. A soak copies this file to its folder, which is on its processes' path."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ros2_rfm_serving.worlds.base import Array, Image, WorldSpec

STATE_SIZE, STEP_M = 39, 0.01


class StillArm:
    action_names = ("delta_x", "delta_y", "delta_z", "gripper")
    cameras = ("side", "front")
    step_s = 0.0125
    success = False
    joint_names = ("x", "y", "z", "gripper")

    def __init__(self, size_px: int) -> None:
        self._black = np.zeros((size_px, size_px, 3), np.uint8)
        self.reset(0)

    def reset(self, seed: int) -> None:
        self._at, self._moves = np.random.default_rng(seed).uniform(-0.1, 0.1, 4), np.zeros(4)

    @property
    def state(self) -> Array:
        return np.concatenate([self._at, np.zeros(STATE_SIZE - 4)]).astype(np.float32)

    @property
    def joint_positions(self) -> npt.NDArray[np.float64]:
        return self._at.copy()

    @property
    def joint_velocities(self) -> npt.NDArray[np.float64]:
        return self._moves / self.step_s

    def step(self, action: npt.ArrayLike) -> None:
        before = self._at
        self._at = np.clip(before + STEP_M * np.clip(np.asarray(action, np.float64), -1, 1), -0.2, 0.2)
        self._moves = self._at - before

    def idle(self, last: Array, silent_steps: int) -> Array:
        return np.zeros(4, np.float32)

    def render(self) -> dict[str, Image]:
        return dict.fromkeys(self.cameras, self._black)

    def close(self) -> None: ...


def build(spec: WorldSpec) -> StillArm:
    return StillArm(spec.image_size_px)
