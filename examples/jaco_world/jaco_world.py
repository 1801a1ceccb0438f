"""A Kinova Jaco of dm_control as a world: six joint velocities and three fingers, where a Meta-World arm takes displacements.

The task is dm_control's own (`manipulation.load("reach_site_features")`): the hand comes to a point that is drawn anew for every
episode. One `step` is one of dm_control's control steps, 40 ms, so that 25 Hz is the arm's natural speed.
"""

import os

os.environ.setdefault("MUJOCO_GL", "egl")

import mujoco
import numpy as np
from dm_control import composer, manipulation

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.worlds.base import Expert, WorldSpec

TASKS = {"reach_site": ("move the hand to the red ball", "reach the red ball", "go to the red target")}
"""Of each task, what people call it."""
CAMERAS = ("front",)
NUM_JOINTS, NUM_FINGERS = 6, 3
STATE_SIZE = 30
"""Sines and cosines of the joints [12], their velocities [6], fingers [3] and theirs [3], hand [3] and target [3], m."""
HAND, TARGET = slice(24, 27), slice(27, 30)
RADIUS_M = 0.05
"""Within it dm_control's reward is 1."""
HOLD_STEPS = 12
"""So many steps in a row within it are success: half a second."""
TIMEOUT_STEPS = 5
"""Without a command the drives keep their velocity so long, and then stop."""
OPEN_RAD = 0.3


class JacoArm:
    """`worlds.base.SimulatedRobot`. Not thread-safe."""

    action_names = tuple(f"joint_{i + 1}" for i in range(NUM_JOINTS)) + tuple(f"finger_{i + 1}" for i in range(NUM_FINGERS))
    state_columns = tuple(range(STATE_SIZE))
    relative_pairs = ((TARGET.start, HAND.start),)
    pushed_actions = slice(0, NUM_JOINTS)
    cameras = CAMERAS
    step_s = 0.04
    joint_names = action_names

    def __init__(self, task: str = "reach_site", image_size_px: int = 96) -> None:
        if task not in TASKS:
            raise ConfigurationError(f"no task {task!r}", key="task", fix=f"one of {', '.join(TASKS)}")
        self.instructions = TASKS[task]
        loaded = manipulation.load(f"{task}_features", seed=0)
        self._env = composer.Environment(loaded.task, recompile_mjcf_every_episode=False, random_state=loaded.random_state)
        self._image_size_px, self._renderer = image_size_px, None
        self.reset(0)
        self.full_scale = self._env.action_spec().maximum
        """Velocities that an action of 1 stands for, rad/s."""

    @property
    def physics(self):
        return self._env.physics

    @property
    def joint_positions(self):
        return np.array(self.physics.data.qpos[: NUM_JOINTS + NUM_FINGERS])

    @property
    def joint_velocities(self):
        return np.array(self.physics.data.qvel[: NUM_JOINTS + NUM_FINGERS])

    def reset(self, seed: int) -> None:
        self._env.random_state.seed(seed)
        self._observe(self._env.reset().observation)
        self.success, self._held_steps = False, 0

    def step(self, action) -> None:
        """action: [9], each in [-1, 1] of `full_scale`."""
        self._observe(self._env.step(np.clip(action, -1.0, 1.0) * self.full_scale).observation)
        near = np.linalg.norm(self.state[HAND] - self.state[TARGET]) < RADIUS_M
        self._held_steps = self._held_steps + 1 if near else 0
        self.success = self._held_steps >= HOLD_STEPS

    def idle(self, last, silent_steps: int):
        """Velocity drives go on as they were told, until they find that nobody tells them any more."""
        return last if silent_steps < TIMEOUT_STEPS else np.zeros_like(last)

    def render(self):
        if self._renderer is None:
            model = self.physics.model.ptr
            model.vis.quality.shadowsize = model.vis.quality.offsamples = 0
            self._renderer = mujoco.Renderer(model, self._image_size_px, self._image_size_px)
        self._renderer.update_scene(self.physics.data.ptr, camera=0)
        for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            self._renderer.scene.flags[flag] = 0
        return {"front": self._renderer.render().copy()}

    def expert(self) -> Expert:
        return Reaching(self)

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def _observe(self, observation) -> None:
        names = ("joints_pos", "joints_vel", "jaco_hand/joints_pos", "jaco_hand/joints_vel", "jaco_hand/pinch_site_pos")
        parts = [observation[f"jaco_arm/{name}"].ravel() for name in names]
        self.state = np.concatenate([*parts, observation["target_position"].ravel()]).astype(np.float32)


class Reaching:
    """The scripted expert: the hand goes straight to the target, by damped least squares on the arm's Jacobian; fingers open."""

    SPEED_M_S, GAIN, DAMPING = 0.25, 3.0, 0.05

    def __init__(self, arm: JacoArm) -> None:
        self._arm = arm
        model = arm.physics.model
        self._site = model.name2id("jaco_arm/jaco_hand/pinchsite", "site")
        self._jacobian = np.zeros((3, model.nv))

    def get_action(self, state):
        way = state[TARGET].astype(float) - state[HAND]
        velocity = self.GAIN * way
        velocity *= min(1.0, self.SPEED_M_S / max(np.linalg.norm(velocity), 1e-9))
        physics = self._arm.physics
        mujoco.mj_jacSite(physics.model.ptr, physics.data.ptr, self._jacobian, None, self._site)
        jacobian = self._jacobian[:, :NUM_JOINTS]
        square = jacobian @ jacobian.T + self.DAMPING**2 * np.eye(3)
        joints = jacobian.T @ np.linalg.solve(square, velocity) / self._arm.full_scale[:NUM_JOINTS]
        joints /= max(1.0, np.abs(joints).max())  # slower, in the same direction
        fingers = np.clip(2.0 * (OPEN_RAD - state[18:21]) / self._arm.full_scale[NUM_JOINTS:], -1, 1)
        return np.concatenate([joints, fingers])


def build(spec: WorldSpec) -> JacoArm:
    return JacoArm(spec.task, spec.image_size_px)
