"""History of every robot and server over the last minutes, once a second, from their own counters; it causes no extra requests."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np

from ros2_rfm_serving.monitoring.board import Board, RobotRow, ServerRow
from ros2_rfm_serving.types.histogram import Histogram

PERIOD_S = 1.0
KEPT_S = 300.0
RATE_WINDOW_S = 10.0
"""Window over which answers per second are counted."""
ROBOT_COLUMNS = ("round_trip_s", "queue_s", "inference_s", "staleness_s", "actions_hz", "queue_depth")
"""`round_trip_s`: mean of System 1's answers since the sample before; `queue_s`, `inference_s`: means of all replies of its
server."""
SERVER_COLUMNS = ("p50_s", "p99_s", "load", "rate_hz", "waiting", "batch", "queue_s", "inference_s")
NAN = math.nan


class Ring:
    """Ring buffer of rows of numbers."""

    def __init__(self, columns: int) -> None:
        self._rows = np.full((int(KEPT_S / PERIOD_S), 1 + columns), NAN, np.float64)
        self._added = 0

    def add(self, now_s: float, values: Iterable[float]) -> None:
        self._rows[self._added % len(self._rows)] = (now_s, *values)
        self._added += 1

    def columns(self, now_s: float) -> list[list[float | None]]:
        """Return the columns. The first is the age, s, negative; None: there was no figure."""
        begin = self._added % len(self._rows)
        rows = np.concatenate([self._rows[begin:], self._rows[:begin]]) if self._added >= len(self._rows) else self._rows[:begin]
        rows = rows - np.array([now_s, *[0.0] * (rows.shape[1] - 1)])
        return [[None if math.isnan(value) else round(value, 6) for value in column] for column in rows.T.tolist()]


class Mean:
    """Mean of the values that a histogram counted since the last step."""

    def __init__(self) -> None:
        self._count, self._sum = 0, 0.0

    def step(self, histogram: Histogram | None) -> float:
        """Return the mean; NaN: there are no values, or the process was restarted."""
        if histogram is None:
            return NAN
        count, total = sum(histogram.counts), histogram.sum
        new, added = count - self._count, total - self._sum
        first = not self._count
        self._count, self._sum = count, total
        return added / new if new > 0 and added >= 0 and not first else NAN


class Rate:
    """Rate of a counter that is read at intervals."""

    def __init__(self) -> None:
        self._read: deque[tuple[float, int]] = deque()

    def read(self, seen_s: float, count: int) -> None:
        """Add a reading. seen_s: time of the status with it."""
        if self._read and count < self._read[-1][1]:  # its owner was restarted
            self._read.clear()
        if not self._read or seen_s > self._read[-1][0]:
            self._read.append((seen_s, count))
        while seen_s - self._read[0][0] > RATE_WINDOW_S:
            self._read.popleft()

    @property
    def per_s(self) -> float:
        """Return the rate; NaN: unknown."""
        (begin_s, begin), (end_s, end) = (self._read[0], self._read[-1]) if self._read else ((0.0, 0), (0.0, 0))
        return (end - begin) / (end_s - begin_s) if end_s > begin_s else NAN


class _Robot:
    def __init__(self) -> None:
        self.ring, self.round_trip, self.seen_s = Ring(len(ROBOT_COLUMNS)), Mean(), -math.inf
        self.rates: dict[str, Rate] = {}


class _Server:
    def __init__(self) -> None:
        self.ring, self.seen_s = Ring(len(SERVER_COLUMNS)), -math.inf
        self.queue, self.inference = Mean(), Mean()
        self.newest = (NAN, NAN)
        """Mean queue wait and inference, s."""


class History:
    def __init__(self) -> None:
        self._robots: dict[str, _Robot] = {}
        self._servers: dict[str, _Server] = {}

    def sample(self, board: Board, now_s: float) -> None:
        """Append a row per process. A process without a new status gets a gap, because no figure is repeated."""
        for name, server in board.servers.items():
            self._sample_server(self._servers.setdefault(name, _Server()), server, now_s)
        for name, robot in board.robots.items():
            self._sample_robot(self._robots.setdefault(name, _Robot()), robot, now_s)
        for kept, there in ((self._robots, board.robots), (self._servers, board.servers)):
            for name in [name for name in kept if name not in there]:
                del kept[name]

    def _sample_server(self, kept: _Server, row: ServerRow, now_s: float) -> None:
        if row.seen_s <= kept.seen_s:
            kept.newest = (NAN, NAN)
            kept.ring.add(now_s, [NAN] * len(SERVER_COLUMNS))
            return
        kept.seen_s = row.seen_s
        kept.newest = (kept.queue.step(_counted(row, "queue_wait_s")), kept.inference.step(_counted(row, "inference_s")))
        figures = (row.latency_p50_s, row.latency_p99_s, row.load, row.request_rate_hz, row.waiting, row.mean_batch_size)
        kept.ring.add(now_s, (*figures, *kept.newest))

    def _sample_robot(self, kept: _Robot, row: RobotRow, now_s: float) -> None:
        if row.seen_s <= kept.seen_s:
            kept.ring.add(now_s, [NAN] * len(ROBOT_COLUMNS))
            return
        kept.seen_s = row.seen_s
        for component, figures in row.components.items():
            kept.rates.setdefault(component, Rate()).read(row.seen_s, figures.in_time + figures.late)
        for component in kept.rates.keys() - row.components.keys():
            del kept.rates[component]
        server = self._servers.get(row.server)
        queue_s, inference_s = server.newest if server else (NAN, NAN)
        round_trip_s = kept.round_trip.step(_counted(row, "round_trip_s", "system1"))
        kept.ring.add(now_s, (round_trip_s, queue_s, inference_s, row.staleness_s, row.action_rate_hz, row.queue_depth))

    def rate_hz(self, robot: str, component: str) -> float:
        """Return the answers of a component per second over the last `RATE_WINDOW_S`; NaN: unknown."""
        kept = self._robots.get(robot)
        rate = kept.rates.get(component) if kept else None
        return rate.per_s if rate else NAN

    def of_robot(self, name: str, now_s: float) -> dict[str, Any]:
        kept = self._robots.get(name)
        return _named(ROBOT_COLUMNS, kept.ring.columns(now_s)) if kept else {}

    def of_server(self, name: str, now_s: float) -> dict[str, Any]:
        kept = self._servers.get(name)
        return _named(SERVER_COLUMNS, kept.ring.columns(now_s)) if kept else {}


def _counted(row: RobotRow | ServerRow, name: str, component: str = "") -> Histogram | None:
    return row.histograms.get(name, {}).get(component)


def _named(names: tuple[str, ...], columns: list[list[float | None]]) -> dict[str, list[float | None]]:
    return dict(zip(("ago_s", *names), columns, strict=True))
