"""Server in virtual time: the model server of the live nodes, with a service law in place of a GPU."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ros2_rfm_serving.dispatch import StepCosts
from ros2_rfm_serving.errors import BadMessageError, RfmError, SessionError
from ros2_rfm_serving.factory.cluster import CONTINUOUS
from ros2_rfm_serving.factory.settings import ServerSettings
from ros2_rfm_serving.faults import Direction, corrupt
from ros2_rfm_serving.robot.config import EpisodeReset
from ros2_rfm_serving.server import EngineConfig, ModelServer, RunningBatch, ServerConfig
from ros2_rfm_serving.server.figures import ServerSnapshot
from ros2_rfm_serving.server.sessions import SessionKey
from ros2_rfm_serving.simulation.client import SimulatedClient
from ros2_rfm_serving.simulation.gpu import SimulatedGpu, SteppedGpu
from ros2_rfm_serving.simulation.wire import AT_ONCE
from ros2_rfm_serving.simulation.world import World
from ros2_rfm_serving.types import ObservationRequest, Placement, SessionGrant, SessionRequest
from ros2_rfm_serving.virtual_time.events import source
from ros2_rfm_serving.virtual_time.iterations import Answers, IterationLoop

LOG = logging.getLogger(__name__)
DOWN = Direction.DOWN
STATUS_PERIOD_S = 0.5
"""Period of a server's status messages, as in the live nodes."""
REFETCH_POLLS = 4
"""Number of checks of waiting requests within the age at which an observation is stale, as in the live nodes."""
UNLIMITED = 65_535
"""Batch size where only the engine limits it."""
EPOCHS = 1_000_000
"""Distance between the session epochs of two lives of a server, more than it opens sessions in one: no epoch is used twice."""


@dataclass(slots=True)
class ServerCounts:
    """Figures of a server after the warm-up."""

    busy_s: float = 0.0
    latencies_s: list[float] = field(default_factory=list)
    """Latencies from arrival to reply"""


def server_config(placement: Placement, settings: ServerSettings, profile_s: tuple[float, ...], gpu: SimulatedGpu) -> ServerConfig:
    """Return the configuration of the live server; one that batches continuously accepts all waiting requests."""
    continuous = placement.batching == CONTINUOUS
    return ServerConfig(
        name=placement.server,
        batch_size=UNLIMITED if continuous else placement.batch_size,
        max_concurrent=gpu.max_concurrent,
        max_sessions=placement.max_sessions,
        dispatch=settings.dispatch,
        batching=CONTINUOUS if isinstance(gpu, SteppedGpu) else settings.batching,
        refetch_after_s=settings.refetch_after_s,
        profile_s=profile_s,
        costs=gpu.costs if isinstance(gpu, SteppedGpu) else StepCosts(),
    )


