"""Dynamic robots, which no descriptor declares: they request admission, stay for a while, and leave with or without a message."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.scheduler import SchedulerCommand
from ros2_rfm_serving.simulation.scheduler import SimulatedScheduler
from ros2_rfm_serving.virtual_time.events import source


@dataclass(frozen=True, kw_only=True)
class Turnover:
    """Arrival of dynamic robots as a Poisson process, for the tasks in the proportion of the fleet."""

    arrivals_hz: float
    stay_s: float
    """Mean stay, exponentially distributed."""
    crashed: float = 0.0
    """Share of them that fall silent in the end, so that their lease expires."""

    def __post_init__(self) -> None:
        for key, value in (("arrivals_hz", self.arrivals_hz), ("stay_s", self.stay_s)):
            if not 0 < value < math.inf:
                raise ConfigurationError(f"is {value:g}", key=f"turnover.{key}", fix="give a positive number")
        if not 0 <= self.crashed <= 1:
            raise ConfigurationError(f"is {self.crashed:g}", key="turnover.crashed", fix="give a share, 0 to 1")


@dataclass(kw_only=True)
class DynamicRobotFigures:
    """Counts of dynamic robots."""

    at_once: int = 0
    """Guests that were admitted at once; for some of them others' rates or batch sizes changed (`DayReport.adjusted`)."""
    planned_anew: int = 0
    """Guests that were admitted with a plan of the whole factory."""
    refused: Counter[str] = field(default_factory=Counter)
    """Task -> number of guests."""
    left: int = 0
    silent: int = 0
    """Guests that sent no more messages, so that their leases expired."""
    longest_wait_s: float = 0.0
    """Longest wait for an answer."""


Comes = Callable[[str, str], None]
"""Called with a robot that was admitted, and its task."""
Goes = Callable[[str, bool], None]
"""Called with a robot that leaves, and whether it sends a message."""


class DynamicRobots:
    """Dynamic robots of one factory. `comes` is called as soon as one is admitted, `goes` before its scheduler learns that it left,
    if it does."""

    def __init__(
        self,
        turnover: Turnover,
        tasks: Sequence[str],
        scheduler: SimulatedScheduler,
        seed: int,
        figures: DynamicRobotFigures,
        *,
        comes: Comes = lambda robot, task: None,
        goes: Goes = lambda robot, goodbye: None,
    ) -> None:
        """Plan the first arrival. tasks: of the declared robots, one by one."""
        self._turnover, self._tasks, self._scheduler, self._figures = turnover, tasks, scheduler, figures
        self._comes_in, self._goes_out, self._events = comes, goes, scheduler.events
        self._coming, self._staying = source(seed, "guests"), source(seed, "stays")
        self._count = 0
        self._events.at(self._events.now_s + self._coming.expovariate(turnover.arrivals_hz), self._comes)

    def _comes(self) -> None:
        now_s = self._events.now_s
        self._events.at(now_s + self._coming.expovariate(self._turnover.arrivals_hz), self._comes)
        self._count += 1
        name, task = f"guest_{self._count}", self._coming.choice(self._tasks)
        order = self._scheduler.admit(name, task)
        if order.answer is None:
            order.watchers.append(lambda: self._answered(order, name, task, now_s))
        else:
            self._answered(order, name, task, now_s)

    def _answered(self, order: SchedulerCommand, name: str, task: str, asked_s: float) -> None:
        now_s, figures = self._events.now_s, self._figures
        figures.longest_wait_s = max(figures.longest_wait_s, now_s - asked_s)
        if not isinstance(order.answer, int):
            figures.refused[task] += 1
            return
        if order.why:
            figures.planned_anew += 1
        else:
            figures.at_once += 1
        self._comes_in(name, task)
        self._events.at(now_s + self._staying.expovariate(1.0 / self._turnover.stay_s), self._goes, name)

    def _goes(self, name: str) -> None:
        goodbye = self._staying.random() >= self._turnover.crashed
        self._goes_out(name, goodbye)
        if goodbye:
            self._figures.left += 1
            self._scheduler.release(name)
        else:
            self._figures.silent += 1
            self._scheduler.crash(name)
