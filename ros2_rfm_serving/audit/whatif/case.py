"""What a recording says about a factory that does not follow from what its brains decided: who ticked when, which tasks were given,
how long networks and engines took, what was out of order. All of it in seconds from the beginning of the recording.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ros2_rfm_serving.robot import RobotConfig, events
from ros2_rfm_serving.server import ServerConfig
from ros2_rfm_serving.types import ModelContract, Placement, Schedule


class Ticked(NamedTuple):
    """One tick: it comes with the robot's sensors, whatever was decided before."""

    at_s: float
    state_age_s: float
    """NaN: there were no readings yet."""
    images_age_s: float
    skew_s: float
    may_act: bool


class TimedEvent(NamedTuple):
    """An event that follows neither from a tick nor from a reply."""

    at_s: float
    event: events.Event


class Answered(NamedTuple):
    """What a judge or a planner said, by the age of the attempt when it was asked."""

    episode: int
    age_s: float
    component: str
    words: tuple[str, ...]
    """A verdict, or the subgoals of a plan."""


class Carried(NamedTuple):
    """One request on the network."""

    at_s: float
    both_ways_s: float
    """There and back, without what its server spent; inf: it was lost, or its answer was."""


@dataclass(frozen=True, kw_only=True)
class RobotCase:
    config: RobotConfig
    task: str
    """Class, as in the descriptor."""
    later: tuple[tuple[float, RobotConfig], ...] = ()
    """When its parameters changed at work -> all that it was configured with from then on."""
    first_episode: int = 1
    ticks: tuple[Ticked, ...] = ()
    """From the first to the last it is there."""
    commands: tuple[TimedEvent, ...] = ()
    """Tasks, and commands of operators."""
    server_events: tuple[TimedEvent, ...] = ()
    """What the middleware and servers that were not ready reported: it comes with the servers' outages."""
    resets_s: Mapping[int, float] = field(default_factory=dict)
    """Episode -> from its beginning until the robot was reset."""
    answers: tuple[Answered, ...] = ()
    network: tuple[Carried, ...] = ()

    @property
    def name(self) -> str:
        return self.config.name


class Batch(NamedTuple):
    at_s: float
    rows: int
    """Requests in it."""
    padded: int
    """Rows that were computed. Where requests are batched continuously: as many were in service when it began, with it."""
    seconds: float


class Outage(NamedTuple):
    from_s: float
    until_s: float
    """inf: to the end."""


@dataclass(frozen=True, kw_only=True)
class ServerCase:
    placement: Placement
    config: ServerConfig
    contract: ModelContract
    batches: tuple[Batch, ...] = ()
    intake_s: float = 0.0
    """From a request's arrival until it can run, when nothing is in its way: decoding, waking up."""
    pause_s: float = 0.0
    """From the end of a batch to the beginning of the next one that waits."""
    outages: tuple[Outage, ...] = ()
    confidences: tuple[tuple[float, ...], ...] = ()
    """Of each chunk's rows; none: not estimated."""

    @property
    def name(self) -> str:
        return self.placement.server


@dataclass(frozen=True, kw_only=True)
class Case:
    seconds: float
    warm_up_s: float
    """Not counted in any figure: sessions open, queues fill."""
    robots: Mapping[str, RobotCase]
    servers: Mapping[str, ServerCase]
    schedules: tuple[tuple[float, Schedule], ...]
    """When it was heard first -> what."""
    gaps: tuple[str, ...] = ()
    """What the recording does not say, in words."""

    @property
    def schedule(self) -> Schedule:
        """The last one."""
        return self.schedules[-1][1]

    @property
    def slos_s(self) -> dict[tuple[str, str], float]:
        """(robot, component) -> request to reply; inf: none declared."""
        return {(r.robot, r.component): r.slo_s or math.inf for _, s in self.schedules for r in s.routes}
