"""Interface of a simulated robot of any simulator, as used by the node that publishes it on the graph and by `rfm train`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Image = npt.NDArray[np.uint8]
SQUARE_PX = 96
"""Width and height of the embedded policies' images."""
FRAME_EVERY = 4
"""Control steps per camera frame: cameras of 5 Hz at a control rate of 20 Hz."""


@dataclass(frozen=True, kw_only=True)
class WorldSpec:
    """Parameters from which a simulated robot is built."""

    task: str
    """Task of the simulator."""
    image_size_px: int = SQUARE_PX
    """Width and height."""


class SimulatedRobot(Protocol):
    """One simulated robot doing one task.

    It is built, called and closed on one thread. `reset(seed)` begins an episode whose randomisation follows from `seed` alone; the
    first episode begins when the robot is built. `step` is one control period of the policy; the caller chooses how many of these
    happen per second of wall time.
    """

    @property
    def action_names(self) -> Sequence[str]:
        """Names in the order of an action [A]."""

    @property
    def cameras(self) -> Sequence[str]:
        """Names, in the order of `render`."""

    @property
    def step_s(self) -> float:
        """Simulated time of a step: divided by its wall time it is the declared time scale."""

    @property
    def state(self) -> Array:
        """State that a policy receives, [S], always finite."""

    @property
    def success(self) -> bool:
        """Success of the episode so far."""

    @property
    def joint_names(self) -> Sequence[str]: ...
    @property
    def joint_positions(self) -> npt.NDArray[np.float64]:
        """[joints], rad or m."""

    @property
    def joint_velocities(self) -> npt.NDArray[np.float64]:
        """[joints], rad/s or m/s."""

    def reset(self, seed: int) -> None: ...
    def step(self, action: npt.ArrayLike) -> None:
        """Execute an action [A], finite; it is clipped to the robot's range, in [-1, 1] of its full scale."""

    def idle(self, last: Array, silent_steps: int) -> Array:
        """Return the motion [A] in a period for which no command came, as the robot's drives would move.

        last: the previous command, [A], zeros after a reset. silent_steps: periods without a command, this one included.
        """

    def render(self) -> Mapping[str, Image]:
        """Return one RGB image per camera, [size, size, 3] uint8."""

    def close(self) -> None: ...


class Expert(Protocol):
    """A scripted policy. It may read the simulator's internal state."""

    def get_action(self, state: npt.NDArray[np.float64]) -> npt.ArrayLike:
        """Return an action [A] for a state [S]; the caller clips it to [-1, 1]."""


class Teaching(SimulatedRobot, Protocol):
    """Additional interface that `rfm train policy --simulator` needs."""

    @property
    def instructions(self) -> tuple[str, ...]:
        """Phrases by which people name the task; a policy is trained on all of them."""

    @property
    def state_columns(self) -> tuple[int, ...]:
        """Columns of the state that a policy reads."""

    @property
    def relative_pairs(self) -> tuple[tuple[int, int], ...]:
        """Differences of 3-vectors that begin at these columns, as further features."""

    @property
    def pushed_actions(self) -> slice:
        """Columns of the action that disturbances push steadily, as if a person leant on the hand; the others only tremble."""

    def expert(self) -> Expert:
        """Return a fresh expert for an episode."""


Build = Callable[[WorldSpec], Any]
"""Function that returns a `SimulatedRobot`. Raises: `ConfigurationError` for a task that it does not have."""
MEMBERS = (
    *("action_names", "cameras", "step_s", "state", "success", "joint_names", "joint_positions", "joint_velocities"),
    *("reset", "step", "idle", "render", "close"),
)
TAUGHT = ("instructions", "state_columns", "relative_pairs", "pushed_actions", "expert")
