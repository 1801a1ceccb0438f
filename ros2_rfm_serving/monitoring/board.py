"""Status board: the newest figures of every robot and server, and the score of every finished episode. It holds plain data."""

from __future__ import annotations

import enum
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from ros2_rfm_serving.types import Placement, RobotState, Route
from ros2_rfm_serving.types.histogram import Histogram

STANDING = (RobotState.STALLED.name, RobotState.RECONNECTING.name, RobotState.DEAD.name)
"""States in which a robot has no executable action, or soon none: without a session no other follows."""
STALE_AFTER_S = 3.0
"""Silence after which a status is stale; robots and servers publish two per second."""
SCHEDULE = "schedule"
Histograms = dict[str, dict[str, Histogram]]
"""Name of a histogram -> component (empty: independent of components) -> histogram."""


class Proof(enum.Enum):
    """Authenticity of statuses and schedules, which are signed in a factory with certificates. Other data carries no signature:
    scores and paces of worlds, answers to robots, cameras, `/diagnostics`, the middleware's liveliness."""

    NONE = "none"
    """Messages are not signed, and any sender is believed."""
    CHECKED = "checked"
    """Only messages with a valid signature are shown, under a schedule that a server has in force now."""
    UNDATED = "undated"
    """Signatures are valid, but no server has confirmed that this schedule is in force: a recording would look the same."""
    UNCHECKED = "unchecked"
    """Messages are signed, and this observer has no certificate to check them."""


UNCHECKED = "unproven: the factory signs, and nobody checks it here; RFM_SERVING_ENCLAVE=DIR/enclaves/observer does"
UNDATED = "undated: no server has answered here that it follows this scheduler; a recording would look the same"
AS_SAID = "without a proof: success, real time"
"""Label of unsigned figures that are shown beside verified statuses."""


@dataclass(frozen=True)
class Failover:
    """Change of a robot from a lost server to the other one of its route (ROSA §3.4.4)."""

    lost: str
    server: str
    seconds: float
    """Time from the lost server's last `ready` status to the robot's first status of streaming from the other: from the loss to the
    change, plus at most one status period."""


@dataclass
class ComponentRow:
    """Answers to the requests of a component, since the start."""

    slo_s: float = 0.0
    """Latency objective; 0: none declared."""
    in_time: int = 0
    late: int = 0
    words: dict[str, int] = field(default_factory=dict)
    """Answers in time by verdict, or by a plan's first subgoal."""

    @property
    def attained(self) -> float:
        """Return the share of requests that were answered within the SLO; NaN: there was no request."""
        asked = self.in_time + self.late
        return self.in_time / asked if asked else math.nan

    def __add__(self, other: ComponentRow) -> ComponentRow:
        words = {word: self.words.get(word, 0) + other.words.get(word, 0) for word in {**self.words, **other.words}}
        slo_s = max(self.slo_s, other.slo_s)
        return ComponentRow(slo_s=slo_s, in_time=self.in_time + other.in_time, late=self.late + other.late, words=words)


@dataclass(kw_only=True)
class _Row:
    seen_s: float = -math.inf
    """Time of the last status."""

    def is_silent(self, now_s: float) -> bool:
        return now_s - self.seen_s > STALE_AFTER_S

    def is_stale(self, now_s: float) -> bool:
        """Return whether the figures are out of date."""
        return self.is_silent(now_s)


@dataclass
class RobotRow(_Row):
    state: str = "-"
    reason: str = ""
    phase: str = ""
    task: str = ""
    verdict: str = ""
    scheduler: int = 0
    """Scheduler of the schedule that it follows."""
    schedule_epoch: int = 0
    server: str = ""
    """Server of System 1 in use."""
    action_rate_hz: float = 0.0
    chunk_rate_hz: float = 0.0
    staleness_s: float = math.nan
    round_trip_p50_s: float = math.nan
    round_trip_p99_s: float = math.nan
    held_ticks: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    real_time_factor: float = math.nan
    declared_time_scale: float = math.nan
    late_ticks: int = 0
    overwritten_commands: int = 0
    failovers: list[Failover] = field(default_factory=list)
    components: dict[str, ComponentRow] = field(default_factory=dict)
    transitions: dict[str, int] = field(default_factory=dict)
    fallbacks: dict[str, int] = field(default_factory=dict)
    histograms: Histograms = field(default_factory=dict)
    queue_depth: int = 0
    paused: bool = False
    stop_reason: str = ""
    instruction: str = ""
    episode: int = 0
    retries: int = 0
    standing_since_s: float = math.inf
    """Time at which it entered the states of `STANDING`; infinity: it is in none of them."""

    def note(self, now_s: float) -> None:
        """Record the arrival of the status that this row has."""
        self.seen_s = now_s
        self.standing_since_s = min(self.standing_since_s, now_s) if self.state in STANDING else math.inf


