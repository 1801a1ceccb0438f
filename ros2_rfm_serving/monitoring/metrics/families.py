"""Prometheus metric families of a board: the newest statuses of every robot and server, converted for each scrape.

Robots and servers count events where they occur, and their statuses carry the counters and histograms. Therefore nothing is
sampled, and a restarted exporter has lost nothing. Gauges of a silent process are left out; its counters stay.

A robot has few series, because a fleet has many robots: `test_a_robot_has_so_many_series` fixes their number, which docs/fleet.md
states. Full histograms of round trips and computing times exist only for a task's robots together (`fleet.py`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from ros2_rfm_serving.monitoring.activity import shown_state
from ros2_rfm_serving.monitoring.board import Board, Proof, RobotRow, ServerRow
from ros2_rfm_serving.monitoring.metrics.fleet import FleetHistograms, buckets
from ros2_rfm_serving.monitoring.metrics.health import Silence, is_up
from ros2_rfm_serving.monitoring.metrics.processes import processes
from ros2_rfm_serving.types.histogram import LATENCY_BOUNDS_S, TICK_BOUNDS_S

MAX_NAMES = 64
"""Maximum reasons, components or transitions per process, because any process on the graph may choose such names."""
OTHER = "other"

SERVER_GAUGES = {
    "load": ("load_ratio", "Share of time that the engine was busy"),
    "sessions": ("sessions", "Sessions that are open"),
    "max_sessions": ("sessions_limit", "Sessions that it admits"),
    "waiting": ("waiting_requests", "Requests in mailboxes"),
    "batch_size": ("batch_size_limit", "Largest batch"),
    "mean_batch_size": ("batch_size_mean", "Mean batch size over the status' window"),
    "schedule_epoch": ("schedule_epoch", "Epoch of the schedule that it follows"),
    "process": ("process_number", "Drawn at random when the server's process started: another number is another process"),
}
SINCE = {
    "unanswered": ("progressed_s", "Since it answered, or nothing waited"),
    "state": ("state_since_s", "How long it has been in its state"),
    "failing": ("failing_since_s", "How long its model cannot be loaded, attempts and restarts included; 0: it does not fail"),
    "behind_schedule": ("behind_since_s", "How long it has followed another schedule than the newest; 0: it follows the newest"),
}
"""Server gauge in seconds -> (field with its beginning, help). An alert reads the duration of a condition from a single sample."""
SERVER_COUNTERS = {
    "served": ("replies", "Replies"),
    "superseded": ("superseded", "Requests replaced by newer ones"),
    "refetched": ("refetched", "Newer observations asked for in place of stale ones"),
    "hangs": ("hangs", "How often it reported that its engine hangs, since the exporter observes it"),
}
ROBOT_GAUGES = {
    "action_rate_hz": ("actions_per_second", "Actions executed per second, over the status' window"),
    "queue_depth": ("queued_actions", "Actions left"),
    "paused": ("paused", "1: paused by a person"),
}
HISTOGRAMS = {
    "staleness_s": ("staleness_seconds", "Age of the observation behind each executed action"),
    "tick_late_s": ("tick_late_seconds", "How late control periods began"),
    "queue_wait_s": ("queue_wait_seconds", "Arrival of a request to the start of its inference"),
    "inference_s": ("inference_seconds", "Inference of the batch that a request was in"),
}
ROBOT_BOUNDS = {"staleness_s": (0.2, 0.4, 0.75, 1.5), "tick_late_s": (0.05, 0.2)}
"""Bounds of a robot's histograms, s: as many as its alerts need."""


class BoardCollector(Collector):
    """Collector of one registry. server: restrict it to that server; empty: the whole factory."""

    def __init__(self, board: Board, clock: Callable[[], float], server: str = "") -> None:
        self._board, self._clock, self._server = board, clock, server
        self._fleet = (
            FleetHistograms("round_trip_s", "rfm_fleet_round_trip_seconds", "Request to reply, network included", LATENCY_BOUNDS_S),
            FleetHistograms("tick_s", "rfm_fleet_tick_seconds", "Computing time of a control period", TICK_BOUNDS_S),
        )
        self._silence = {"server": Silence(), "robot": Silence()}
        self._began_s = clock()

    def collect(self) -> Iterator[Metric]:
        now_s, board = self._clock(), self._board
        servers = {name: row for name, row in board.servers.items() if self._server in ("", name)}
        yield from _proofs(board)
        yield from _servers(servers, now_s)
        yield _silent("server", self._silence["server"].seconds(servers, now_s))
        if not self._server:
            yield from _schedule(board, self._began_s, now_s)
            yield from _robots(board.robots, now_s)
            yield _silent("robot", self._silence["robot"].seconds(board.robots, now_s))
            yield from _fleet(board, now_s)
            for histograms in self._fleet:
                yield from histograms.collect(board.robots)
            yield from processes(board.processes, now_s)


