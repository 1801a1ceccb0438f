"""A Meta-World arm (MuJoCo) with the few functions of a real robot: command, read sensors, reset.

One `step` is one standard Meta-World step (five substeps of 2.5 ms). The caller chooses how many of these happen per second of wall
time; `PHYSICS_STEP_S` over that period is the declared time scale.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.yaml_source import did_you_mean
from ros2_rfm_serving.worlds.base import Array, Image, WorldSpec
from ros2_rfm_serving.worlds.rendering import drawing_off_screen

os.environ.setdefault("MUJOCO_GL", "egl")
with drawing_off_screen():
    import mujoco
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    from ros2_rfm_serving.worlds.obstacles import Obstacle

PHYSICS_STEP_S = 0.0125
ACTION_NAMES = ("delta_x", "delta_y", "delta_z", "gripper")
GRIPPER = ACTION_NAMES.index("gripper")
STATE_SIZE = 39
HAND, WORKPIECE, GOAL = slice(0, 3), slice(4, 7), slice(36, 39)
"""Positions in the state, m."""
PROPRIOCEPTION = (0, 1, 2, 3)
"""Columns of the state that a real arm could measure itself: its hand's position and its gripper's opening."""

# Free cameras above the work area, as (azimuth, elevation in degrees, distance in m): `side` sees depth and height,
# `front` sees the plane of the table. Meta-World's own cameras show the workpiece in two or three pixels.
CAMERAS: dict[str, tuple[float, float, float]] = {"side": (0.0, -15.0, 1.0), "front": (-90.0, -50.0, 0.9)}
_LOOK_AT = (0.0, 0.68, 0.12)


@dataclass(frozen=True, kw_only=True)
class ArmTask:
    """A Meta-World task: the environment's name, the scripted expert's class and the phrases by which people name it."""

    environment: str
    expert: str
    instructions: tuple[str, ...]
    has_loose_object: bool
    stages: tuple[str, ...] = ()
    """Stages of a task with several successive instructions, from `TASKS`; empty: it has only its own."""


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
"""Tasks that the embedded policy was trained on."""


def _scene(name: str, *instructions: str) -> ArmTask:
    """Return a task in whose scene everything that matters is visible."""
    expert = "".join(word.capitalize() for word in name.split("-"))
    return ArmTask(environment=f"{name}-v3", expert=f"Sawyer{expert}V3Policy", instructions=instructions, has_loose_object=False)


SEEN_TASKS: dict[str, ArmTask] = {
    "door-close": _scene("door-close", "close the door", "push the door shut"),
    "drawer-open": _scene("drawer-open", "open the drawer", "pull the drawer open"),
    "drawer-close": _scene("drawer-close", "close the drawer", "push the drawer shut"),
    "button-press-topdown": _scene("button-press-topdown", "press the button from above", "push the button down"),
    "button-press": _scene("button-press", "press the button from the front", "push the button in"),
    "window-open": _scene("window-open", "open the window", "slide the window open"),
    "window-close": _scene("window-close", "close the window", "slide the window shut"),
    "faucet-open": _scene("faucet-open", "open the faucet", "turn the faucet on"),
    "faucet-close": _scene("faucet-close", "close the faucet", "turn the faucet off"),
    "handle-press": _scene("handle-press", "press the handle down", "push down the handle"),
    "handle-press-side": _scene("handle-press-side", "press the handle at the side", "push the handle at the side down"),
    "coffee-button": _scene("coffee-button", "press the button of the coffee machine", "make coffee"),
}
"""Tasks that the policy which acts on images alone was trained on."""

VISIT_THEN_PUSH = "visit-then-push"
STAGED_TASKS: dict[str, ArmTask] = {
    VISIT_THEN_PUSH: ArmTask(
        environment="push-v3",
        expert="SawyerPushV3Policy",
        instructions=("reach the red goal, then push the puck to the green goal",),
        has_loose_object=True,
        stages=("reach", "push"),
    )
}
"""Task with two stages: the hand visits the goal while the puck is still at its start, and then the puck is pushed there.

