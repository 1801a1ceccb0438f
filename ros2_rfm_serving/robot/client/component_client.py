"""Client of one component on its server: session, requests in flight, pace, timeouts and latency.

At most one request is in flight, or, in a pipelined session, as many as its depth, one per frame (AURAS §4.3).
"""

from __future__ import annotations

import enum
import math
import random
import sys
from dataclasses import dataclass, field
from typing import NamedTuple

from ros2_rfm_serving.robot.client.latency import Latencies, steps_of
from ros2_rfm_serving.robot.client.pending_requests import MatchedReply, PendingRequest, PendingRequests
from ros2_rfm_serving.robot.config import ComponentClientConfig
from ros2_rfm_serving.types import ActionChunk, ModelContract, Reply, RequestId, Route, SessionGrant
from ros2_rfm_serving.types.desynchronisation import MOST_LATER_S, RequestPhase, chunk_slack_s
from ros2_rfm_serving.types.state import keep


class ClientState(enum.Enum):
    CLOSED = "closed"
    OPENING = "opening"
    OPEN = "open"


OPEN = ClientState.OPEN


class ModelIdentity(NamedTuple):
    model: str
    hash: str

    def __str__(self) -> str:
        return f"{self.model} ({self.hash[:12] or 'no hash'})"


class Overdue(enum.Enum):
    """Result of a check for overdue requests."""

    NOTHING = enum.auto()
    LATE = enum.auto()
    """The answer is later than its SLO; it is still waited for."""
    GIVEN_UP = enum.auto()


