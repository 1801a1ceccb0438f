"""What a robot is told about itself, and what goes into and comes out of one control period."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ros2_rfm_serving.robot.link import LinkConfig
from ros2_rfm_serving.types import Array, EncodedImage, ObservationRequest, SessionRequest


@dataclass(frozen=True, kw_only=True)
class RobotConfig:
    name: str
    action_names: tuple[str, ...]
    cameras: tuple[str, ...]
    state_size: int
    control_rate_hz: float
    execution_horizon: int = 8
    """Control steps from one request for a chunk to the next, and so actions of a chunk to execute before the next takes over."""
    synchronous: bool = False
    """True: execute the horizon, then ask, and hold until the answer is there. False: ask early enough to have no pause."""
    calls_per_action: dict[str, float] = field(default_factory=dict)
    """Calls per System 1 call of goal-coupled components, 1/H for System 2 (ROSA §3.4.2); all others are periodic."""
    calls_head_start: float = 0.0
    """[0, 1): share of the second such call that is owed when an episode begins, so that a fleet does not plan in step."""
    max_action_age_s: float = 3.0
    """No action is executed whose observation is older (Remote-RTC §9.2)."""
    max_observation_age_s: float = 0.5
    """No request is sent with older sensor readings."""
    degraded_after_s: float = 1.0
    """Without a chunk while one is needed."""
    server_timeout_s: float = 2.0
    """Without a status message: the server counts as lost."""
    verdict_votes: int = 2
    default_budget_s: float = 60.0
    prompts: dict[str, str] = field(default_factory=dict)
    """Per component, from the descriptor; the task's instruction replaces System 1's."""
    tick_is_step: bool = True
    """Every tick is a control step, as where the sensors give the rhythm. False: ticks may come at any time, and an action
    lasts one control period from the tick that commanded it."""
    link: LinkConfig = field(default_factory=LinkConfig)


class Sensors(NamedTuple):
    """The newest readings."""

    state: Array
    """[S]"""
    state_s: float
    """When they were received, on the robot's clock."""
    images: tuple[EncodedImage, ...]
    images_s: float
    """When the oldest of them was received."""


class Tick(NamedTuple):
    """What follows from one control period."""

    command: Array | None
    """[A] in robot space; None: hold, or the last action is still being executed"""
    requests: tuple[tuple[str, ObservationRequest], ...] = ()
    """(server, request)"""
    opens: tuple[tuple[str, SessionRequest], ...] = ()
    """(server, request): sessions to ask for; answer with `session_opened` or `session_refused`"""
