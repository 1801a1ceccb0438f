"""A factory in virtual time whose processes are killed, ended and started again at random, recorded by the genuine journals; what
was true is noted beside them, by the test and not by the code under test."""

from __future__ import annotations

import itertools
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from ros2_rfm_serving.audit.chain import Page
from ros2_rfm_serving.audit.journal import PAGE_PERIOD_S, PROCESS_ENDS, Journal
from ros2_rfm_serving.audit.robots.recorded import RecordedBrain
from ros2_rfm_serving.audit.schedulers.book import Book
from ros2_rfm_serving.audit.servers.journal import ServerJournal
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.factory import Catalogue, load_factory
from ros2_rfm_serving.profiles import load_profiles
from ros2_rfm_serving.scheduler import PlanJob, PlanResult
from ros2_rfm_serving.scheduler.plan_service import plan
from ros2_rfm_serving.server import ModelServer, ServerConfig
from ros2_rfm_serving.types import Reply, Schedule
from test.unit.audit.story import EPOCH_S
from test.unit.fakes import FakeEngine
from test.unit.robot.robots import CONFIG, GOAL, sensors

PROFILES = Path(__file__).parents[3] / "config" / "profiles"
STEP_S = 0.1
LATENCY_S, LOADS_S = 0.15, 1.5
LISTENS_AFTER_S = 0.2
"""Until the recorder has found a process."""
FACTORY = """
server_cluster: {num_servers: 2, gpu_type: EMULATED}
robot_fleet: [{task: arm, num_robots: 2}]
arm:
  pipeline: {action_period_ms: 400}
  components:
    system1: {model: emulated/arm-policy, slo_ms: 30}
"""


@dataclass
class Life:
    """What was true of one process."""

    writer: str
    born_s: float
    number: int
    died_s: float = float("inf")
    killed: bool = False
    begins_s: float = float("inf")
    """When its chain began."""

    def is_alive(self, at_s: float) -> bool:
        return self.born_s <= at_s < self.died_s


@dataclass
class Truth:
    lives: list[Life] = field(default_factory=list)
    followed: dict[str, list[tuple[float, int, int]]] = field(default_factory=dict)
    """Robot -> when a control period was, and the scheduler and epoch that it followed."""
    states: dict[str, list[tuple[float, str]]] = field(default_factory=dict)
    reasons: dict[tuple[int, int], str] = field(default_factory=dict)
    """Scheduler and epoch -> why it was planned."""

    def of(self, writer: str) -> list[Life]:
        return [life for life in self.lives if life.writer == writer]


class Process:
    """A process with a journal, on a monotonic clock of its own."""

    def __init__(self, factory: KilledFactory, writer: str) -> None:
        self.factory, self.writer = factory, writer
        self.life = Life(writer, factory.now_s, len(factory.truth.of(writer)) + 1)
        factory.truth.lives.append(self.life)
        self.ahead_s = factory.rng.uniform(10.0, 1e5)
        role = writer.partition("/")[0]
        self.journal = Journal(writer, role, send=factory.pages.append, stamp_s=factory.stamp_s, draw=factory.draw)
        self._tends_s = factory.now_s
        self._listened = False

    @property
    def now_s(self) -> float:
        return self.factory.now_s + self.ahead_s

    def tend(self) -> None:
        """As the node does, four times a second."""
        if self.factory.now_s >= self._tends_s:
            self._tends_s += PAGE_PERIOD_S
            if not self._listened and self.factory.now_s >= self.life.born_s + LISTENS_AFTER_S:
                self._listened = True
                self.journal.listeners(1, self.now_s)
            was_on = self.journal.on
            self.journal.tend(self.now_s)
            if self.journal.on and not was_on:
                self.life.begins_s = self.factory.now_s

    def end(self) -> None:
        """In order."""
        self.journal.close(self.now_s, PROCESS_ENDS)


class RobotProcess(Process):
    def __init__(self, factory: KilledFactory, name: str) -> None:
        super().__init__(factory, f"robot/{name}")
        self.name = name
        self.brain = RecordedBrain(replace(CONFIG, name=name, control_rate_hz=1 / STEP_S), self.journal)
        self.brain.start(GOAL, self.now_s)

    def step(self) -> None:
        tick = self.brain.tick(sensors(self.now_s), self.now_s)
        following = self.brain.schedule_follower
        now_s, truth = self.factory.now_s, self.factory.truth
        truth.followed.setdefault(self.name, []).append((now_s, following.scheduler, following.epoch))
        truth.states.setdefault(self.name, []).append((now_s, self.brain.state.name))
        for server, opening in tick.opens:
            if target := self.factory.server(server):
                granted = target.server.open_session(opening)
                self.brain.on_session_opened(opening.component, server, granted, self.now_s)
        for server, request in tick.requests:
            if target := self.factory.server(server):
                target.take(request)
        for reset in tick.resets:
            self.brain.on_episode_reset(reset, self.factory.server(reset.server) is not None)


