"""Load and latencies of a server, over a window of the last seconds."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ros2_rfm_serving.types import ServingStats
from ros2_rfm_serving.types.histogram import Histogram
from ros2_rfm_serving.types.record import record
from ros2_rfm_serving.types.state import check_names, kept, restore, state_of


class Occupancy(NamedTuple):
    """Sessions and load that a session request is answered with."""

    sessions: int
    max_sessions: int
    load: float
    """Share of the window in which the engine was busy, [0, 1]."""


@dataclass(frozen=True, kw_only=True)
class ServerSnapshot:
    """Figures for the status message, with the same names."""

    sessions: int
    max_sessions: int
    waiting: int
    dispatch: str
    batch_size: int
    mean_batch_size: float
    window_s: float
    request_rate_hz: float
    latency_p50_s: float
    latency_p99_s: float
    load: float
    served: int
    superseded: int
    refetched: int
    """Newer observations requested in place of ones that would have been stale."""
    refused: dict[str, int]
    histograms: dict[str, Histogram]
    """`queue_wait_s` and `inference_s` of replies, since the start."""


@record(frozen=True, slots=True)
class _Run:
    """One batch that ran."""

    ended_s: float
    busy_s: float
    """Busy time that no run which ended before has counted."""
    latencies_s: tuple[float, ...]
    rows: int = 0
    """Rows that shared the engine; 0: no request got an answer."""


RUN = kept("ended_s", "busy_s", "latencies_s", "rows")
"""Values that a snapshot keeps of a run."""


class ServerFigures:
    """Statistics of the runs that ended within the window. Sums are kept, so that the cost of a reply does not grow with their
    number."""

    KEPT: ClassVar = kept(
        "window_s",
        busy_s="_busy_s",
        counted_until_s="_counted_until_s",
        queue_wait_s="_queue_wait",
        inference_s="_inference",
    )
    """Everything except the runs."""

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self._runs: deque[_Run] = deque()
        self._busy_s = 0.0
        self._counted_until_s = -math.inf
        self._queue_wait, self._inference = Histogram(), Histogram()

    def state(self) -> dict[str, Any]:
        """Return all figures for a snapshot; the runs are one list per value."""
        runs = {name: [getattr(run, name) for run in self._runs] for name in RUN}
        return {**state_of(self, self.KEPT), "runs": runs}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a value of `state`. Raises: `RfmError` for names that are missing or unknown."""
        check_names("ServerFigures", {**self.KEPT, "runs": "runs"}, state)
        check_names("ServerFigures.runs", RUN, state["runs"])
        restore(self, self.KEPT, {name: state[name] for name in self.KEPT})
        self._runs.clear()
        self._runs.extend(_Run(*values) for values in zip(*(state["runs"][name] for name in RUN), strict=True))

    def begun(self, now_s: float) -> None:
        """Record that work begins on an idle engine."""
        self._counted_until_s = now_s

    def ended(self, now_s: float, latencies_s: tuple[float, ...] = (), rows: int = 0) -> float:
        """Record the end of a batch and return the load. The engine has been busy since the last batch ended, or since `begun`."""
        busy_s, self._counted_until_s = now_s - self._counted_until_s, now_s
        self._runs.append(_Run(now_s, busy_s, latencies_s, rows))
        self._busy_s += busy_s
        self._forget_before(now_s - self.window_s)
        return self.load()

    def replied(self, served: ServingStats) -> None:
        self._queue_wait.add(served.queue_wait_s)
        self._inference.add(served.inference_s)

    @property
    def histograms(self) -> dict[str, Histogram]:
        """Return the histograms of replies since the start, with the names of the status message."""
        return {"queue_wait_s": self._queue_wait, "inference_s": self._inference}

    def load(self) -> float:
        """Return the share of the window in which the engine was busy, [0, 1]."""
        load = self._busy_s / self.window_s
        return load if load < 1.0 else 1.0

    def mean_batch_size(self) -> float:
        sizes = [run.rows for run in self._runs if run.rows]
        return sum(sizes) / len(sizes) if sizes else 0.0

    def latencies_s(self, now_s: float) -> list[float]:
        self._forget_before(now_s - self.window_s)
        return [latency for run in self._runs for latency in run.latencies_s]

    def _forget_before(self, time_s: float) -> None:
        while self._runs and self._runs[0].ended_s < time_s:
            self._busy_s -= self._runs.popleft().busy_s
        if not self._runs:
            self._busy_s = 0.0  # rounding errors do not pile up


def quantile(values: list[float], q: float) -> float:
    """Return a quantile; NaN if there are no values."""
    return float(np.quantile(values, q)) if values else math.nan
