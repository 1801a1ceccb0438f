"""Replay inputs from a recording that do not follow from decisions: ticks of robots, tasks, delays of networks and engines,
outages. All times are in seconds from the beginning of the recording."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ros2_rfm_serving.robot import RobotConfig, events
from ros2_rfm_serving.server import ServerConfig
from ros2_rfm_serving.types import ModelContract, Placement, Schedule


class Ticked(NamedTuple):
    """One tick, with the age of the robot's sensor readings, whatever was decided before."""

    at_s: float
    state_age_s: float
    """Age of the state; NaN before the first readings."""
    images_age_s: float
    skew_s: float
    may_act: bool


class TimedEvent(NamedTuple):
    """Event that follows neither from a tick nor from a reply."""

    at_s: float
    event: events.Event


class Answered(NamedTuple):
    """Reply of a judge or a planner, by the age of the attempt at its request."""

    episode: int
    age_s: float
    component: str
    words: tuple[str, ...]
    """A verdict, or the subgoals of a plan."""


class Carried(NamedTuple):
    """One request on the network."""

    at_s: float
    both_ways_s: float
    """Delay of both directions without the server's time; inf if the request or its reply was lost."""


@dataclass(frozen=True, kw_only=True)
class RobotCase:
    config: RobotConfig
    task: str
    """Class in the descriptor."""
    later: tuple[tuple[float, RobotConfig], ...] = ()
    """Time of each change of parameters -> complete configuration from then on."""
    first_episode: int = 1
    ticks: tuple[Ticked, ...] = ()
    """Ticks, from the first to the last of which the robot is present."""
    commands: tuple[TimedEvent, ...] = ()
    """Tasks, and commands of operators."""
    server_events: tuple[TimedEvent, ...] = ()
    """Reports of the middleware and of servers that were not ready; they belong to the servers' outages."""
    resets_s: Mapping[int, float] = field(default_factory=dict)
    """Episode -> time from its begin until the robot was reset."""
    answers: tuple[Answered, ...] = ()
    network: tuple[Carried, ...] = ()

    @property
    def name(self) -> str:
        return self.config.name


class Batch(NamedTuple):
    at_s: float
    rows: int
    """Number of requests."""
    padded: int
    """Number of computed rows; with continuous batching, number of requests in service at its begin, itself included."""
    seconds: float


class Outage(NamedTuple):
    from_s: float
    until_s: float
    """End; inf for the end of the recording."""


@dataclass(frozen=True, kw_only=True)
class ServerCase:
    placement: Placement
    config: ServerConfig
    contract: ModelContract
    batches: tuple[Batch, ...] = ()
    intake_s: float = 0.0
    """Time from a request's arrival until it can run without waiting for others: decoding and wake-up."""
    pause_s: float = 0.0
    """Time from the end of a batch to the begin of the next waiting one."""
    outages: tuple[Outage, ...] = ()
    confidences: tuple[tuple[float, ...], ...] = ()
    """Confidences of each chunk's rows; empty if not estimated."""

    @property
    def name(self) -> str:
        return self.placement.server


@dataclass(frozen=True, kw_only=True)
class Case:
    seconds: float
    warm_up_s: float
    """Time at the begin that figures exclude, while sessions open and queues fill."""
    robots: Mapping[str, RobotCase]
    servers: Mapping[str, ServerCase]
    schedules: tuple[tuple[float, Schedule], ...]
    """Time of first reception -> schedule."""
    gaps: tuple[str, ...] = ()
    """Descriptions of information that the recording lacks."""

    @property
    def schedule(self) -> Schedule:
        """Return the last schedule."""
        return self.schedules[-1][1]

    @property
    def slos_s(self) -> dict[tuple[str, str], float]:
        """Return the SLO from request to reply by robot and component; inf without one."""
        return {(r.robot, r.component): r.slo_s or math.inf for _, s in self.schedules for r in s.routes}