class ServerProcess(Process):
    def __init__(self, factory: KilledFactory, name: str) -> None:
        super().__init__(factory, f"server/{name}")
        self.name, self._replies, self._is_ready = name, list[tuple[float, Reply]](), False
        self.server = ModelServer(ServerConfig(name=name, first_epoch=factory.rng.randrange(1, 1 << 30)), FakeEngine())
        self.written = ServerJournal(self.journal, lambda: self.now_s)
        self.written.follow(self.server, {})

    def _becomes_ready(self) -> None:
        """Some time after its chain began: until then its state is not known, whatever a process before it has written."""
        self._is_ready = True
        changed = {"from": {"state": "LOADING"}, "to": {"state": "READY"}, "reason": f"process {self.life.number} has loaded"}
        self.journal.note("transition", self.now_s, lambda: changed, urgent=True)

    def take(self, request: Any) -> None:
        try:
            self.server.submit(request, self.now_s)
        except RfmError:
            return
        self._replies += [(self.factory.now_s + LATENCY_S, reply) for reply in self.server.loop.step(lambda: self.now_s)]

    def step(self) -> None:
        due = [reply for at_s, reply in self._replies if at_s <= self.factory.now_s]
        self._replies = [one for one in self._replies if one[0] > self.factory.now_s]
        for reply in due:
            if robot := self.factory.robot(reply.id.robot):
                robot.brain.on_reply(reply, robot.now_s)
        self.written.write()
        if not self._is_ready and self.factory.now_s > self.life.begins_s + LOADS_S:
            self._becomes_ready()

    def end(self) -> None:
        self.written.write()
        super().end()


class SchedulerProcess(Process):
    """Each life has an identity of its own, and counts its schedules from 1."""

    def __init__(self, factory: KilledFactory) -> None:
        super().__init__(factory, "scheduler")
        self.identity = factory.rng.randrange(1, 1 << 64)
        self._book = Book(self.journal, PROFILES, lambda: self.now_s, self.identity)
        self._fleet = planned().fleet
        self._book.planned(planned(), self._why(1))
        self._plans_s = factory.now_s + factory.rng.uniform(1.0, 4.0)

    def _why(self, epoch: int) -> str:
        reason = f"scheduler {self.life.number} planned it, number {epoch}"
        self.factory.truth.reasons[self.identity, epoch] = reason
        return reason

    def step(self) -> None:
        if self.factory.now_s >= self._plans_s:
            before, self._fleet = self._fleet, self._fleet.again()
            self._book.changed(before, self._fleet, self._why(self._fleet.schedule.epoch))
            self._plans_s += self.factory.rng.uniform(2.0, 6.0)

    @property
    def schedule(self) -> Schedule:
        return replace(self._fleet.schedule, scheduler=self.identity)


@cache
def planned() -> PlanResult:
    """The first plan of every scheduler."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "factory.yaml"
        file.write_text(FACTORY)
        factory, profile = load_factory(file), load_profiles(PROFILES)
    order = PlanJob(factory=factory, robots=tuple(factory.robots), policy="baseline1")
    return plan(order, profile, Catalogue.load(PROFILES / "models.yaml"))


class KilledFactory:
    """Two robots, two servers and a scheduler."""

    def __init__(self, seed: int) -> None:
        self.rng, self.now_s = random.Random(seed), 0.0
        self.truth, self.pages = Truth(), list[Page]()
        runs = itertools.count(1)
        self.draw = lambda: self.rng.randrange(1, 1 << 53) * 1000 + next(runs)
        fleet = planned().fleet
        makers: list[tuple[str, Callable[[], Any]]] = [
            *((f"robot/{one.name}", lambda name=one.name: RobotProcess(self, name)) for one in fleet.robots),
            *((f"server/{one.server}", lambda name=one.server: ServerProcess(self, name)) for one in fleet.schedule.placements),
            ("scheduler", lambda: SchedulerProcess(self)),
        ]
        self._makers = dict(makers)
        self.running: dict[str, Any] = {}
        self._starts: dict[str, float] = dict.fromkeys(self._makers, 0.0)
        self._lost: set[str] = set()

    def stamp_s(self) -> float:
        return EPOCH_S + self.now_s

    def server(self, name: str) -> ServerProcess | None:
        found: ServerProcess | None = self.running.get(f"server/{name}")
        return found

    def robot(self, name: str) -> RobotProcess | None:
        found: RobotProcess | None = self.running.get(f"robot/{name}")
        return found

    @property
    def robots(self) -> list[RobotProcess]:
        return [process for process in self.running.values() if isinstance(process, RobotProcess)]

    def run(self, seconds: float) -> None:
        accident_s = self.rng.uniform(2.0, 5.0)
        for number in range(round(seconds / STEP_S)):
            self.now_s = (number + 1) * STEP_S
            self._start()
            self._tell(number)
            for process in list(self.running.values()):
                process.step()
                process.tend()
            if self.now_s >= accident_s and self.running:
                accident_s += self.rng.uniform(1.0, 6.0)
                self._accident()

    def _start(self) -> None:
        for writer in [writer for writer, at_s in self._starts.items() if at_s <= self.now_s]:
            del self._starts[writer]
            self.running[writer] = self._makers[writer]()

    def _tell(self, number: int) -> None:
        """Statuses twice a second, the schedule every two; a server that is silent for a second is lost."""
        scheduler = self.running.get("scheduler")
        for robot in self.robots:
            for name in (w.removeprefix("server/") for w in self._makers if w.startswith("server/")):
                if self.server(name) is None:
                    if number % 10 == 0:
                        robot.brain.on_server_lost(name, robot.now_s, f"{name} is lost")
                elif number % 5 == 0:
                    robot.brain.on_server_status(name, True, robot.now_s)
            if scheduler is not None and number % 20 == 0:
                robot.brain.on_schedule(scheduler.schedule, robot.now_s)

    def _accident(self) -> None:
        """One process is killed, or ends in order; most are started again."""
        writer = self.rng.choice(sorted(self.running))
        process = self.running.pop(writer)
        process.life.died_s, process.life.killed = self.now_s + 1e-6, self.rng.random() < 0.75
        if not process.life.killed:
            process.end()
        if self.rng.random() < 0.9:
            self._starts[writer] = self.now_s + self.rng.choice([0.3, 2.0, 8.0]) * self.rng.uniform(0.5, 1.5)
