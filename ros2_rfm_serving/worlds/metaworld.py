"""A Meta-World arm (MuJoCo) behind the few calls a real robot offers: command, read sensors, reset.

One `step` is one standard Meta-World step (five substeps of 2.5 ms). Whoever drives it chooses how many of these happen per
second of wall time; `PHYSICS_STEP_S` over that period is the declared time scale.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("MUJOCO_GL", "egl")

import mujoco
import numpy as np
import numpy.typing as npt
from metaworld.env_dict import ALL_V3_ENVIRONMENTS

Array = npt.NDArray[np.float32]
Image = npt.NDArray[np.uint8]

PHYSICS_STEP_S = 0.0125
ACTION_NAMES = ("delta_x", "delta_y", "delta_z", "gripper")
STATE_SIZE = 39

# Free cameras above the work area, as (azimuth, elevation in degrees, distance in m): `side` sees depth and height,
# `front` sees the plane of the table. Meta-World's own cameras show the workpiece in two or three pixels.
CAMERAS: dict[str, tuple[float, float, float]] = {"side": (0.0, -15.0, 1.0), "front": (-90.0, -50.0, 0.9)}
_LOOK_AT = (0.0, 0.68, 0.12)


@dataclass(frozen=True, kw_only=True)
class ArmTask:
    """A Meta-World task: the environment's name, the scripted expert's class and what people call it."""

    environment: str
    expert: str
    instructions: tuple[str, ...]
    has_loose_object: bool


TASKS: dict[str, ArmTask] = {
    "reach": ArmTask(
        environment="reach-v3",
        expert="SawyerReachV3Policy",
        instructions=("reach the red goal", "move the hand to the red mark", "go to the red target"),
        has_loose_object=False,
    ),
    "push": ArmTask(
        environment="push-v3",
        expert="SawyerPushV3Policy",
        instructions=("push the puck to the green goal", "slide the puck to the green mark", "push it to green"),
        has_loose_object=True,
    ),
    "pick-place": ArmTask(
        environment="pick-place-v3",
        expert="SawyerPickPlaceV3Policy",
        instructions=(
            "pick up the puck and place it at the blue goal",
            "pick the puck and carry it to the blue mark",
            "lift the puck to the blue target",
        ),
        has_loose_object=True,
    ),
    "door-open": ArmTask(
        environment="door-open-v3",
        expert="SawyerDoorOpenV3Policy",
        instructions=("open the door", "pull the door open", "open the door of the safe"),
        has_loose_object=False,
    ),
}


class MetaworldArm:
    """One simulated arm doing one task.

    Not thread-safe: MuJoCo's state and the off-screen GL context belong to the thread that calls. `reset(seed)` draws a new
    placement of workpiece and goal; the same seed gives the same placement.
    """

    def __init__(self, task: str, *, cameras: Sequence[str] = tuple(CAMERAS), image_size_px: int = 96) -> None:
        self.task = TASKS[task]
        self.success = False
        self.distance_m = float("nan")
        self._env: Any = ALL_V3_ENVIRONMENTS[self.task.environment]()
        self._env._partially_observable = False  # the goal is part of the standard 39-number observation
        vars(self._env).pop("sawyer_observation_space", None)  # a cached property that still hides (and clips) the goal
        self._env._freeze_rand_vec = False
        self._env.seeded_rand_vec = True
        self._env._set_task_called = True
        self._env.max_path_length = 1_000_000_000  # episodes end when the task layer says so
        self._cameras = {name: _free_camera(name) for name in cameras}
        self._image_size_px = image_size_px
        self._renderer: mujoco.Renderer | None = None
        self._state = np.zeros(STATE_SIZE, np.float32)
        self.reset(0)

    @property
    def state(self) -> Array:
        """Meta-World's standard observation, [39], positions in m."""
        return self._state

    @property
    def joint_names(self) -> list[str]:
        model = self._env.model
        return [model.joint(i).name or f"joint_{i}" for i in self._joints()]

    @property
    def joint_positions(self) -> npt.NDArray[np.float64]:
        """Positions of the one-degree-of-freedom joints, in rad (arm) and m (fingers)."""
        address = self._env.model.jnt_qposadr
        return np.array([self._env.data.qpos[address[i]] for i in self._joints()])

    @property
    def joint_velocities(self) -> npt.NDArray[np.float64]:
        address = self._env.model.jnt_dofadr
        return np.array([self._env.data.qvel[address[i]] for i in self._joints()])

    def reset(self, seed: int) -> None:
        """Starts a new episode whose randomisation follows from `seed` alone."""
        self._env.seed(seed)
        observation, _ = self._env.reset()
        self._take(observation, success=False, distance_m=float("nan"))

    def step(self, action: npt.ArrayLike) -> None:
        """Applies one action [4] (`ACTION_NAMES`, each in [-1, 1]; full scale moves the hand by 1 cm)."""
        clipped = np.clip(np.asarray(action, np.float32), -1.0, 1.0)
        observation, _, _, _, info = self._env.step(clipped)
        self._take(observation, bool(info["success"]), float(info["obj_to_target"]))

    def render(self) -> dict[str, Image]:
        """One RGB image per camera, [size, size, 3] uint8."""
        if self._renderer is None:
            self._renderer = _renderer(self._env.model, self._image_size_px)
        images = {}
        for name, camera in self._cameras.items():
            self._renderer.update_scene(self._env.data, camera=camera)
            self._renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
            self._renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
            images[name] = self._renderer.render().copy()
        return images

    def throw_object(self, position: Sequence[float]) -> None:
        """Puts the loose workpiece at a position (m): how a workpiece that has left the reachable area is staged."""
        self._env._set_obj_xyz(np.asarray(position, np.float64))
        mujoco.mj_forward(self._env.model, self._env.data)

    def expert(self) -> Any:
        """A fresh instance of Meta-World's own scripted policy for this task: `get_action(state) -> action`."""
        from metaworld import policies

        return getattr(policies, self.task.expert)()

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def _take(self, observation: npt.NDArray[np.float64], success: bool, distance_m: float) -> None:
        self._state = np.asarray(observation, np.float32)
        self.success = success
        self.distance_m = distance_m

    def _joints(self) -> list[int]:
        one_dof = (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE)
        return [i for i in range(self._env.model.njnt) if self._env.model.jnt_type[i] in one_dof]


@contextlib.contextmanager
def metaworld_arm(task: str, *, image_size_px: int = 96) -> Iterator[MetaworldArm]:
    """A `MetaworldArm` whose GL context is released on exit."""
    arm = MetaworldArm(task, image_size_px=image_size_px)
    try:
        yield arm
    finally:
        arm.close()


def _free_camera(name: str) -> mujoco.MjvCamera:
    azimuth, elevation, distance = CAMERAS[name]
    camera = mujoco.MjvCamera()
    camera.lookat[:] = _LOOK_AT
    camera.azimuth, camera.elevation, camera.distance = azimuth, elevation, distance
    return camera


def _renderer(model: Any, size_px: int) -> mujoco.Renderer:
    model.vis.quality.shadowsize = 0
    model.vis.quality.offsamples = 0
    return mujoco.Renderer(model, size_px, size_px)
