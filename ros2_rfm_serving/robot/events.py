"""Inputs of a robot's core, one class each: `RobotBrain.handle` takes them.

Classes are values: nothing changes one after it was made. The time at which an event happens is no field; it is given with it.
"""

from __future__ import annotations

from collections.abc import Mapping

from ros2_rfm_serving.robot.config import EpisodeReset, RobotConfig, Sensors
from ros2_rfm_serving.robot.task import TaskGoal
from ros2_rfm_serving.types import Reply, RequestId, Schedule, SessionGrant, TaskOutcome
from ros2_rfm_serving.types.record import record


@record(frozen=True, slots=True)
class ScheduleReceived:
    """A schedule that a scheduler published, for the first time or again."""

    schedule: Schedule


@record(frozen=True, slots=True)
class ServerStatusReceived:
    """A status message of a server."""

    server: str
    ready: bool
    """It answers requests."""


@record(frozen=True, slots=True)
class ServerLoadingReceived:
    """A status message of a server that loads a model."""

    server: str


@record(frozen=True, slots=True)
class ServerProcessSeen:
    """A sign of the middleware that the process of a server is there."""

    server: str


@record(frozen=True, slots=True)
class ServerLost:
    """The loss of a server."""

    server: str
    problem: str = ""
    """Why it counts as lost; empty: no reason is known."""


@record(frozen=True, slots=True)
class SessionOpened:
    """A session that a server has granted."""

    component: str
    server: str
    grant: SessionGrant


@record(frozen=True, slots=True)
class SessionRefused:
    """A session that a server has refused, or that could not be asked for."""

    component: str
    server: str
    problem: str
    contract: bool = False
    """Robot and server do not fit."""
    full: bool = False
    """The server takes no more sessions."""


@record(frozen=True, slots=True)
class RefetchRequested:
    """A server's wish for a newer observation in place of one that it has not used yet."""

    request: RequestId


@record(frozen=True, slots=True)
class EpisodeResetAnswered:
    """The answer of a server to one of `Tick.resets`."""

    reset: EpisodeReset
    ok: bool


@record(frozen=True, slots=True)
class ReplyReceived:
    """An action chunk, a plan or a verdict of a server."""

    reply: Reply


@record(frozen=True, slots=True)
class ControlTick:
    """A control period, or a moment between two."""

    sensors: Sensors | None
    """The newest readings; None: none came yet."""
    may_act: bool = True
    """A new state came in time."""


@record(frozen=True, slots=True)
class TaskStarted:
    """The start of a task."""

    goal: TaskGoal


@record(frozen=True, slots=True)
class TaskFinished:
    """The end of a task whose result was taken."""


@record(frozen=True, slots=True)
class TaskCanceled:
    """The wish to end the task."""

    outcome: TaskOutcome
    message: str


@record(frozen=True, slots=True)
class ResetStarted:
    """The moment from which a reset moves the robot."""


@record(frozen=True, slots=True)
class ResetFinished:
    """The end of a reset."""

    ok: bool
    problem: str
    """Why the robot could not be reset; empty: it was."""


@record(frozen=True, slots=True)
class StopRequested:
    """The wish for a command that makes the robot stand now."""


@record(frozen=True, slots=True)
class TrajectoryStopRequested:
    """The wish for a trajectory that ends at rest as soon as possible."""


@record(frozen=True, slots=True)
class PauseRequested:
    """A person's wish that the robot pauses."""


@record(frozen=True, slots=True)
class ResumeRequested:
    """A person's wish that the robot goes on."""


@record(frozen=True, slots=True)
class AbortRequested:
    """A person's wish that the task ends."""


@record(frozen=True, slots=True)
class ConfigurationChanged:
    """Another configuration of the same robot."""

    config: RobotConfig


@record(frozen=True, slots=True)
class CountsAdded:
    """Refusals outside of the core, such as messages that could not be read, which are counted with its own."""

    counts: Mapping[str, int]
    """Name of a counter -> how much is added to it."""


Event = (
    ScheduleReceived
    | ServerStatusReceived
    | ServerLoadingReceived
    | ServerProcessSeen
    | ServerLost
    | SessionOpened
    | SessionRefused
    | RefetchRequested
    | EpisodeResetAnswered
    | ReplyReceived
    | ControlTick
    | TaskStarted
    | TaskFinished
    | TaskCanceled
    | ResetStarted
    | ResetFinished
    | StopRequested
    | TrajectoryStopRequested
    | PauseRequested
    | ResumeRequested
    | AbortRequested
    | ConfigurationChanged
    | CountsAdded
)