def _proofs(board: Board) -> Iterator[Metric]:
    family = GaugeMetricFamily("rfm_proof", "1: this is so of statuses and schedules, docs/security.md", labels=["statuses"])
    for proof in Proof:
        family.add_metric([proof.value], board.proof is proof)
    yield family
    unproven = CounterMetricFamily("rfm_unproven_messages", "Statuses and schedules that count for nothing here", labels=["about"])
    for name, count in _bounded(board.unproven).items():
        unproven.add_metric([name], count)
    yield unproven


def _schedule(board: Board, began_s: float, now_s: float) -> Iterator[Metric]:
    """Yield the metrics of the schedule. began_s: beginning of the observation, since when a schedule that never arrived is
    missing."""
    is_received = board.schedule_seen_s > -math.inf
    age_s = now_s - (board.schedule_seen_s if is_received else began_s)
    about = "Since a schedule was last received; if none ever was, since the exporter started"
    yield GaugeMetricFamily("rfm_schedule_age_seconds", about, age_s)
    if not is_received:
        return
    yield GaugeMetricFamily("rfm_schedule_epoch", "Of the newest schedule received", board.schedule_epoch)
    yield GaugeMetricFamily("rfm_schedule_actions_per_second", "System 1 predictions that it plans", board.predicted_actions_hz)
    if not math.isnan(board.gap):
        yield GaugeMetricFamily("rfm_schedule_gap_ratio", "Share of the best possible that it lacks", board.gap)


def _servers(rows: dict[str, ServerRow], now_s: float) -> Iterator[Metric]:
    there = {name: row for name, row in rows.items() if is_up(row, now_s)}
    yield _up("server", rows, now_s)
    rows = {name: row for name, row in rows.items() if row.seen_s > -math.inf}  # otherwise its counters would begin at 0
    yield _states("server", {name: row.state for name, row in there.items()})
    info = InfoMetricFamily("rfm_server", "What a server hosts", labels=["server"])
    for name, row in there.items():
        info.add_metric([name], {"model": row.model, "emulated": str(row.emulated).lower(), "standby": str(row.standby).lower()})
    yield info
    yield from _gauges("server", SERVER_GAUGES, there)
    for word, (since, about) in SINCE.items():
        gauge = GaugeMetricFamily(f"rfm_server_{word}_seconds", about, labels=["server"])
        for name, row in there.items():
            if (since_s := getattr(row, since)) > -math.inf:
                gauge.add_metric([name], max(0.0, now_s - since_s))
        yield gauge
    for field, (word, about) in SERVER_COUNTERS.items():
        counter = CounterMetricFamily(f"rfm_server_{word}", about, labels=["server"])
        for name, row in rows.items():
            counter.add_metric([name], getattr(row, field))
        yield counter
    yield _counted("server", "refused", "reason", "Things refused or dropped", {name: row.refused for name, row in rows.items()})
    yield from _histograms("server", rows, ("queue_wait_s", "inference_s"), {})


def _robots(rows: dict[str, RobotRow], now_s: float) -> Iterator[Metric]:
    there = {name: row for name, row in rows.items() if is_up(row, now_s)}
    yield _up("robot", rows, now_s)
    rows = {name: row for name, row in rows.items() if row.seen_s > -math.inf}
    yield _states("robot", {name: shown_state(row.state, row.phase).lower() for name, row in there.items()})
    info = InfoMetricFamily("rfm_robot", "What a robot does, and whom it asks", labels=["robot"])
    for name, row in there.items():
        info.add_metric([name], {"task": row.task, "server": row.server})
    yield info
    yield from _gauges("robot", ROBOT_GAUGES, there)
    standing = GaugeMetricFamily("rfm_robot_standing_seconds", "How long it has had no action to execute", labels=["robot"])
    for name, row in there.items():
        standing.add_metric([name], max(0.0, now_s - row.standing_since_s))
    yield standing
    held = CounterMetricFamily("rfm_robot_held_periods", "Control periods of a task without an action to execute", labels=["robot"])
    for name, row in rows.items():
        held.add_metric([name], row.held_ticks)
    yield held
    yield _counted("robot", "refused", "reason", "Things refused or dropped", {name: row.refused for name, row in rows.items()})
    fallbacks = {name: row.fallbacks for name, row in rows.items()}
    yield _counted("robot", "fallbacks", "motion", "Rungs of the fallback ladder that were reached", fallbacks)
    entered = {name: _entered(row.transitions) for name, row in rows.items()}
    yield _counted("robot", "transitions", "to", "Changes of the fail-safe state, by the one that follows", entered)
    yield from _answers(rows)
    yield from _sums(rows)
    yield from _histograms("robot", rows, ("staleness_s", "tick_late_s"), ROBOT_BOUNDS)


def _entered(transitions: dict[str, int]) -> dict[str, int]:
    """Return the number of entries into each state: {"STREAMING to DEGRADED": 2, "STALLED to DEGRADED": 1} -> {"degraded": 3}"""
    found: Counter[str] = Counter()
    for change, count in transitions.items():
        found[change.rpartition(" to ")[2].lower()] += count
    return dict(found)


