"""A model server: `submit()` puts requests into latest-only mailboxes, `step()` selects, runs and replies.

A body that does not spend time but computes it calls the parts of `step` itself: `begin`, `run`, `complete`.

Threads: `submit`, `open_session` and the like may be called from any thread; `step` and its parts from one thread per tier, but
`run` from as many as its engine takes calls at once. One lock guards sessions and mailboxes and is never held while an engine
runs; another one, which may be taken within it, guards what is counted.

Engines, dispatch and horizon policies may be foreign code. Whatever they raise costs one batch: it is counted, `problems` has it in
words, and the next one runs.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace

from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.server.dispatch import Dispatcher, DispatchPolicy, Guarded, Waiting
from ros2_rfm_serving.server.dispatch import policy as dispatch_policy
from ros2_rfm_serving.server.figures import Figures, Occupancy, ServerSnapshot, quantile
from ros2_rfm_serving.server.horizon import Outlook, outlooks, without_updates
from ros2_rfm_serving.server.intake import row_of
from ros2_rfm_serving.server.mailboxes import Mailboxes
from ros2_rfm_serving.server.replies import reply_kind, reply_of
from ros2_rfm_serving.server.sessions import Session, SessionKey, SessionRules, Sessions
from ros2_rfm_serving.server.tiers import Lane, Tier, Work
from ros2_rfm_serving.types import (
    EngineReply,
    ModelContract,
    ObservationRequest,
    Reply,
    RequestId,
    Served,
    SessionGrant,
    SessionRequest,
    Verdict,
)


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    name: str
    batch_size: int = 1
    max_concurrent: int = 1
    """Works in progress at once. More than one when the engine batches continuously: then each is one request."""
    max_sessions: int = 8
    sessions: SessionRules = field(default_factory=SessionRules)
    dispatch: str = "fifo"
    """Policy that chooses among those who wait, by name (`dispatch/`)."""
    batching: str = "fixed"
    """How many run together: `fixed`: whatever fits; `saturation`: as many as improve throughput; `wait`: that, and for one more
    it waits where that is sure to pay."""
    refetch_after_s: float = math.inf
    """A newer observation is asked for in place of one that will be older than this when its batch begins; inf: never."""
    profile_s: tuple[float, ...] = ()
    """Seconds of a batch of 1, 2, ... rows, to begin with; they are measured in any case."""
    max_engine_errors: int = 0
    """Batches without an answer in a row after which the engine is given up, unless it answers a blank request; 0: never."""
    num_updates: int | None = None
    """Solver steps of whose updates the engine tells, for horizon policies; None: not known, or a server elsewhere decides."""
    first_epoch: int = 1
    """Of sessions; drawn at random by a live server, so that a restarted one never repeats an epoch."""
    window_s: float = 5.0
    """Of rates, latencies and load in the status."""


class ModelServer:
    """One process, one GPU, one model; `overflow` are more engines of the same model, which help out when that is faster."""

    def __init__(self, config: ServerConfig, engine: Engine, *overflow: Tier, policy: DispatchPolicy | None = None) -> None:
        """`policy`: in place of the one that the configuration names.

        Raises: `ModelError`; `ConfigurationError` for a name that is not known.
        """
        self.config = config
        self.contract: ModelContract = engine.contract
        self.refused: Counter[str] = Counter()
        self.problems: dict[str, str] = {}
        """Counter of `refused` -> what happened last, in words for a log. Whoever says it takes it out."""
        self.look_again_s = math.inf
        """When the last `begin` of tier 0 that gave None wants to be called again, even if nothing new arrives."""
        edge = Tier(engine=engine, batch_size=config.batch_size, max_concurrent=config.max_concurrent, profile_s=config.profile_s)
        self._lanes = [Lane(tier, self.mishap) for tier in (edge, *overflow)]
        self.takes_encoded, self.max_batch_size = engine.takes_encoded, engine.max_batch_size
        self._sessions = Sessions(engine.contract, config.max_sessions, config.first_epoch, config.sessions)
        dispatcher = Dispatcher(Guarded(policy or dispatch_policy(config.dispatch), self.mishap), config.batching)
        self._mailboxes = Mailboxes(dispatcher, self._sessions.histories)
        self._lock, self._counting = threading.Lock(), threading.Lock()
        self._figures = Figures(config.window_s)
        self._served = self._superseded = self._refetched = 0
        self._moved_s = -math.inf
        """When something last came, began or ended while requests waited."""

    # --- control plane ---

    def open_session(self, request: SessionRequest) -> SessionGrant:
        """Raises: `ContractError`, `CapacityError`, `DrainingError`, `BadMessageError`."""
        with self._lock:
            grant = self._sessions.open(request, self._figures.load)
            self._forget((request.robot, request.component))
        self._tell_engines()
        unable = without_updates(request.horizon, self.config.num_updates)
        return replace(grant, warnings=(*grant.warnings, unable)) if unable else grant

    def close_session(self, robot: str, component: str, epoch: int) -> None:
        with self._lock:
            session = self._sessions.get((robot, component), epoch)
            if session and self._sessions.close(session.key, epoch):
                self._forget(session.key)
                self._mailboxes.task_ended(session.history)
        self._tell_engines()

    def drain(self) -> None:
        """From now on no session opens and no request is taken; what waits and what runs is finished."""
        self._sessions.draining = True

    def resume(self) -> None:
        """After `drain`: as before."""
        self._sessions.draining = False

    def refuse_waiting(self) -> list[RequestId]:
        """What waits is not answered any more, and counted. Returns it, so that those who can be told are."""
        with self._lock:
            refused = self._mailboxes.empty()
        self.count("draining", len(refused))
        return refused

    @property
    def num_tiers(self) -> int:
        return len(self._lanes)

    def max_concurrent(self, tier: int) -> int:
        """Works of a tier that may be in progress at once."""
        return self._lanes[tier].max_concurrent

    def engine(self, tier: int) -> Engine:
        return self._lanes[tier].engine

    @property
    def is_idle(self) -> bool:
        """Nothing waits and nothing runs."""
        return not self._mailboxes and all(lane.is_idle for lane in self._lanes)

    @property
    def given_up(self) -> str:
        """Why its engine is of no use any more; empty: it is."""
        return self._lanes[0].running.given_up

    def stalled_s(self, now_s: float) -> float:
        """For how long something has been waiting or running and nothing began or ended; 0: nothing is to be done.

        Takes no lock: whoever holds it may be what does not come back.
        """
        running_s = self._lanes[0].since_s
        waiting_s = self._moved_s if len(self._mailboxes) else math.inf
        return max(0.0, now_s - min(running_s, waiting_s))

    def collect_sessions(self, absent: Collection[SessionKey], now_s: float) -> list[tuple[SessionKey, str]]:
        """Closes the sessions of robots that have long been `absent` from the graph, and idle ones; counted. Returns them."""
        with self._lock:
            gone = self._sessions.collect(absent, now_s)
            for key, why in gone:
                self._forget(key)
                self.count(why)
        self._tell_engines()
        return gone

    def _forget(self, key: SessionKey) -> None:
        """What waits of a session that is over."""
        if self._mailboxes.discard(key):
            self.count("session_ended")

    def _tell_engines(self) -> None:
        """What they keep for sessions that have ended may go."""
        with self._lock:
            ended = self._sessions.ended()
        for session, lane in itertools.product(ended, self._lanes):
            lane.running.close_session(*session.key, session.epoch)

    def reset_episode(self, robot: str, component: str, epoch: int, episode: int) -> None:
        """Discards what began before `episode`. Raises: `SessionError`."""
        key = (robot, component)
        with self._lock:
            self._sessions.reset_episode(key, epoch, episode)
            if self._mailboxes.discard(key, before_episode=episode):
                self.count("stale_episode")

    @property
    def num_waiting(self) -> int:
        with self._lock:
            return len(self._mailboxes)

    def resize(self, batch_size: int, max_sessions: int) -> None:
        """Takes new limits without touching what is open; 0 sessions: as many as before.

        Raises: `ModelError` when the engine cannot run such batches.
        """
        self._lanes[0].resize(batch_size)
        with self._lock:
            self._sessions.max_sessions = max_sessions or self._sessions.max_sessions

    def reconfigure(self, config: ServerConfig) -> None:
        """Other rules of dispatch and sessions, between two selections; what is open, waits or runs stays. Limits: `resize`.

        Raises: `ConfigurationError` for a name that is not known; then nothing has changed.
        """
        changes = config.dispatch != self.config.dispatch
        policy = Guarded(dispatch_policy(config.dispatch), self.mishap) if changes else None
        with self._lock:
            self._mailboxes.dispatch_by(policy, config.batching)
            self._sessions.govern(config.sessions)
            self.config = config

    def declare(self, rates_hz: Mapping[SessionKey, float]) -> None:
        """How often the schedule lets these ask: what goes far beyond it is refused, whatever the rules allow others."""
        with self._lock:
            self._sessions.declare(rates_hz)

    @property
    def occupancy(self) -> Occupancy:
        with self._lock:
            return Occupancy(len(self._sessions), self._sessions.limit, self._figures.load)

    def reply_kind(self, component: str) -> type[Reply]:
        return reply_kind(self.contract, component)

    def session_keys(self) -> list[SessionKey]:
        with self._lock:
            return self._sessions.names()

    def session_names(self) -> list[str]:
        return ["/".join(key) for key in self.session_keys()]

    # --- data plane ---

    def submit(self, observation: ObservationRequest, now_s: float) -> None:
        """Validates, decodes and deposits a request; a newer one replaces an older one of the same session.

        Raises: `BadMessageError`; nothing else is affected. Count it with `counting_refusals`.
        """
        self.charge(observation.id, now_s)
        self.deposit(observation, now_s)

    def check_admission(self, request: RequestId) -> None:
        """Before anything is kept for it, or thrown away. Raises: `BadMessageError`."""
        with self._lock:
            self._admitted(request)

    def charge(self, request: RequestId, now_s: float) -> None:
        """Whether it is within the quota of its session. Raises: `BadMessageError`."""
        with self._lock:
            self._sessions.charge(self._admitted(request), now_s)

    def deposit(self, observation: ObservationRequest, now_s: float) -> None:
        """What `charge` has let pass. Raises: `BadMessageError`."""
        with self._lock:
            session = self._admitted(observation.id)
        request = row_of(observation, session, self.contract, takes_encoded=self.takes_encoded)
        with self._lock:
            session = self._sessions.admit(observation.id)  # again: it may have closed meanwhile
            session.sequence, session.episode = request.id.sequence, request.id.episode
            if not self._mailboxes:
                self._moved_s = now_s
            if self._mailboxes.deposit(session, request, observation, now_s):
                session.superseded += 1
                self._superseded += 1

    def _admitted(self, request: RequestId) -> Session:
        if self._sessions.draining:
            raise BadMessageError("draining", "this server is about to end")
        return self._sessions.admit(request)

    def superseded_early(self, request: RequestId) -> None:
        """A newer one of its session arrived before anybody looked at it."""
        with self._lock:
            if session := self._sessions.get((request.robot, request.component), request.session_epoch):
                session.superseded += 1
                self._superseded += 1

    @contextlib.contextmanager
    def counting_refusals(self) -> Iterator[None]:
        """Counts the `BadMessageError` that leaves the block, whether conversion or `submit` raised it."""
        try:
            yield
        except BadMessageError as error:
            self.count(error.kind)
            raise

    def step(self, clock: Callable[[], float]) -> list[Reply]:
        """Selects a batch, runs it, and returns its replies; empty when nothing waits. `clock` reads seconds."""
        work = self.begin(clock())
        return self.complete(work, self.run(work), clock()) if work else []

    def begin(self, now_s: float, tier: int = 0) -> Work | None:
        """Selects what a tier runs next; None: nothing waits that it should run, or it has enough to do (see `look_again_s`)."""
        lane = self._lanes[tier]
        if not tier:
            self.look_again_s = math.inf
        if not self._mailboxes or lane.is_full or lane.rests_until_s > now_s:
            return None
        with self._lock:
            selection = self._mailboxes.take(self._lanes, tier, now_s)
            if not tier:
                self.look_again_s = selection.look_again_s
            if not selection.batch:
                return None
            if all(lane.is_idle for lane in self._lanes):
                self._figures.begun(now_s)
            work = Work(tuple(selection.batch), now_s, tier)
            lane.begun(work)
            self._moved_s = now_s
        return work

    def refetches(self, now_s: float) -> list[RequestId]:
        """Requests that run next and whose robots should be asked for a newer observation now, since it costs nothing (Kairos
        §3.2.2): theirs will be stale when the engine is free, and a newer one arrives before, and fresh enough. The answer is a
        normal newer request. Each is named once; ask a few times within `refetch_after_s`."""
        limit_s = self.config.refetch_after_s
        if limit_s == math.inf:
            return []
        with self._lock:
            stale = self._mailboxes.stale(self._lanes[0], limit_s, now_s)
            self._refetched += len(stale)
        return stale

    def run(self, work: Work) -> list[EngineReply | None]:
        """One answer per request; None where the engine failed. Raises nothing."""
        running = self._lanes[work.tier].running
        answers = running.run([w.request for w in work.batch], self.config.max_engine_errors)
        for waiting, answer in zip(work.batch, answers, strict=True):
            if answer and not answer.verdict and self.reply_kind(waiting.request.id.component) is Verdict:
                self.count("verdict_violation")  # text that is none of a judge's words goes on as an empty verdict
        return answers

    def complete(self, work: Work, answers: Sequence[EngineReply | None], now_s: float) -> list[Reply]:
        """Replies to those whose session is still open."""
        with self._lock:  # first of all: whatever is wrong with the answers, the engine is free again
            self._lanes[work.tier].ended(work, now_s, failed=not any(answers))
            self._moved_s = now_s
            load = self._figures.ended(now_s, tuple([now_s - w.arrived_s for w, a in zip(work.batch, answers, strict=True) if a]))
        seen = outlooks([w.request.horizon for w in work.batch], answers, self.mishap)
        with self._lock:
            rows = zip(work.batch, answers, seen, strict=True)
            replies = [self._reply(work, waiting, answer, outlook, load, now_s) for waiting, answer, outlook in rows]
        return [reply for reply in replies if reply]

    def _reply(
        self, work: Work, waiting: Waiting, answer: EngineReply | None, outlook: Outlook, load: float, now_s: float
    ) -> Reply | None:
        """None: there is no answer, or nobody for it any more."""
        request = waiting.request.id
        session = self._sessions.get((request.robot, request.component), request.session_epoch)
        if answer is None:
            return None
        if session is None:
            self.count("session_ended")
            return None
        waiting.history.generated(work.begun_s, now_s)
        served = Served(
            queue_wait_s=work.begun_s - waiting.arrived_s,
            inference_s=now_s - work.begun_s,
            batch_size=len(work.batch),
            superseded=session.superseded,
            server_load=load,
        )
        session.superseded = 0
        self._served += 1
        self._figures.replied(served)
        return reply_of(self.config.name, self.contract, waiting, answer, served, outlook)

    def snapshot(self, now_s: float) -> ServerSnapshot:
        with self._lock:
            latencies = self._figures.latencies_s(now_s)
            return ServerSnapshot(
                sessions=len(self._sessions),
                max_sessions=self._sessions.limit,
                waiting=len(self._mailboxes),
                dispatch=self.config.dispatch,
                batch_size=self._lanes[0].batch_size,
                mean_batch_size=self._figures.mean_batch_size(),
                window_s=self.config.window_s,
                request_rate_hz=len(latencies) / self.config.window_s,
                latency_p50_s=quantile(latencies, 0.5),
                latency_p99_s=quantile(latencies, 0.99),
                load=self._figures.load,
                served=self._served,
                superseded=self._superseded,
                refetched=self._refetched,
                refused=dict(self.refused),
                histograms=deepcopy(self._figures.histograms),
            )

    def check_integrity(self) -> None:
        """When idle: nothing waits that no session owns."""
        with self._lock:
            assert self._mailboxes.keys() <= set(self._sessions.names())

    def mishap(self, kind: str, problem: str) -> None:
        """Counts something that went wrong, and keeps it in words."""
        self.count(kind)
        self.problems[kind] = problem

    def count(self, kind: str, number: int = 1) -> None:
        """Something that was refused or lost. From any thread, whatever it holds."""
        with self._counting:
            self.refused[kind] += number
