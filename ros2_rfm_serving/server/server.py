"""Model server: `submit()` puts requests into mailboxes that keep the newest one; `loop` selects, runs and replies.

Any thread may call the methods of `ModelServer`; `EngineLoop` documents its own threads. One lock guards the `ServerCore`, which
decides, and is never held while an engine runs. Another lock, which may be acquired within the first, guards the counters.

Engines, dispatch policies and horizon policies may be foreign code. Any error of theirs costs one batch: it is counted, `problems`
describes it, and the next batch runs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from ros2_rfm_serving.dispatch import CONTINUOUS, DispatchPolicy
from ros2_rfm_serving.dispatch.batching import BATCHINGS
from ros2_rfm_serving.engines.base import Engine, Stepping
from ros2_rfm_serving.errors import BadMessageError, ConfigurationError, ContractError, ModelError
from ros2_rfm_serving.server.config import ServerConfig
from ros2_rfm_serving.server.core import ServerCore
from ros2_rfm_serving.server.core_access import LockedCore, RefusalCounters
from ros2_rfm_serving.server.engine_queues import EngineConfig, EngineQueue, ServiceDrift
from ros2_rfm_serving.server.figures import Occupancy, ServerSnapshot
from ros2_rfm_serving.server.horizon import without_updates
from ros2_rfm_serving.server.intake import decoded_request, readying
from ros2_rfm_serving.server.loop import EngineLoop
from ros2_rfm_serving.server.replies import reply_kind
from ros2_rfm_serving.server.sessions import ServerSession, SessionKey
from ros2_rfm_serving.types import (
    ModelContract,
    ObservationRequest,
    OutputKind,
    Reply,
    RequestId,
    SessionGrant,
    SessionRequest,
    SessionSharing,
)


def check_able(config: ServerConfig, engine: Engine) -> None:
    """Check that an engine offers the configured batching. Text models answer side by side with any.
    Raises: `ConfigurationError` for a batching that an action model does not offer."""
    contract = engine.contract
    if config.batching != CONTINUOUS or contract.output is not OutputKind.ACTION_CHUNK:
        return
    if contract.serving is SessionSharing.EXCLUSIVE:
        problem = f"{contract.model!r} keeps state between chunks and serves one session: there is no batch to join"
    elif not isinstance(engine, Stepping):
        problem = f"{contract.model!r} offers whole chunks only (`infer`), no solver steps between which others could join"
    else:
        return
    others = ", ".join(name for name in BATCHINGS if name != CONTINUOUS)
    raise ConfigurationError(problem, key="batching", fix=f"set it to one of {others}")


class ModelServer(RefusalCounters):
    """Server of one model on one GPU, in one process. `overflow` are further engines of the same model, used when that is
    faster."""

    def __init__(self, config: ServerConfig, engine: Engine, *overflow: EngineConfig, policy: DispatchPolicy | None = None) -> None:
        """Create a server. policy: used in place of the configured one.
        Raises: `ModelError`; `ConfigurationError` for an unknown name."""
        super().__init__()
        self.contract: ModelContract = engine.contract
        check_able(config, engine)
        edge = EngineConfig(
            engine=engine, batch_size=config.batch_size, max_concurrent=config.max_concurrent, profile_s=config.profile_s
        )
        self._queues = [
            EngineQueue(edge, self.count_fault, config.costs.whole_s),
            *(EngineQueue(tier, self.count_fault) for tier in overflow),
        ]
        self.takes_encoded, self.max_batch_size = engine.takes_encoded, engine.max_batch_size
        self._ready = readying(engine.contract, engine.takes_encoded, engine.fit_image, engine.decode_image)
        self._decoding_clock = None if engine.takes_encoded else engine.clock
        self._core = LockedCore(ServerCore(config, engine.contract, self._queues, policy), self)
        self.loop = EngineLoop(engine.contract, self._queues, self._core, self)

    @property
    def core(self) -> ServerCore:
        """Return the decision core; the lock of `locked_core` guards it."""
        return self._core.core

    @property
    def config(self) -> ServerConfig:
        return self._core.core.config

    def locked_core(self) -> LockedCore:
        """Return the context of exclusive access to the decision core. It must be short, because other threads wait meanwhile."""
        return self._core

    def record_calls(self, wrap: Callable[[ServerCore], ServerCore]) -> None:
        """Replace the decision core by the result of `wrap`, which receives all calls from now on. The exchange happens
        between two decisions."""
        with self._core as brain:
            self._core.core = wrap(brain)

    # --- control plane ---

    def open_session(self, request: SessionRequest) -> SessionGrant:
        """Open a session. Raises: `ContractError`, `CapacityError`, `DrainingError`, `BadMessageError` as `ServerSessions.open`
        does."""
        self._require(request)
        with self._core as brain:
            grant = brain.open_session(request)
        self._close_engine_sessions()
        unable = without_updates(request.horizon, self.config.num_updates)
        return replace(grant, warnings=(*grant.warnings, unable)) if unable else grant

    def _require(self, request: SessionRequest) -> None:
        """Check that the engine supports the request's pipelining. Raises: `ContractError` if not."""
        engine = self.engine(0)
        if request.pipelining and not request.pipelining.problem and self.contract.pipelines and isinstance(engine, Stepping):
            try:
                engine.require_pipelining(request.pipelining, request.num_steps)
            except ModelError as error:
                raise ContractError([f"pipelining: {error}"]) from error

    def close_session(self, robot: str, component: str, epoch: int) -> None:
        with self._core as brain:
            brain.close_session(robot, component, epoch)
        self._close_engine_sessions()

    def drain(self) -> None:
        """Stop admitting sessions and requests; waiting and running requests are finished."""
        with self._core as brain:
            brain.set_accepting(False)

    def resume(self) -> None:
        """Admit sessions and requests again after `drain`."""
        with self._core as brain:
            brain.set_accepting(True)

    def refuse_waiting(self) -> list[RequestId]:
        """Refuse, count and return all waiting requests, so that their robots can be notified."""
        with self._core as brain:
            refused = brain.refuse_waiting()
        self.count("draining", len(refused))
        return refused

    @property
    def num_queues(self) -> int:
        return len(self._queues)

    def max_concurrent(self, queue_index: int) -> int:
        """Return the maximum number of works of a tier in progress at once."""
        return self._queues[queue_index].max_concurrent

    def engine(self, queue_index: int) -> Engine:
        return self._queues[queue_index].engine

    @property
    def is_idle(self) -> bool:
        """Return whether nothing waits and nothing runs."""
        return not self._core.core.mailboxes and all(lane.is_idle for lane in self._queues)

    @property
    def drift(self) -> ServiceDrift | None:
        """Return the deviation of the engine from its profile; None: unknown."""
        return self._queues[0].drift

    @property
    def over_quota(self) -> dict[str, int]:
        """Return "robot/component" -> requests refused as too many, for open sessions that have any."""
        with self._core as brain:
            return brain.sessions.over_quota

    @property
    def given_up(self) -> str:
        """Return why its engine is of no use any more; empty: it is usable."""
        return self._queues[0].running.given_up

    def stalled_s(self, now_s: float) -> float:
        """Return for how long requests have waited or run while nothing began or ended; 0: there is nothing to do.
        It needs no lock, because the thread that holds the lock may be the one that hangs."""
        return self._core.core.stalled_s(now_s)

    def collect_sessions(self, absent: Collection[SessionKey], now_s: float) -> list[tuple[SessionKey, str]]:
        """Close, count and return idle sessions and those of robots that have long been `absent` from the graph."""
        with self._core as brain:
            gone = brain.collect_sessions(absent, now_s)
        for _, why in gone:
            self.count(why)
        self._close_engine_sessions()
        return gone

    def _close_engine_sessions(self) -> None:
        """Let engines drop what they keep for sessions that have ended."""
        with self._core as brain:
            ended = brain.sessions.ended()
        for session, lane in itertools.product(ended, self._queues):
            lane.running.close_session(*session.key, session.epoch)

    def reset_episode(self, robot: str, component: str, epoch: int, episode: int) -> None:
        """Discard what began before `episode`. Raises: `SessionError` if the session is not open."""
        with self._core as brain:
            discarded = brain.reset_episode(robot, component, epoch, episode)
        if discarded:
            self.count("stale_episode")

    @property
    def num_waiting(self) -> int:
        with self._core as brain:
            return len(brain.mailboxes)

    def resize(self, batch_size: int, max_sessions: int) -> None:
        """Change the limits without affecting open sessions. max_sessions: 0 leaves it unchanged.
        Raises: `ModelError` when the engine cannot run such batches."""
        prepared = self._queues[0].prepare(batch_size)
        with self._core as brain:
            brain.resize(prepared, max_sessions)

    def reconfigure(self, config: ServerConfig) -> None:
        """Change the rules of dispatch and sessions between two selections; open sessions and all requests stay. `resize` changes
        limits. Raises: `ConfigurationError` for an unknown name, or for what the engine cannot do; then nothing has changed."""
        self.check(config)
        with self._core as brain:
            brain.reconfigure(config)

    def check(self, config: ServerConfig) -> None:
        """Check a configuration as `reconfigure` does, without changing anything. Raises: `ConfigurationError` for what cannot be
        served."""
        check_able(config, self.engine(0))
        with self._core as brain:
            brain.check(config)

    def declare(self, rates_hz: Mapping[SessionKey, float]) -> None:
        """Set the request rates of the schedule. Requests far beyond them are refused, whatever the rules allow others."""
        with self._core as brain:
            brain.declare(rates_hz)

    @property
    def occupancy(self) -> Occupancy:
        with self._core as brain:
            return brain.occupancy

    def reply_kind(self, component: str) -> type[Reply]:
        return reply_kind(self.contract, component)

    def session_keys(self) -> list[SessionKey]:
        with self._core as brain:
            return brain.sessions.names()

    def session_names(self) -> list[str]:
        return ["/".join(key) for key in self.session_keys()]

    # --- data plane ---

    def submit(self, observation: ObservationRequest, now_s: float) -> None:
        """Validate, decode and enqueue a request; it replaces an older one of the same session.
        Raises: `BadMessageError`, with no other effect. `counting_refusals` counts it."""
        with self._core.lock:
            session = self._core.core.charge(observation.id, now_s)
        self._deposit(observation, session, now_s)

    def check_admission(self, request: RequestId) -> None:
        """Check that a request would be admitted, before anything is stored or discarded for it. Raises: `BadMessageError` if
        not."""
        with self._core as brain:
            brain.admitted(request)

    def charge(self, request: RequestId, now_s: float) -> None:
        """Charge a request to the quota of its session. Raises: `BadMessageError` if it may not run or exceeds the quota."""
        with self._core as brain:
            brain.charge(request, now_s)

    def deposit(self, observation: ObservationRequest, now_s: float) -> None:
        """Decode and enqueue a request that `charge` has accepted. Raises: `BadMessageError` if it is refused."""
        with self._core as brain:
            session = brain.admitted(observation.id)
        self._deposit(observation, session, now_s)

    def _deposit(self, observation: ObservationRequest, session: ServerSession, now_s: float) -> None:
        """Decode and enqueue a request of a session. Raises: `BadMessageError` if it is refused."""
        try:
            request = decoded_request(observation, session, self.contract, self._ready, self._decoding_clock)
        except BadMessageError as error:
            with self._core as brain:
                brain.unfit(observation.id, error.kind, str(error))
            raise
        deciding = self._core
        with deciding.lock:
            brain = deciding.core
            brain.deposit(request, observation, now_s)
            if brain.faults:
                deciding.count_faults()

    def superseded_early(self, request: RequestId) -> None:
        """Record that a request was dropped unread because a newer one of its session arrived."""
        with self._core as brain:
            brain.superseded_early(request)

    def refetches(self, now_s: float) -> list[RequestId]:
        """Return the requests that run next whose robots should send a newer observation now, at no cost (Kairos §3.2.2).

        Their observations will be stale when the engine is free, and a newer one arrives before that and is fresh enough. The robot
        answers with a normal newer request. Each is returned once; call it a few times within `refetch_after_s`.
        """
        if self.config.refetch_after_s == math.inf:
            return []
        with self._core as brain:
            return brain.refetches(now_s)

    def snapshot(self, now_s: float) -> ServerSnapshot:
        with self._core as brain:
            snapshot = brain.snapshot(now_s)
        return replace(snapshot, refused=dict(self.refused))

    def check_integrity(self) -> None:
        """Check that each waiting request belongs to a session; for an idle server."""
        with self._core as brain:
            assert brain.mailboxes.keys() <= set(brain.sessions.names())
