"""Two servers, a faulty wire and a robot's body around one `RobotCore`, in virtual time, for the state machine of its promises.

Every row of every chunk is tagged: column 2 is a number of its own, and of the columns from 3 on the one of its chunk is 1.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from ros2_rfm_serving.faults import Direction, FaultPlan, FaultyWire, corrupt
from ros2_rfm_serving.robot import RobotConfig, RobotCore, Sensors
from ros2_rfm_serving.robot.config import CommandType, EpisodeReset, TickResult
from ros2_rfm_serving.types import (
    ActionChunk,
    Array,
    EncodedImage,
    JudgeVerdict,
    ObservationRequest,
    Placement,
    Reply,
    RobotState,
    Route,
    Schedule,
    ServingStats,
    SessionGrant,
    SessionRequest,
    SubgoalPlan,
)
from test.unit.fakes import CONTRACT, SERVED, chunk, grant

NUM_SLOTS = 64
"""Chunks that can be told apart: none lives as long as it takes to make as many more."""
NAMES = ("x", "y", "row", *(f"chunk{i}" for i in range(NUM_SLOTS)))
TAGS = np.s_[2:]
CAMERA_PERIOD_S = 0.3
HOME, SPARE = "home", "spare"
COMPONENTS = ("system1", "system2", "safety", "monitor")
REFUSALS = (
    "stale_epoch",
    "late_or_duplicate",
    "stale_episode",
    "unknown_component",
    "wrong_model",
    "wrong_context",
    "wrong_actions",
    "bad_shape",
    "non_finite",
    "unexpected_reply",
    "delay_not_bridged",
)
"""Counters of replies that are dropped,"""
UNASKED = REFUSALS[: REFUSALS.index("wrong_actions")]
"""and of those among them that answer nothing which is in flight."""


@dataclass(kw_only=True)
class Conditions:
    """Until somebody changes them."""

    latency_s: float = 0.03
    unusual_s: float = 0.0
    """How much longer than usual servers say that answers took."""
    words: dict[str, str] = field(default_factory=lambda: {"safety": "safe", "monitor": "ongoing"})
    out_of_limits: float = 0.0
    """Share of the rows that no robot may execute."""
    wrong_kind: float = 0.0
    """Share of the replies that answer something else."""
    opens: str = "granted"
    """`refused`, `contract`, `lost`, `late`, or `granted`"""
    readings: str = "fresh"
    """`none`, `old`, `old_images`, `skewed`, `nan`, `unknown` or `fresh`"""


@dataclass(eq=False)
class Sent:
    server: str
    request: ObservationRequest
    at_s: float
    observed_s: float
    model_hash: str
    mark: int = 0
    """Steps that the robot had executed."""


@dataclass(eq=False)
class MadeChunk:
    """`unfit`: those of its rows, by their numbers, that no robot may execute."""

    sent: Sent
    rows: frozenset[int]
    unfit: frozenset[int]
    reply: ActionChunk
    seen: Sent
    """Whose observation it ended with."""


class Session(NamedTuple):
    model_hash: str
    at_s: float


class Server:
    """Knows sessions by the number that it gave them: like any other server it begins with 1."""

    def __init__(self) -> None:
        self.up, self.model_hash, self._epochs = True, "hash", 0
        self.sessions: dict[str, int] = {}
        self.newest: dict[tuple[str, int, int], Sent] = {}
        """Observations, by component, epoch and episode: what a pipelined session's solver steps see."""

    def restart(self, model_hash: str) -> None:
        self.up, self.model_hash, self._epochs = True, model_hash, 0
        self.sessions.clear()
        self.newest.clear()

    def open(self, component: str) -> int:
        self._epochs += 1
        self.sessions[component] = self._epochs
        return self._epochs


