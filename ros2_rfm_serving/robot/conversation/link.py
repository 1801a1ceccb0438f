"""One component of one robot on its server: a session, at most one request in flight, its pace, its timeout and its latency."""

from __future__ import annotations

import enum
import math
import random
from dataclasses import dataclass, field
from typing import NamedTuple

from ros2_rfm_serving.robot.config import LinkConfig
from ros2_rfm_serving.robot.conversation.latency import Latencies
from ros2_rfm_serving.types import ModelContract, Reply, RequestId, Route, SessionGrant


class LinkState(enum.Enum):
    CLOSED = "closed"
    OPENING = "opening"
    OPEN = "open"


class ModelIdentity(NamedTuple):
    model: str
    hash: str

    def __str__(self) -> str:
        return f"{self.model} ({self.hash[:12] or 'no hash'})"


class Overdue(enum.Enum):
    """What a check of the clock found."""

    NOTHING = enum.auto()
    LATE = enum.auto()
    """The answer is later than its SLO; it is still waited for."""
    GIVEN_UP = enum.auto()


class InFlight(NamedTuple):
    id: RequestId
    sent_s: float
    mark: int
    observed_s: float


@dataclass(eq=False, slots=True)
class Link:
    """State of one component's connection. All times on the robot's clock.

    `server` is the one in use: the route's, or its standby (ROSA §3.4.4).
    """

    robot: str
    component: str
    config: LinkConfig
    route: Route | None = None
    server: str = ""
    state: LinkState = LinkState.CLOSED
    contract: ModelContract | None = None
    epoch: int = 0
    problem: str = "no schedule yet"
    in_flight: InFlight | None = None
    asked_again: bool = False
    """What is in flight is to be asked with a newer observation: its server let it wait for long (Kairos §3.2.2)."""
    timeouts: int = 0
    """Consecutive."""
    last_reply_s: float = -math.inf
    latencies: Latencies = field(init=False)
    _rng: random.Random = field(init=False, repr=False)
    retry_s: float = -math.inf
    """Earliest time to ask for a session."""
    deadline_s: float = math.inf
    """When what is under way, a session's opening or a request, is late or given up."""
    unanswered_s: float = math.inf
    """When the first request was sent of those that have not been answered; inf: none waits."""
    slo_s: float = math.inf
    late: bool = False
    """What is in flight is later than its SLO, and that was said."""
    pinned: ModelIdentity | None = None
    """The model that the robot has worked with: no other one may take its place unasked."""
    mismatch: str = ""
    """How a server's model differs from that; empty: it does not."""
    next_send_s: float = -math.inf
    """Earliest time that the schedule's rate allows for the next request."""
    allowance_s: float = 0.0
    """What a synchronous robot's System 1 waits for a plan now and then is part of its cycle, not lost (ROSA §3.4.2, eq. 4)."""
    goal_coupled: bool = False
    """Asked as System 1's execution wants it; the others whenever `next_send_s` allows."""
    _placed_model: str = ""
    _gives_up_s: float = math.inf
    _sequence: int = 0
    """Never begins anew: two servers may number their sessions alike."""
    _first_reply: bool = True
    _backoff_s: float = 0.0
    _period_s: float = 0.0
    _limit_s: float = 0.0

    def __post_init__(self) -> None:
        self._rng = random.Random(f"{self.config.seed}/{self.robot}/{self.component}")
        self.latencies = Latencies(longest=self.config.longest_latency, window_maximum=self.config.window_maximum)

    # --- where ---

    def follow(self, route: Route | None, server: str, *, paced: bool = True) -> None:
        """Takes a route and, of its two servers, the one to use; another server means another session.

        paced: by the route's rate; System 2 goes with System 1's calls, and a rate of its own would only hold the robot up.
        """
        if route is None or self.route is None or server != self.server:
            self.turn_to(server, "not scheduled" if route is None else "opening a session")
        self.route = route
        if route:
            self._period_s = 1.0 / route.max_rate_hz if paced else 0.0
            self.slo_s = route.slo_s or math.inf
            self.reconfigure(self.config)

    def reconfigure(self, config: LinkConfig) -> None:
        """From the next request on."""
        self.config = config
        # A slow model's requests may take as long as it was declared, twice.
        self._limit_s = max(config.request_timeout_s, 2.0 * self.route.slo_s if self.route else 0.0)

    def place(self, model: str) -> None:
        """The schedule says which model answers; another one than before is meant."""
        if model != self._placed_model:
            self._placed_model = model
            self.unpin()

    def unpin(self) -> None:
        """Any model may answer from now on."""
        self.pinned, self.mismatch = None, ""

    def turn_to(self, server: str, problem: str) -> None:
        self.close(problem)
        self.server, self.retry_s, self._backoff_s = server, -math.inf, 0.0

    @property
    def period_s(self) -> float:
        """Of a paced link; 0: it is asked as fast as it answers."""
        return self._period_s

    @property
    def other(self) -> str:
        """The route's other server; empty: there is none."""
        if self.route is None:
            return ""
        return self.route.standby if self.server == self.route.server else self.route.server

    # --- the session ---

    def wants_open(self, now_s: float) -> bool:
        """True when a session should be asked for now, if the server is there; then call `opening`."""
        return self.state is LinkState.CLOSED and self.route is not None and now_s >= self.retry_s

    def opening(self, now_s: float) -> None:
        self.state = LinkState.OPENING
        self.deadline_s = now_s + self.config.open_timeout_s

    def opened(self, grant: SessionGrant) -> None:
        self.state, self.epoch, self.contract = LinkState.OPEN, grant.session_epoch, grant.contract
        self.problem, self.mismatch, self.timeouts, self._backoff_s = "", "", 0, 0.0
        self.pinned = ModelIdentity(grant.contract.model, grant.contract.model_hash)
        self._first_reply = True
        self.forget()
        self._answered()

    def differs(self, found: ModelIdentity) -> str:
        """How this model differs from the one that the robot has worked with; empty: it does not."""
        if self.pinned is None or found == self.pinned:
            return ""
        return f"{self.server} serves another model for {self.component}: {found}, not {self.pinned}"

    def refused(self, problem: str, now_s: float) -> None:
        """The session could not be opened or kept: try again later, ever later."""
        self.close(problem)
        self._backoff_s = min(max(2 * self._backoff_s, self.config.initial_backoff_s), self.config.max_backoff_s)
        self.retry_s = now_s + self._rng.uniform(0.5, 1.0) * self._backoff_s

    def server_returns(self, now_s: float) -> None:
        """All its robots hear that at once; they ask one after the other."""
        if self.state is LinkState.CLOSED and self._backoff_s:
            self.retry_s = max(self.retry_s, now_s + self._rng.uniform(0.0, 1.0) * self.config.initial_backoff_s)

    def look_elsewhere(self, now_s: float) -> None:
        """Its server is full: the route's other one is asked; at once, unless that is the first one, which has refused before."""
        assert self.route is not None
        if self.server == self.route.server:
            self.retry_s = now_s
        self.server = self.other

    def close(self, problem: str) -> None:
        self.state, self.problem = LinkState.CLOSED, problem
        self.forget()
        self._answered()

    def forget(self) -> None:
        """Whatever was asked is not waited for any more. What is asked next does not get more time for that."""
        self.in_flight, self.deadline_s, self.asked_again = None, math.inf, False

    def ask_again(self, request: RequestId) -> bool:
        """False: that is not what is in flight."""
        if self.in_flight is None or self.in_flight.id != request:
            return False
        self.asked_again = True
        return True

    def abandon(self) -> None:
        """The robot does not want the answer any more, which is no fault of the server's."""
        if self.in_flight:
            self.forget()
            self._answered()

    def _answered(self) -> None:
        self.unanswered_s = self._gives_up_s = math.inf

    # --- requests ---

    def restart_pace(self) -> None:
        """The next request begins a new series."""
        self.next_send_s = -math.inf

    def sent(self, episode: int, now_s: float, mark: int, observed_s: float) -> RequestId:
        """The identity of the request that goes out now.

        The pace keeps its phase: a request that goes out late does not delay those after it, by up to one period and the
        `allowance_s`, so that a robot whose loop is fast enough reaches its rate on average.
        """
        self._sequence += 1
        request = RequestId(
            robot=self.robot, component=self.component, session_epoch=self.epoch, episode=episode, sequence=self._sequence
        )
        self.in_flight = InFlight(request, now_s, mark, observed_s)
        self.unanswered_s = min(self.unanswered_s, now_s)
        if not now_s < self._gives_up_s < math.inf:  # else it is asked again before the last request was given up
            self._gives_up_s = now_s + self._limit_s
        self.deadline_s = min(self._gives_up_s, now_s + self.slo_s)
        self.late = False
        if self.asked_again:  # the same request of the schedule
            self.asked_again = False
            return request
        first = self.next_send_s == -math.inf
        earliest_s = now_s - self._period_s - self.allowance_s
        self.next_send_s = (now_s if first else max(self.next_send_s, earliest_s)) + self._period_s
        return request

    def check(self, now_s: float) -> Overdue:
        """Gives up what took too long; after several requests in a row the session is opened anew."""
        if now_s < self.deadline_s:
            return Overdue.NOTHING
        if self.state is LinkState.OPENING:
            self.refused(f"{self.server} does not answer", now_s)
            return Overdue.NOTHING
        assert self.in_flight is not None
        late_s = math.inf if self.late else self.in_flight.sent_s + self.slo_s
        if now_s >= late_s:
            self.deadline_s, self.late = self._gives_up_s, True
            return Overdue.LATE
        if now_s < self._gives_up_s:  # a schedule has allowed more time meanwhile
            self.deadline_s = min(late_s, self._gives_up_s)
            return Overdue.NOTHING
        self._gives_up_s = math.inf
        self.timeouts += 1
        if self.timeouts >= self.config.max_timeouts:
            self.refused(f"{self.server} answered none of {self.timeouts} requests", now_s)
            self.timeouts = 0
        elif now_s >= (ends_s := self.in_flight.sent_s + self._limit_s):
            self.forget()
        else:  # it was asked anew meanwhile: that counts against the server, but the younger request has its own time
            self._gives_up_s = ends_s
            self.deadline_s = min(late_s, ends_s)
        return Overdue.GIVEN_UP

    def accept(self, reply: Reply, now_s: float) -> InFlight | str:
        """What the reply answers, or the counter under which it is dropped."""
        if self.state is not LinkState.OPEN or reply.id.session_epoch != self.epoch:
            return "stale_epoch"
        answered = self.in_flight
        if answered is None or (reply.id is not answered.id and reply.id != answered.id):
            return "stale_episode" if answered and reply.id.episode != answered.id.episode else "late_or_duplicate"
        if self.contract is None or reply.model_hash != self.contract.model_hash:
            return "wrong_model"
        self.forget()
        self._answered()
        self.timeouts, self.last_reply_s = 0, now_s
        if not self._first_reply or self.config.counts_first_latency:  # it may include warm-up
            self.latencies.append(now_s - answered.sent_s)
        self._first_reply = False
        return answered

    def delay_steps(self, step_rate_hz: float) -> int:
        """Inference delay to expect, in steps: the window's median, rounded up, unless the configuration says otherwise.

        Not the longest by default: rows beyond the execution horizon bridge a late chunk, while every row of a prefix is one
        decision older.
        """
        return steps_of(self.latencies.expected_s(), step_rate_hz) if len(self.latencies) else 1


def steps_of(latency_s: float, step_rate_hz: float) -> int:
    """Rounded up: a step that has begun is executed."""
    return math.ceil(latency_s * step_rate_hz - 1e-6)
