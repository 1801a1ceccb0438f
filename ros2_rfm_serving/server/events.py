"""Inputs of a server's core, one class each: `ServerBrain.handle` takes them.

Classes are values: nothing changes one after it was made. The time at which an event happens is no field; it is given with it.
Batches are known by the number that `Work.number` has, engines by their position: 0 is the server's own.
"""

from __future__ import annotations

from collections.abc import Mapping

from ros2_rfm_serving.server.config import ServerConfig
from ros2_rfm_serving.server.horizon import Outlook
from ros2_rfm_serving.server.sessions import SessionKey
from ros2_rfm_serving.types import EngineReply, InferenceRequest, ObservationRequest, RequestId, SessionRequest
from ros2_rfm_serving.types.record import record


@record(frozen=True, slots=True)
class SessionRequested:
    """A robot's wish for a session."""

    request: SessionRequest


@record(frozen=True, slots=True)
class SessionClosed:
    """The end of a session that its robot closes."""

    robot: str
    component: str
    session_epoch: int


@record(frozen=True, slots=True)
class DrainStarted:
    """The moment from which no session opens and no request is admitted."""


@record(frozen=True, slots=True)
class DrainCanceled:
    """The moment from which sessions open and requests are admitted again."""


@record(frozen=True, slots=True)
class QueueCleared:
    """The wish that all requests that wait are refused."""


@record(frozen=True, slots=True)
class LivenessChecked:
    """A check of which robots are there; sessions that are not used any more are closed."""

    absent: tuple[SessionKey, ...]
    """Sessions whose robots are not on the graph."""


@record(frozen=True, slots=True)
class EpisodeStarted:
    """The start of an episode; requests of earlier ones are dropped."""

    robot: str
    component: str
    session_epoch: int
    episode: int


@record(frozen=True, slots=True)
class LimitsChanged:
    """Another batch size and number of sessions."""

    batch_size: int
    """One that the engine has prepared."""
    max_sessions: int
    """0: as many as before."""


@record(frozen=True, slots=True)
class ServerConfigurationChanged:
    """Other rules of dispatch and sessions of the same server."""

    config: ServerConfig


@record(frozen=True, slots=True)
class RatesScheduled:
    """The rates at which the active schedule lets sessions send requests."""

    rates_hz: Mapping[SessionKey, float]


@record(frozen=True, slots=True)
class AdmissionChecked:
    """The question whether a request would be admitted. It changes nothing."""

    request: RequestId


@record(frozen=True, slots=True)
class RequestReceived:
    """A request that arrived, before it is decoded: it counts against the quota of its session."""

    request: RequestId


@record(frozen=True, slots=True)
class RequestRejected:
    """A request that was received and cannot be decoded. It changes nothing."""

    request: RequestId
    counter: str
    """Counter under which it is reported."""
    problem: str


@record(frozen=True, slots=True)
class RequestEnqueued:
    """A request that was received and decoded."""

    request: InferenceRequest
    observation: ObservationRequest
    """The same as it travelled."""


@record(frozen=True, slots=True)
class RequestSuperseded:
    """A request that was dropped undecoded, since a newer one of its session had arrived."""

    request: RequestId


@record(frozen=True, slots=True)
class EnginePolled:
    """The question which batch an engine runs next."""

    engine: int


@record(frozen=True, slots=True)
class BatchesPerceived:
    """The end of a perception: batches of one row each go on one solver step at a time from here on."""

    num_steps: tuple[tuple[int, int], ...]
    """(number of the batch, solver steps that it takes), of those that entered."""


@record(frozen=True, slots=True)
class SolverStepPolled:
    """The question which batches of one row go on by a solver step now."""

    ready: tuple[int, ...]
    """Numbers of the batches that may go on."""
    last_step_s: float
    """Duration of the step before; 0: there was none."""


@record(frozen=True, slots=True)
class RefetchPolled:
    """The question which robots should send a newer observation."""


@record(frozen=True, slots=True)
class BatchEnded:
    """The end of a batch in its engine."""

    batch: int
    answered: tuple[bool, ...]
    """Whether its requests have an answer, in their order."""
    num_failed: int
    """Batches in a row without any answer."""


@record(frozen=True, slots=True)
class AnswerReceived:
    """The answer to one request of a batch that has ended; they come in the order of the requests."""

    batch: int
    position: int
    """Of the request in its batch."""
    answer: EngineReply | None
    """None: the engine has none."""
    outlook: Outlook


@record(frozen=True, slots=True)
class FiguresRequested:
    """The question for the figures of the status message."""


Event = (
    SessionRequested
    | SessionClosed
    | DrainStarted
    | DrainCanceled
    | QueueCleared
    | LivenessChecked
    | EpisodeStarted
    | LimitsChanged
    | ServerConfigurationChanged
    | RatesScheduled
    | AdmissionChecked
    | RequestReceived
    | RequestRejected
    | RequestEnqueued
    | RequestSuperseded
    | EnginePolled
    | BatchesPerceived
    | SolverStepPolled
    | RefetchPolled
    | BatchEnded
    | AnswerReceived
    | FiguresRequested
)
