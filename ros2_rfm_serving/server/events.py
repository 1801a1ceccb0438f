"""Input events of a server's core, one class each; `ServerCore.handle` accepts them. Events are immutable. The time of an event is
no field; it is passed along with it. Batches are identified by `RunningBatch.number`, engines by their position: 0 is the server's
own."""

from __future__ import annotations

from collections.abc import Mapping

from ros2_rfm_serving.server.config import ServerConfig
from ros2_rfm_serving.server.horizon import HorizonDecision
from ros2_rfm_serving.server.sessions import SessionKey
from ros2_rfm_serving.types import EngineReply, InferenceRequest, ObservationRequest, RequestId, SessionRequest
from ros2_rfm_serving.types.record import record


@record(frozen=True, slots=True)
class SessionRequested:
    """Request of a robot for a session."""

    request: SessionRequest


@record(frozen=True, slots=True)
class SessionClosed:
    """End of a session that its robot closes."""

    robot: str
    component: str
    session_epoch: int


@record(frozen=True, slots=True)
class DrainStarted:
    """Start of draining: no session opens and no request is admitted."""


@record(frozen=True, slots=True)
class DrainCanceled:
    """End of draining: sessions open and requests are admitted again."""


@record(frozen=True, slots=True)
class QueueCleared:
    """Command that refuses all waiting requests."""


@record(frozen=True, slots=True)
class LivenessChecked:
    """Check of which robots are present; sessions that are not used any more are closed."""

    absent: tuple[SessionKey, ...]
    """Sessions whose robots are not on the graph."""


@record(frozen=True, slots=True)
class EpisodeStarted:
    """Start of an episode; requests of earlier ones are dropped."""

    robot: str
    component: str
    session_epoch: int
    episode: int


@record(frozen=True, slots=True)
class LimitsChanged:
    """Change of the batch size and of the number of sessions."""

    batch_size: int
    """Size that the engine has prepared."""
    max_sessions: int
    """New maximum; 0: unchanged."""


@record(frozen=True, slots=True)
class ServerConfigurationChanged:
    """Change of the rules of dispatch and sessions."""

    config: ServerConfig


@record(frozen=True, slots=True)
class RatesScheduled:
    """Rates at which the active schedule lets sessions send requests."""

    rates_hz: Mapping[SessionKey, float]


@record(frozen=True, slots=True)
class AdmissionChecked:
    """Query whether a request would be admitted. It changes nothing."""

    request: RequestId


@record(frozen=True, slots=True)
class RequestReceived:
    """Arrival of a request, before it is decoded; it counts against the quota of its session."""

    request: RequestId


@record(frozen=True, slots=True)
class RequestRejected:
    """Rejection of a received request that cannot be decoded. It changes nothing."""

    request: RequestId
    counter: str
    """Counter under which it is reported."""
    problem: str


@record(frozen=True, slots=True)
class RequestEnqueued:
    """Received and decoded request, which now waits."""

    request: InferenceRequest
    observation: ObservationRequest
    """The same request as it was transmitted."""


@record(frozen=True, slots=True)
class RequestSuperseded:
    """Drop of an undecoded request because a newer one of its session has arrived."""

    request: RequestId


@record(frozen=True, slots=True)
class EnginePolled:
    """Query for the batch that an engine runs next."""

    engine: int


@record(frozen=True, slots=True)
class BatchesPerceived:
    """End of a perception: from here on, its batches of one row each advance one solver step at a time."""

    num_steps: tuple[tuple[int, int], ...]
    """(number of the batch, solver steps that it takes), of those that entered."""


@record(frozen=True, slots=True)
class SolverStepPolled:
    """Query for the batches of one row that advance by a solver step now."""

    ready: tuple[int, ...]
    """Numbers of the batches that may advance."""
    last_step_s: float
    """Duration of the previous step; 0: there was none."""


@record(frozen=True, slots=True)
class RefetchPolled:
    """Query for the robots that should send a newer observation."""


@record(frozen=True, slots=True)
class BatchEnded:
    """End of a batch in its engine."""

    batch: int
    has_answer: tuple[bool, ...]
    """Flags of the requests that have an answer, in their order."""
    num_failed: int
    """Batches in a row without any answer."""


@record(frozen=True, slots=True)
class AnswerReceived:
    """Answer to one request of a batch that has ended; answers come in the order of the requests."""

    batch: int
    position: int
    """Index of the request in its batch."""
    answer: EngineReply | None
    """Reply of the engine; None: it has none."""
    horizon_decision: HorizonDecision


@record(frozen=True, slots=True)
class FiguresRequested:
    """Query for the figures of the status message."""


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
