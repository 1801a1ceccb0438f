"""One component of one robot on its server: a session, at most one request in flight, its timeout and its latency."""

from __future__ import annotations

import enum
import math
import statistics
from collections import deque
from dataclasses import dataclass, field

from ros2_rfm_serving.types import ModelContract, Reply, RequestId, Route, SessionGrant

LATENCY_WINDOW = 100


class LinkState(enum.Enum):
    CLOSED = "closed"
    OPENING = "opening"
    OPEN = "open"


@dataclass(frozen=True, kw_only=True)
class LinkConfig:
    request_timeout_s: float = 1.0
    open_timeout_s: float = 3.0
    max_timeouts: int = 2
    """Consecutive timeouts after which the session is opened anew."""
    initial_backoff_s: float = 0.5
    max_backoff_s: float = 5.0


@dataclass(frozen=True)
class InFlight:
    id: RequestId
    sent_s: float
    mark: int
    observed_s: float


@dataclass
class Link:
    """State of one component's connection. All times on the robot's clock."""

    robot: str
    component: str
    config: LinkConfig
    route: Route | None = None
    state: LinkState = LinkState.CLOSED
    contract: ModelContract | None = None
    epoch: int = 0
    problem: str = "no schedule yet"
    in_flight: InFlight | None = None
    timeouts: int = 0
    """Consecutive."""
    last_reply_s: float = -math.inf
    last_sent_s: float = -math.inf
    latencies_s: deque[float] = field(default_factory=lambda: deque(maxlen=LATENCY_WINDOW))
    _sequence: int = 0
    _first_reply: bool = True
    _open_deadline_s: float = -math.inf
    _retry_s: float = -math.inf
    _backoff_s: float = 0.0

    def follow(self, route: Route | None) -> None:
        """Takes a new route; another server means another session."""
        if route is None or self.route is None or route.server != self.route.server:
            self.close("not scheduled" if route is None else "opening a session")
            self._retry_s, self._backoff_s = -math.inf, 0.0
        self.route = route

    def wants_open(self, now_s: float) -> bool:
        """True when a session should be asked for now; then call `opening`."""
        if self.state is LinkState.OPENING and now_s > self._open_deadline_s:
            self.refused(f"{self.route.server if self.route else ''} does not answer", now_s)
        return self.route is not None and self.state is LinkState.CLOSED and now_s >= self._retry_s

    def opening(self, now_s: float) -> None:
        self.state = LinkState.OPENING
        self._open_deadline_s = now_s + self.config.open_timeout_s

    def opened(self, grant: SessionGrant) -> None:
        self.state, self.epoch, self.contract = LinkState.OPEN, grant.session_epoch, grant.contract
        self.problem, self.timeouts, self._backoff_s = "", 0, 0.0
        self._sequence, self._first_reply, self.in_flight = 0, True, None

    def refused(self, problem: str, now_s: float) -> None:
        """The session could not be opened: try again later, ever later."""
        self.close(problem)
        self._backoff_s = min(max(2 * self._backoff_s, self.config.initial_backoff_s), self.config.max_backoff_s)
        self._retry_s = now_s + self._backoff_s

    def close(self, problem: str) -> None:
        self.state, self.in_flight, self.problem = LinkState.CLOSED, None, problem

    def may_send(self, now_s: float) -> bool:
        """Open, nothing in flight, and not sooner than the schedule's rate allows."""
        if self.state is not LinkState.OPEN or self.in_flight or self.route is None:
            return False
        return now_s - self.last_sent_s >= 1.0 / self.route.max_rate_hz - 1e-6

    def sent(self, episode: int, now_s: float, mark: int, observed_s: float) -> RequestId:
        """The identity of the request that goes out now."""
        self._sequence += 1
        request = RequestId(
            robot=self.robot, component=self.component, session_epoch=self.epoch, episode=episode, sequence=self._sequence
        )
        self.in_flight = InFlight(request, now_s, mark, observed_s)
        self.last_sent_s = now_s
        return request

    def check_timeout(self, now_s: float) -> bool:
        """True when the request in flight was given up; after several in a row the session is opened anew."""
        if self.in_flight is None or now_s - self.in_flight.sent_s <= self._limit_s():
            return False
        self.in_flight = None
        self.timeouts += 1
        if self.timeouts >= self.config.max_timeouts:
            self.refused(f"{self.route.server if self.route else ''} answered none of {self.timeouts} requests", now_s)
            self.timeouts = 0
        return True

    def _limit_s(self) -> float:
        """A slow model's requests may take as long as it was declared, twice."""
        return max(self.config.request_timeout_s, 2.0 * self.route.slo_s if self.route and self.route.slo_s > 0 else 0.0)

    def accept(self, reply: Reply, now_s: float) -> InFlight | str:
        """What the reply answers, or the counter under which it is dropped."""
        if self.state is not LinkState.OPEN or reply.id.session_epoch != self.epoch:
            return "stale_epoch"
        if self.in_flight is None or reply.id != self.in_flight.id:
            return "stale_episode" if self.in_flight and reply.id.episode != self.in_flight.id.episode else "late_or_duplicate"
        if self.contract is None or reply.model_hash != self.contract.model_hash:
            return "wrong_model"
        answered, self.in_flight = self.in_flight, None
        self.timeouts, self.last_reply_s = 0, now_s
        if not self._first_reply:  # the first inference of a session may include warm-up
            self.latencies_s.append(now_s - answered.sent_s)
        self._first_reply = False
        return answered

    def delay_steps(self, control_rate_hz: float) -> int:
        """Inference delay to expect, in control steps: the window's median, rounded up.

        Not the longest: rows beyond the execution horizon bridge a late chunk, while every row of a prefix is one decision older.
        """
        return math.ceil(statistics.median(self.latencies_s) * control_rate_hz - 1e-6) if self.latencies_s else 1
