"""Events that are the inputs of a robot's core: `RobotCore.handle` accepts them.

Events are values: nothing changes one after it was made. The time of an event is not a field; it is passed with the event.
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
    """True when the server answers requests."""


@record(frozen=True, slots=True)
class ServerLoadingReceived:
    """A status message of a server that loads a model."""

    server: str


@record(frozen=True, slots=True)
class ServerLivenessReceived:
    """A sign from the middleware that the process of a server is alive."""

    server: str


@record(frozen=True, slots=True)
class ServerLost:
    """The loss of a server."""

    server: str
    problem: str = ""
    """Reason why it counts as lost; empty: no reason is known."""


@record(frozen=True, slots=True)
class SessionOpened:
    """A session that a server has granted."""

    component: str
    server: str
    grant: SessionGrant


@record(frozen=True, slots=True)
class SessionRefused:
    """A session that a server has refused, or that could not be requested."""

    component: str
    server: str
    problem: str
    is_contract_mismatch: bool = False
    """True when robot and server do not fit."""
    is_server_full: bool = False
    """True when the server accepts no more sessions."""


@record(frozen=True, slots=True)
class RefetchRequested:
    """A server's request for a newer observation in place of one that it has not used yet."""

    request: RequestId


@record(frozen=True, slots=True)
class EpisodeResetAnswered:
    """The answer of a server to one of `TickResult.resets`."""

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
    """The newest readings; None: there are none yet."""
    may_act: bool = True
    """True when a new state arrived in time."""


@record(frozen=True, slots=True)
class TaskStarted:
    """The start of a task."""

    goal: TaskGoal


@record(frozen=True, slots=True)
class TaskFinished:
    """The end of a task whose result was collected."""


@record(frozen=True, slots=True)
class TaskCanceled:
    """The request to end the task."""

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
    """Reason why the robot could not be reset; empty: it was reset."""


@record(frozen=True, slots=True)
class StopRequested:
    """The request for a command that stops the robot now."""


@record(frozen=True, slots=True)
class TrajectoryStopRequested:
    """The request for a trajectory that ends at rest as soon as possible."""


@record(frozen=True, slots=True)
class PauseRequested:
    """An operator's request to pause the robot."""


@record(frozen=True, slots=True)
class ResumeRequested:
    """An operator's request to resume the robot."""


@record(frozen=True, slots=True)
class AbortRequested:
    """An operator's request to end the task."""


@record(frozen=True, slots=True)
class ConfigurationChanged:
    """Another configuration of the same robot."""

    config: RobotConfig


@record(frozen=True, slots=True)
class CountsAdded:
    """Refusals outside of the core, such as messages that could not be read, which are counted with its own."""

    counts: Mapping[str, int]
    """Name of a counter -> number to add to it."""


Event = (
    ScheduleReceived
    | ServerStatusReceived
    | ServerLoadingReceived
    | ServerLivenessReceived
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