@dataclass
class ServerRow(_Row):
    state: str = "-"
    lost: bool = False
    """The middleware reports the end of the server, about a second after it; silence would show it later."""
    detail: str = ""
    standby: bool = False
    """The schedule uses it as a standby."""
    model: str = ""
    emulated: bool = False
    dispatch: str = ""
    """Policy that orders its requests."""
    batch_size: int = 0
    mean_batch_size: float = 0.0
    sessions: int = 0
    max_sessions: int = 0
    waiting: int = 0
    request_rate_hz: float = 0.0
    latency_p50_s: float = math.nan
    latency_p99_s: float = math.nan
    load: float = 0.0
    served: int = 0
    superseded: int = 0
    refetched: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    histograms: Histograms = field(default_factory=dict)
    scheduler: int = 0
    """Scheduler of the schedule that it follows."""
    schedule_epoch: int = 0
    ready_s: float = -math.inf
    """Time at which it last reported to be ready."""
    progressed_s: float = -math.inf
    """Time at which it last had answered a request, or nothing waited."""
    process: int = 0
    """Random number of the server's process, drawn when it started; 0: none was received."""
    noted_state: str = "-"
    state_since_s: float = -math.inf
    """Time at which the server was first seen in its state."""
    failing_since_s: float = math.inf
    """Time at which it first reported that its model cannot be loaded, without having been ready since. It tries again every 10 s,
    and a supervisor may start it again. Infinity: it does not fail."""
    hangs: int = 0
    """Number of reports of a hung engine, since this board observes it. A server may end itself half a second later."""
    behind_since_s: float = math.inf
    """Time at which it was first seen to follow another schedule than the newest; infinity: it follows the newest."""

    def note(self, is_behind: bool, now_s: float) -> None:
        """Record the arrival of the status that this row has."""
        self.seen_s, self.lost = now_s, False
        if self.state != self.noted_state:
            self.noted_state, self.state_since_s = self.state, now_s
            self.hangs += self.state == "hung"
        if self.state == "failed":
            self.failing_since_s = min(self.failing_since_s, now_s)
        elif self.state != "loading":
            self.failing_since_s = math.inf
        self.behind_since_s = min(self.behind_since_s, now_s) if is_behind else math.inf

    def is_stale(self, now_s: float) -> bool:
        return self.lost or self.is_silent(now_s)


@dataclass(kw_only=True)
class ProcessRow(_Row):
    """Status of a process of the factory, which runs robots, servers or the recorder."""

    numbers: dict[str, float] = field(default_factory=dict)
    """Figures of its certificate, its log disk and its recording, by name."""
    invalid_received_s: float = -math.inf
    """Time of a report that is authentic except that its certificate is not valid now."""
    invalid_left_s: float = math.nan
    """Time until that certificate ends; below 0: it has ended."""


@dataclass(frozen=True)
class Score:
    """Ground truth of one episode."""

    task: str
    seed: int
    success: bool
    steps: int
    finished: bool


