"""A model server: `submit()` puts requests into latest-only mailboxes, `step()` selects, runs and replies.

A body that does not spend time but computes it calls the parts of `step` itself: `begin`, `run`, `complete`; of an engine whose
rows go on one solver step at a time (`batching: continuous`): `begin` until None, `enter`, `entered`, `advancing`, `turn` and
`complete`; or `run` what is to run as a whole.

Threads: `submit`, `open_session` and the like may be called from any thread; `step` and its parts from one thread per tier, but
`run` from as many as its engine takes calls at once. One lock guards the `ServerBrain`, which decides, and is never held while an
engine runs; another one, which may be taken within it, guards what is counted.

Engines, dispatch and horizon policies may be foreign code. Whatever they raise costs one batch: it is counted, `problems` has it in
words, and the next one runs.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ros2_rfm_serving.engines.base import Engine, Stepping
from ros2_rfm_serving.errors import BadMessageError, ConfigurationError, ContractError, ModelError
from ros2_rfm_serving.server.brain import ServerBrain
from ros2_rfm_serving.server.config import ServerConfig
from ros2_rfm_serving.server.dispatch import CONTINUOUS, DispatchPolicy
from ros2_rfm_serving.server.dispatch.batching import BATCHINGS
from ros2_rfm_serving.server.figures import Occupancy, ServerSnapshot
from ros2_rfm_serving.server.horizon import NO_OUTLOOK, Outlook, outlooks, without_updates
from ros2_rfm_serving.server.intake import readying, row_of
from ros2_rfm_serving.server.replies import reply_kind
from ros2_rfm_serving.server.sessions import Session, SessionKey
from ros2_rfm_serving.server.stepping import StepRunning
from ros2_rfm_serving.server.tiers import Drift, Lane, Tier, Work
from ros2_rfm_serving.types import (
    EngineReply,
    ModelContract,
    ObservationRequest,
    OutputKind,
    Reply,
    RequestId,
    Serving,
    SessionGrant,
    SessionRequest,
    Verdict,
)

ACTION_CHUNK = OutputKind.ACTION_CHUNK
Ended = tuple[Work, Sequence[EngineReply | None]]
"""What an engine is done with, and its answers"""


def check_able(config: ServerConfig, engine: Engine) -> None:
    """Raises: `ConfigurationError` for a batching that an action model does not offer. Text models answer side by side anyway."""
    contract = engine.contract
    if config.batching != CONTINUOUS or contract.output is not OutputKind.ACTION_CHUNK:
        return
    if contract.serving is Serving.EXCLUSIVE:
        problem = f"{contract.model!r} keeps state between chunks and serves one session: there is no batch to join"
    elif not isinstance(engine, Stepping):
        problem = f"{contract.model!r} offers whole chunks only (`infer`), no solver steps between which others could join"
    else:
        return
    others = ", ".join(name for name in BATCHINGS if name != CONTINUOUS)
    raise ConfigurationError(problem, key="batching", fix=f"set it to one of {others}")


class _Deciding:
    """One decision at a time. Entered for every request several times: a generator would take twice as long."""

    __slots__ = ("_lock", "_server")

    def __init__(self, server: ModelServer, lock: threading.Lock) -> None:
        self._server, self._lock = server, lock

    def __enter__(self) -> ServerBrain:
        self._lock.acquire()
        return self._server._brain

    def __exit__(self, *_: object) -> None:
        try:
            if self._server._brain.mishaps:
                self._server.take_mishaps()
        finally:
            self._lock.release()


class ModelServer:
    """One process, one GPU, one model; `overflow` are more engines of the same model, which help out when that is faster."""

    def __init__(self, config: ServerConfig, engine: Engine, *overflow: Tier, policy: DispatchPolicy | None = None) -> None:
        """`policy`: in place of the one that the configuration names.

        Raises: `ModelError`; `ConfigurationError` for a name that is not known.
        """
        self.contract: ModelContract = engine.contract
        self.refused: Counter[str] = Counter()
        self.problems: dict[str, str] = {}
        """Counter of `refused` -> what happened last, in words for a log. Whoever says it takes it out."""
        self.look_again_s = math.inf
        """When the last `begin` of tier 0 that gave None wants to be called again, even if nothing new arrives."""
        check_able(config, engine)
        edge = Tier(engine=engine, batch_size=config.batch_size, max_concurrent=config.max_concurrent, profile_s=config.profile_s)
        self._lanes = [Lane(edge, self.mishap, config.costs.whole_s), *(Lane(tier, self.mishap) for tier in overflow)]
        self.takes_encoded, self.max_batch_size = engine.takes_encoded, engine.max_batch_size
        self._ready = readying(engine.contract, engine.takes_encoded, engine.fit_image, engine.decode_image)
        self._decoding_clock = None if engine.takes_encoded else engine.clock
        self._turn_s = 0.0
        """That the last turn took; 0: rows went on in none since it was told."""
        self._brain = ServerBrain(config, engine.contract, self._lanes, policy)
        self._lock, self._counting = threading.Lock(), threading.Lock()
        self._deciding = _Deciding(self, self._lock)

    @property
    def brain(self) -> ServerBrain:
        """Its lock is `deciding`'s."""
        return self._brain

    @property
    def config(self) -> ServerConfig:
        return self._brain.config

    def deciding(self) -> _Deciding:
        """Its brain, alone with it. Short: whoever asks waits meanwhile."""
        return self._deciding

    def take_mishaps(self) -> None:
        """What was counted while it decided: of foreign policies, whoever called them, and of requests that nobody waits for."""
        mishaps = self._brain.mishaps
        while mishaps:
            kind, problem = mishaps.pop(0)
            self.mishap(kind, problem) if problem else self.count(kind)

    def witness(self, witnessed: Callable[[ServerBrain], ServerBrain]) -> None:
        """From now on calls go to what this makes of the brain: between two decisions, whatever threads do."""
        with self._lock:
            self._brain = witnessed(self._brain)

    # --- control plane ---

    def open_session(self, request: SessionRequest) -> SessionGrant:
        """Raises: `ContractError`, `CapacityError`, `DrainingError`, `BadMessageError`."""
        self._require(request)
        with self._deciding as brain:
            grant = brain.open_session(request)
        self._tell_engines()
        unable = without_updates(request.horizon, self.config.num_updates)
        return replace(grant, warnings=(*grant.warnings, unable)) if unable else grant

    def _require(self, request: SessionRequest) -> None:
        """Raises: `ContractError` where the engine cannot do it."""
        engine = self.engine(0)
        if request.pipelining and not request.pipelining.problem and self.contract.pipelines and isinstance(engine, Stepping):
            try:
                engine.require_pipelining(request.pipelining, request.num_steps)
            except ModelError as error:
                raise ContractError([f"pipelining: {error}"]) from error

    def close_session(self, robot: str, component: str, epoch: int) -> None:
        with self._deciding as brain:
            brain.close_session(robot, component, epoch)
        self._tell_engines()

    def drain(self) -> None:
        """From now on no session opens and no request is taken; what waits and what runs is finished."""
        with self._deciding as brain:
            brain.take_new(False)

    def resume(self) -> None:
        """After `drain`: as before."""
        with self._deciding as brain:
            brain.take_new(True)

    def refuse_waiting(self) -> list[RequestId]:
        """What waits is not answered any more, and counted. Returns it, so that those who can be told are."""
        with self._deciding as brain:
            refused = brain.refuse_waiting()
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
        return not self._brain.mailboxes and all(lane.is_idle for lane in self._lanes)

    @property
    def drift(self) -> Drift | None:
        """How far the engine is from its profile; None: nothing is known of that."""
        return self._lanes[0].drift

    @property
    def over_quota(self) -> dict[str, int]:
        """ "robot/component" -> requests refused as too many, of the sessions that are open; only those that have any."""
        with self._lock:
            return self._brain.sessions.over_quota

    @property
    def given_up(self) -> str:
        """Why its engine is of no use any more; empty: it is."""
        return self._lanes[0].running.given_up

    def stalled_s(self, now_s: float) -> float:
        """For how long something has been waiting or running and nothing began or ended; 0: nothing is to be done.

        Takes no lock: whoever holds it may be what does not come back.
        """
        return self._brain.stalled_s(now_s)

    def collect_sessions(self, absent: Collection[SessionKey], now_s: float) -> list[tuple[SessionKey, str]]:
        """Closes the sessions of robots that have long been `absent` from the graph, and idle ones; counted. Returns them."""
        with self._deciding as brain:
            gone = brain.collect_sessions(absent, now_s)
        for _, why in gone:
            self.count(why)
        self._tell_engines()
        return gone

    def _tell_engines(self) -> None:
        """What they keep for sessions that have ended may go."""
        with self._lock:
            ended = self._brain.sessions.ended()
        for session, lane in itertools.product(ended, self._lanes):
            lane.running.close_session(*session.key, session.epoch)

    def reset_episode(self, robot: str, component: str, epoch: int, episode: int) -> None:
        """Discards what began before `episode`. Raises: `SessionError`."""
        with self._deciding as brain:
            discarded = brain.reset_episode(robot, component, epoch, episode)
        if discarded:
            self.count("stale_episode")

    @property
    def num_waiting(self) -> int:
        with self._lock:
            return len(self._brain.mailboxes)

    def resize(self, batch_size: int, max_sessions: int) -> None:
        """Takes new limits without touching what is open; 0 sessions: as many as before.

        Raises: `ModelError` when the engine cannot run such batches.
        """
        prepared = self._lanes[0].prepare(batch_size)
        with self._deciding as brain:
            brain.resize(prepared, max_sessions)

    def reconfigure(self, config: ServerConfig) -> None:
        """Other rules of dispatch and sessions, between two selections; what is open, waits or runs stays. Limits: `resize`.

        Raises: `ConfigurationError` for a name that is not known, or what the engine cannot do; then nothing has changed.
        """
        self.check(config)
        with self._deciding as brain:
            brain.reconfigure(config)

    def check(self, config: ServerConfig) -> None:
        """What `reconfigure` would raise for what cannot be served. Changes nothing."""
        check_able(config, self.engine(0))
        with self._lock:
            self._brain.check(config)

    def declare(self, rates_hz: Mapping[SessionKey, float]) -> None:
        """How often the schedule lets these ask: what goes far beyond it is refused, whatever the rules allow others."""
        with self._deciding as brain:
            brain.declare(rates_hz)

    @property
    def occupancy(self) -> Occupancy:
        with self._deciding as brain:
            return brain.occupancy

    def reply_kind(self, component: str) -> type[Reply]:
        return reply_kind(self.contract, component)

    def session_keys(self) -> list[SessionKey]:
        with self._lock:
            return self._brain.sessions.names()

    def session_names(self) -> list[str]:
        return ["/".join(key) for key in self.session_keys()]

    # --- data plane ---

    def submit(self, observation: ObservationRequest, now_s: float) -> None:
        """Validates, decodes and deposits a request; a newer one replaces an older one of the same session.

        Raises: `BadMessageError`; nothing else is affected. Count it with `counting_refusals`.
        """
        with self._lock:
            session = self._brain.charge(observation.id, now_s)
        self._deposit(observation, session, now_s)

    def check_admission(self, request: RequestId) -> None:
        """Before anything is kept for it, or thrown away. Raises: `BadMessageError`."""
        with self._deciding as brain:
            brain.admitted(request)

    def charge(self, request: RequestId, now_s: float) -> None:
        """Whether it is within the quota of its session. Raises: `BadMessageError`."""
        with self._deciding as brain:
            brain.charge(request, now_s)

    def deposit(self, observation: ObservationRequest, now_s: float) -> None:
        """What `charge` has let pass. Raises: `BadMessageError`."""
        with self._deciding as brain:
            session = brain.admitted(observation.id)
        self._deposit(observation, session, now_s)

    def _deposit(self, observation: ObservationRequest, session: Session, now_s: float) -> None:
        """Raises: `BadMessageError`."""
        try:
            request = row_of(observation, session, self.contract, self._ready, self._decoding_clock)
        except BadMessageError as error:
            with self._deciding as brain:
                brain.unfit(observation.id, error.kind, str(error))
            raise
        with self._lock:
            self._brain.deposit(request, observation, now_s)
            if self._brain.mishaps:
                self.take_mishaps()

    def superseded_early(self, request: RequestId) -> None:
        """A newer one of its session arrived before anybody looked at it."""
        with self._deciding as brain:
            brain.superseded_early(request)

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
        ended: Sequence[Ended] = [(work, self.run(work))] if work and not self.steps() else []
        if self.steps():
            _, ended = self.round(work, clock)
        return self.complete_all(ended, clock()) if ended else []

    def steps(self, tier: int = 0) -> bool:
        """Whether its rows go on one solver step at a time. Changes in `begin` alone."""
        return self._lanes[tier].view.flight is not None

    def num_in_flight(self, tier: int = 0) -> int:
        """Rows that have begun and not ended, where they go on one solver step at a time."""
        return len(self._lanes[tier].works) if self.steps(tier) else 0

    def round(self, first: Work | None, clock: Callable[[], float]) -> tuple[bool, list[Ended]]:
        """What begins enters, and rows in flight go on by one step; or a whole batch runs. Whether anything moved, and works that
        ended, for `complete`.

        first: what `begin` gave; more may follow, but after a whole batch.
        """
        if first and first.whole:
            return True, [(first, self.run(first))]
        ended: list[Ended] = []
        if works := [first, *iter(lambda: self.begin(clock()), None)] if first else []:
            turns = self.enter(works)
            ended = [(work, [None]) for work in self.entered(turns, clock())]
        rows = self.advancing(clock())
        if rows:
            began_s = clock()
            ended += self.turn(rows)
            self._turn_s = clock() - began_s
        return bool(works or rows), ended

    def begin(self, now_s: float, tier: int = 0) -> Work | None:
        """Selects what a tier runs next; None: nothing waits that it should run, or it has enough to do (see `look_again_s`)."""
        if not tier:
            self.look_again_s = math.inf
        brain = self._brain
        if not brain.may_begin(tier, now_s):
            return None
        with self._lock:
            brain = self._brain
            work = brain.begin(tier, now_s)
            if not tier:
                self.look_again_s = brain.look_again_s
            if brain.mishaps:
                self.take_mishaps()
        return work

    def refetches(self, now_s: float) -> list[RequestId]:
        """Requests that run next and whose robots should be asked for a newer observation now, since it costs nothing (Kairos
        §3.2.2): theirs will be stale when the engine is free, and a newer one arrives before, and fresh enough. The answer is a
        normal newer request. Each is named once; ask a few times within `refetch_after_s`."""
        if self.config.refetch_after_s == math.inf:
            return []
        with self._deciding as brain:
            return brain.refetches(now_s)

    def run(self, work: Work) -> list[EngineReply | None]:
        """One answer per request; None where the engine failed. Raises nothing."""
        running = self._lanes[work.tier].running
        answers = running.run([waiting.request for waiting in work.batch], self._brain.config.max_engine_errors)
        if self.contract.output is not ACTION_CHUNK:
            self._check_verdicts(work, answers)
        return answers

    def _check_verdicts(self, work: Work, answers: Sequence[EngineReply | None]) -> None:
        """Text that is none of a judge's words goes on as an empty verdict."""
        for i, answer in enumerate(answers):
            if answer and not answer.verdict and self.reply_kind(work.batch[i].request.id.component) is Verdict:
                self.count("verdict_violation")

    # --- one solver step at a time ---

    def enter(self, works: Sequence[Work]) -> list[tuple[int, int]]:
        """Perceives what has begun, together: (number, turns that it will take) of what entered."""
        requests = {work.number: work.batch[0].request for work in works}
        return list(self._stepping.enter(requests, self.config.max_engine_errors).items())

    def entered(self, turns: Sequence[tuple[int, int]], now_s: float) -> list[Work]:
        """What began and did not enter: to be completed without an answer."""
        with self._deciding as brain:
            works = {work.number: work for work in self._lanes[0].works}
            return [works[number] for number in brain.entered(tuple(turns), now_s)]

    def advancing(self, now_s: float, took_s: float | None = None) -> list[Work]:
        """Rows in flight that go on now; those that nobody waits for have left. took_s: of the turn before, where it is not `round`
        that measured it."""
        lane = self._lanes[0]
        if lane.is_idle:
            return []
        ready = self._stepping.ready()
        took_s, self._turn_s = self._turn_s if took_s is None else took_s, 0.0
        with self._deciding as brain:
            works, num_moving = {work.number: work for work in lane.works}, lane.num_moving
            advance, leave = brain.turn(tuple(ready), took_s, now_s)
        if leave:
            self._stepping.leave(leave)
        if not advance and lane.num_moving < num_moving:
            self.look_again_s = now_s  # `begin` took into account rows that do not go on
        return [works[number] for number in advance]

    def turn(self, rows: Sequence[Work]) -> list[Ended]:
        """Advances them by one solver step. Those that are done."""
        works = {work.number: work for work in rows}
        answers = self._stepping.turn(list(works), self.config.max_engine_errors)
        return [(works[number], [answer]) for number, answer in answers.items()]

    @property
    def _stepping(self) -> StepRunning:
        running = self._lanes[0].running
        assert isinstance(running, StepRunning)
        return running

    # --- what becomes of it ---

    def complete(self, work: Work, answers: Sequence[EngineReply | None], now_s: float) -> list[Reply]:
        """Replies to those whose session is still open."""
        return self.complete_all([(work, answers)], now_s)

    def complete_all(self, ended: Sequence[Ended], now_s: float) -> list[Reply]:
        """Of what ended together: rows of one turn take hardly longer than one of them."""
        with self._lock:  # first of all: whatever is wrong with the answers, the engine is free again
            for work, answers in ended:
                answered = [answer is not None for answer in answers]
                self._brain.ended(work, answered, self._lanes[work.tier].running.num_failed, now_s)
        seen = iter(self._outlooks(ended))
        replies = []
        with self._lock:
            brain = self._brain
            for work, answers in ended:
                for row, answer in enumerate(answers):
                    if reply := brain.reply(work, row, answer, next(seen)):
                        replies.append(reply)
            if brain.mishaps:
                self.take_mishaps()
        return replies

    def _outlooks(self, ended: Sequence[Ended]) -> Iterable[Outlook]:
        """Row by row. There is none on a text."""
        if self.contract.output is not ACTION_CHUNK:
            return itertools.repeat(NO_OUTLOOK)
        horizons = [waiting.request.horizon for work, _ in ended for waiting in work.batch]
        return outlooks(horizons, [answer for _, answers in ended for answer in answers], self.mishap)

    def snapshot(self, now_s: float) -> ServerSnapshot:
        with self._deciding as brain:
            snapshot = brain.snapshot(now_s)
        return replace(snapshot, refused=dict(self.refused))

    def check_integrity(self) -> None:
        """When idle: nothing waits that no session owns."""
        with self._lock:
            assert self._brain.mailboxes.keys() <= set(self._brain.sessions.names())

    def mishap(self, kind: str, problem: str) -> None:
        """Counts something that went wrong, and keeps it in words."""
        self.count(kind)
        self.problems[kind] = problem

    def count(self, kind: str, number: int = 1) -> None:
        """Something that was refused or lost. From any thread, whatever it holds."""
        with self._counting:
            self.refused[kind] += number