class SimulatedServer:
    """Server with one placement. `clients` are the robots by name, and `listeners` receive its status; the factory's builder fills
    both."""

    def __init__(
        self,
        placement: Placement,
        settings: ServerSettings,
        gpus: Sequence[SimulatedGpu],
        world: World,
        profile_s: tuple[float, ...] = (),
    ) -> None:
        """Start the server. gpus: its own, and the one for overflow, if any. profile_s: as in `ServerConfig`."""
        self.placement, self.name, self._settings = placement, placement.server, settings
        self.tally = ServerCounts()
        self.clients: dict[str, SimulatedClient] = {}
        self.listeners: list[SimulatedClient] = []
        self._gpus, self._events, self._traffic, self._warm_up_s = gpus, world.events, world.traffic, world.warm_up_s
        self._roads = world.roads
        if placement.gpu:
            self._roads.share(self.name, placement.gpu)
        self._faults_rng = source(world.seed, "faults", self.name)
        self._config = server_config(placement, settings, profile_s, gpus[0])
        self._round_trips_s = [0.0, *(s.round_trip_ms / 1e3 for s in (settings.overflow,) if s)]
        self._batches_in_flight = settings.overflow.batches_in_flight if settings.overflow else 1
        self._server = self._started(self._config)
        self._up = True
        self._rates_hz: Mapping[SessionKey, float] = {}
        self._lives, self._loaded_s = 1, math.nan
        self.loads = False
        """The server loads a model, for which no request waited when it began."""
        self._in_progress: set[RunningBatch] = set()
        self._num_own = 0
        """Number of them on its own GPU."""
        self._busy_since_s = self._looks_s = math.inf
        if self._config.refetch_after_s < math.inf:
            self._events.at(0.0, self._refetch)

    def _started(self, config: ServerConfig) -> ModelServer:
        tiers = [
            EngineConfig(
                engine=gpu.engine,
                batch_size=gpu.engine.max_batch_size,
                max_concurrent=gpu.max_concurrent,
                batches_in_flight=self._batches_in_flight,
                round_trip_s=away_s,
            )
            for gpu, away_s in zip(self._gpus[1:], self._round_trips_s[1:], strict=True)
        ]
        edge = self._gpus[0]
        server = ModelServer(config, edge.engine, *tiers)
        self._rounds = (
            IterationLoop(server.loop, self._events, lambda: edge.spent_s, self) if isinstance(edge, SteppedGpu) else None
        )
        return server

    # --- clients ---

    def meet(self, client: SimulatedClient) -> None:
        """Add a robot to the graph; one of the same name is a former instance of it."""
        if (former := self.clients.get(client.name)) is not client:
            if former:
                self.part(former)
            self.clients[client.name] = client
            self.listeners.append(client)

    def part(self, client: SimulatedClient) -> None:
        """Remove a robot from the graph; replies to it may still be on their way."""
        if client in self.listeners:
            self.listeners.remove(client)

    def collect(self) -> None:
        """Close sessions of robots that left long ago."""
        if self._up:
            waiting, there = self._server.num_waiting, {client.name for client in self.listeners}
            absent = [key for key in self._server.session_keys() if key[0] not in there]
            self._server.collect_sessions(absent, self._events.now_s)
            self._traffic.dropped += waiting - self._server.num_waiting

    # --- received messages ---

    def receive(self, request: ObservationRequest) -> None:
        if not self._up:
            self._traffic.lost += 1
            return
        try:
            self._server.submit(request, self._events.now_s)
        except BadMessageError:
            self._traffic.refused += 1
            return
        self._serve()

    def open_session(self, client: SimulatedClient, request: SessionRequest) -> None:
        """Answer a request for a session. A server that is down does not answer."""
        if not self._up:
            return
        now_s, waiting = self._events.now_s, self._server.num_waiting
        answer: SessionGrant | RfmError
        try:
            answer = self._server.open_session(request)
        except RfmError as error:
            answer = error
        self._traffic.dropped += waiting - self._server.num_waiting
        for copy in self._roads.broadcast(client.wire.deliveries(DOWN, now_s, reliable=True), client.name, self.name):
            self._events.at(now_s + copy.delay_s, client.session_answered, request.component, self.name, answer)

    def reset_episode(self, client: SimulatedClient, reset: EpisodeReset) -> None:
        if not self._up:
            return
        now_s, waiting = self._events.now_s, self._server.num_waiting
        try:
            self._server.reset_episode(client.name, reset.component, reset.session_epoch, reset.episode)
            ok = True
        except SessionError:
            ok = False
        self._traffic.dropped += waiting - self._server.num_waiting
        for copy in self._roads.broadcast(client.wire.deliveries(DOWN, now_s, reliable=True), client.name, self.name):
            self._events.at(now_s + copy.delay_s, client.episode_reset, reset, ok)

    def close_session(self, robot: str, component: str, epoch: int) -> None:
        if not self._up:
            return
        before = self._server.num_waiting
        self._server.close_session(robot, component, epoch)
        self._traffic.dropped += before - self._server.num_waiting

    def publish_status(self) -> None:
        """Publish the status periodically. A server that is down publishes none."""
        now_s = self._events.now_s
        self._events.at(now_s + STATUS_PERIOD_S, self.publish_status)
        if self._up:
            self._publish(now_s)

    def _publish(self, now_s: float) -> None:
        for client in self.listeners:
            if client.wire.connected(DOWN, now_s):
                client.on_server_status(self.name)

    @property
    def snapshot(self) -> ServerSnapshot | None:
        """Content of its status; None: the server is down."""
        return self._server.snapshot(self._events.now_s) if self._up else None

    # --- schedules ---

    def declare(self, rates_hz: Mapping[SessionKey, float]) -> None:
        """Set the rates at which the schedule lets the sessions ask."""
        self._rates_hz = rates_hz
        if self._up:
            self._server.declare(rates_hz)

    def follow(self, placement: Placement) -> None:
        """Follow a placement of the same model with other batches or other robots."""
        if placement != self.placement:
            self.placement = placement
            size = self._config.batch_size if placement.batching == CONTINUOUS else placement.batch_size
            self._config = replace(self._config, batch_size=size, max_sessions=placement.max_sessions)
            if self._up:
                self._server.resize(size, placement.max_sessions)

    def become(self, placement: Placement, gpus: Sequence[SimulatedGpu], profile_s: tuple[float, ...], load_s: float) -> None:
        """Load another model. Robots that still use this server get no answer meanwhile."""
        crashed = not self._up and not self.loads
        self.crash(math.inf)
        self.placement, self._gpus = placement, gpus
        self._config = server_config(placement, self._settings, profile_s, gpus[0])
        if not crashed:
            self.load(load_s)

    def load(self, load_s: float) -> None:
        """Load the model; until then the server accepts nothing."""
        self.crash(math.inf)
        self.loads, self._loaded_s = True, self._events.now_s + load_s
        if self._loaded_s < math.inf:
            self._events.at(self._loaded_s, self._load_ends, self._loaded_s)

    def _load_ends(self, time_s: float) -> None:
        """Restart with the loaded model, unless a newer plan replaced this one."""
        if self.loads and time_s == self._loaded_s:
            self.loads = False
            self._restart()

    # --- faults ---

    def crash(self, restart_after_s: float) -> None:
        """Lose all state, and restart after a time."""
        if not self._up:
            return
        self._traffic.dropped += self.num_held
        self._traffic.dropped += self._server.snapshot(self._events.now_s).superseded
        self._count_busy()
        self._report_problems()
        self._up = False
        self._in_progress.clear()
        self._num_own = 0
        for gpu in self._gpus:
            gpu.forget()
        if self._rounds:
            self._rounds.stop()
        if restart_after_s < math.inf:
            self._events.at(self._events.now_s + restart_after_s, self._restart)

    def _restart(self) -> None:
        self._server = self._started(replace(self._config, first_epoch=1 + self._lives * EPOCHS))
        self._lives += 1
        self._up = True
        self._server.declare(self._rates_hz)
        self._publish(self._events.now_s)

    # --- serving ---

    def _serve(self) -> None:
        now_s, server = self._events.now_s, self._server
        for tier, gpu in enumerate(self._gpus):
            if self._rounds and not tier:
                self._rounds.serve()
                continue
            while (work := server.loop.begin(now_s, tier)) is not None:
                self.begun(work)
                gpu.start(work, server.loop.run, self._return if tier else self.ended)
        looks_s = server.loop.poll_at_s
        if now_s < looks_s < math.inf and looks_s != self._looks_s:
            self._looks_s = looks_s
            self._events.at(looks_s, self._poll, looks_s)

    def begun(self, work: RunningBatch) -> None:
        if not work.queue_index and not self._num_own:
            self._busy_since_s = self._events.now_s
        self._num_own += not work.queue_index
        self._in_progress.add(work)

    def over(self) -> None:
        self._serve()

    def _poll(self, time_s: float) -> None:
        """Serve again, unless a newer plan replaced this one."""
        if time_s == self._looks_s and self._up:
            self._looks_s = math.inf
            self._serve()

    def _refetch(self) -> None:
        """Request newer observations periodically in place of those that will be stale when they are used."""
        now_s = self._events.now_s
        self._events.at(now_s + self._config.refetch_after_s / REFETCH_POLLS, self._refetch)
        for request in self._server.refetches(now_s) if self._up else ():
            client = self.clients[request.robot]
            for copy in self._roads.broadcast(client.wire.deliveries(DOWN, now_s), client.name, self.name):
                self._events.soon(copy.delay_s, client.request_refetch, request)

    def _return(self, work: RunningBatch, answers: Answers) -> None:
        """Add the way there and back of a request that overflowed."""
        self._events.at(self._events.now_s + self._round_trips_s[work.queue_index], self.ended, work, answers)

    def ended(self, work: RunningBatch, answers: Answers) -> None:
        if work not in self._in_progress:
            return  # a crash came first
        self._in_progress.remove(work)
        if not work.queue_index:
            self._num_own -= 1
            if not self._num_own:
                self._count_busy()
        now_s, traffic = self._events.now_s, self._traffic
        replies = self._server.loop.complete(work, answers, now_s)
        traffic.dropped += len(work.batch) - len(replies)
        for reply in replies if now_s >= self._warm_up_s else ():
            served = reply.served
            self.tally.latencies_s.append(served.queue_wait_s + served.inference_s)
        self._serve()
        for reply in replies:
            client = self.clients[reply.id.robot]
            copies = client.wire.deliveries(DOWN, now_s)
            if self._roads.are_laid:
                copies = self._roads.delivered(copies, client.name, self.name, DOWN, now_s)
            if copies is AT_ONCE:
                client.receive(reply)
                continue
            traffic.sets_out(len(copies), anew=False)
            for copy in copies:
                damaged = corrupt(reply, self._faults_rng) if copy.corrupt else reply
                self._events.soon(copy.delay_s, traffic.arrives, client.receive, damaged)

    def _count_busy(self) -> None:
        self.tally.busy_s += max(0.0, self._events.now_s - max(self._busy_since_s, self._warm_up_s))
        self._busy_since_s = math.inf

    # --- the end ---

    def finish(self) -> None:
        """End the simulation."""
        self._count_busy()
        if self._up:
            self._traffic.dropped += self._server.snapshot(self._events.now_s).superseded
            self._server.check_integrity()
            self._report_problems()

    def _report_problems(self) -> None:
        """Log the problems of foreign code, whose requests other code has decided about."""
        refused = self._server.snapshot(self._events.now_s).refused
        for kind, problem in dict(self._server.problems).items():
            LOG.warning(f"{self.name}: {kind}, {refused.get(kind, 1)} times, the last of them: {problem}")

    @property
    def num_held(self) -> int:
        """Number of requests in its mailboxes and in service."""
        return (self._server.num_waiting if self._up else 0) + sum(len(work.batch) for work in self._in_progress)