class Board:
    def __init__(self, robots: list[str], servers: list[str]) -> None:
        self.robots = {name: RobotRow() for name in robots}
        self.servers = {name: ServerRow() for name in servers}
        self.processes: dict[tuple[str, str], ProcessRow] = {}
        """(node that reports, its host) -> row: several hosts may each have a recorder, all with the same name."""
        self.schedule_epoch = 0
        self.predicted_actions_hz = 0.0
        self.descriptor = ""
        """Fingerprint of the scheduler's descriptor."""
        self.factory = ""
        """Name in the schedule; empty: no schedule was received."""
        self.policy = ""
        self.gap = math.nan
        """Relative gap to the bound of the objective, from the schedule."""
        self.schedule_seen_s = -math.inf
        self.disputed_s = -math.inf
        """Time at which two schedulers last published in turn; the board follows the first one."""
        self.looked_s = -math.inf
        """Time at which the observer last read the graph."""
        self.proof = Proof.NONE
        self.unproven: dict[str, int] = {}
        """Sender -> number of its statuses that were not shown because the signature is not its own; `SCHEDULE`: messages of
        schedulers."""
        self.planned_robots: frozenset[str] = frozenset()
        self.planned_servers: frozenset[str] = frozenset()
        """Servers of the schedule."""
        self.scheduler = 0
        """Scheduler that made the schedule."""
        self.placed_epoch = 0
        """Epoch of these placements and routes."""
        self.placements: tuple[Placement, ...] = ()
        self.routes: tuple[Route, ...] = ()
        self._scores: dict[str, dict[tuple[int, int], Score]] = defaultdict(dict)
        self._streamed: dict[str, tuple[str, tuple[int, int]]] = {}

    def add(self, *, robots: Iterable[str] = (), servers: Iterable[str] = ()) -> None:
        """Add robots and servers. Concurrent readers keep their previous mappings unchanged."""
        self.robots = {**{name: RobotRow() for name in robots}, **self.robots}
        self.servers = {**{name: ServerRow() for name in servers}, **self.servers}

    def forget(self, name: str) -> None:
        self.robots = {robot: row for robot, row in self.robots.items() if robot != name}
        self.servers = {server: row for server, row in self.servers.items() if server != name}

    def has_left(self, robot: str, now_s: float) -> bool:
        """Return whether a robot that was received before is silent and has no route in a schedule that is still repeated: it was
        released, or its lease ended."""
        if self.robots[robot].seen_s == -math.inf or not self.robots[robot].is_stale(now_s):
            return False
        return now_s - self.schedule_seen_s <= STALE_AFTER_S and robot not in self.planned_robots

    def is_followed_by(self, row: RobotRow | ServerRow) -> bool:
        """Return whether a robot or server follows the newest schedule. Schedulers without a name match any."""
        return row.schedule_epoch == self.schedule_epoch and (not row.scheduler or row.scheduler == self.scheduler)

    def refuse(self, about: str) -> None:
        """Count a status or schedule that is not verified."""
        self.unproven = {**self.unproven, about: self.unproven.get(about, 0) + 1}

    @property
    def doubts(self) -> list[str]:
        """Return which shown data is unverified where there are certificates, and which messages were refused for that; empty: all
        is verified."""
        if self.proof is Proof.NONE:
            return []
        if self.proof is Proof.UNCHECKED:
            return [UNCHECKED]
        refused = ", ".join(f"{name} {count}" for name, count in sorted(self.unproven.items()))
        undated = [UNDATED] if self.proof is Proof.UNDATED else []
        return [*undated, AS_SAID, *([f"unproven messages, not shown: {refused}"] if refused else [])]

    def score(self, robot: str, episode: int, score: Score) -> None:
        """Store the newest score of an episode. Episode 0 is the world before its first reset, in which no robot worked."""
        if episode:
            self._scores[robot][episode, score.seed] = score

    def streams(self, robot: str, now_s: float) -> None:
        """Record that a robot streams from its row's server. A change of the server under the same schedule is a failover."""
        row = self.robots[robot]
        schedule = (row.scheduler, row.schedule_epoch)
        before, followed = self._streamed.get(robot, ("", schedule))
        self._streamed[robot] = (row.server, schedule)
        if before in self.servers and before != row.server and followed == schedule:
            row.failovers.append(Failover(before, row.server, now_s - self.servers[before].ready_s))

    def episodes(self, robot: str) -> list[Score]:
        """Return the decided episodes, which succeeded or are over. Other threads may add episodes meanwhile."""
        return [s for s in list(self._scores[robot].values()) if s.success or s.finished]

    def components(self) -> dict[str, ComponentRow]:
        """Return the sums over all robots."""
        total: dict[str, ComponentRow] = defaultdict(ComponentRow)
        for row in self.robots.values():
            for name, component in row.components.items():
                total[name] += component
        return dict(sorted(total.items()))

    def by_task(self) -> dict[str, list[Score]]:
        tasks = defaultdict(list)
        for robot in list(self._scores):
            for score in self.episodes(robot):
                tasks[score.task].append(score)
        return dict(tasks)


def wilson_interval(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Return the 95 % confidence interval of a success rate (Wilson score interval)."""
    if not trials:
        return 0.0, 1.0
    rate = successes / trials
    centre = (rate + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials)) / (1 + z * z / trials)
    return max(0.0, centre - half), min(1.0, centre + half)
