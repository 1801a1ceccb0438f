"""Points of the replan study (vla.cpp App. G): executed steps per call, and waiting mode for the next chunk."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.monitoring.board import wilson_interval
from ros2_rfm_serving.operate.inputs import write_text

STEPS = (1, 2, 4, 8, 16, 24)
"""Values of S; the last one is the whole chunk."""
DELAY_STEPS = 4
"""Delay from a request to its answer, for robots that do not wait: 0.2 s at 20 Hz."""
NOISE = 0.5
"""Noise on executed actions of a disturbed arm: standard deviation, full scale 1."""
FILE = "measured.json"


class Mode(enum.Enum):
    WAITS = "synchronous"
    """Mode of the paper: the world stands still while the answer is computed."""
    NAIVE = "naive"
    """The chunk before continues meanwhile; the next one is independent of it."""
    CHUNKED = "real-time chunking"
    """The next chunk continues the steps that are executed meanwhile."""

    @property
    def delay_steps(self) -> int:
        return 0 if self is Mode.WAITS else DELAY_STEPS


@dataclass(frozen=True, kw_only=True)
class Point:
    steps: int
    mode: Mode
    disturbed: bool = False

    def __str__(self) -> str:
        return f"{self.mode.value}, S = {self.steps}" + ", disturbed" * self.disturbed


POINTS = tuple(Point(steps=steps, mode=mode, disturbed=of) for of in (False, True) for mode in Mode for steps in STEPS)

TIMED = tuple(point for point in POINTS if not point.disturbed)
"""Timed points: a disturbed arm's calls compute the same."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result over all episodes of a point."""

    episodes: int
    successes: int
    steps: float
    """Mean control steps to success."""
    idle_steps: float
    """Mean steps per episode without a chunk step to execute."""
    seam_jump: float
    """Mean of each episode's largest jump."""
    calls: int
    executed_steps: int

    @property
    def success(self) -> float:
        return self.successes / self.episodes

    @property
    def interval(self) -> tuple[float, float]:
        """Return the 95 % interval (Wilson's)."""
        return wilson_interval(self.successes, self.episodes)

    @property
    def steps_per_call(self) -> float:
        return self.executed_steps / self.calls


@dataclass
class Timing:
    """Timing of calls, in which all points take turns: a temporary slowdown of the machine affects all alike."""

    machine: dict[str, str] = field(default_factory=dict)
    rounds: int = 0
    call_s: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Point of `TIMED` -> CPU time: median, 95th percentile."""


@dataclass
class Replanned:
    """Measurements so far."""

    machine: dict[str, str] = field(default_factory=dict)
    episodes: int = 0
    """Episodes per point."""
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    timing: Timing = field(default_factory=Timing)

    def of(self, mode: Mode, steps: int, *, disturbed: bool = False) -> Outcome:
        """Return an outcome. Raises: `KeyError` when it was not measured."""
        return self.outcomes[str(Point(mode=mode, steps=steps, disturbed=disturbed))]

    def call_s(self, mode: Mode, steps: int) -> tuple[float, float]:
        """Return median and 95th percentile. Raises: `KeyError` when it was not measured."""
        return self.timing.call_s[str(Point(mode=mode, steps=steps))]

    def control_hz(self, mode: Mode, steps: int, *, disturbed: bool = False) -> float:
        """Return the rate that one thread sustains: executed steps per second of inference (Table 12). Raises: `KeyError`."""
        return self.of(mode, steps, disturbed=disturbed).steps_per_call / self.call_s(mode, steps)[0]

    def row(self, mode: Mode, *, disturbed: bool = False) -> Iterator[tuple[int, Outcome]]:
        """Yield the measured points of a mode."""
        for steps in STEPS:
            if found := self.outcomes.get(str(Point(mode=mode, steps=steps, disturbed=disturbed))):
                yield steps, found


def load(file: Path) -> Replanned:
    """Load measurements; they are empty where there is no file. Raises: `ConfigurationError`."""
    if not file.exists():
        return Replanned()
    try:
        data = json.loads(file.read_text())
        outcomes = {key: Outcome(**of) for key, of in data["outcomes"].items()}
        timing = Timing(**data["timing"])
        timing.call_s = {key: (float(median), float(high)) for key, (median, high) in timing.call_s.items()}
        return Replanned(machine=data["machine"], episodes=data["episodes"], outcomes=outcomes, timing=timing)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        fix = "measure anew, with --anew"
        raise ConfigurationError(f"holds no measurements: {error!r}", file=str(file), fix=fix) from error


def save(replanned: Replanned, file: Path) -> None:
    write_text(file, json.dumps(asdict(replanned), indent=1) + "\n")
