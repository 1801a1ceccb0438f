"""SLO attainment: the measured share of answers in time against the promised percentile, by the robots' counts alone.

It shows a broken promise that no figure of a plan explains: a few services that take several times as long hardly change a server's
mean, and do not lengthen any network time. Late answers come together, so that the interval is made of shares of whole lots
(`batch_means.py`).
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field

from ros2_rfm_serving.factory import Factory
from ros2_rfm_serving.scheduler.estimation.batch_means import BatchMeans
from ros2_rfm_serving.scheduler.estimation.status_samples import RobotStatusSample, SloCounts

LOT_S, LOT_ANSWERS = 5.0, 50
"""Least duration and number of answers of a lot, over all received robots of a task."""
LONGEST_S = 30.0
"""Longest time between two reports of a robot: answers over a longer one may be old."""
SETTLED_S = 5.0
"""Time after a new schedule until the queues of robots that moved or began are settled."""
DOUBTFUL = 0.005
"""Shortfall from the promised share that is ignored."""


@dataclass(slots=True)
class _Share:
    """Attainment of one component of one task."""

    promised: float
    means: BatchMeans = field(default_factory=BatchMeans)
    since_s: float = 0.0
    kept: SloCounts = field(default_factory=SloCounts)
    """Counts of the present lot."""

    def add(self, kept: SloCounts, now_s: float) -> None:
        self.since_s = min(self.since_s, now_s) if self.kept.answers else now_s
        self.kept = SloCounts(self.kept.in_time + kept.in_time, self.kept.late + kept.late)
        if self.kept.answers >= LOT_ANSWERS and now_s - self.since_s >= LOT_S:
            self.means.add(self.kept.answers, self.kept.in_time / self.kept.answers)
            self.kept = SloCounts()


class SloAttainment:
    """SLO attainment of the tasks of a descriptor."""

    def __init__(self) -> None:
        self._shares: dict[tuple[str, str], _Share] = {}
        """(task, component) -> attainment, for those with an SLO."""
        self._words: dict[str, tuple[RobotStatusSample, float]] = {}
        """Robot -> (last report, time of receipt)."""
        self._settled_s: float | None = None
        """None: no robot has reported since the active schedule."""

    def declare(self, factory: Factory) -> None:
        self._words.clear()
        self._shares = {
            (name, component): _Share((part.percentile or task.percentile) / 100.0)
            for name, task in factory.tasks.items()
            for component, part in task.components.items()
            if part.slo_ms
        }

    def follow(self, robots: Container[str]) -> None:
        """Follow another schedule with these robots."""
        self._settled_s = None
        for name in [name for name in self._words if name not in robots]:
            del self._words[name]

    def forget(self) -> None:
        """Forget all, because the inputs of plans have changed and former misses do not apply to the next plan."""
        for share in self._shares.values():
            share.means.forget()
            share.kept = SloCounts()

    def hear(self, word: RobotStatusSample, now_s: float) -> None:
        settled_s = now_s + SETTLED_S
        self._settled_s = min(self._settled_s, settled_s) if self._settled_s is not None else settled_s
        before, at_s = self._words.get(word.robot, (None, now_s))
        self._words[word.robot] = (word, now_s)
        if before is None or now_s < self._settled_s or not 0.0 < now_s - at_s <= LONGEST_S or before.task != word.task:
            return
        for component, kept in word.kept.items():
            share, then = self._shares.get((word.task, component)), before.kept.get(component, SloCounts())
            since = SloCounts(kept.in_time - then.in_time, kept.late - then.late)
            if share and since.answers and min(since) >= 0:
                share.add(since, now_s)

    def missed(self) -> Iterator[str]:
        """Yield texts on shares that are surely below the promise."""
        for (task, component), share in self._shares.items():
            interval = share.means.interval()
            if interval and interval.high < share.promised - DOUBTFUL:
                yield (
                    f"{task!r}: {100 * interval.mean:.1f} % of the answers of {component} are in time by what robots count, "
                    f"{100 * share.promised:g} % are promised"
                )
