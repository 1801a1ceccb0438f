"""Conditions of a simulated factory: its network, its faults, joining and leaving robots, and the arrival of tasks.

All times are seconds from the start of the simulation, the warm-up included.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from ros2_rfm_serving import faults
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import cluster, fleet
from ros2_rfm_serving.factory.cluster import Planning
from ros2_rfm_serving.faults import FaultPlan
from ros2_rfm_serving.robot.config import ComponentClientConfig

TRACE_COLUMNS = ["time_s", "delay_ms"]


def _check(holds: bool, key: str, value: float, fix: str) -> None:
    if not holds:
        raise ConfigurationError(f"is {value:g}", key=key, fix=f"give {fix}")


@dataclass(frozen=True, kw_only=True)
class ConnectionCut(faults.Cut):
    robots: frozenset[str] = frozenset()
    """Robots whose connection is cut; empty: all robots."""


@dataclass(frozen=True, kw_only=True)
class NetworkConditions:
    """Network between robots and servers, the same in both directions.

    Requests and replies may be lost. Sessions and status messages are repeated until they arrive, so that only a cut keeps them
    away.
    """

    latency_s: float = 0.0
    jitter_s: float = 0.0
    """Mean of an additional delay, exponentially distributed: most messages are hardly delayed, a few are delayed long."""
    loss: float = 0.0
    """Share of requests and of replies that are lost."""
    cuts: tuple[ConnectionCut, ...] = ()
    trace: tuple[tuple[float, float], ...] = ()
    """Recorded (time_s, delay_s), in place of `latency_s`: each delay holds until the next time; the trace repeats."""
    faults: FaultPlan = field(default_factory=FaultPlan)
    """Additional faults of every robot's connection."""

    def __post_init__(self) -> None:
        _check(self.latency_s >= 0, "network.latency_s", self.latency_s, "0 or more")
        _check(self.jitter_s >= 0, "network.jitter_s", self.jitter_s, "0 or more")
        _check(0 <= self.loss <= 1, "network.loss", self.loss, "a share, 0 to 1")
        rising = all(a[0] < b[0] for a, b in pairwise(self.trace))
        _check(rising, "network.trace", len(self.trace), "points in the order of their times")

    @classmethod
    def declared(cls, network: fleet.NetworkEntry) -> NetworkConditions:
        """Return the network of a descriptor: half of its delays are on each way."""
        return cls(latency_s=network.round_trip_ms / 2e3, jitter_s=network.jitter_ms / 2e3)

    @property
    def is_perfect(self) -> bool:
        return not (self.latency_s or self.jitter_s or self.loss or self.cuts or self.trace)


@dataclass(frozen=True, kw_only=True)
class StragglerConditions:
    """Services that take longer than the service law predicts, because of a throttled GPU, a page fault or a neighbour."""

    share: float = 0.0
    factor: float = 1.0
    from_s: float = 0.0
    until_s: float = math.inf
    """End of the interval in which there are stragglers."""
    servers: frozenset[str] = frozenset()
    """Servers with stragglers; empty: all servers."""

    @classmethod
    def declared(cls, stragglers: cluster.StragglerConfig | None) -> StragglerConditions:
        return cls(share=stragglers.share, factor=stragglers.factor) if stragglers else cls()

    def __post_init__(self) -> None:
        _check(0 <= self.share <= 1, "stragglers.share", self.share, "a share, 0 to 1")
        _check(self.factor > 0, "stragglers.factor", self.factor, "more than 0")


@dataclass(frozen=True, kw_only=True)
class Unsureness:
    """Change of the models' confidence: after `from_s` they are sure of fewer or more actions than the descriptor's horizons
    declare."""

    from_s: float = math.inf
    factor: float = 1.0
    """Multiple of the steps that are executed of a chunk."""

    def __post_init__(self) -> None:
        _check(self.factor > 0, "unsureness.factor", self.factor, "more than 0")


@dataclass(frozen=True, kw_only=True)
class Crash:
    """Loss of a server's process with all its state; it restarts once the model is loaded again."""

    server: str
    at_s: float
    restart_after_s: float | None = None
    """Time until the restart; None: the time to load the model according to the catalogue; infinite: it does not restart."""


@dataclass(frozen=True, kw_only=True)
class TaskArrivals:
    """Poisson process by which tasks arrive at each robot; they wait until it is free, and between them it idles."""

    rate_hz: float
    """Tasks per second for one robot."""
    duration_s: float
    """Duration of one task."""

    def __post_init__(self) -> None:
        _check(self.rate_hz > 0, "arrivals.rate_hz", self.rate_hz, "more than 0")
        _check(0 < self.duration_s < math.inf, "arrivals.duration_s", self.duration_s, "more than 0")


@dataclass(frozen=True, kw_only=True)
class SimulationConditions:
    """Conditions of a simulation. By default the factory is perfect: every robot always has a task and nothing ever fails."""

    network: NetworkConditions | None = None
    """Network of all robots; None: the one that the descriptor declares for each group of robots."""
    stragglers: StragglerConditions | None = None
    """Stragglers of the servers; None: those that the descriptor declares."""
    unsureness: Unsureness = Unsureness()
    crashes: tuple[Crash, ...] = ()
    joins: Mapping[str, float] = field(default_factory=dict)
    """Robot -> time at which it joins; all others are there from the start."""
    begins: Mapping[str, float] = field(default_factory=dict)
    """Robot -> seconds from its joining until its first task begins; all others begin at a random phase."""
    plans_owed: float | None = None
    """Share of the second System 2 call that is already due when a robot begins, [0, 1); None: a random share for each robot."""
    leaves: Mapping[str, float] = field(default_factory=dict)
    """Robot -> time at which it leaves."""
    arrivals: TaskArrivals | None = None
    """Arrival of tasks; None: every robot always has a task."""
    link: ComponentClientConfig = field(default_factory=ComponentClientConfig)
    """Timeouts of every robot."""

    def of(self, planning: Planning) -> SimulationConditions:
        """Return the conditions completed with the declarations of a descriptor."""
        return self if self.stragglers else replace(self, stragglers=StragglerConditions.declared(planning.stragglers))


def load_trace(file: Path) -> tuple[tuple[float, float], ...]:
    """Return a recorded trace for `NetworkConditions.trace`, from a CSV file with the columns `time_s,delay_ms`. Raises:
    `ConfigurationError`."""
    try:
        lines = list(csv.reader(file.read_text(encoding="utf-8").splitlines()))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot be read: {error}", file=str(file), fix="check the path") from error
    if not lines or [name.strip() for name in lines[0]] != TRACE_COLUMNS:
        raise ConfigurationError(f"has no header `{','.join(TRACE_COLUMNS)}`", file=str(file), line=1, fix="make it the first line")
    points: list[tuple[float, float]] = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            time_s, delay_ms = (float(value) for value in line)
        except ValueError:
            raise ConfigurationError(
                f"{','.join(line)!r} is not two numbers", file=str(file), line=number, fix="give both"
            ) from None
        last_s = points[-1][0] if points else -math.inf
        if not (last_s < time_s < math.inf and 0 <= delay_ms < math.inf):
            problem = f"{time_s:g},{delay_ms:g} follows {last_s:g} s"
            raise ConfigurationError(problem, file=str(file), line=number, fix="times rise, delays are 0 or more")
        points.append((time_s, delay_ms / 1e3))
    if not points:
        raise ConfigurationError("has no points", file=str(file), fix="record at least one")
    return tuple(points)