Both stages have one scene and one goal, so that only the instruction shows the stage. An arm instructed to push at once moves the
puck before it has been at the goal; an arm instructed to reach never moves it.
"""
VISIT_M = 0.08
"""Distance from the hand to the goal that counts as a visit."""
UNTOUCHED_M = 0.03
"""Distance that the workpiece may have moved and still counts as untouched."""


ALL_TASKS = TASKS | STAGED_TASKS | SEEN_TASKS


class MetaworldArm:
    """One simulated arm doing one task.

    It is not thread-safe: MuJoCo's state and the off-screen GL context belong to the thread that calls. `reset(seed)` draws a new
    placement of workpiece and goal; the same seed gives the same placement.
    """

    action_names = ACTION_NAMES
    step_s = PHYSICS_STEP_S
    # Hand, gripper, workpiece and goal; the second copy (the previous step's) invites copying the last action.
    state_columns = (*range(18), 36, 37, 38)
    relative_pairs = ((4, 0), (36, 4), (36, 0))
    pushed_actions = slice(0, GRIPPER)

    def __init__(self, task: str, *, cameras: Sequence[str] = tuple(CAMERAS), image_size_px: int = 96) -> None:
        self.task = ALL_TASKS[task]
        self.success = False
        self.visited = self.at_goal = False
        """`visited`: the first of two stages is done. `at_goal`: Meta-World's own success."""
        self.obstacle: Obstacle | None = None
        """Foreign object that cameras see, but that has no physics."""
        self.distance_m = float("nan")
        self._env: Any = ALL_V3_ENVIRONMENTS[self.task.environment]()
        self._env._partially_observable = False  # the goal is part of the standard 39-number observation
        vars(self._env).pop("sawyer_observation_space", None)  # a cached property that still hides (and clips) the goal
        self._env._freeze_rand_vec = False
        self._env.seeded_rand_vec = True
        self._env._set_task_called = True
        self._env.max_path_length = 1_000_000_000  # the task layer ends episodes
        self.cameras = tuple(cameras)
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
    def instructions(self) -> tuple[str, ...]:
        return self.task.instructions

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
        """Start a new episode whose randomisation follows from `seed` alone."""
        self._env.seed(seed)
        observation, _ = self._env.reset()
        self._start_m, self.visited = np.array(observation[WORKPIECE]), False
        self._take(observation, at_goal=False, distance_m=float("nan"))

    def step(self, action: npt.ArrayLike) -> None:
        """Execute one action [4] (`ACTION_NAMES`, each in [-1, 1]; full scale moves the hand by 1 cm)."""
        clipped = np.clip(np.asarray(action, np.float32), -1.0, 1.0)
        observation, _, _, _, info = self._env.step(clipped)
        self._take(observation, bool(info["success"]), float(info["obj_to_target"]))

    def idle(self, last: Array, silent_steps: int) -> Array:
        """Return a motion in which the arm stays where it is and the gripper keeps its effort."""
        held = np.zeros_like(last)
        held[GRIPPER] = last[GRIPPER]
        return held

    def render(self) -> dict[str, Image]:
        """Return one RGB image per camera, [size, size, 3] uint8."""
        if self._renderer is None:
            self._renderer = _renderer(self._env.model, self._image_size_px)
        images = {}
        for name, camera in self._cameras.items():
            self._renderer.update_scene(self._env.data, camera=camera)
            if self.obstacle is not None:
                self.obstacle.draw(self._renderer.scene)
            self._renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
            self._renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
            images[name] = self._renderer.render().copy()
        return images

    def throw_object(self, position: Sequence[float]) -> None:
        """Put the loose workpiece at a position (m), to stage a workpiece that has left the reachable area."""
        self._env._set_obj_xyz(np.asarray(position, np.float64))
        mujoco.mj_forward(self._env.model, self._env.data)

    def lose_object(self, rng: np.random.Generator) -> None:
        """Put the loose workpiece beside the area where the task can still be finished."""
        self.throw_object((rng.choice([-1.0, 1.0]) * rng.uniform(0.24, 0.36), rng.uniform(0.5, 0.9), 0.02))

    def expert(self) -> Any:
        """Return a fresh instance of Meta-World's own scripted policy for this task: `get_action(state) -> action`."""
        from metaworld import policies

        return getattr(policies, self.task.expert)()

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def _take(self, observation: npt.NDArray[np.float64], at_goal: bool, distance_m: float) -> None:
        self._state = np.asarray(observation, np.float32)
        self.visited = self.visited or self._visits()
        self.at_goal = at_goal
        self.success = at_goal and (self.visited or not self.task.stages)
        self.distance_m = distance_m

    def _visits(self) -> bool:
        hand, workpiece, goal = self._state[HAND], self._state[WORKPIECE], self._state[GOAL]
        untouched = np.linalg.norm(workpiece - self._start_m) < UNTOUCHED_M
        return bool(untouched and np.linalg.norm(hand - goal) < VISIT_M)

    def _joints(self) -> list[int]:
        one_dof = (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE)
        return [i for i in range(self._env.model.njnt) if self._env.model.jnt_type[i] in one_dof]


@contextlib.contextmanager
def metaworld_arm(task: str, *, image_size_px: int = 96) -> Iterator[MetaworldArm]:
    """Provide a `MetaworldArm` whose GL context is released on exit."""
    arm = MetaworldArm(task, image_size_px=image_size_px)
    try:
        yield arm
    finally:
        arm.close()


def build(spec: WorldSpec) -> MetaworldArm:
    """Return the arm for a task. Raises: `ConfigurationError` for an unknown one."""
    if spec.task not in ALL_TASKS:
        raise ConfigurationError(f"no task {spec.task!r}", key="task", fix=did_you_mean(spec.task, ALL_TASKS))
    return MetaworldArm(spec.task, image_size_px=spec.image_size_px)


def _free_camera(name: str) -> mujoco.MjvCamera:
    azimuth, elevation, distance = CAMERAS[name]
    camera = mujoco.MjvCamera()
    camera.lookat[:] = _LOOK_AT
    camera.azimuth, camera.elevation, camera.distance = azimuth, elevation, distance
    return camera


def _renderer(model: Any, size_px: int) -> mujoco.Renderer:
    model.vis.quality.shadowsize = 0
    model.vis.quality.offsamples = 0
    with drawing_off_screen():
        return mujoco.Renderer(model, size_px, size_px)