class World:
    """`arrived` is called with every reply, what it answers, whether it is honest, and whether the brain took it."""

    def __init__(
        self,
        config: RobotConfig,
        plan: FaultPlan,
        seed: int,
        routes: dict[str, tuple[float, float]],
        make: Callable[[RobotConfig], RobotCore] = RobotCore,
    ) -> None:
        """routes: component -> (most per second, SLO)."""
        self.config, self.brain, self.now_s = config, make(config), 0.0
        self.rng = random.Random(seed)
        self.wire = FaultyWire(plan, self.rng)
        self.servers = {HOME: Server(), SPARE: Server()}
        self.conditions = Conditions()
        self.routes, self.schedule_epoch, self.standby = dict(routes), 0, True
        self.chunks: list[MadeChunk | None] = [None] * NUM_SLOTS
        self.events: Counter[str] = Counter()
        self.sent_ids: set[object] = set()
        self.delivered: deque[tuple[Sent, Reply]] = deque(maxlen=32)
        """The newest replies that were right."""
        self.arrived: Callable[[Reply, Sent, bool, bool], None] = lambda *_: None
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._num_chunks = itertools.count()
        self._row = itertools.count(1)
        self._status_s = -math.inf
        self.states: list[RobotState] = []
        """Of the control periods of `run`."""
        self.arm = np.zeros(2, np.float32)
        """Where x and y are: where commands and people have moved them."""
        self.tags = np.zeros(len(NAMES) - 2, np.float32)
        """Where the other columns are: nobody pushes these."""
        self.mark = 0
        """Steps that were executed before the last tick."""
        self.period = True
        """The last tick was a control period."""
        self.readings: Sensors | None = None
        """Of the last tick."""
        self.unasked = False
        """The last reply was dropped as one that answers nothing which is in flight."""
        self.granted: dict[tuple[str, str, int], Session] = {}
        """(server, component, epoch) -> the newest of that number"""

    # --- time ---

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now_s + delay_s, next(self._count), action))

    def advance(self, dt_s: float) -> None:
        """Everything that is due happens at its time."""
        end_s = self.now_s + dt_s
        while self._queue and self._queue[0][0] <= end_s:
            due_s, _, action = heapq.heappop(self._queue)
            self.now_s = max(self.now_s, due_s)
            action()
        self.now_s = end_s
        if end_s - self._status_s >= 0.5:
            self._status_s = end_s
            for name, server in self.servers.items():
                if server.up:
                    self.brain.on_server_status(name, True, end_s)

    def tick(self, *, may_act: bool = True) -> TickResult:
        self.events["tick"] += 1
        self.readings, self.period = self.sensors(), not may_act or self.brain.is_period(self.now_s)
        self.mark = self.brain._queue.steps_executed
        tick = self.brain.tick(self.readings, self.now_s, may_act=may_act)
        if tick.command is not None and self.config.command_type is CommandType.POSITION:
            self.arm, self.tags = tick.command[:2].copy(), tick.command[2:].copy()
        for server, opening in tick.opens:
            self._open(server, opening)
        for reset in tick.resets:
            self._reset(reset)
        return tick

    def run(self, seconds: float) -> list[Array | None]:
        """Control periods with all that goes with them; the commands."""
        commands = []
        for _ in range(round(seconds * self.config.control_rate_hz)):
            self.advance(1.0 / self.config.control_rate_hz)
            tick = self.tick()
            for server, request in tick.requests:
                self.send(Sent(server, request, self.now_s, self.now_s, self.servers[server].model_hash))
            commands.append(tick.command)
            self.states.append(self.brain.state)
        return commands

    # --- the robot's body ---

    def sensors(self) -> Sensors | None:
        kind, now_s = self.conditions.readings, self.now_s
        if kind == "none":
            return None
        old_s = now_s - self.config.max_observation_age_s - 0.1
        measured = np.zeros(len(NAMES), np.float32)
        measured[:2], measured[2:] = self.arm, self.tags
        positions = {"nan": np.full(len(NAMES), np.nan, np.float32), "unknown": None}.get(kind, measured)
        return Sensors(
            state=np.zeros(3, np.float32),
            state_s=old_s if kind == "old" else now_s - 0.001,
            images=(EncodedImage(camera="front", format="jpeg", data=b""),),
            images_s=old_s if kind == "old_images" else now_s - now_s % CAMERA_PERIOD_S,
            skew_s=self.config.max_sensor_skew_s + 0.1 if kind == "skewed" else 0.0,
            positions=positions,
        )

    # --- the factory ---

    def schedule(self, *, newer: bool = True, model: str = "fake", home: str = HOME) -> Schedule:
        self.schedule_epoch += newer
        other = {HOME: SPARE, SPARE: HOME}[home] if self.standby else ""
        routes = tuple(
            Route(robot="r1", component=name, server=home, standby=other, max_rate_hz=rate_hz, slo_s=slo_s)
            for name, (rate_hz, slo_s) in self.routes.items()
        )
        placement = Placement(
            server=home,
            model=model,
            components=COMPONENTS,
            gpu_type="CPU",
            batching="fixed",
            batch_size=1,
            max_sessions=8,
            predicted_p99_s=0.1,
        )
        return Schedule(epoch=self.schedule_epoch, placements=(placement,), routes=routes, predicted_actions_hz=1.0, policy="test")

    def _open(self, server: str, opening: SessionRequest) -> None:
        how, host, component = self.conditions.opens, self.servers[server], opening.component
        if how == "lost" or not host.up:
            return
        wanted = opening.expected_model_hash
        if how in ("refused", "contract") or (wanted not in ("", host.model_hash) and self.rng.random() < 0.5):
            fits = how == "refused"
            self.later(
                0.01, lambda: self.brain.on_session_refused(component, server, "no", self.now_s, is_contract_mismatch=not fits)
            )
            return
        length = CONTRACT.chunk_length * (4 if server == HOME else 1)
        acts = replace(CONTRACT, action_names=NAMES, chunk_length=length)
        contract = replace(acts, model_hash=host.model_hash, pipelines=bool(opening.pipelining))
        granted = grant(host.open(component), contract)
        self.granted[server, component, granted.session_epoch] = session = Session(host.model_hash, self.now_s)
        self.later(4.0 if how == "late" else 0.01, lambda: self._opened(component, server, granted, session))

    def _opened(self, component: str, server: str, granted: SessionGrant, session: Session) -> None:
        """A late grant, of before a restart, may bear the number of one that the robot has had since: another session, if taken."""
        refused = self.brain.refused.total()
        self.brain.on_session_opened(component, server, granted, self.now_s)
        if self.brain.refused.total() == refused:
            self.granted[server, component, granted.session_epoch] = session

    def _reset(self, reset: EpisodeReset) -> None:
        self.later(0.01, lambda: self.brain.on_episode_reset(reset, self.servers[reset.server].up))

    # --- the wire ---

    def send(self, sent: Sent) -> None:
        self.sent_ids.add(sent.request.id)
        for delivery in self.wire.deliveries(Direction.UP, self.now_s):
            if not delivery.corrupt:  # else the server refuses it
                self.later(delivery.delay_s, lambda: self._serve(sent))

    def _serve(self, sent: Sent) -> None:
        host, identity = self.servers[sent.server], sent.request.id
        if host.up and host.sessions.get(identity.component) == identity.session_epoch:
            if not self._is_pipelined(sent):
                reply = self.answer(sent)
                self.later(self.conditions.latency_s * self.rng.uniform(0.8, 1.2), lambda: self._return(sent, reply))
                return
            key = (identity.component, identity.session_epoch, identity.episode)
            newest = host.newest.setdefault(key, sent)
            host.newest[key] = max(newest, sent, key=lambda each: each.request.id.sequence)
            takes_s = self._frames_s() + self.conditions.latency_s
            self.later(takes_s * self.rng.uniform(0.8, 1.2), lambda: self._end(sent, key))

    def _is_pipelined(self, sent: Sent) -> bool:
        return self.config.pipelining is not None and sent.request.id.component == "system1"

    def _frames_s(self) -> float:
        """Every request of a pipelined session takes as many frames as are in flight."""
        assert self.config.pipelining is not None
        return (self.config.pipelining.depth - 1) * self.config.execution_horizon / self.config.step_rate_hz

    def _end(self, sent: Sent, key: tuple[str, int, int]) -> None:
        """Its last solver steps see the newest observation."""
        self._return(sent, self.answer(sent, self.servers[sent.server].newest.get(key, sent)))

    def _return(self, sent: Sent, reply: Reply) -> None:
        for delivery in self.wire.deliveries(Direction.DOWN, self.now_s):
            damaged = corrupt(reply, self.rng) if delivery.corrupt else reply
            self.later(delivery.delay_s, lambda damaged=damaged: self.deliver(sent, damaged, damaged is reply))  # type: ignore[misc]

    def deliver(self, sent: Sent, reply: Reply, honest: bool) -> None:
        if reply.id != sent.request.id and reply.id in self.sent_ids:
            return  # nobody could tell a forged one
        self.events["reply"] += 1
        if honest:
            self.delivered.append((sent, reply))
        before = sum(self.brain.refused[name] for name in REFUSALS)
        unasked = sum(self.brain.refused[name] for name in UNASKED)
        taken = self.brain.on_reply(reply, self.now_s)
        counted = sum(self.brain.refused[name] for name in REFUSALS) - before
        assert counted == (not taken), f"a reply that is {'taken' if taken else 'dropped'} is counted {counted} times"
        self.unasked = sum(self.brain.refused[name] for name in UNASKED) > unasked
        right = isinstance(
            reply, {"system1": type(chunk(sent.request)), "system2": SubgoalPlan}.get(sent.request.id.component, JudgeVerdict)
        )
        self.arrived(reply, sent, honest and right, taken)

    def answer(self, sent: Sent, seen: Sent | None = None) -> Reply:
        """seen: whose observation the last solver steps of a pipelined session see; None: its own."""
        said = {"id": sent.request.id, "stamp_ns": 0, "server": sent.server, "model_hash": sent.model_hash, "served": self.served}
        kind = sent.request.id.component
        if self.rng.random() < self.conditions.wrong_kind:
            kind = self.rng.choice(["system1", "system2", "safety"])
        if kind == "system1":
            return self._chunk(sent, seen or sent)
        if kind == "system2":
            return SubgoalPlan(subgoals=self.rng.choice([("lift",), ("lift", "place"), ()]), text="", **said)  # type: ignore[arg-type]
        return JudgeVerdict(verdict=self.conditions.words.get(kind, "ongoing"), score=1.0, text="", **said)  # type: ignore[arg-type]

    @property
    def served(self) -> ServingStats:
        return replace(SERVED, excess_delay_s=self.conditions.unusual_s)

    def _chunk(self, sent: Sent, seen: Sent) -> Reply:
        length = CONTRACT.chunk_length * 4
        values = np.zeros((length, len(NAMES)), np.float32)
        values[:, :2] = np.array([[self.rng.uniform(-0.9, 0.9) for _ in range(2)] for _ in range(length)])
        for row in values:
            if self.rng.random() < self.conditions.out_of_limits:
                row[0] = self.rng.choice([-5.0, 5.0])
        values[:, 2] = [next(self._row) % 4096 for _ in range(length)]
        numbers, unfit = values[:, 2].astype(int), (np.abs(values[:, :2]) > 1.0).any(axis=1)
        slot = next(self._num_chunks) % NUM_SLOTS
        values[:, 3 + slot] = 1.0
        seen = seen if self._is_pipelined(sent) else sent
        said = {"model_hash": sent.model_hash, "server": sent.server, "served": self.served}
        ended_with = None if seen is sent else seen.request.id.sequence
        reply = chunk(sent.request, values, action_names=NAMES, ended_with=ended_with, **said)
        self.chunks[slot] = MadeChunk(sent, frozenset(numbers.tolist()), frozenset(numbers[unfit].tolist()), reply, seen)
        return reply