def _answers(rows: dict[str, RobotRow]) -> Iterator[Metric]:
    answers = CounterMetricFamily(
        "rfm_robot_answers", "Answers by their SLO; late ones include those given up", labels=["robot", "component", "slo"]
    )
    for name, row in rows.items():
        for component, figures in list(row.components.items())[:MAX_NAMES]:
            answers.add_metric([name, component, "met"], figures.in_time)
            answers.add_metric([name, component, "missed"], figures.late)
    yield answers


def _sums(rows: dict[str, RobotRow]) -> Iterator[Metric]:
    """Yield only number and sum of round trips, for means of one robot."""
    trips = SummaryMetricFamily("rfm_robot_round_trip_seconds", "Request to reply, network included", labels=["robot", "component"])
    for name, row in rows.items():
        for component, histogram in list(row.histograms.get("round_trip_s", {}).items())[:MAX_NAMES]:
            trips.add_metric([name, component], sum(histogram.counts), histogram.sum)
    yield trips


def _fleet(board: Board, now_s: float) -> Iterator[Metric]:
    """Yield the metrics of all robots together."""
    there = [row for row in board.robots.values() if is_up(row, now_s)]
    slo: dict[tuple[str, str], float] = {}
    for row in there:
        for component, figures in row.components.items():
            key = row.task, component
            if figures.slo_s and (key in slo or len(slo) < MAX_NAMES):
                slo[key] = min(slo.get(key, math.inf), figures.slo_s)
    family = GaugeMetricFamily(
        "rfm_slo_seconds", "Request to reply, the tightest that the schedule promises", labels=["task", "component"]
    )
    for (task, component), seconds in slo.items():
        family.add_metric([task, component], seconds)
    yield family
    if board.schedule_seen_s > -math.inf:
        others = sum(not board.is_followed_by(row) for row in there)
        yield GaugeMetricFamily("rfm_robots_behind_schedule", "Robots that follow another schedule than the newest", others)


def _up(kind: str, rows: dict[str, RobotRow] | dict[str, ServerRow], now_s: float) -> Metric:
    up = GaugeMetricFamily(f"rfm_{kind}_up", f"1: the {kind} tells how it is; 0: it is silent", labels=[kind])
    for name, row in rows.items():
        up.add_metric([name], is_up(row, now_s))
    return up


def _silent(kind: str, seconds: dict[str, float]) -> Metric:
    family = GaugeMetricFamily(f"rfm_{kind}_silent_seconds", f"Since the last status of a {kind} that is silent", labels=[kind])
    for name, silent_s in seconds.items():
        family.add_metric([name], silent_s)
    return family


def _states(kind: str, states: dict[str, str]) -> Metric:
    """Return a gauge of each process' present state. The other states, at 0, would be five series without information."""
    family = GaugeMetricFamily(f"rfm_{kind}_state", "1: this is its state; others are not there", labels=[kind, "state"])
    for name, state in states.items():
        family.add_metric([name, state], 1.0)
    return family


def _gauges(kind: str, fields: dict[str, tuple[str, str]], rows: dict[str, RobotRow] | dict[str, ServerRow]) -> Iterator[Metric]:
    for field, (word, about) in fields.items():
        gauge = GaugeMetricFamily(f"rfm_{kind}_{word}", about, labels=[kind])
        for name, row in rows.items():
            gauge.add_metric([name], getattr(row, field))
        yield gauge


def _counted(kind: str, word: str, label: str, about: str, counts: dict[str, dict[str, int]]) -> Metric:
    counter = CounterMetricFamily(f"rfm_{kind}_{word}", about, labels=[kind, label])
    for name, by_word in counts.items():
        for key, count in _bounded(by_word).items():
            counter.add_metric([name, key], count)
    return counter


def _bounded(counts: dict[str, int]) -> dict[str, int]:
    """Return at most `MAX_NAMES` counts; the remaining ones, in order of their names, are summed as `OTHER`."""
    names = sorted(counts)
    kept = {name: counts[name] for name in names[:MAX_NAMES]}
    if names[MAX_NAMES:]:
        kept[OTHER] = kept.get(OTHER, 0) + sum(counts[name] for name in names[MAX_NAMES:])
    return kept


def _histograms(
    kind: str, rows: dict[str, RobotRow] | dict[str, ServerRow], names: Iterable[str], bounds: Mapping[str, tuple[float, ...]]
) -> Iterator[Metric]:
    """Yield the histograms of processes. bounds: bounds that are kept of a histogram; a missing one keeps all."""
    for name in names:
        word, about = HISTOGRAMS[name]
        family = HistogramMetricFamily(f"rfm_{kind}_{word}", about, labels=[kind])
        for process, row in rows.items():
            for histogram in list(row.histograms.get(name, {}).values())[:1]:
                family.add_metric([process], buckets(histogram, bounds.get(name)), histogram.sum)
        yield family