@dataclass(eq=False, slots=True)
class ComponentClient:
    """State of one component's connection. All times are on the robot's clock.

    `server` is the one in use: the route's server, or its standby (ROSA §3.4.4).
    """

    robot: str
    component: str
    config: ComponentClientConfig
    depth: int = 1
    """Requests that may be in flight at once; more than one in a pipelined session."""
    frame_s: float = 0.0
    """Least time between two requests of a pipelined session; 0: the session is not pipelined."""
    route: Route | None = None
    server: str = ""
    state: ClientState = ClientState.CLOSED
    contract: ModelContract | None = None
    epoch: int = 0
    problem: str = "no schedule yet"
    refetch_requested: RequestId | None = None
    """Pending request to send again with a newer observation, because its server let it wait for long (Kairos §3.2.2)."""
    timeouts: int = 0
    """Number of consecutive timeouts."""
    last_reply_s: float = -math.inf
    latencies: Latencies = field(init=False)
    _rng: random.Random = field(init=False, repr=False)
    retry_s: float = -math.inf
    """Earliest time of the next session request."""
    deadline_s: float = math.inf
    """Time at which the first pending operation, the opening of a session or a request, is late or given up."""
    unanswered_s: float = math.inf
    """Time at which the oldest unanswered request was sent; inf: there is none."""
    slo_s: float = math.inf
    pinned: ModelIdentity | None = None
    """Model that the robot has worked with; no other one replaces it without an operator's consent."""
    mismatch: str = ""
    """How a server's model differs from the pinned one; empty: it does not."""
    next_send_s: float = -math.inf
    """Earliest time of the next request by the schedule's rate."""
    allowance_s: float = 0.0
    """Time that a synchronous robot's System 1 sometimes waits for a plan, as part of its cycle (ROSA §3.4.2, eq. 4)."""
    ready_s: float = math.inf
    """Earliest time of the next request; infinite: another event has to come first, because there is no session, or as many
    requests are in flight as may be."""
    desynchronises: bool = False
    """True for System 1 and obligations whose phase moves when a request had to wait for others (`types/desynchronisation.py`)."""
    horizon_s: float = 0.0
    """Duration of the executed part of a chunk, where the phase moves by executing more of one; 0: the pace moves it."""
    chunk_duration_s: float = math.inf
    """Duration of all actions of a chunk that may be executed, if the robot executes while it waits."""
    phase_shift_s: float = 0.0
    """Phase shift: additional time of the next chunk to execute."""
    goal_coupled: bool = False
    """True when System 1's execution triggers its requests; other components are asked whenever they are ready."""
    _scheduled_model: str = ""
    _pending: PendingRequests = field(default_factory=PendingRequests)
    _late_through: int = 0
    """Sequence number of the last request that was reported as later than its SLO."""
    _gives_up_s: float = math.inf
    _sequence: int = 0
    """Sequence number of the last request. It never restarts, because two servers may number their sessions alike."""
    _first_reply: bool = True
    _backoff_s: float = 0.0
    _phase: RequestPhase = field(default_factory=RequestPhase)
    _period_s: float = 0.0
    _frame_end_s: float = -math.inf
    """End of the frame of a pipelined session's last request: there is one request per frame, whatever the pace becomes."""
    _limit_s: float = 0.0

    def __post_init__(self) -> None:
        self._rng = random.Random(f"{self.config.seed}/{self.robot}/{self.component}")
        self.latencies = Latencies(longest=self.config.longest_latency, window_maximum=self.config.window_maximum)

    # --- routes ---

    def follow(self, route: Route | None, server: str, now_s: float, *, paced: bool = True) -> None:
        """Accept a route and the server to use, one of its two; another server needs another session.

        paced: by the route's rate. System 2 follows System 1's calls, and a rate of its own would only delay the robot.
        """
        if route is None or self.route is None or server != self.server:
            self.switch_to(server, "not scheduled" if route is None else "opening a session")
        self.route = route
        if route:
            self._repace(1.0 / route.max_rate_hz if paced else 0.0, now_s)
            self.slo_s = route.slo_s or math.inf
            self.reconfigure(self.config)

    def _repace(self, period_s: float, now_s: float) -> None:
        """Change the period and keep the place in it: the robots of a server, all of which change theirs together, stay as far
        apart as they were, and do not bunch up in one part of it for good."""
        wait_s = self.next_send_s - now_s
        if 0.0 < wait_s < math.inf and self._period_s > 0.0:
            self.next_send_s = max(now_s + wait_s / self._period_s * period_s, self._frame_end_s)
        self._period_s = period_s
        self._allow()

    def reconfigure(self, config: ComponentClientConfig) -> None:
        """Apply another configuration from the next request on."""
        self.config = config
        # A slow model's requests may take twice the declared time.
        self._limit_s = max(config.request_timeout_s, 2.0 * self.route.slo_s if self.route else 0.0)

    def pipeline(self, depth: int, frame_s: float) -> None:
        self.depth, self.frame_s = depth, frame_s
        self._allow()

    def place(self, model: str) -> None:
        """Set the model that answers by the schedule. Another one than before is intended, so that the pin is dropped."""
        if model != self._scheduled_model:
            self._scheduled_model = model
            self.unpin()

    def unpin(self) -> None:
        """Accept any model from now on."""
        self.pinned, self.mismatch = None, ""

    def switch_to(self, server: str, problem: str) -> None:
        """Use another server. Its phase begins anew, so a shift to earlier requests ends with the old one: otherwise each switch
        could make room for one more, and a robot that switches often would exceed its rate."""
        self.close(problem)
        self.next_send_s -= min(self._phase.total_shift_s, 0.0)
        self.server, self.retry_s, self._backoff_s, self._phase = server, -math.inf, 0.0, RequestPhase()
        self.phase_shift_s = 0.0

    @property
    def pending(self) -> PendingRequest | None:
        """Return the newest pending request."""
        return self._pending.newest

    @property
    def period_s(self) -> float:
        """Return the period of a paced link; 0: it is asked as fast as it answers."""
        return self._period_s

    @property
    def other(self) -> str:
        """Return the route's other server; empty: there is none."""
        if self.route is None:
            return ""
        return self.route.standby if self.server == self.route.server else self.route.server

    # --- the session ---

    def wants_open(self, now_s: float) -> bool:
        """Return whether a session should be requested now, if the server is ready; then call `on_opening`."""
        return self.state is ClientState.CLOSED and self.route is not None and now_s >= self.retry_s

    def on_opening(self, now_s: float) -> None:
        self.state = ClientState.OPENING
        self.deadline_s = now_s + self.config.open_timeout_s

    def on_opened(self, grant: SessionGrant) -> None:
        self.state, self.epoch, self.contract = ClientState.OPEN, grant.session_epoch, grant.contract
        self.problem, self.mismatch, self.timeouts, self._backoff_s = "", "", 0, 0.0
        self.pinned = ModelIdentity(grant.contract.model, grant.contract.model_hash)
        self._first_reply = True
        self.forget()
        self._answered()

    def differs(self, found: ModelIdentity) -> str:
        """Return how this model differs from the one that the robot has worked with; empty: it does not."""
        if self.pinned is None or found == self.pinned:
            return ""
        return f"{self.server} serves another model for {self.component}: {found}, not {self.pinned}"

    def on_refused(self, problem: str, now_s: float) -> None:
        """Note that the session could not be opened or kept; the next attempt follows after an increasing backoff."""
        self.close(problem)
        self._backoff_s = min(max(2 * self._backoff_s, self.config.initial_backoff_s), self.config.max_backoff_s)
        self.retry_s = now_s + self._rng.uniform(0.5, 1.0) * self._backoff_s

    @property
    def refusal(self) -> str:
        """Return why its server does not serve it; empty: it does, or has not been asked yet."""
        return self.problem if self.route is not None and self.state is not OPEN and self._backoff_s else ""

    def on_server_returned(self, now_s: float) -> None:
        """Spread the next session request, because all robots of the server see it return at once."""
        if self.state is ClientState.CLOSED and self._backoff_s:
            self.retry_s = max(self.retry_s, now_s + self._rng.uniform(0.0, 1.0) * self.config.initial_backoff_s)

    def try_other_server(self, now_s: float) -> None:
        """Switch to the route's other server, because this one is full. The request follows at once, except to the first server,
        which has refused before."""
        assert self.route is not None
        if self.server == self.route.server:
            self.retry_s = now_s
        self.server = self.other

    def close(self, problem: str) -> None:
        self.state, self.problem = ClientState.CLOSED, problem
        self.forget()
        self._answered()

    def forget(self) -> None:
        """Stop waiting for all requests. Later requests do not get more time for that."""
        self._pending.clear()
        self._expect()

    def forget_late(self) -> None:
        """Stop waiting for answers later than their SLO, and allow the next request at once; in a pipelined session it follows with
        the next frame."""
        self._pending.drop(self._late_through)
        self._expect()
        if self.depth == 1:
            self.restart_pace()

    def request_refetch(self, request: RequestId) -> bool:
        """Mark a pending request to send again. Return False when it is not pending."""
        if self._pending.find(request) is None:
            return False
        self.refetch_requested = request
        return True

    def abandon(self) -> None:
        """Drop the pending requests because the robot does not need the answers; this does not count against the server."""
        if self._pending.waited:
            self.forget()
            self._answered()

    def _answered(self) -> None:
        """Restart the measurement of silence from the oldest pending request."""
        waited = self._pending.waited
        self.unanswered_s = next(iter(waited.values())).sent_s if waited else math.inf
        self._gives_up_s = self.unanswered_s + self._limit_s

    def _expect(self) -> None:
        """Update the time of the next deadline."""
        self._allow()
        if not self._pending.waited:
            self.deadline_s, self.refetch_requested = math.inf, None
            return
        if self.refetch_requested and self._pending.find(self.refetch_requested) is None:
            self.refetch_requested = None
        late_s = self._late_s()
        self.deadline_s = late_s if late_s < self._gives_up_s else self._gives_up_s

    def _allow(self) -> None:
        """Update the earliest time of the next request."""
        self.ready_s = self.next_send_s if self.state is OPEN and len(self._pending.waited) < self.depth else math.inf

    def _late_s(self) -> float:
        in_time = self._pending.sent_after(self._late_through)
        return in_time.sent_s + self.slo_s if in_time else math.inf

    # --- requests ---

    def restart_pace(self) -> None:
        """Let the next request begin a new series."""
        self.next_send_s = -math.inf
        self._allow()

    def on_sent(
        self, episode: int, now_s: float, steps_executed: int, observed_s: float, prefix_steps: int = sys.maxsize
    ) -> RequestId:
        """Return the identity of the request that is sent now. bridged: steps that may be executed before its answer.

        The pace keeps its phase: a late request does not delay those after it, by up to one period and the `allowance_s`, so that a
        robot whose loop is fast enough reaches its rate on average.
        """
        self._sequence += 1
        request = RequestId(self.robot, self.component, self.epoch, episode, self._sequence)
        again = self.refetch_requested
        if again:
            self._pending.remove(again)
            self.refetch_requested = None
        self._pending.add(PendingRequest(request, now_s, steps_executed, observed_s, prefix_steps))
        self.unanswered_s = now_s if now_s < self.unanswered_s else self.unanswered_s
        if not now_s < self._gives_up_s < math.inf:  # otherwise it is asked again before the last request was given up
            self._gives_up_s = now_s + self._limit_s
        if not again:  # otherwise it is the same request of the schedule
            first, earliest_s = self.next_send_s == -math.inf, now_s - self._period_s - self.allowance_s
            since_s = now_s if first else self.next_send_s if self.next_send_s > earliest_s else earliest_s
            self.next_send_s = since_s + self._period_s
        if self.depth > 1:
            self._frame_end_s = now_s + self.frame_s
            self.next_send_s = max(self.next_send_s, self._frame_end_s)
        self._expect()
        return request

    def check(self, now_s: float) -> Overdue:
        """Give up requests that took too long; after several in a row the session is opened again."""
        if now_s < self.deadline_s:
            return Overdue.NOTHING
        if self.state is ClientState.OPENING:
            self.on_refused(f"{self.server} does not answer", now_s)
            return Overdue.NOTHING
        oldest, late = self._pending.oldest, self._pending.sent_after(self._late_through)
        assert oldest is not None
        if late and now_s >= late.sent_s + self.slo_s:
            self._late_through = late.id.sequence
            self._expect()
            return Overdue.LATE
        if now_s < self._gives_up_s:  # a schedule has allowed more time meanwhile
            self._expect()
            return Overdue.NOTHING
        self._gives_up_s = math.inf
        self.timeouts += 1
        if self._is_silent(now_s):
            self.on_refused(f"{self.server} answered none of {self.timeouts} requests", now_s)
            self.timeouts = 0
            return Overdue.GIVEN_UP
        if now_s >= oldest.sent_s + self._limit_s:
            self._pending.drop(oldest.id.sequence)
        if remaining := self._pending.oldest:  # a younger request, or one sent again, has its own time
            self._gives_up_s = remaining.sent_s + self._limit_s
        self._expect()
        return Overdue.GIVEN_UP

    def _is_silent(self, now_s: float) -> bool:
        """Return whether the server is silent, after the allowed number of timeouts. Those of a pipelined session overlap, so that
        it has to be silent for as long as that number would take in a row."""
        most = self.config.max_timeouts
        silent_s = now_s - self.unanswered_s
        return self.timeouts >= most and (self.depth == 1 or silent_s >= most * self._limit_s - 1e-6)

    def accept(self, reply: Reply, now_s: float) -> MatchedReply | str:
        """Return the request that a reply answers, or the counter under which it is dropped."""
        identity, flight = reply.id, self._pending
        if self.state is not OPEN or identity.session_epoch != self.epoch:
            return "stale_epoch"
        asked = flight.find(identity)
        if asked is None:
            newest = flight.newest
            return "stale_episode" if newest and identity.episode != newest.id.episode else "late_or_duplicate"
        if self.contract is None or reply.model_hash != self.contract.model_hash:
            return "wrong_model"
        seen = flight.observed_by(asked, reply.ended_with if isinstance(reply, ActionChunk) else None)
        if seen is None:
            return "wrong_context"
        answered = MatchedReply(asked, seen)
        flight.on_reply(answered)
        self._answered()
        self.timeouts, self.last_reply_s = 0, now_s
        if not self._first_reply or self.config.counts_first_latency:  # a first reply may include warm-up
            self.latencies.append(now_s - seen.sent_s)
        if self.desynchronises:
            self._desynchronise(reply.served.excess_delay_s, now_s - seen.sent_s)
        self._first_reply = False
        self._expect()
        return answered

    def _desynchronise(self, excess_delay_s: float, latency_s: float) -> None:
        """Move the next request, as far as the remaining actions last and stay young enough for an answer that takes as long as
        this one or as expected."""
        cycle_s = max(self._period_s, self.horizon_s) if self.horizon_s else self._period_s
        slack_s = math.inf
        if self.component in MOST_LATER_S:
            slack_s = MOST_LATER_S[self.component]
        if self.chunk_duration_s < math.inf:
            slack_s = chunk_slack_s(self.chunk_duration_s, cycle_s, max(latency_s, self.latencies.expected_s()))
        if self.horizon_s:
            self.phase_shift_s = min(self.phase_shift_s + self._phase.delay_only_shift_s(excess_delay_s, cycle_s), slack_s)
        else:
            self.next_send_s += self._phase.phase_shift_s(excess_delay_s, cycle_s, slack_s)

    def delay_steps(self, step_rate_hz: float) -> int:
        """Return the inference delay to expect, in steps: the window's median, rounded up, unless the configuration chooses
        another.

        The longest is not the default: rows beyond the execution horizon bridge a late chunk, while every row of a prefix is one
        decision older.
        """
        return steps_of(self.latencies.expected_s(), step_rate_hz) if len(self.latencies) else 1


keep(
    ComponentClient,
    *("route", "server", "contract", "epoch", "problem", "timeouts", "last_reply_s", "latencies", "retry_s", "deadline_s"),
    *("unanswered_s", "slo_s", "pinned", "mismatch", "next_send_s", "allowance_s", "ready_s", "desynchronises", "horizon_s"),
    *("chunk_duration_s", "goal_coupled"),
    session="state",
    refetch_requested="refetch_requested",
    backoff_random="_rng",
    phase_shift_s="phase_shift_s",
    scheduled_model="_scheduled_model",
    requests="_pending",
    last_late_sequence="_late_through",
    gives_up_s="_gives_up_s",
    last_sequence="_sequence",
    awaits_first_reply="_first_reply",
    backoff_s="_backoff_s",
    phase="_phase",
    period_s="_period_s",
    frame_end_s="_frame_end_s",
    timeout_s="_limit_s",
)
