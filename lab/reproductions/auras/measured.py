"""Measurements so far, in one file, from which an interrupted run continues."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from lab.reproductions.auras.points import Point, aligned, in_order
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.monitoring.board import wilson_interval
from ros2_rfm_serving.operate.inputs import write_text
from ros2_rfm_serving.profiles.tuner import Timing

FILE, FRAMES = "measured.json", "frames.json"


@dataclass(frozen=True, kw_only=True)
class Success:
    episodes: int
    successes: int
    steps: float
    """Mean control steps of the successful episodes."""
    idle_steps: float
    """Mean control steps without a chunk step to execute."""

    @property
    def share(self) -> float:
        return self.successes / self.episodes

    @property
    def interval(self) -> tuple[float, float]:
        """Return the 95 % interval (Wilson's)."""
        return wilson_interval(self.successes, self.episodes)


@dataclass(frozen=True, kw_only=True)
class Framed:
    """Execution mode of the autoregressive policy, as `rfm bench frames` reports it."""

    name: str
    speedups: tuple[float, ...]
    episodes: int
    successes: int

    @property
    def speedup(self) -> float:
        return median(self.speedups)

    @property
    def success(self) -> float:
        """Return the share of successes. Raises: `KeyError` when no episodes were run."""
        if not self.episodes:
            raise KeyError(self.name)
        return self.successes / self.episodes


class _Ways(tuple[Framed, ...]):
    """Execution modes; the first is SEQ."""

    def __getitem__(self, index: Any) -> Any:
        """Return a mode. Raises: `KeyError` when it was not measured."""
        if not self:
            raise KeyError("frames")
        return super().__getitem__(index)


@dataclass
class Measured:
    machine: dict[str, str] = field(default_factory=dict)
    timings: dict[str, Timing] = field(default_factory=dict)
    """Point -> timing."""
    successes: dict[str, Success] = field(default_factory=dict)
    parameters: dict[str, str] = field(default_factory=dict)
    """Parameters of the run: episodes, seed."""
    framed: tuple[Framed, ...] = _Ways()
    """Modes of the autoregressive policy, SEQ first; from another file."""

    def timing(self, point: Point) -> Timing:
        """Return the timing of a point. Raises: `KeyError` when it was not measured."""
        return self.timings[str(point.timed)]

    def success(self, point: Point) -> Success:
        """Return the success of a point. Raises: `KeyError` when it was not run."""
        return self.successes[str(point)]

    def speedup(self, point: Point) -> float:
        """Return the throughput over that of the same policy in mode SEQ."""
        return self.timing(point).speedup

    def step_s(self, point: Point) -> float:
        """Return the duration of one control step for which one sequential inference takes the point's number of steps."""
        return self.timing(point.base).interval_s / point.period_steps


def load(file: Path) -> Measured:
    """Load measurements; they are empty where there is no file. Raises: `ConfigurationError`."""
    if not file.exists():
        return Measured()
    try:
        data = json.loads(file.read_text())
        return Measured(
            machine=data["machine"],
            timings={key: Timing(**{**of, "speedups": tuple(of["speedups"])}) for key, of in data["timings"].items()},
            successes={key: Success(**of) for key, of in data["successes"].items()},
            parameters=data["parameters"],
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        fix = "measure anew, with --anew"
        raise ConfigurationError(f"holds no measurements: {error!r}", file=str(file), fix=fix) from error


def load_framed(file: Path) -> tuple[Framed, ...]:
    """Load the output of `rfm bench frames --json`; it is empty where there is no file. Raises: `ConfigurationError`."""
    if not file.exists():
        return _Ways()
    try:
        return _Ways(
            Framed(
                name=name,
                speedups=tuple(of["throughput_ratio"]),
                episodes=of.get("episodes", 0),
                successes=of.get("successes", 0),
            )
            for name, of in json.loads(file.read_text()).items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        fix = f"rfm bench frames --json {file}"
        raise ConfigurationError(f"holds no measurements: {error!r}", file=str(file), fix=fix) from error


def save(measured: Measured, file: Path) -> None:
    own = {key: value for key, value in asdict(measured).items() if key != "framed"}
    write_text(file, json.dumps(own, indent=1) + "\n")


def missing(measured: Measured, points: Sequence[Point]) -> tuple[list[Point], list[Point]]:
    """Return points to be timed, each after the point that it is compared with, and points to be run in worlds."""
    needed = [other for p in points for other in (p.base, p.timed, aligned(p)) if other is not None]
    timed = [p for p in in_order(dict.fromkeys(needed)) if str(p) not in measured.timings]
    return timed, [p for p in dict.fromkeys(points) if p.succeeds and str(p) not in measured.successes]
